"""Data-parallel training that loses one step at most when a rank dies, without writing a checkpoint each step.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/train_stashed.py --kill-each 20

The state is left in the node's memory after every step (`holdfast.client.stash`), and on disk only now and then, for the day on
which a node is lost. With --kill-each one rank after the other kills itself, to show it.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.client import stash


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rank` learns from in `step`: a function of the two alone, so that a step done again is the same step."""
    numbers = torch.Generator().manual_seed(1_000_003 * step + rank)
    inputs = torch.randn(32, 16, generator=numbers)
    return inputs, torch.sin(inputs[:, :1]) + 0.5 * inputs[:, 1:2] * inputs[:, 2:3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-each", type=int, default=0, help="steps after which a rank kills itself; 0: none does")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    first = 0
    if found := stash.latest():  # else: start from the last checkpoint on disk, if there is one
        last, state = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = last + 1
        if rank == 0:
            print(f"life {life}: lost {options.kill_each * life - last} of the steps so far", flush=True)

    replica = DistributedDataParallel(model)
    for step in range(first, options.steps):
        inputs, targets = batch(step, rank)
        loss = nn.functional.mse_loss(replica(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.kill_each and step == options.kill_each * (life + 1) and rank == life % dist.get_world_size():
            os.kill(os.getpid(), signal.SIGKILL)
        stash.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    dist.all_reduce(loss.detach())
    if rank == 0:
        print(f"finished: final loss {loss.item() / dist.get_world_size():.12f}", flush=True)
    dist.barrier()
    # DDP holds the process group. Freed together with the model, after this function's end, its threads can wait for Python
    # forever while Python waits for them (torch 2.13, gloo); without the model, destroy_process_group() ends them in order.
    del replica
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
