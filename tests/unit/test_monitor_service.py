"""What a node's monitor records and tells over its ranks' lives, beside whom it finds to hang."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.job.events import LimitsLearned, StragglerSeen, Unwatched
from holdfast.core.machine import NEVER, Record, Say, Tick
from holdfast.core.page.signs import SectionSigns, Signs
from holdfast.monitor.machine import Monitor
from holdfast.monitor.messages import (
    Inform,
    MeasureRanks,
    RankGone,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    RoundBegan,
    SeeRanks,
)
from holdfast.monitor.reports import NOTICE_S
from holdfast.monitor.state import INFORM_S


class Job:
    """One rank on one node, which beats once a second as long as `beats` is true."""

    def __init__(self, *, rank: int = 0, beats: bool = True, **ft: Any) -> None:
        self.monitor = Monitor(FaultTolerance(**ft), node="n1")
        self.rank, self.beats, self.now, self.born_at = rank, beats, 0.0, 0.0
        self.gap_s = 1.0
        self.done: list[Any] = []
        self.begin({})

    def begin(self, job_s: dict[str, float]) -> None:
        self.born_at = self.now
        self._show(RoundBegan(job_s=job_s))
        self._show(RankStarted(local_rank=0, rank=self.rank, started_at=self.now))

    def run(self, until: float) -> Job:
        while (due := self.monitor.deadline()) <= until:
            self.now = due
            self._show(Tick())
        self.now = until
        return self

    def events(self, kind: type) -> list[Any]:
        return [action.event for action in self.done if isinstance(action, Record) and isinstance(action.event, kind)]

    def of(self, kind: type) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]

    def _show(self, seen: Any) -> None:
        for action in self.monitor.observe(seen, self.now):
            match action:
                case SeeRanks():
                    self._show(RankSeen(local_rank=0, signs=self._signs()))
                case MeasureRanks():
                    one = RankMeasured(local_rank=0, cpu_s=self.now, io_bytes=0, state="R")
                    self._show(RanksMeasured(ranks=(one,)))
                case _:
                    self.done.append(action)

    def _signs(self) -> Signs:
        beats = int((self.now - self.born_at) / self.gap_s) if self.beats else 0
        if not beats:
            return Signs()
        first_at, last_at = self.born_at + self.gap_s, self.born_at + beats * self.gap_s
        return Signs(first_beat_at=first_at, beat_at=last_at, beats=beats, longest_gap_s=self.gap_s if beats > 1 else 0.0)


def test_a_job_that_shows_nothing_is_told_so_once() -> None:
    job = Job(beats=False).run(NOTICE_S - 1.0)
    assert not job.events(Unwatched)
    job.run(5000.0)
    job.begin({})
    job.run(9000.0)
    assert [event.still_s for event in job.events(Unwatched)] == [3600.0] and len(job.of(Say)) == 1


@pytest.mark.parametrize("how", [{"beats": True}, {"beats": False, "rank": 8}, {"beats": False, "start_limit": None}])
def test_nobody_is_told_who_is_watched_or_is_not_the_first_node_or_wants_it_so(how: dict[str, Any]) -> None:
    assert not Job(**how).run(3000.0).events(Unwatched)


def test_limits_are_recorded_when_they_are_learned_and_when_they_change_much() -> None:
    job = Job(least_limit=2.0).run(INFORM_S * 5)
    assert [event.limits_s["beat"] for event in job.events(LimitsLearned)] == [5.0]
    job.gap_s, job.born_at = 4.0, job.now
    job.run(INFORM_S * 10)
    assert [event.limits_s["beat"] for event in job.events(LimitsLearned)] == [5.0, 20.0]


def test_the_coordinator_hears_once_a_minute_while_ranks_run() -> None:
    job = Job().run(600.0)
    assert len(job.of(Inform)) == 10 and job.of(Inform)[-1].longest_s["beat"] == 1.0
    job._show(RankGone(local_rank=0))
    assert job.monitor.deadline() == NEVER


def test_what_was_learned_in_one_round_holds_in_the_next() -> None:
    job = Job(least_limit=1.0).run(100.0)
    job._show(RankGone(local_rank=0))
    job.begin({"out": 7.0})
    assert job.monitor.state.limits.beat(Signs()).limit_s == 5.0 and job.monitor.state.learned.is_ready("out")


@pytest.mark.parametrize(("what", "slow"), [("report", [2]), ("exclude", [2]), ("ignore", [])])
def test_ranks_are_compared_unless_stragglers_are_to_be_ignored(what: str, slow: list[int]) -> None:
    monitor, seen = Monitor(FaultTolerance(on_straggler=what), node="n1"), list[Any]()
    monitor.observe(RoundBegan(job_s={}), 0.0)
    for rank in range(4):
        monitor.observe(RankStarted(local_rank=rank, rank=rank, started_at=0.0), 0.0)
    for now in range(1, 600):
        for rank in range(4):
            load = SectionSigns(name="load", count=now, took_s=0.5 if rank == 2 else 0.1)
            monitor.observe(RankSeen(local_rank=rank, signs=Signs(sections=(load,))), float(now))
        seen += monitor.observe(Tick(), float(now))
    assert [one.event.rank for one in seen if isinstance(one, Record) and isinstance(one.event, StragglerSeen)] == slow
    assert [one.straggler != "" for one in seen if isinstance(one, Inform)][-1] == bool(slow)


def test_what_is_shown_of_a_rank_is_what_it_does_now_limits_too() -> None:
    """The machine's own look may be two seconds old."""
    job = Job(rank_section_timeouts={"save": 30.0}).run(100.0)
    saves = Signs(beats=1, beat_at=99.0, sections=(SectionSigns(name="save", open_since=99.5),))
    shown: Any = job.monitor.shown(RankSeen(local_rank=0, signs=saves), 100.0)
    assert shown["section"] == "save"
    assert [(one["of"], one["basis"]) for one in shown["limits"]] == [("beat", "learned"), ("section save", "given")]
    young: Any = Job().run(3.0)
    shown = young.monitor.shown(RankSeen(local_rank=0, signs=Signs(beats=3, beat_at=3.0)), 3.0)
    assert [(one["of"], one["basis"]) for one in shown["limits"]] == [("beat", "usual")]
