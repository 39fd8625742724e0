"""What stands after one answer, and after several in a row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.health.verdict import DEGRADED, FIT, STATES, UNFIT, Findings, Standing, Verdict, degraded, fit, unfit, worst


def after(standing: Standing, *states: str) -> list[str]:
    return [standing.judge(Verdict(state=state, reason=state)).state for state in states]


def test_one_bad_answer_is_enough_where_nothing_else_is_said():
    assert after(Standing(), UNFIT, FIT) == [UNFIT, FIT]


def test_a_bad_day_degrades_and_only_several_in_a_row_make_unfit():
    assert after(Standing(bad_in_a_row=3), UNFIT, UNFIT, FIT, UNFIT, UNFIT, UNFIT) == [
        *(DEGRADED, DEGRADED, FIT),
        *(DEGRADED, DEGRADED, UNFIT),
    ]


def test_one_good_answer_brings_back_no_node_that_flaps():
    standing = Standing(good_in_a_row=2)
    assert after(standing, UNFIT, FIT, UNFIT, FIT, FIT) == [UNFIT, UNFIT, UNFIT, UNFIT, FIT]
    assert standing.verdict is not None and standing.verdict.reason == FIT


def test_a_degraded_answer_counts_as_good_enough_to_come_back():
    assert after(Standing(good_in_a_row=2), UNFIT, DEGRADED, DEGRADED) == [UNFIT, UNFIT, DEGRADED]


@given(st.lists(st.sampled_from(STATES), max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_it_is_unfit_exactly_from_so_many_bad_ones_in_a_row_to_so_many_others(answers, bad, good):
    standing, expected, bad_run, good_run = Standing(bad, good), False, 0, 0
    for answer in answers:
        bad_run, good_run = (bad_run + 1, 0) if answer == UNFIT else (0, good_run + 1)
        expected = bad_run >= bad or (expected and good_run < good)
        assert (after(standing, answer) == [UNFIT]) == expected


def test_findings_add_up_to_the_worst_and_name_all_of_that_kind():
    found = Findings()
    assert found.verdict("8 GPUs", count=8) == fit("8 GPUs", count=8)
    found.degraded("a fan is slow", "clean it")
    assert found.verdict("8 GPUs") == degraded("a fan is slow", "clean it")
    found.unfit("GPU 3 is gone", "restart")
    found.unfit("GPU 4 is gone", "restart")
    assert found.verdict("8 GPUs") == unfit("GPU 3 is gone; GPU 4 is gone", "restart")


def test_the_worst_of_none_is_fit():
    assert worst([]) == FIT and worst([FIT, DEGRADED]) == DEGRADED
