"""What fails, how fast is it noticed and mended, and which part of their time do jobs train? Sums of each hour, and of all.

An incident is a round of a job that something ended; the first cause that is heard counts. What a restart took is measured by
the job's nodes: of their reports about one round the longest counts, which is that of the node that saw the trouble first.
Time is seconds × nodes: what the largest round of a run had, and a later one has not, is lost. A job that nobody hears counts
neither way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from holdfast.core.job.failure import Cause
from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import BOUNDS_S, Histogram, Hour, Recovery, TroubleKind
from holdfast.supervisor.fleet.job import FleetJob
from holdfast.supervisor.fleet.messages import Keep

HOUR_S, HOURS = 3600.0, 720
"""So many hours are remembered: thirty days."""

DAY = 24
"""Hours that the goodput of the fleet is of."""

LOOK_S, SOON_S = 60.0, 5.0
"""Between two moments at which the sums are stored; and how long the nodes of a job have to tell of a restart."""

OTHER = "other"
CAUSES = (*(str(cause) for cause in Cause if cause != Cause.STOPPED), "oom", "injected", *map(str, TroubleKind), OTHER)
"""What an incident may count as; any other word of a reporter's is `OTHER`."""


class Numbers:
    """Of one fleet. The hours are in order."""

    def __init__(self, kept: Iterable[Hour], now: float) -> None:
        found = {hour.at_unix: hour for hour in sorted(kept, key=lambda hour: hour.at_unix)}
        self.total = found.pop(0.0, Hour(at_unix=0.0))
        self.hours = list(found.values())
        self.due_at = now + LOOK_S
        self.is_stored = True

    def soon(self, now: float) -> None:
        """A node has told of a restart."""
        self.due_at = min(self.due_at, now + SOON_S)

    def incident(self, cause: str, at_unix: float) -> None:
        """Something has ended a round."""
        cause = cause if cause in CAUSES else OTHER
        for hour in self._both(at_unix):
            self._put(replace(hour, incidents={**hour.incidents, cause: hour.incidents.get(cause, 0) + 1}))

    def look(self, jobs: Iterable[FleetJob], at_unix: float, now: float) -> list[FleetJob]:
        """Add what has become of the jobs since the last time; those that have to be stored."""
        self.due_at, touched = now + LOOK_S, list[FleetJob]()
        for job in jobs:
            restarts, (trained_s, lost_s) = job.take(at_unix)
            if not (restarts or trained_s or lost_s):
                continue
            touched.append(job)
            for hour in self._both(at_unix):
                for one in restarts:
                    hour = _measured(hour, one)
                self._put(replace(hour, trained_s=hour.trained_s + trained_s, lost_s=hour.lost_s + lost_s))
        return touched

    def keep(self) -> list[Action]:
        """Store what has changed, and forget what is too old."""
        if self.is_stored:
            return []
        self.is_stored = True
        old, self.hours = self.hours[:-HOURS], self.hours[-HOURS:]
        gone: list[Action] = [Keep(table="hours", key=_key(hour), value=None) for hour in old]
        return [*(Keep(table="hours", key=_key(hour), value=hour) for hour in (self.hours[-1], self.total)), *gone]

    def goodput(self, at_unix: float) -> float | None:
        """Of the last day."""
        own = [hour for hour in self.hours if hour.at_unix > at_unix - DAY * HOUR_S]
        return part(sum(hour.trained_s for hour in own), sum(hour.lost_s for hour in own))

    def restart_s(self) -> float:
        """What a restart has taken on average, until all ranks had made a step again. 0: none was measured."""
        count = sum(self.total.train.counts)
        return self.total.train.sum_s / count if count else 0.0

    def deadline(self, jobs: Iterable[FleetJob]) -> float:
        return self.due_at if not self.is_stored or any(job.reports for job in jobs) else NEVER

    def _both(self, at_unix: float) -> tuple[Hour, Hour]:
        """This hour, and all of them."""
        begin = at_unix // HOUR_S * HOUR_S
        if not self.hours or self.hours[-1].at_unix < begin:
            self.hours.append(Hour(at_unix=begin))
        return self.hours[-1], self.total

    def _put(self, hour: Hour) -> None:
        self.is_stored = False
        if hour.at_unix:
            self.hours[-1] = hour
        else:
            self.total = hour


def part(trained_s: float, lost_s: float) -> float | None:
    """Goodput. None: no job was heard."""
    return max(0.0, trained_s) / (trained_s + lost_s) if trained_s + lost_s > 0 else None


def _measured(hour: Hour, took: Recovery) -> Hour:
    return replace(
        hour,
        detect=_counted(hour.detect, took.detect_s),
        act=_counted(hour.act, took.act_s),
        train=_counted(hour.train, took.train_s),
    )


def _counted(histogram: Histogram, took_s: float) -> Histogram:
    counts = list(histogram.counts or (0,) * (len(BOUNDS_S) + 1))
    counts[bisect_left(BOUNDS_S, took_s)] += 1
    return Histogram(counts=tuple(counts), sum_s=histogram.sum_s + took_s)


def _key(hour: Hour) -> str:
    return f"{hour.at_unix:.0f}"
