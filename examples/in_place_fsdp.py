"""A loop in torchtitan's style (FSDP2, plain torch) whose ranks keep their processes when another fails.

    holdfast run --nproc-per-node 4 --max-restarts 3 examples/in_place_fsdp.py --replicas 2 --fail-at 5

With two replicas, whoever is lost is given its part by the rank that has the same. The loss is the same with --fail-at and
without.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast import client

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--replicas", type=int, default=2, help="copies of the model, each spread over the ranks of one group")
parser.add_argument("--fail-at", type=int, default=-1, help="the last rank kills itself in this step, once")
options = parser.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Transformer(nn.Module):
    """Two layers, which learn to say a sequence of tokens again."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2))
        self.output = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.tokens(tokens)
        for layer in self.layers:
            found = layer(found)
        return self.output(found.flatten(0, 1))


def parallelized() -> nn.Module:
    """The model, spread over the mesh of this life."""
    torch.manual_seed(0)
    model = Transformer().to(DEVICE)
    mesh = init_device_mesh(
        DEVICE, (options.replicas, dist.get_world_size() // options.replicas), mesh_dim_names=("dp_replicate", "dp_shard")
    )
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(step * 1000 + rank)).to(DEVICE)


def train(life: client.Life) -> None:
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group()
    rank, is_last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    state = life.state
    model = state.keep("model", parallelized)
    optimizer = state.keep("optimizer", lambda: torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = state.keep("schedule", lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)))
    first = state.begin()
    print(f"life {life.number} of process {os.getpid()}, rank {rank}", flush=True)
    for step in range(first, options.steps):
        tokens = batch(step, rank)
        loss = nn.functional.cross_entropy(model(tokens), tokens.flatten())
        if step == options.fail_at and is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with life.update():
            optimizer.step()
            schedule.step()
        optimizer.zero_grad()
    loss = loss.detach()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"finished: step {state.step}, loss {loss.item() / dist.get_world_size():.12f}", flush=True)
    dist.destroy_process_group()


client.run_in_place(train)
