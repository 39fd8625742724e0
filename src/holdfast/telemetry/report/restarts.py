"""Where did the time of each restart go? From a life's trouble to the first step of the next one, phase by phase.

Each phase ends with a moment that was recorded, the latest of all nodes: the phase is the time since the moment before it that
is known. A phase whose end nobody told is None, and its time is in the next one. What ranks tell comes with `RanksBegun`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.job.events import (
    Decided,
    FailureSeen,
    GpuMemoryReclaimed,
    NodeLost,
    RankHung,
    RanksBegun,
    RoundFormed,
    StopSent,
    WorkersStopped,
    WorkerStarted,
)
from holdfast.core.value import Value
from holdfast.telemetry.record.reader import Record

PHASES = ("detect", "tell", "stop", "rendezvous", "reclaim", "start", "import", "first collective", "restore", "first step")
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
- first step: until the last rank had made one.
"""


class Restart(Value):
    """From the trouble of one life to the first step of the next."""

    from_round: int
    round: int
    disturbed_at: float
    """When the first thing went wrong, seconds since the epoch."""
    phases: dict[str, float | None]
    """Seconds, by name as in `PHASES`. None: not told, or part of the next one that is."""
    total_s: float
    """To the last moment that is known."""


def restart(disturbed_at: float, before: Sequence[Record], after: Sequence[Record]) -> Restart:
    """The restart between two rounds, of which these are the records; the first was disturbed at that time."""
    started = {record.node: record.at for record in reversed(after) if isinstance(record.event, WorkerStarted)}
    begun = [(started.get(record.node, record.at), event) for record in after if isinstance(event := record.event, RanksBegun)]

    def rank_moment(field: Callable[[RanksBegun], float | None]) -> float | None:
        return max((at + after_s for at, event in begun if (after_s := field(event)) is not None), default=None)

    restored, restore_s = rank_moment(lambda event: event.restored_s), max((event.restore_s for _, event in begun), default=0.0)
    seen = [record.at for record in before if is_sight(record)]
    formed = [record.at for record in after if isinstance(record.event, RoundFormed)]
    moments = {
        "detect": min(seen, default=None),
        "tell": _last(before, StopSent),
        "stop": _last(before, WorkersStopped),
        "rendezvous": max(formed, default=None),
        "reclaim": _last(after, GpuMemoryReclaimed),
        "start": rank_moment(lambda event: event.booted_s) or max(started.values(), default=None),
        "import": rank_moment(lambda event: event.joining_s),
        "first collective": rank_moment(lambda event: event.joined_s),
        "first step": rank_moment(lambda event: event.stepped_s),
    }
    phases: dict[str, float | None] = dict.fromkeys(PHASES)
    at = disturbed_at
    for phase, end in moments.items():
        if end is None:
            continue
        took, begin, at = max(0.0, end - at), at, max(at, end)
        if restored is not None and begin < restored <= at:  # the state was loaded within this one
            phases["restore"], restored = min(restore_s, took), None
            took -= phases["restore"] or 0.0
        phases[phase] = took
    if restored is not None and restored > at:  # it has made no step yet
        phases["restore"], at = min(restore_s, restored - at), restored
    number = max((record.round for record in after), default=0)
    return Restart(
        from_round=max((record.round for record in before), default=0),
        round=number,
        disturbed_at=disturbed_at,
        phases=phases,
        total_s=at - disturbed_at,
    )


def is_sight(record: Record) -> bool:
    """It is a record of a trouble's having been seen."""
    event = record.event
    return isinstance(event, (NodeLost, RankHung, Decided)) or (isinstance(event, FailureSeen) and not event.failure.innocent)


def _last(records: Sequence[Record], kind: type) -> float | None:
    return max((record.at for record in records if isinstance(record.event, kind)), default=None)
