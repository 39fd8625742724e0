"""Which step do all ranks go on from, and who gives it to whom (`client.in_place.agreement`)?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.in_place.agreement import Has, agree

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
