"""Where did the time of each restart go? From a life's trouble to the first step of the next one, phase by phase.

Each phase ends with a moment that was recorded, the latest of all nodes: the phase is the time since the moment before it that
is known. A phase whose end nobody told is None, and its time is in the next one. What ranks tell comes with `RanksBegun`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.core.job import events
from holdfast.core.value import Value
from holdfast.telemetry.record.reader import Record

PHASES = (
    *("detect", "tell", "stop", "rendezvous", "reclaim", "start"),
    *("import", "first collective", "restore", "first step", "again"),
)
"""In order:

- detect: from the trouble itself to its first record, on any node;
- tell: until the last node has told its ranks to stop;
- stop: until the last rank was gone;
- rendezvous: until the last node knew its place in the next round;
- reclaim: until the GPUs' memory was free;
- start: until the last rank's Python began to run its script;
- import: until the script joined its process group;
- first collective: until the ranks had met;
- restore: as long as the script loaded its state, whenever it did;
- first step: until the last rank had made one;
- again: as long as those steps had taken that the life before had made, and this one makes again.
"""


class Restart(Value):
    """From the trouble of one life to the step of the next that had been reached before."""

    from_round: int
    round: int
    disturbed_at: float  # When the first thing went wrong, seconds since the epoch.
    phases: dict[str, float | None]  # Seconds, by name as in `PHASES`. None: not told, or part of the next one that is.
    total_s: float  # To the last moment that is known, and the steps that are made again.


def restart(disturbed_at: float, before: Sequence[Record], after: Sequence[Record]) -> Restart:
    """The restart between two rounds, of which these are the records; the first was disturbed at that time."""
    started = {record.node: record.at for record in reversed(after) if isinstance(record.event, events.WorkerStarted)}
    told = ((started.get(record.node, record.at), record.event) for record in after)
    begun = [(at, event) for at, event in told if isinstance(event, events.RanksBegun)]

    def last(field: Callable[[events.RanksBegun], float | None]) -> float | None:
        """When the last rank had come so far. None: none has told."""
        return max((at + after_s for at, event in begun if (after_s := field(event)) is not None), default=None)

    moments = {
        "detect": min((record.at for record in before if is_sight(record)), default=None),
        "tell": _last(before, events.StopSent),
        "stop": _last(before, events.WorkersStopped),
        "rendezvous": _last(after, events.RoundFormed),
        "reclaim": _last(after, events.GpuMemoryReclaimed),
        "start": last(lambda event: event.booted_s) or max(started.values(), default=None),
        "import": last(lambda event: event.joining_s),
        "first collective": last(lambda event: event.joined_s),
        "first step": last(lambda event: event.stepped_s),
    }
    restore_s = max((event.restore_s for _, event in begun), default=0.0)
    phases, end = _phases(disturbed_at, moments, last(lambda event: event.restored_s), restore_s)
    if (since := steps_lost_since(before, after)) is not None:
        phases["again"] = max(0.0, disturbed_at - since)
    return Restart(
        from_round=max((record.round for record in before), default=0),
        round=max((record.round for record in after), default=0),
        disturbed_at=disturbed_at,
        phases=phases,
        total_s=end - disturbed_at + (phases["again"] or 0.0),
    )


def _phases(
    at: float, moments: Mapping[str, float | None], restored: float | None, restore_s: float
) -> tuple[dict[str, float | None], float]:
    """(seconds of each phase, the last known moment), from `at` on. The state was loaded by `restored`, within some phase."""
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    for phase, end in moments.items():
        if end is None:
            continue
        took, begin, at = max(0.0, end - at), at, max(at, end)
        if restored is not None and begin < restored <= at:
            phases["restore"], restored = min(restore_s, took), None
            took -= phases["restore"] or 0.0
        phases[phase] = took
    if restored is not None and restored > at:  # it has made no step yet
        phases["restore"], at = min(restore_s, restored - at), restored
    return phases, at


def by_round(records: Iterable[Record]) -> dict[int, list[Record]]:
    """The records of each round, in the rounds' order."""
    found: dict[int, list[Record]] = {}
    for record in records:
        found.setdefault(record.round, []).append(record)
    return dict(sorted(found.items()))


def is_sight(record: Record) -> bool:
    """It is a record of a trouble's having been seen."""
    event = record.event
    if isinstance(event, events.FailureSeen):
        return not event.failure.innocent
    return isinstance(event, (events.NodeLost, events.RankHung, events.Decided))


def _last(records: Sequence[Record], kind: type) -> float | None:
    return max((record.at for record in records if isinstance(record.event, kind)), default=None)


def steps_lost_since(own: Sequence[Record], following: Sequence[Record]) -> float | None:
    """From when on a life's steps did not stay. None: nobody tells, or all did."""
    started = min((record.at for record in own if isinstance(record.event, events.WorkerStarted)), default=None)
    stepped_s, last_s = _told(own, events.RanksBegun, "stepped_s", max), _told(own, events.RanksEnded, "last_step_s", max)
    if started is None or stepped_s is None or last_s is None:
        return None
    first, last = _told(own, events.RanksBegun, "first_step", min), _told(own, events.RanksEnded, "last_step", max)
    resumed = _told(following, events.RanksBegun, "first_step", min)
    if first is not None and last is not None and resumed is not None:
        step_s = (last_s - stepped_s) / (last - first) if last > first else 0.0
        stayed = min(max(resumed - first, 0), last - first + 1)  # of those that this life made
        return started + stepped_s + (stayed - 1) * step_s
    if _told(following, events.RanksBegun, "restored_s", max) is None:
        return None
    saved_s = _told(own, events.RanksEnded, "saved_s", max)
    return started + (stepped_s if saved_s is None else saved_s)


def _told(records: Iterable[Record], kind: type, field: str, pick: Callable[..., float | None]) -> float | None:
    """The least, or the most, of what nodes have told; None: none has."""
    told = (getattr(record.event, field) for record in records if isinstance(record.event, kind))
    return pick((value for value in told if value is not None), default=None)
