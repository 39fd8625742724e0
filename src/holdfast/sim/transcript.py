"""What happened in a simulated run, as lines that an operator can read: true time, place, what.

3.017  b     lost: power
6.904  a     decides to rejoin: node b was lost: not heard from for 3.0 s (lease 3 s)
"""

from __future__ import annotations

import hashlib

from holdfast.core.job import events
from holdfast.core.job.failure import describe

QUIET = (
    *(events.CoordinatorFound, events.CoordinatorMissing, events.JoinRequested, events.StopSent),
    *(events.WorkerDying, events.WorkerExited, events.WorkersStopped, events.WorkerStarted),
)
"""Events that a short transcript leaves out."""

WORDS: dict[type[events.Event], str] = {
    events.ControlRequested: "rank {0.rank} asks to {0.kind}: {0.reason}",
    events.Decided: "decides to {0.decision}: {0.reason}",
    events.GuardianLost: "its guardian was killed",
    events.JobEnded: "ends with {0.exit_code} ({0.outcome}): {0.reason}",
    events.NodeJoined: "{0.name} joined",
    events.NodeLeft: "{0.name} left: {0.reason}",
    events.NodeLost: "{0.name} lost: {0.reason}",
    events.NodeReadmitted: "{0.name} readmitted: {0.reason}",
    events.RankHung: "rank {0.rank} hung: {0.reason}",
    events.SignalReceived: "received {0.signal}",
}
"""Events whose words are a matter of their fields alone."""


class Transcript:
    """The lines of one run."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, events.Event | str]] = []

    def note(self, at: float, place: str, what: events.Event | str) -> None:
        """Something happened at a place."""
        self.entries.append((at, place, what))

    def lines(self, *, short: bool = True, since: float = 0.0) -> list[str]:
        """All of it, or without the events of single workers."""
        return [
            f"{at:8.3f}  {place:<5} {said(what)}"
            for at, place, what in self.entries
            if at >= since and not (short and isinstance(what, QUIET))
        ]

    def story(self) -> str:
        """The short lines without times: what a test compares."""
        return "\n".join(f"{place}: {said(what)}" for _, place, what in self.entries if not isinstance(what, QUIET))

    def digest(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256("\n".join(self.lines(short=False)).encode()).hexdigest()


def said(what: events.Event | str) -> str:
    """One event in words."""
    match what:
        case str():
            return what
        case events.NodeExcluded(name=name, reason=reason, by=by, age_s=age_s):
            return f"knows {name} as excluded ({by}): {reason}" if age_s else f"{name} excluded ({by}): {reason}"
        case events.RoundFormed(round=number, nodes=nodes, group_rank=rank, world_size=ranks, reason=reason):
            return f"round {number} of {' '.join(nodes)}, group rank {rank}, {ranks} ranks ({reason})"
        case events.FailureSeen(failure=failure):
            return f"{describe(failure)}{' (stopped by us)' if failure.innocent else ''}"
    return WORDS[type(what)].format(what) if type(what) in WORDS else repr(what)
