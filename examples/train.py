"""Data-parallel training with PyTorch that survives any restart, and ends with the same loss as if nothing had happened.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/train.py --checkpoint /tmp/demo/checkpoint.pt

An ordinary torchrun script: Holdfast restarts it, and the script has to do only two things to lose nothing but the steps
since its last checkpoint: save everything that the next step depends on, and start from what was saved.
"""

import argparse
import io
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.client import commit

SAMPLES_PER_RANK = 32
FEATURES = 16


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What `rank` learns from in `step`: a function of the two alone, so that a step done again is the same step."""
    numbers = torch.Generator().manual_seed(1_000_003 * step + rank)
    inputs = torch.randn(SAMPLES_PER_RANK, FEATURES, generator=numbers)
    return inputs, torch.sin(inputs[:, :1]) + 0.5 * inputs[:, 1:2] * inputs[:, 2:3]


def save(path: str, content: dict) -> None:
    """Write the checkpoint beside the old one, then swap: whoever is killed or stopped meanwhile leaves the old one whole."""
    with commit(path) as aside:
        torch.save(content, aside)


def load(path: str) -> dict | None:
    """The last checkpoint, the same for every rank: rank 0 reads it and hands it to the others."""
    content = b""
    if dist.get_rank() == 0 and os.path.exists(path):
        with open(path, "rb") as file:
            content = file.read()
    length = torch.tensor(len(content))
    dist.broadcast(length, src=0)
    if length == 0:
        return None
    buffer = bytearray(content or int(length))
    dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), src=0)
    return torch.load(io.BytesIO(buffer), weights_only=True)


def from_every_rank(mine: torch.Tensor) -> list[torch.Tensor]:
    """What each rank gave, in the order of ranks."""
    given = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(given, mine)
    return given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="file to save to and to start from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes at least")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # rank, world size and meeting point come from the environment
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # the same first weights on every rank
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Dropout(0.02), nn.Linear(64, 1)).double()
    torch.manual_seed(rank)  # but each rank drops out other neurons
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    first, shown = 0, ""
    if saved := load(options.checkpoint):
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"][rank])  # the world size is constant here, so each rank finds its own
        first, shown = saved["step"], saved["loss"]
    if rank == 0:
        print(f"{world_size} ranks, starting at step {first}", flush=True)

    for step in range(first, options.steps):
        begun = time.monotonic()
        inputs, wanted = (part.double() for part in batch(step, rank))
        loss = nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()  # here the ranks meet: if one is missing, the others wait or fail, and Holdfast steps in
        optimizer.step()

        done = step + 1
        dist.all_reduce(mean := loss.detach() / world_size)
        if done % options.save_every == 0 or done == options.steps:
            shown = f"{mean.item():.12f}"
            content = {"step": done, "loss": shown, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
            content["random"] = from_every_rank(torch.get_rng_state())
            if rank == 0:
                save(options.checkpoint, content)
                print(f"step {done} loss {shown}", flush=True)
        time.sleep(max(0.0, begun + options.step_s - time.monotonic()))

    if rank == 0:
        print(f"finished: final loss {shown}", flush=True)
    # DDP holds the process group. Freed together with the model, after this function's end, its threads can wait for Python
    # forever while Python waits for them (torch 2.13, gloo); without the model, destroy_process_group() ends them in order.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
