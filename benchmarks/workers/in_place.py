"""A rank that trains with DDP, and begins again in its own process when another is killed. It notes each life's first step.

in_place.py agent [MB]  client.run_in_place, beside an agent; so many megabytes more are kept, which do not change. Who is
                        given them notes how long that took, and in the first life how long as many take by gloo's own send
in_place.py PACKAGE     that package's `inprocess.Wrapper`, with no launcher
"""

import os
import sys
import time
from contextlib import nullcontext
from importlib import import_module

import torch
import torch.distributed as dist
from note import has_been, note


def train(life, model, optimizer, update):
    """Until it is over, which the first rank sees for both."""
    ddp, is_over, first = torch.nn.parallel.DistributedDataParallel(model), torch.zeros(1), True
    while not is_over:
        optimizer.zero_grad()
        ddp(torch.ones(4, 64)).sum().backward()
        with update():
            optimizer.step()
        if first:
            note(f"step{life}")
        first = False
        time.sleep(0.01)  # the GPU works: spares are made of what is left of the CPU
        is_over += dist.get_rank() == 0 and has_been("over")
        dist.all_reduce(is_over)
    dist.destroy_process_group()


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.01)


if sys.argv[1] == "agent":
    from holdfast import client

    def in_place(life):
        dist.init_process_group("gloo")
        model = life.state.keep("model", network)
        optimizer = life.state.keep("optimizer", lambda: sgd(model))
        more = life.state.keep("more", lambda: torch.nn.Embedding(int((*sys.argv, 0)[2]) * 1000, 250))
        number, asks = int(os.environ["HOLDFAST_ROUND"]) - 1, time.monotonic()
        life.state.begin()
        if len(sys.argv) > 2:
            if not number:
                dist.barrier()
                asks = time.monotonic()
                dist.recv(more.weight.detach(), 0) if dist.get_rank() else dist.send(more.weight.detach(), 1)
            if dist.get_rank():  # it is the one that is killed
                note(f"asks{number}", asks)
                note(f"given{number}")
        train(number, model, optimizer, life.update)

    client.run_in_place(in_place)
else:
    inprocess = import_module(f"{sys.argv[1]}.inprocess")
    model = network()
    optimizer = sgd(model)
    at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    base = dist.TCPStore(*at, is_master=os.environ["RANK"] == "0", wait_for_workers=False)

    @inprocess.Wrapper()
    def wrapped(call: inprocess.CallWrapper = None):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=dist.PrefixStore(f"life{call.iteration}", base), rank=rank, world_size=size)
        train(call.iteration, model, optimizer, nullcontext)

    wrapped()
