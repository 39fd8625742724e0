"""What fails, how long restarts take and how much jobs train: the supervisor's sums, by the hour and of all times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from holdfast.core.machine import Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Hour, JobKept, NodeKept, RankSaid, Recovery, Standing, Trouble
from holdfast.runtime.net.codec import build
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Keep, Said
from holdfast.supervisor.fleet.numbers import HOUR_S, HOURS, LOOK_S, Numbers
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.state import Kept
from holdfast.supervisor.web import view

BEGAN = 1000 * HOUR_S
LEASE_S = 10 * LOOK_S
RANK = RankSaid(rank=0, local_rank=0, state="running")
TOOK = Recovery(round=1, detect_s=0.5, act_s=2.0, train_s=10.0, lost_s=25.0)
KINDS: dict[str, Any] = {"nodes": NodeKept, "jobs": JobKept, "hours": Hour}


class Stage:
    """A supervisor, what it stores, and a clock."""

    def __init__(self, kept: dict[str, dict[str, Any]] | None = None) -> None:
        self.kept = kept or {"nodes": {}, "jobs": {}, "hours": {}, "deeds": {}, "swaps": {}}
        tables: dict[str, Any] = {table: tuple(self.kept[table].values()) for table in KINDS}
        rules: dict[str, Any] = {"generation": 1, "lease_s": LEASE_S, "now": 0.0, "now_unix": BEGAN}
        self.fleet = Fleet(policy("default"), kept=Kept(**tables), **rules)
        self.number, self.now = 0, 0.0

    def see(self, seen: Any) -> None:
        for action in self.fleet.observe(seen, self.now):
            if isinstance(action, Keep) and action.value is not None:
                self.kept[action.table][action.key] = action.value
            elif isinstance(action, Keep):
                del self.kept[action.table][action.key]

    def stands(self, node: str, *, round: int = 1, state: str = "running", life: str = "1", **more: Any) -> None:
        self.number += 1
        ranks = (RANK,) if state == "running" else ()
        own: dict[str, Any] = {"node": f"{node}-1", "number": self.number, "name": node, "job": "train", "life": life}
        self.see(Said(message=Standing(**own, state=state, round=round, ranks=ranks, **more)))

    def trouble(self, node: str, kind: str, round: int = 1, **more: Any) -> None:
        self.number += 1
        self.see(Said(message=Trouble(node=f"{node}-1", number=self.number, kind=kind, round=round, what="x", **more)))

    def passes(self, seconds: float, nodes: Iterable[str] = ("a", "b"), **how: Any) -> None:
        """Time, in which these say that nothing has changed."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + LOOK_S)
            for node in nodes:
                self.stands(node, **how)
            self.see(Tick())

    def settled(self) -> Stage:
        """Two nodes have trained since the beginning."""
        self.stands("a")
        self.stands("b")
        self.passes(LEASE_S)
        return self

    @property
    def total(self) -> Hour:
        return self.fleet.state.numbers.total

    @property
    def shown(self) -> Any:
        return view.fleet(self.fleet.state, self.fleet.state.unix(self.now))


def test_a_round_that_ends_is_one_incident_by_the_first_cause_that_is_heard() -> None:
    stage = Stage().settled()
    stage.trouble("a", "worker", cause="signal")
    stage.trouble("b", "worker", cause="exception")
    assert stage.total.incidents == {"signal": 1}
    stage.passes(1.0, round=2)
    stage.trouble("a", "worker", round=2, cause="made up by a reporter")
    stage.passes(1.0, round=3)
    stage.trouble("a", "device", round=3, xid=79, device="0")
    assert stage.total.incidents == {"signal": 1, "other": 1, "device": 1}


def test_what_costs_no_round_is_no_incident() -> None:
    stage = Stage().settled()
    stage.trouble("a", "device", xid=31, device="0")
    assert stage.total.incidents == {}, "a program's own fault at an address"


