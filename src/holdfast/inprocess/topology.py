"""Who takes whose place, where ranks stand in groups within groups (racks, nodes)? A pure decision, the same in all ranks.

    root ── layer 0 ──▶ groups ── layer 1 ──▶ groups … ──▶ ranks

Each layer says of its groups how many ranks one needs to go on at all, how many of them are active at most, and whether a lost
rank is replaced from the group's reserve, or by the group's last active ranks. What is still open then is closed by moving up.
"""

from __future__ import annotations

import dataclasses
import enum
import heapq
import itertools
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.inprocess.assignment import RankAssignment, RankAssignmentCtx, RankDiscarded
from holdfast.inprocess.state import Mode, State


class LayerFlag(enum.Flag):
    """How a lost rank is replaced within the groups of a layer."""

    RESERVE = enum.auto()  # By one that waits.
    BACKFILL = enum.auto()  # By the active one with the highest rank.


@dataclasses.dataclass
class Layer:
    """What holds for each group of a layer. `key_or_fn`: the group's name, or a function of the `State` that says it."""

    min_ranks: int = 1
    max_ranks: int | None = None  # None: all are active.
    key_or_fn: Any = ""
    flag: LayerFlag | None = None


class Group:
    """Ranks that stand together, and the groups among them."""

    def __init__(self, layer: Layer, parent: Group | None) -> None:
        self.layer, self.parent = layer, parent
        self.within: dict[Any, Group] = {}
        self.leaves: list[Leaf] = []  # Of the innermost groups alone.
        self.active = 0
        self.reserve: dict[int | None, Leaf] = {}  # By initial rank; the last one is taken first.

    def has(self, flag: LayerFlag) -> bool:
        """Whether its layer says so."""
        return self.layer.flag is not None and flag in self.layer.flag

    def activates(self) -> None:
        """One more of it is active."""
        self.active += 1

    def all_leaves(self) -> Iterator[Leaf]:
        """Depth first."""
        yield from self.leaves
        for group in self.within.values():
            yield from group.all_leaves()


class Leaf:
    """One rank in its innermost group."""

    def __init__(self, state: State, parent: Group) -> None:
        self.state, self.parent = state, parent

    def groups(self) -> Iterator[Group]:
        """All that it is in, the innermost first."""
        group: Group | None = self.parent
        while group is not None:
            yield group
            group = group.parent

    def becomes(self, **changes: Any) -> None:
        """Its state is another in these."""
        self.state = dataclasses.replace(self.state, **changes)

    def wait(self) -> None:
        """In reserve."""
        self.becomes(mode=Mode.INACTIVE, active_rank=None)
        for group in self.groups():
            group.reserve[self.state.initial_rank] = self

    def leave_reserve(self, mode: Mode, active_rank: int | None) -> None:
        """It is active now, or gone."""
        self.becomes(mode=mode, active_rank=active_rank)
        for group in self.groups():
            group.reserve.pop(self.state.initial_rank, None)

    def backfill_domain(self) -> Group | None:
        """The largest group in which others move to its place."""
        return next(reversed([*itertools.takewhile(lambda group: group.has(LayerFlag.BACKFILL), self.groups())]), None)


