"""Which step do all ranks go on from, and who gives it to whom (`core.page.in_memory`)?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.page.in_memory import HAS_ALL, STASHES, UNKNOWN, Foreseen, Has, Holding, agree, foresee

NOTHING = Has(None, 0)


def has(step: int, round: int = 1, part: int = 0) -> Has:
    return Has((round, step), part)


def test_whoever_has_the_newest_step_gives_it_to_the_others() -> None:
    assert agree([has(9), NOTHING, has(8), has(9)]) == ((1, 9), ((0, 1), (3, 2)))


def test_who_has_it_is_given_nothing() -> None:
    assert agree([has(9), has(9)]).moves == ()


def test_the_same_step_of_a_later_round_is_another_state() -> None:
    assert agree([has(9, round=1), has(5, round=2), NOTHING]) == ((2, 5), ((1, 0), (1, 2)))


def test_without_a_whole_one_nothing_is_agreed_on() -> None:
    assert agree([NOTHING, NOTHING]) == (None, ())


def test_a_part_that_no_rank_has_any_more_cannot_be_given() -> None:
    assert agree([has(9, part=1), Has(None, 2)]) == (None, ())


def test_a_step_of_which_a_part_is_missing_is_left_for_an_older_one_that_is_whole() -> None:
    ranks = [has(10, part=1), has(9, part=1), has(9, part=2), Has(None, 2)]
    assert agree(ranks) == ((1, 9), ((1, 0), (2, 3)))


RANKS = st.lists(
    st.builds(Has, st.none() | st.tuples(st.integers(1, 3), st.integers(0, 4)), st.integers(0, 2)), min_size=1, max_size=12
)


@given(RANKS)
def test_all_end_with_the_same_generation_each_from_one_that_has_its_part(ranks: list[Has]) -> None:
    found = agree(ranks)
    if found.generation is None:
        assert not found.moves
        return
    lacking = [rank for rank, one in enumerate(ranks) if one.generation != found.generation]
    assert [taker for _, taker in found.moves] == lacking
    for giver, taker in found.moves:
        assert ranks[giver] == Has(found.generation, ranks[taker].part)


@given(RANKS)
def test_nothing_newer_would_have_been_enough(ranks: list[Has]) -> None:
    found = agree(ranks).generation
    parts = {one.part for one in ranks}
    for newer in {one.generation for one in ranks if one.generation is not None and (found is None or one.generation > found)}:
        assert {one.part for one in ranks if one.generation == newer} != parts


# --- before the round begins ------------------------------------------------------------------------------------------------


def holds(local_rank: int, step: int, *, rank: int | None = None, of: int = 4, part: int = 0, bits: int = HAS_ALL) -> Holding:
    """What a node of two says of a rank of round 1; step -1: it is torn, or gone."""
    return local_rank, local_rank if rank is None else rank, of, 1, step, part, bits


def seen(*nodes: list[Holding], has_stash: bool = False) -> Foreseen:
    """Two ranks on each node, in order."""
    return foresee([(holdings, 2 * i, 2) for i, holdings in enumerate(nodes)], 2 * len(nodes), has_stash=has_stash)


def test_a_new_node_s_ranks_are_given_what_the_others_hold_alike() -> None:
    found = seen([holds(0, 9), holds(1, 8)], [])
    assert found.generation == (1, 9)
    assert [found.came_from(base, 2) for base in (0, 2)] == [("memory", "rank 0"), ("rank 0", "rank 0")]


def test_who_holds_what_all_hold_may_have_had_another_rank() -> None:
    found = seen([holds(0, 9, rank=6, of=8), holds(1, -1, rank=7, of=8)])
    assert found.came_from(0, 2) == ("memory", "rank 0")


def test_the_part_of_one_that_is_gone_comes_from_who_holds_the_same() -> None:
    found = seen([holds(0, 9), holds(1, -1, part=1)], [holds(0, 9, rank=2), holds(1, 9, rank=3, part=1)])
    assert found.came_from(0, 2) == ("memory", "rank 3")


def test_what_all_hold_differently_is_not_foreseen_of_a_node_that_is_new_or_ranks_that_have_changed() -> None:
    whole = [holds(0, 9), holds(1, 9, part=1)]
    assert seen(whole, []) == UNKNOWN
    assert seen(whole, [holds(0, 9, rank=3), holds(1, 9, rank=2, part=1)]) == UNKNOWN
    assert seen(whole) == UNKNOWN  # which were four


def test_a_part_that_all_who_are_known_hold_need_not_be_what_a_new_one_holds() -> None:
    """FSDP over two nodes, of which one is new."""
    ranks = [holds(0, 9, bits=0), holds(1, 9, bits=0)]
    assert seen(ranks, []) == UNKNOWN
    assert seen([holds(0, 9, rank=2, bits=0), holds(1, 9, rank=3, bits=0)], ranks) == UNKNOWN  # which have changed places
    assert seen(ranks, [holds(0, -1, rank=2, bits=0), holds(1, 9, rank=3, bits=0)]).came_from(2, 2) == ("rank 0", "memory")


def test_without_a_whole_one_all_take_the_stash_if_they_make_one_or_leave_it_to_the_script() -> None:
    for bits, has_stash, otherwise in ((STASHES, True, "stash"), (HAS_ALL, True, "script"), (STASHES, False, "script")):
        found = seen([holds(0, -1, of=2, bits=bits), holds(1, -1, of=2, bits=bits)], has_stash=has_stash)
        assert found.generation is None and found.came_from(0, 2) == (otherwise, otherwise)


def test_a_script_that_keeps_nothing_has_nothing_foreseen_and_no_node_speaks_for_another_s_ranks() -> None:
    assert seen([], []) == UNKNOWN
    assert seen([holds(2, 9)], []) == UNKNOWN


@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 3), st.integers(0, 2)), min_size=1, max_size=8), st.booleans())
def test_what_is_foreseen_is_what_the_ranks_agree_on_when_they_have_met(
    ranks: list[tuple[bool, int, int]], has_all: bool
) -> None:
    """Who is new turns out to hold a part of its own, known to nobody before, unless each holds all of the model."""
    world = len(ranks)
    if has_all:
        ranks = [(is_new, step, 0) for is_new, step, _ in ranks]
    nodes = [
        ([] if is_new else [(0, rank, world, 1, step, part, HAS_ALL * has_all)], rank, 1)
        for rank, (is_new, step, part) in enumerate(ranks)
    ]
    found = foresee(nodes, world, has_stash=False)
    if found == UNKNOWN:
        assert found.came_from(0, world) == ()
        return
    met = [Has((1, step) if step >= 0 and not is_new else None, part) for is_new, step, part in ranks]
    generation, moves = agree(met)
    assert found.generation == generation and found.givers == {taker: giver for giver, taker in moves}