def test_a_restart_counts_once_and_by_the_node_that_saw_its_trouble_first() -> None:
    stage = Stage().settled()
    stage.stands("a", round=2, recovery=replace(TOOK, detect_s=0.0, train_s=9.0))
    stage.stands("b", round=2, recovery=TOOK)
    stage.passes(3 * LOOK_S, round=2, recovery=TOOK)
    (hour,) = stage.fleet.state.numbers.hours
    for found in (hour, stage.total):
        assert [sum(times.counts) for times in (found.detect, found.act, found.train)] == [1, 1, 1]
        assert (found.detect.sum_s, found.act.sum_s, found.train.sum_s) == (0.5, 2.0, 10.0)
        assert found.train.counts.index(1) == 4, "10 s is counted at the bound of 10 s"


@pytest.mark.parametrize("wrong", [{"train_s": 1e9}, {"detect_s": -1.0}])
def test_a_time_that_cannot_be_is_not_believed(wrong: dict[str, float]) -> None:
    stage = Stage().settled()
    stage.passes(2 * LOOK_S, round=2, recovery=replace(TOOK, **wrong))
    assert stage.total.train.counts == ()


def test_time_is_lost_while_no_rank_runs_while_a_node_is_missing_and_where_steps_are_made_again() -> None:
    stage = Stage().settled()
    assert stage.shown["jobs"][0]["trained"] == stage.shown["goodput"] == 1.0
    stage.passes(LEASE_S, state="joining", round=2)
    assert stage.shown["jobs"][0]["trained"] == pytest.approx(0.5, abs=0.06), "half of the time no rank ran"
    other = Stage().settled()
    other.stands("b", state="joining")
    other.passes(LEASE_S, ("a",))
    assert other.shown["jobs"][0]["trained"] == pytest.approx(0.75, abs=0.03), "half of the time without one of two"
    third = Stage().settled()
    third.passes(LEASE_S, round=2, recovery=replace(TOOK, lost_s=LEASE_S))
    assert third.shown["jobs"][0]["trained"] == pytest.approx(0.5, abs=0.01), "as long as the first round was lost"


def test_another_run_of_the_job_begins_anew_and_its_rounds_too() -> None:
    stage = Stage().settled()
    stage.trouble("a", "worker", cause="exit")
    stage.passes(LEASE_S, state="joining", round=2)
    stage.passes(2 * LOOK_S, life="2")
    assert stage.shown["jobs"][0]["trained"] == 1.0
    stage.trouble("a", "worker", cause="exit")
    assert stage.total.incidents == {"exit": 2}


def test_another_life_of_the_supervisor_goes_on_with_the_sums_and_counts_no_restart_twice() -> None:
    stage = Stage().settled()
    stage.trouble("a", "worker", cause="exit")
    stage.passes(2 * LOOK_S, round=2, recovery=TOOK)
    plain = view.fleet(stage.fleet.state, BEGAN)["numbers"]
    assert build(Hour, plain) == stage.total, "as a store keeps it"
    again = Stage(stage.kept)
    assert again.total == stage.total
    again.passes(LEASE_S, round=2, recovery=TOOK)
    assert sum(again.total.train.counts) == 1 and again.total.incidents == {"exit": 1}
    assert again.total.trained_s == pytest.approx(stage.total.trained_s + 2 * LEASE_S, abs=2 * LOOK_S)


def test_thirty_days_of_hours_are_kept_and_no_more() -> None:
    kept = [Hour(at_unix=BEGAN - HOUR_S * back, trained_s=1.0) for back in range(1, HOURS + 1)]
    stage = Stage({"nodes": {}, "jobs": {}, "deeds": {}, "swaps": {}, "hours": {f"{hour.at_unix:.0f}": hour for hour in kept}})
    stage.settled()
    hours = stage.fleet.state.numbers.hours
    assert len(hours) == HOURS and hours[-1].at_unix == BEGAN and hours == sorted(hours, key=lambda hour: hour.at_unix)
    assert len(stage.kept["hours"]) == HOURS + 1, "and the sum of all times"
    assert f"{kept[-1].at_unix:.0f}" not in stage.kept["hours"]


def test_who_has_nothing_to_add_up_is_not_woken() -> None:
    numbers = Numbers((), now=0.0)
    assert numbers.deadline([]) == float("inf") and numbers.keep() == []
