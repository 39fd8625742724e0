"""Who is which rank in the next life: `inprocess.rank_assignment`, NVRx's and ours."""

from __future__ import annotations

import importlib
import multiprocessing
import random
import warnings
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch


@pytest.fixture(params=["nvrx", "ours"])
def names(request: pytest.FixtureRequest) -> ModuleType:
    """NVRx's `inprocess`, then ours."""
    if request.param == "nvrx":
        pytest.importorskip("nvidia_resiliency_ext", reason="no NVRx to compare with: make nvrx")
        return importlib.import_module("nvidia_resiliency_ext.inprocess")
    return importlib.import_module("holdfast.inprocess")


class Said:
    """A store in which all ranks have said their part already."""

    def __init__(self, names: ModuleType, size: int, layers: list[Any]) -> None:
        self.states = [names.State(rank, size) for rank in range(size)]
        self.keys = [
            [layer.key_or_fn(state) if callable(layer.key_or_fn) else layer.key_or_fn for layer in layers]
            for state in self.states
        ]

    def send_state(self, state: Any, rank: int) -> None:
        """It stands there."""

    def send_key(self, key: Any, rank: int) -> None:
        """Likewise."""

    def get_states(self, ranks: Any) -> list[Any]:
        return [self.states[rank] for rank in ranks]

    def get_keys(self, ranks: Any) -> list[Any]:
        return [self.keys[rank] for rank in ranks]


class Topology:
    """A `Tree` as rank 0 sees it, life after life."""

    def __init__(self, names: ModuleType, size: int, *layers: dict[str, Any]) -> None:
        self.of = names.rank_assignment
        made = [self.of.Layer(**layer) for layer in layers]
        store = Said(names, size, made)
        self.tree = self.of.Tree(made)
        self.ctx = self.of.RankAssignmentCtx(store.states[0], store, set())

    def lose(self, *ranks: int) -> list[int | None]:
        """The active rank of each initial rank, once these (by their present numbers) are gone."""
        self.ctx.terminated_ranks = set(ranks)
        try:
            self.ctx = self.tree(self.ctx)
        except self.of.RankDiscarded:
            self.is_out = True
        return [self.tree.init_rank_map[rank].state.active_rank for rank in range(len(self.tree.init_rank_map))]


def by(count: int) -> Any:
    return lambda state: state.rank // count


RESERVE, BACKFILL = "RESERVE", "BACKFILL"


def flag(names: ModuleType, *which: str) -> Any:
    kinds = [names.rank_assignment.LayerFlag[one] for one in which]
    return kinds[0] | kinds[-1] if kinds else None


