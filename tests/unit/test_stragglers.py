"""Who is slower than the others, of a node's ranks and of a job's nodes, and what is done about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job.events import Decided, NodeExcluded, StragglerOver, StragglerSeen
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.machine import NEVER, Record
from holdfast.core.outliers import median, too_slow
from holdfast.core.wire.messages import Assigned, Join, Pace, Paced, Past
from holdfast.monitor.stragglers import OTHERS, OWN_PAST, PERIOD_S, PERIODS, Stragglers
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.coordinator.pace import DAY_S, KINDS, Paces
from holdfast.rendezvous.coordinator.rounds import carry_out
from holdfast.rendezvous.rules import Heard, Rules, Tell

# --- the test -----------------------------------------------------------------------------------------------------------------


def test_one_that_is_much_slower_stands_out_and_does_not_move_the_bar() -> None:
    times = {rank: 1.0 + rank / 1000 for rank in range(8)} | {5: 9.0}
    assert too_slow(times) == (pytest.approx(1.0035, abs=1e-3), [5])


def test_of_two_nobody_can_tell_who_is_slow() -> None:
    assert too_slow({0: 1.0, 1: 100.0}) == (0.0, [])


@given(st.dictionaries(st.integers(0, 63), st.floats(1e-6, 1e4), min_size=3))
def test_half_of_them_are_never_stragglers(times: dict[int, float]) -> None:
    typical, slow = too_slow(times)
    assert len(slow) * 2 <= len(times) and all(times[one] > 1.3 * typical for one in slow)


def test_a_few_microseconds_are_no_difference() -> None:
    assert too_slow(dict.fromkeys(range(8), 1e-4) | {3: 3e-4})[1] == []


def test_no_values_have_no_median() -> None:
    with pytest.raises(ValueError, match="median of no values"):
        median([])


# --- the ranks of a node ------------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, ranks: int = 4) -> None:
        self.stragglers, self.ranks, self.now = Stragglers(), ranks, 0.0

    def period(self, slow: dict[int, float], typical_s: float = 0.1) -> tuple[list[Any], list[Any]]:
        for _ in range(5):
            for rank in range(self.ranks):
                self.stragglers = self.stragglers.saw(rank, {"load": slow.get(rank, typical_s)}, self.now)
        self.now += PERIOD_S
        assert self.stragglers.judge_at <= self.now
        self.stragglers, fresh, over = self.stragglers.judged({rank: 10 + rank for rank in range(self.ranks)}, self.now)
        return fresh, over


def test_a_rank_that_is_slow_for_a_while_is_told_once_and_when_it_has_recovered() -> None:
    node = Node()
    news = [node.period({2: 0.5}) for _ in range(PERIODS + 3)]
    assert [len(fresh) for fresh, _ in news] == [0] * (PERIODS - 1) + [1] + [0] * 3
    (found,) = news[PERIODS - 1][0]
    assert (found.rank, found.series, found.against) == (12, "load", OTHERS)
    assert found.words == "rank 12 takes 0.5 s for load, the node's other ranks 0.1 s"
    over = [node.period({})[1] for _ in range(PERIODS)]
    assert [len(one) for one in over] == [0] * (PERIODS - 1) + [1] and not node.stragglers.told


def test_what_is_slow_once_is_noise() -> None:
    node = Node()
    for _ in range(10):
        assert node.period({1: 0.9}) == ([], []) and node.period({}) == ([], [])


def test_a_rank_that_is_slower_than_it_was_is_told() -> None:
    node = Node(1)
    for _ in range(8):
        node.period({}, 0.1)
    news = [node.period({}, 0.25)[0] for _ in range(PERIODS)]
    (found,) = news[-1]
    assert found.against == OWN_PAST and found.typical_s == pytest.approx(0.1)


def test_when_all_are_slower_it_is_the_job_and_nobody_is_named() -> None:
    node = Node()
    for _ in range(8):
        node.period({}, 0.1)
    assert all(node.period({}, 0.3) == ([], []) for _ in range(6))


def test_nothing_is_to_be_judged_before_anything_has_been_seen() -> None:
    assert Stragglers().judge_at == NEVER


# --- the nodes of a job -------------------------------------------------------------------------------------------------------


def pace(typical_s: float = 1.0, longest_s: dict[str, float] | None = None, node: str = "x", **more: Any) -> Pace:
    return Pace(node=node, round=1, longest_s=longest_s or {}, typical_s={"load": typical_s}, **more)


def test_a_node_that_is_slower_than_the_others_is_told_and_when_it_is_not() -> None:
    paces = Paces()

    def minute(now: float, slow_s: float) -> list[Any]:
        for name, seconds in (("a", 1.0), ("b", 1.01), ("c", slow_s), ("d", 1.02)):
            paces.heard(name, pace(seconds), now)
        return list(paces.compare(now))

    news = [minute(60.0 * (number + 1), 3.0) for number in range(PERIODS + 1)]
    assert [[type(one) for one in seen] for seen in news] == [[], [], [StragglerSeen], []]
    (found,) = news[2]
    assert (found.name, found.rank, found.took_s, found.against) == ("c", -1, 3.0, "the other nodes")
    assert minute(600.0, 1.0) == [StragglerOver(name="c", rank=-1, series="load", against="the other nodes")]


def test_the_job_knows_what_any_node_has_needed_and_says_it_to_whoever_does_not() -> None:
    paces = Paces()
    assert paces.heard("a", pace(longest_s={"beat": 5.0}), 0.0) == {}
    assert paces.heard("b", pace(longest_s={"beat": 2.0, "out": 1.0}), 1.0) == {"beat": 5.0, "out": 1.0}
    assert paces.heard("a", pace(longest_s={"beat": 5.0, "out": 1.0}), 2.0) == {}


def test_what_has_not_come_for_a_day_is_forgotten() -> None:
    paces = Paces()
    paces.heard("a", pace(longest_s={"beat": 500.0}), 0.0)
    paces.heard("a", pace(longest_s={"beat": 5.0}), DAY_S - 1.0)
    assert paces.longest_s == {"beat": 500.0}
    paces.heard("a", pace(longest_s={"beat": 5.0}), DAY_S + 1.0)
    assert paces.longest_s == {"beat": 5.0}


@pytest.mark.parametrize("seconds", [NEVER, -1.0, 0.0, float("nan"), 1e12])
def test_what_no_rank_can_have_needed_is_not_believed(seconds: float) -> None:
    paces = Paces()
    paces.heard("a", pace(longest_s={"beat": seconds}), 0.0)
    assert paces.longest_s == {}


def test_what_is_kept_is_bounded() -> None:
    paces = Paces()
    paces.heard("a", pace(longest_s={f"section {number}": 1.0 for number in range(1000)}), 0.0)
    paces.heard("a", Pace(node="x", round=1, longest_s={}, typical_s={f"part {number}": 1.0 for number in range(1000)}), 0.0)
    assert len(paces.longest_s) == len(paces.typical) == KINDS
    fresh = Paces()
    fresh.heard("a", pace(float("nan")), 0.0)
    assert not fresh.typical


# --- in the rendezvous --------------------------------------------------------------------------------------------------------


def running(*, on_straggler: str = "report", spare: bool = True) -> Rendezvous:
    rules = Rules(job="j", min_nodes=2, max_nodes=2, on_straggler=on_straggler, last_call_s=0.0)
    rendezvous = Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0)
    for name in ("a", "b", "c")[: 2 + spare]:
        join = Join(node=name, name=name, addr=name, master_port=1, nproc=1, role="default")
        rendezvous.observe(Heard(message=join), 0.0)
    assert rendezvous.phase == "running"
    return rendezvous


def said(actions: list[Any]) -> list[Any]:
    return [action.message for action in actions if isinstance(action, Tell)]


def test_all_others_are_told_once_that_a_silent_node_works() -> None:
    rendezvous = running(spare=False)
    busy = Heard(message=pace(node="a", busy_s=150.0))
    told = rendezvous.observe(busy, 60.0)
    assert [(action.node, action.message.busy_s) for action in told if isinstance(action, Tell)] == [("b", 150.0)]
    assert said(rendezvous.observe(busy, 70.0)) == [], "a thousand nodes may say so at the same time"
    assert len(said(rendezvous.observe(busy, 135.0))) == 1


def recorded(actions: list[Any]) -> list[Any]:
    return [action.event for action in actions if isinstance(action, Record)]


def test_a_node_hears_what_the_job_needs_and_so_does_whoever_starts_next() -> None:
    rendezvous = running()
    rendezvous.observe(Heard(message=pace(node="a", longest_s={"beat": 9.0})), 60.0)
    assert said(rendezvous.observe(Heard(message=pace(node="b")), 61.0)) == [Paced(round=1, longest_s={"beat": 9.0})]
    actions = carry_out(rendezvous, Decision(then=Verdict.REJOIN, reason="told to"), 62.0)
    for name in ("a", "b", "c"):
        join = Join(node=name, name=name, addr=name, master_port=1, nproc=1, role="default", round=1)
        actions += rendezvous.observe(Heard(message=join), 63.0)
    assigned = [message for message in said(actions) if isinstance(message, Assigned)]
    assert len(assigned) == 2 and all(message.longest_s == {"beat": 9.0} for message in assigned)


def test_word_of_another_round_is_late_news() -> None:
    rendezvous = running()
    late = Pace(node="a", round=0, longest_s={"beat": 9.0})
    assert rendezvous.observe(Heard(message=late), 60.0) == [] and rendezvous.paces.longest_s == {}


@pytest.mark.parametrize("on_straggler", ["report", "ignore"])
def test_a_straggler_is_only_told_unless_something_else_was_asked_for(on_straggler: str) -> None:
    rendezvous = running(on_straggler=on_straggler)
    rendezvous.observe(Heard(message=pace(node="b", straggler="rank 1 takes 0.5 s for load")), 60.0)
    assert rendezvous.phase == "running" and not rendezvous.excluded


def test_a_node_with_a_straggler_gives_way_to_a_spare_if_that_was_asked_for() -> None:
    rendezvous = running(on_straggler="exclude")
    events = recorded(rendezvous.observe(Heard(message=pace(node="b", straggler="rank 1 takes 0.5 s for load")), 60.0))
    assert [event.by for event in events if isinstance(event, NodeExcluded)] == ["slowness"]
    assert [event.decision for event in events if isinstance(event, Decided)] == ["rejoin"], "no restart is spent on it"


def test_without_a_spare_a_slow_node_is_better_than_none() -> None:
    rendezvous = running(on_straggler="exclude", spare=False)
    rendezvous.observe(Heard(message=pace(node="b", straggler="rank 1 takes 0.5 s for load")), 60.0)
    assert rendezvous.phase == "running" and not rendezvous.excluded


def test_a_successor_knows_what_its_predecessor_knew() -> None:
    rendezvous = running()
    rendezvous.resume(Past(life="", round=3, restarts=0, longest_s={"beat": 7.0}), now=0.0)
    assert rendezvous.paces.longest_s == {"beat": 7.0}


def test_whoever_joins_brings_what_a_new_coordinator_does_not_know_and_keeps_nothing_alive() -> None:
    paces = Paces()
    paces.know({"beat": 500.0}, 0.0)
    paces.joined({"beat": 500.0, "out": 3.0}, DAY_S - 1.0)
    assert paces.longest_s == {"beat": 500.0, "out": 3.0}
    paces.heard("a", pace(longest_s={"beat": 5.0}), DAY_S + 1.0)
    assert paces.longest_s == {"beat": 5.0, "out": 3.0}
