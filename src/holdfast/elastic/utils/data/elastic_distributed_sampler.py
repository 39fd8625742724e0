"""Which samples does this rank read, when the job goes on in the middle of an epoch with another number of ranks?

`ElasticDistributedSampler` is a subclass of torch's `DistributedSampler`, so the class is made at its first use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from functools import cache
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "ElasticDistributedSampler":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _make_class() -> type:
    torch = import_module("torch")
    base: Any = import_module("torch.utils.data.distributed").DistributedSampler

    class ElasticDistributedSampler(base):  # type: ignore[misc]
        """Spreads the samples from `start_index` on over the ranks, shuffled by epoch; `len()` is one rank's share."""

        def __init__(
            self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, start_index: int = 0
        ) -> None:
            if not isinstance(dataset, Sized):
                raise TypeError("Dataset must be an instance of collections.abc.Sized")
            super().__init__(dataset=dataset, num_replicas=num_replicas, rank=rank)
            if start_index >= len(dataset):
                raise ValueError(f"Start index {start_index} should be less than dataset size {len(dataset)}")
            self.start_index = start_index
            self.num_samples = math.ceil((len(dataset) - start_index) / self.num_replicas)
            self.total_size = self.num_samples * self.num_replicas

        def __iter__(self) -> Iterator[int]:
            shuffle = torch.Generator()
            shuffle.manual_seed(self.epoch)
            left = len(self.dataset) - self.start_index
            order = [self.start_index + index for index in torch.randperm(left, generator=shuffle).tolist()]
            # Every rank gets the same number, so some samples come again, as often as it takes.
            order = (order * math.ceil(self.total_size / left))[: self.total_size]
            return iter(order[self.rank :: self.num_replicas])

        def __len__(self) -> int:
            return int(self.num_samples)

    # Found again by this name when a DataLoader's worker unpickles one.
    ElasticDistributedSampler.__qualname__ = "ElasticDistributedSampler"
    return ElasticDistributedSampler
