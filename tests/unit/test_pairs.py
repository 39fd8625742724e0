"""Bad and slow nodes among many are named in two rounds of pairs, or three; and nobody is named who is well."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.health.pairs import ROUNDS, Measured, PairTest
from holdfast.health.verdict import DEGRADED, FIT, UNFIT


def names(count: int) -> list[str]:
    return [f"n{i:03}" for i in range(count)]


def play(nodes: list[str], bad: set[str], slow: dict[str, float] | None = None, rounds: int = ROUNDS) -> PairTest:
    """The whole test on nodes of which some fail with everybody, and some take longer."""
    test, factor = PairTest(nodes), slow or {}
    while test.round < rounds and (pairs := test.plan()):
        met = [node for pair in pairs for node in pair]
        assert len(met) == len(set(met)), "each node is in one pair at a time"
        results = []
        for pair in pairs:
            passed = not bad & set(pair)
            gather_s = 0.1 * max(factor.get(node, 1.0) for node in pair)
            for node, partner in (pair, pair[::-1]):
                compute_s = 0.05 * factor.get(node, 1.0)
                results.append(
                    Measured(node=node, partner=partner, passed=passed, compute_s=compute_s, gather_s=gather_s, why="broken")
                )
        test.hear(results)
    return test


@given(st.integers(2, 60), st.data())
def test_nobody_is_named_bad_who_is_well_and_nobody_well_who_is_bad(count, data):
    nodes = names(count)
    bad = set(data.draw(st.lists(st.sampled_from(nodes), unique=True)))
    test = play(nodes, bad)
    assert set(test.bad) <= bad and not set(test.good) & bad and test.round <= ROUNDS


@settings(deadline=None)
@given(st.integers(6, 200), st.data())
def test_up_to_a_quarter_of_bad_nodes_are_all_named_after_two_rounds(count, data):
    nodes = names(count)
    most = (count - 2) // 4
    bad = set(data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=most)))
    test = play(nodes, bad, rounds=2)
    assert set(test.bad) == bad and set(test.good) == set(nodes) - bad
    assert test.plan() == (), "a third round is for those of whom it is not known"


@given(st.integers(3, 40), st.integers(0, 39))
def test_one_bad_node_among_three_or_more_is_always_named(count, which):
    nodes = names(count)
    bad = nodes[which % count]
    test = play(nodes, {bad})
    assert set(test.bad) == {bad} and len(test.good) == count - 1


def test_of_two_nodes_that_fail_together_nobody_can_tell_which():
    verdicts = play(["a", "b"], {"b"}).verdicts()
    assert {node: verdict.state for node, verdict in verdicts.items()} == {"a": DEGRADED, "b": DEGRADED}
    assert "only with nodes that failed too (a)" in verdicts["b"].reason


@settings(deadline=None)
@given(st.integers(6, 100), st.data())
def test_a_slow_node_is_named_and_its_partners_are_not(count, data):
    nodes = names(count)
    slow = data.draw(st.sampled_from(nodes))
    verdicts = play(nodes, set(), {slow: 5.0}).verdicts()
    assert {node for node, verdict in verdicts.items() if verdict.state == DEGRADED} == {slow}
    assert "it is slow" in verdicts[slow].reason


def test_a_node_that_says_nothing_has_not_passed():
    test = PairTest(["a", "b", "c", "d"])
    (_, _), (c, d) = test.plan()
    test.hear([Measured(node=c, partner=d, passed=True), Measured(node="a", partner="b", passed=True)])
    assert test.good == []
    ok = [Measured(node=a, partner=b, passed=True) for pair in test.plan() if "d" not in pair for a, b in (pair, pair[::-1])]
    test.hear(ok)
    assert "d" not in test.good and test.verdicts()["d"].state != FIT


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_nodes_need_no_test(count):
    test = PairTest(names(count))
    assert test.plan() == ()
    assert all(verdict.state == DEGRADED and "no other node" in verdict.reason for verdict in test.verdicts().values())


def test_the_verdict_about_a_bad_node_names_whom_it_failed_with():
    verdicts = play(names(8), {"n003"}).verdicts()
    assert verdicts["n003"].state == UNFIT and "which is well: broken" in verdicts["n003"].reason
