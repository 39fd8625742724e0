"""Sharding and repeating a dataset across restarts of an elastic job."""

from __future__ import annotations

from typing import Any

from .cycling_iterator import CyclingIterator

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]


def __getattr__(name: str) -> Any:
    if name == "ElasticDistributedSampler":  # a subclass of one of torch's: made when it is asked for
        from . import elastic_distributed_sampler

        return elastic_distributed_sampler.ElasticDistributedSampler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
