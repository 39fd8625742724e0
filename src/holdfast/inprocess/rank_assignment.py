"""Who is which rank in the next life, and who waits in reserve? NVRx's names."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.inprocess.assignment import RankAssignment, RankAssignmentCtx, RankDiscarded, RankFilter
from holdfast.inprocess.state import Mode, State
from holdfast.inprocess.topology import Layer, LayerFlag, Tree

__all__ = [
    "ActivateAllRanks",
    "ActiveWorldSizeDivisibleBy",
    "FillGaps",
    "FilterCountGroupedByKey",
    "Layer",
    "LayerFlag",
    "MaxActiveWorldSize",
    "RankAssignment",
    "RankAssignmentCtx",
    "RankDiscarded",
    "RankFilter",
    "ShiftRanks",
    "Tree",
]


class ActivateAllRanks(RankFilter):
    """All call it."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        return _activated(ctx, ctx.state.world_size)


class MaxActiveWorldSize(RankFilter):
    """So many at most (None: no limit); the last ones wait."""

    def __init__(self, max_active_world_size: int | None = None) -> None:
        self.max_active_world_size = max_active_world_size

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        most = self.max_active_world_size
        return _activated(ctx, _active(ctx.state) if most is None else min(_active(ctx.state), most))


class ActiveWorldSizeDivisibleBy(RankFilter):
    """As many as `divisor` divides; the last ones wait."""

    def __init__(self, divisor: int = 1) -> None:
        self.divisor = divisor

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        return _activated(ctx, _active(ctx.state) // self.divisor * self.divisor)


def _active(state: State) -> int:
    """How many would be active, as far as has been said."""
    return state.world_size if state.active_world_size is None else min(state.active_world_size, state.world_size)


def _activated(ctx: RankAssignmentCtx, size: int) -> RankAssignmentCtx:
    rank = ctx.state.rank
    is_active = rank is not None and rank < size
    mode = Mode.ACTIVE if is_active else Mode.INACTIVE
    state = dataclasses.replace(ctx.state, mode=mode, active_rank=rank if is_active else None, active_world_size=size)
    return dataclasses.replace(ctx, state=state)


class ShiftRanks(RankAssignment):
    """All behind one that is gone move up: the order stays."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """RankDiscarded: this one is gone."""
        rank = _alive(ctx)
        return _assigned(ctx, rank - sum(gone < rank for gone in ctx.terminated_ranks))


class FillGaps(RankAssignment):
    """The last ones take the places of those that are gone: the others keep theirs."""

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """RankDiscarded: this one is gone."""
        rank, gone = _alive(ctx), set(ctx.terminated_ranks)
        size = ctx.state.world_size - len(gone)
        movers = [mover for mover in range(size, ctx.state.world_size) if mover not in gone]
        gaps = sorted(gap for gap in gone if gap < size)
        return _assigned(ctx, dict(zip(movers, gaps, strict=True)).get(rank, rank))


def _alive(ctx: RankAssignmentCtx) -> int:
    rank = ctx.state.rank
    if rank is None or rank in ctx.terminated_ranks:
        raise RankDiscarded(f"rank {rank} is not of the next life; gone are ranks {sorted(ctx.terminated_ranks)}")
    return rank


def _assigned(ctx: RankAssignmentCtx, rank: int) -> RankAssignmentCtx:
    size = ctx.state.world_size - len(ctx.terminated_ranks)
    return dataclasses.replace(ctx, state=dataclasses.replace(ctx.state, rank=rank, world_size=size), terminated_ranks=set())


_filters = itertools.count()
"""Several of them have keys of their own in the store, the same in all ranks."""


class FilterCountGroupedByKey(RankAssignment):
    """Where not enough of a group is left, the rest of it goes too. To be followed by an assignment that fills the gaps."""

    def __init__(
        self,
        key_or_fn: Any,
        condition: Callable[[int], bool],
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        """`key_or_fn`: the group, or a function of the `State` that says it. `condition(count)`: whether so many of a group are
        enough. `timeout`: how long ranks wait for one another."""
        self.key_or_fn, self.condition, self.timeout = key_or_fn, condition, timeout
        self.name = f"filter_{next(_filters)}"

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """BarrierTimeout: not all ranks that live have come."""
        rank, store = ctx.state.rank, ctx.store
        if rank in ctx.terminated_ranks:
            return ctx
        group = self.key_or_fn(ctx.state) if callable(self.key_or_fn) else self.key_or_fn
        alive = ctx.state.world_size - len(ctx.terminated_ranks)
        store.add(f"{self.name}_{group}", 1)
        store.barrier([rank], f"{self.name}_counted", alive, self.timeout)
        if not self.condition(store.add(f"{self.name}_{group}", 0)):
            store.put(f"{self.name}_going", [rank])
        store.barrier([rank], f"{self.name}_said", alive, self.timeout)
        going = {int(one) for one in store.all_put(f"{self.name}_going")}
        return dataclasses.replace(ctx, terminated_ranks={*ctx.terminated_ranks, *going})