class Tree(RankAssignment):
    """Assigns ranks and says who is active, by topology. Not to be composed with another assignment."""

    def __init__(self, layers: list[Layer], world_size_filter: Callable[[int], int] | None = None) -> None:
        """`layers`: from the root, which is one group, inwards. `world_size_filter(active)`: how many of so many active ranks
        the function can use; the others wait."""
        self.layers, self.world_size_filter = layers, world_size_filter
        self.root: Group | None = None
        self.init_rank_map: dict[int | None, Leaf] = {}  # By initial rank.
        self.rank_map: dict[int, Leaf] = {}

    def __call__(self, ctx: RankAssignmentCtx) -> RankAssignmentCtx:
        """RankDiscarded: this rank is gone, or its group is. RuntimeError: not all ranks are in one root."""
        if self.root is None:
            self.root = self._build(ctx.state, ctx.store)
        gone = [self.rank_map[rank] for rank in sorted(self._with_their_groups(self.root, set(ctx.terminated_ranks)))]
        lost = [leaf for leaf in gone if leaf.state.mode is Mode.ACTIVE]
        for leaf in gone:
            leaf.leave_reserve(Mode.TERMINATED, leaf.state.active_rank)
        open_places = [leaf for leaf in lost if not _replaced(leaf)]
        vacated = sorted(rank for rank in _backfilled(open_places) if rank is not None)
        for leaf in self.init_rank_map.values():
            rank, size = leaf.state.active_rank, (leaf.state.active_world_size or 0) - len(open_places)
            rank = None if rank is None else rank - bisect_left(vacated, rank)
            leaf.becomes(active_rank=rank, active_world_size=size, world_size=leaf.state.world_size - len(gone))
        for leaf in gone:
            leaf.becomes(rank=None, active_rank=None)
        self._filter()
        self._count()
        mine = self.init_rank_map[ctx.state.initial_rank].state
        if mine.mode is Mode.TERMINATED:
            raise RankDiscarded(f"rank {ctx.state.rank} is not of the next life: it, or too much of its group, is gone")
        state = dataclasses.replace(mine, iteration=ctx.state.iteration, fn_exception=ctx.state.fn_exception)
        return dataclasses.replace(ctx, state=state, terminated_ranks=set())

    def _build(self, state: State, store: Any) -> Group:
        """From what all ranks say of themselves."""
        key = [layer.key_or_fn(state) if callable(layer.key_or_fn) else layer.key_or_fn for layer in self.layers]
        store.send_state(state, state.rank)
        store.send_key(key, state.rank)
        ranks = range(state.world_size)
        states, keys = store.get_states(ranks), store.get_keys(ranks)
        if len(roots := {one[0] for one in keys}) != 1:
            raise RuntimeError(f"the first layer has to be one group, and the ranks say {sorted(map(str, roots))}")
        root = Group(self.layers[0], None)
        for (_, *names), one in zip(keys, states, strict=True):
            group = root
            for name, layer in zip(names, self.layers[1:], strict=True):
                group = group.within.setdefault(name, Group(layer, group))
            leaf = Leaf(dataclasses.replace(one), group)
            group.leaves.append(leaf)
            self.init_rank_map[one.initial_rank] = self.rank_map[one.rank] = leaf
        leaves = [*root.all_leaves()]
        if any(leaf.state.rank != place for place, leaf in enumerate(leaves)):
            warnings.warn(
                "ranks of one group do not follow one another: the topology is not the launcher's order", stacklevel=3
            )
        active = 0
        for leaf in leaves:
            if all(group.layer.max_ranks is None or group.active < group.layer.max_ranks for group in leaf.groups()):
                leaf.becomes(mode=Mode.ACTIVE, active_rank=active)
                active += 1
                for group in leaf.groups():
                    group.activates()
            else:
                leaf.wait()
        for leaf in leaves:
            leaf.becomes(active_world_size=active)
        return root

    def _with_their_groups(self, group: Group, gone: set[int]) -> set[int]:
        """Who is gone too, since too few of their group are left: inner groups first."""
        for inner in group.within.values():
            gone = self._with_their_groups(inner, gone)
        left = {leaf.state.rank for leaf in group.all_leaves() if leaf.state.rank is not None} - gone
        return gone | left if len(left) < group.layer.min_ranks else gone

    def _filter(self) -> None:
        leaves = [*self.init_rank_map.values()]
        if self.world_size_filter is None:
            return
        size = self.world_size_filter(leaves[0].state.active_world_size or 0)
        for leaf in leaves:
            leaf.becomes(active_world_size=size)
            if leaf.state.active_rank is not None and leaf.state.active_rank >= size:
                leaf.wait()

    def _count(self) -> None:
        """Ranks in the order of the topology."""
        assert self.root is not None
        alive = [leaf for leaf in self.root.all_leaves() if leaf.state.mode is not Mode.TERMINATED]
        self.rank_map = dict(enumerate(alive))
        for rank, leaf in self.rank_map.items():
            leaf.becomes(rank=rank)


def _replaced(lost: Leaf) -> bool:
    """By one in reserve, the nearest first."""
    for group in itertools.takewhile(lambda group: group.has(LayerFlag.RESERVE), lost.groups()):
        if group.reserve:
            taken = group.reserve[next(reversed(group.reserve))]
            taken.leave_reserve(Mode.ACTIVE, lost.state.active_rank)
            return True
    return False


def _backfilled(open_places: list[Leaf]) -> list[int | None]:
    """Let the last active ranks of each domain move to the places that are open there; which active ranks are nobody's then."""
    vacated: list[int | None] = []
    domains: dict[int, tuple[Group, list[Leaf]]] = {}
    for leaf in open_places:
        if (domain := leaf.backfill_domain()) is None:
            vacated.append(leaf.state.active_rank)
        else:
            domains.setdefault(id(domain), (domain, []))[1].append(leaf)
    for domain, lost in domains.values():
        active = [leaf for leaf in domain.all_leaves() if leaf.state.mode is Mode.ACTIVE]
        last = heapq.nlargest(len(lost), active, key=lambda leaf: leaf.state.active_rank or 0)
        for mover, leaf in itertools.zip_longest(reversed(last), lost):
            vacated.append((mover or leaf).state.active_rank)
            if mover is not None:
                mover.becomes(active_rank=leaf.state.active_rank)
    return vacated
