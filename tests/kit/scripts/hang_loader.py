"""A training script whose data loader works in a process of its own, which in the first life of rank 1 hangs in step 3.

With the argument `told` the script tells what it does, else it knows nothing of Holdfast."""

from __future__ import annotations

import contextlib
import os
import sys

import hanging
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

HANGS = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

loading = contextlib.nullcontext
if sys.argv[1] == "told":
    from holdfast import client

    loading = lambda: client.section("data")


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, step: int) -> torch.Tensor:
        if HANGS and step == 3:
            hanging.loading()
        return torch.ones(4)


distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Numbers(), num_workers=1))
for _ in range(6):
    with loading():
        batch = next(batches)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
del model
distributed.barrier()
os.write(1, f"rank {os.environ['RANK']} is done\n".encode())
os._exit(0)
