"""What would others call this job's goodput? Two published definitions, by the steps that its ranks have told of.

- *by steps* (Google's ml-goodput-measurement): time between the starts of consecutive steps that stayed, as a part of all.
  A step that is made again tells of an interruption; where none is, an outage counts as one long step.
- *by checkpoints* (the calculator of Google's resiliency recipes): steps from the first loaded to the last saved one, times a
  step's usual time, as a part of the time from the first event to the last.

Both are blind to capacity: a job at half its size is whole to them. See `telemetry.goodput.accounting` for ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from holdfast.core.job.events import RanksBegun, RanksEnded, WorkerStarted
from holdfast.core.value import Value
from holdfast.telemetry.record.reader import Record
from holdfast.telemetry.report.restarts import by_round


class Steps(Value):
    """The steps of one life, as told: numbered on from life to life."""

    first: int
    last: int
    began_at: float  # When the first of them began (seconds since the epoch).
    ended_at: float  # When the last of them was done.
    saved: int | None = None  # The last of them that was done when a checkpoint was. None: none was.

    @property
    def count(self) -> int:
        """How many there were."""
        return self.last - self.first + 1

    @property
    def step_s(self) -> float:
        """What one took, on average."""
        return (self.ended_at - self.began_at) / self.count


def published(records: Sequence[Record], started_at: float | None, until: float) -> dict[str, float | None]:
    """Both, by name, 0 to 1, of a job that was `started_at` and looked at (or ended) at `until`. None: not known."""
    lives = steps_told(records)
    return {"by_steps": by_steps(lives), "by_checkpoints": by_checkpoints(lives, started_at or until, until)}


def steps_told(records: Iterable[Record]) -> list[Steps]:
    """Those of each life whose ranks have numbered their steps and that is over, in order."""
    return [found for own in by_round(records).values() if (found := _steps(own)) is not None]


def _steps(records: Sequence[Record]) -> Steps | None:
    began = min((record.at for record in records if isinstance(record.event, WorkerStarted)), default=None)
    events = [record.event for record in records]
    begun = next((event for event in events if isinstance(event, RanksBegun) and event.first_step is not None), None)
    ended = max((event for event in events if isinstance(event, RanksEnded)), key=_last, default=None)
    if began is None or begun is None or ended is None:
        return None
    return _between(began, begun, ended)


def _between(began: float, begun: RanksBegun, ended: RanksEnded) -> Steps | None:
    """The steps between these two, of ranks that were started at `began`. None: they made none."""
    first, last = begun.first_step, ended.last_step
    stepped_s, last_s = begun.stepped_s or 0.0, ended.last_step_s or 0.0
    if first is None or last is None or last <= first or last_s <= stepped_s:
        return None
    step_s = (last_s - stepped_s) / (last - first)
    saved = None
    if ended.saved_s is not None and ended.saved_s >= stepped_s:
        saved = min(first + int((ended.saved_s - stepped_s) / step_s), last)
    return Steps(first=first, last=last, saved=saved, began_at=began + stepped_s - step_s, ended_at=began + last_s)


def _last(ended: RanksEnded) -> int:
    return -1 if ended.last_step is None else ended.last_step


def by_steps(lives: Sequence[Steps]) -> float | None:
    """The first of both definitions, 0 to 1. None: no steps were told."""
    if not lives:
        return None
    productive_s = lives[-1].count * lives[-1].step_s
    for life, following in pairwise(lives):
        if following.first > life.last:  # nothing is made again: to this definition, nothing happened
            productive_s += following.began_at - life.began_at
        else:
            productive_s += max(following.first - life.first, 0) * life.step_s
    return productive_s / (lives[-1].ended_at - lives[0].began_at)


def by_checkpoints(lives: Sequence[Steps], begin: float, end: float) -> float | None:
    """The second one, between the job's first event and its last (seconds since the epoch). None: no checkpoint was seen."""
    saved = [life.saved for life in lives if life.saved is not None]
    if not saved or end <= begin:
        return None
    made = max(saved) + 1 - min(life.first for life in lives)
    return made * median(life.step_s for life in lives) / (end - begin)
