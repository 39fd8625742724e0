"""An ordinary loop with DDP whose ranks keep their processes when another fails. Lines with a number are what that takes.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/in_place_ddp.py --fail-at 10

The loss is the same with --fail-at and without, to the last digit, and no step is made twice.
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast import client  # 1

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--fail-at", type=int, default=-1, help="the last rank kills itself in this step, once")
options = parser.parse_args()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))


def train(life: client.Life) -> None:  # 2
    dist.init_process_group("gloo")
    rank, is_last = dist.get_rank(), dist.get_rank() == dist.get_world_size() - 1
    net = life.state.keep("net", network)  # 3: was network()
    optimizer = life.state.keep("optimizer", lambda: torch.optim.AdamW(net.parameters(), lr=0.01))  # 4
    first = life.state.begin()  # 5: was 0, or the checkpoint's step
    model = DistributedDataParallel(net)
    sys.stdout.write(f"life {life.number} of process {os.getpid()}, rank {rank}, from step {first}\n")  # as one: all share it
    sys.stdout.flush()
    for step in range(first, options.steps):
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :1]))
        if step == options.fail_at and is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(mean := loss.detach() / dist.get_world_size())
    if rank == 0:
        print(f"finished: step {options.steps}, loss {mean.item():.12f}", flush=True)
    dist.destroy_process_group()


client.run_in_place(train)  # 6: was train()