@pytest.mark.parametrize(
    "outer, inner, expected",
    [
        ([BACKFILL], [BACKFILL], [0, None, 2, 3, 4, 5, 6, 1]),
        ([], [BACKFILL], [0, None, 2, 1, 3, 4, 5, 6]),
        ([], [], [0, None, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_last_of_a_group_takes_a_place_in_it(names: ModuleType, outer: Any, inner: Any, expected: Any) -> None:
    layers = {"flag": flag(names, *outer)}, {"key_or_fn": by(4), "flag": flag(names, *inner)}
    assert Topology(names, 8, *layers).lose(1) == expected


def test_who_waits_nearby_takes_a_place_first(names: ModuleType) -> None:
    layers = {"flag": flag(names, RESERVE)}, {"max_ranks": 3, "key_or_fn": by(4), "flag": flag(names, RESERVE)}
    topology = Topology(names, 8, *layers)
    assert topology.lose(1) == [0, None, 2, 1, 3, 4, 5, None]
    assert topology.lose(3) == [0, None, 2, 1, None, 4, 5, 3]
    assert topology.lose(1) == [0, None, None, 1, None, 3, 4, 2]


def test_with_too_few_of_it_left_a_group_goes(names: ModuleType) -> None:
    assert Topology(names, 8, {}, {"min_ranks": 3, "key_or_fn": by(4)}).lose(0, 2) == [None] * 4 + [0, 1, 2, 3]
    assert Topology(names, 8, {"min_ranks": 7}, {"key_or_fn": by(4)}).lose(0, 5) == [None] * 8


def test_all_of_it_at_once(names: ModuleType) -> None:
    both = flag(names, RESERVE, BACKFILL)
    topology = Topology(names, 12, {"flag": both}, {"min_ranks": 2, "max_ranks": 3, "key_or_fn": by(4), "flag": both})
    topology.lose()
    assert topology.lose(0, 1, 2) == [None, None, None, None, 3, 4, 5, 1, 6, 7, 2, 0]


def test_all_ranks_have_one_root_and_groups_in_a_row(names: ModuleType) -> None:
    with pytest.raises(RuntimeError):
        Topology(names, 8, {"key_or_fn": lambda state: state.rank % 2}).lose()
    with pytest.warns(UserWarning):
        Topology(names, 8, {}, {"key_or_fn": lambda state: state.rank % 2}).lose()


def played(names: ModuleType, seed: int) -> list[list[int | None]]:
    """Some topology, some of whose ranks are lost again and again."""
    chance = random.Random(seed)
    size = 2 ** chance.randint(3, 6)
    layers: list[dict[str, Any]] = [{"key_or_fn": "root"}]
    width = size
    while width > 2 and chance.random() < 0.7:
        width //= 2 ** chance.randint(1, 2)
        layers.append({"key_or_fn": by(max(width, 1)), "max_ranks": chance.choice([None, max(width // 2, 1), width])})
        layers[-1]["min_ranks"] = chance.choice([1, 1, max(width // 2, 1)])
    for layer in layers:
        layer["flag"] = flag(names, *chance.choice([[], [RESERVE], [BACKFILL], [RESERVE, BACKFILL]]))
    topology = Topology(names, size, *layers)
    found = [topology.lose()]
    for _ in range(4):
        alive = topology.ctx.state.world_size
        found.append(topology.lose(*chance.sample(range(1, alive), min(chance.randint(1, 4), alive - 1))))
        if hasattr(topology, "is_out"):
            break
    return found


def test_every_topology_ends_as_nvrx_s_does() -> None:
    theirs = pytest.importorskip("nvidia_resiliency_ext.inprocess", reason="no NVRx to compare with: make nvrx")
    ours = importlib.import_module("holdfast.inprocess")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(400):
            assert played(ours, seed) == played(theirs, seed), seed


def ranks_after(names: ModuleType, assignment: Any, gone: set[int], size: int = 8) -> list[int | None]:
    of, found = names.rank_assignment, list[int | None]()
    for rank in range(size):
        try:
            ctx = assignment(of.RankAssignmentCtx(names.State(rank, size), None, set(gone)))
        except of.RankDiscarded:
            found.append(None)
            continue
        assert ctx.state.world_size == size - len(gone) and ctx.terminated_ranks == set()
        found.append(ctx.state.rank)
    return found


def test_all_move_up(names: ModuleType) -> None:
    shift = names.rank_assignment.ShiftRanks()
    assert ranks_after(names, shift, {1, 4, 5}) == [0, None, 1, 2, None, None, 3, 4]
    assert ranks_after(names, shift, set()) == [*range(8)]
    assert ranks_after(names, shift, set(range(8))) == [None] * 8


def test_the_last_ones_fill_the_gaps(names: ModuleType) -> None:
    assert ranks_after(names, names.rank_assignment.FillGaps(), {1, 2, 7}) == [0, None, None, 3, 4, 1, 2, None]


def test_no_gap_is_left_where_one_of_the_last_is_gone_too() -> None:
    """NVRx 0.4 gives rank 7 the number 5 of 5 here."""
    ours = importlib.import_module("holdfast.inprocess")
    assert ranks_after(ours, ours.rank_assignment.FillGaps(), {1, 4, 5}) == [0, None, 2, 3, None, None, 1, 4]


@pytest.mark.parametrize(
    "filters, active",
    [("MaxActiveWorldSize(5)", 5), ("ActiveWorldSizeDivisibleBy(3)", 6), ("MaxActiveWorldSize(None)", 8)],
)
def test_who_is_too_many_waits(names: ModuleType, filters: str, active: int) -> None:
    of = names.rank_assignment
    kind, _, given = filters.rstrip(")").partition("(")
    one = getattr(of, kind)(None if given == "None" else int(given))
    states = [one(of.RankAssignmentCtx(names.State(rank, 8), None, set())).state for rank in range(8)]
    assert [state.active_rank for state in states] == [*range(active), *[None] * (8 - active)]
    assert {state.active_world_size for state in states} == {active}


def _filters(names: ModuleType, store: Any, rank: int, gone: set[int], found: Any) -> None:
    of = names.rank_assignment
    one = of.FilterCountGroupedByKey(key_or_fn=lambda state: str(state.rank // 2), condition=lambda count: count == 2)
    ctx = of.RankAssignmentCtx(names.State(rank, 8), store, set(gone))
    found.put((rank, sorted(one(ctx).terminated_ranks)))


def test_what_is_left_of_a_broken_group_goes_too(tmp_path: Any) -> None:
    names = importlib.import_module("holdfast.inprocess")
    store = names.store.FileStore(str(tmp_path / "store"))
    context = multiprocessing.get_context("fork")
    found, gone = context.Queue(), {1, 4, 5, 6}
    ranks = [context.Process(target=_filters, args=(names, store, rank, gone, found)) for rank in range(8) if rank not in gone]
    for rank in ranks:
        rank.start()
    assert sorted(found.get(timeout=60) for _ in ranks) == [(rank, [0, 1, 4, 5, 6, 7]) for rank in (0, 2, 3, 7)]
    for rank in ranks:
        rank.join()
