"""A training script that knows nothing of Holdfast. In its first life rank 1 hangs in step 3, as the argument says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import hanging
import light_torch  # noqa: F401 - before torch
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

KIND, RANK, FIRST = sys.argv[1], int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def hang(step: int, *, in_loader: bool) -> None:
    if FIRST and RANK == 1 and step == 3 and in_loader == (KIND == "loading"):
        getattr(hanging, KIND)()


class Numbers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(6):
            hang(step, in_loader=True)
            yield torch.ones(2, 4)


distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(DataLoader(Numbers(), batch_size=None, num_workers=0)):
    hang(step, in_loader=False)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
# gloo aborts a rank whose peer is gone while its own threads still listen: all come to the end before one leaves, and without a
# model that holds on to the group.
del model
distributed.barrier()
os.write(1, f"rank {RANK} is done\n".encode())
os._exit(0)
