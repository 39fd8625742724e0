"""How did this node come back from the last trouble of its ranks? Measured by its own record, for the supervisor.

The records from the trouble on are enough, and only those that `telemetry.report.restarts` reads. What a restart took is known
when the ranks of a later round have made a step; of ranks that tell of no step, when the first of them ends.
"""

from __future__ import annotations

from holdfast.core.job import events
from holdfast.core.wire.fleet import Recovery
from holdfast.telemetry.record.reader import Record
from holdfast.telemetry.report.restarts import restart
from holdfast.telemetry.report.timeline import disturbed_at

READ = (
    *(events.Decided, events.FailureSeen, events.GpuMemoryReclaimed, events.NodeLost, events.RankHung),
    *(events.RanksBegun, events.RanksEnded, events.RoundFormed, events.StopSent),
    *(events.WorkerExited, events.WorkersStopped, events.WorkerStarted),
)
SLOW = ("import", "first collective", "restore", "first step")
"""Phases of a restart in which its ranks run already; before them, after `detect`, the agents act."""

MOST = 1000  # Records of a round: a coordinator hears of every node that is lost.


class Recoveries:
    """Those of one node, of which the last is remembered."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.before: list[Record] = []  # Of the rounds since ranks made a step last, which this one follows.
        self.records: list[Record] = []  # Of this one.
        self.round = 0
        self.is_measured = True
        self.last: Recovery | None = None

    def recorded(self, event: events.Event, at_unix: float) -> None:
        """An event was recorded."""
        if not isinstance(event, READ):
            return
        if isinstance(event, events.RoundFormed):
            self.before = self.records if self.is_measured else [*self.before, *self.records][:MOST]
            self.records, self.round, self.is_measured = [], event.round, not self.before
        if len(self.records) < MOST:
            name = type(event).__name__
            one = Record(seq=0, at_unix=at_unix, node=self.node, round=self.round, attempt=0, name=name, event=event, fields={})
            self.records.append(one)
        if isinstance(event, events.RanksBegun) and not self.is_measured:
            self._measure(event)

    def _measure(self, begun: events.RanksBegun) -> None:
        has_steps = any(isinstance(one.event, events.RanksBegun) and one.event.stepped_s is not None for one in self.before)
        if begun.stepped_s is None and has_steps:
            return  # they have ended too early
        self.is_measured = True
        at = disturbed_at(self.before, ())
        if at is None:
            return
        found = restart(at, self.before, self.records)
        again_s, detect_s = found.phases["again"] or 0.0, found.phases["detect"] or 0.0
        train_s = found.total_s - again_s
        self.last = Recovery(
            round=found.from_round,
            detect_s=detect_s,
            act_s=max(0.0, train_s - detect_s - sum(found.phases[phase] or 0.0 for phase in SLOW)),
            train_s=train_s,
            lost_s=found.total_s,
        )
