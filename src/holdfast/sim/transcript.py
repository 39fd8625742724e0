"""What happened in a simulated run, as lines that an operator can read: true time, place, what.

3.017  b     lost: power
6.904  a     decides to rejoin: node b was lost: not heard from for 3.0 s (lease 3 s)
"""

from __future__ import annotations

import hashlib

from holdfast.core.job.events import (
    ControlRequested,
    CoordinatorFound,
    Decided,
    Event,
    FailureSeen,
    GuardianLost,
    JobEnded,
    JoinRequested,
    NodeExcluded,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReadmitted,
    RankHung,
    RoundFormed,
    SignalReceived,
    StopSent,
    WorkerDying,
    WorkerExited,
    WorkersStopped,
    WorkerStarted,
)
from holdfast.core.job.failure import describe

QUIET = (CoordinatorFound, JoinRequested, StopSent, WorkerDying, WorkerExited, WorkersStopped, WorkerStarted)
"""Events that a short transcript leaves out."""


class Transcript:
    """The lines of one run."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, str, Event | str]] = []

    def note(self, at: float, place: str, what: Event | str) -> None:
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


def said(what: Event | str) -> str:
    """One event in words."""
    if isinstance(what, str):
        return what
    return _of_node(what) or _of_job(what) or repr(what)


def _of_node(what: Event) -> str:
    """Who takes part. Empty: it is about something else."""
    match what:
        case NodeJoined(name=name):
            return f"{name} joined"
        case NodeLeft(name=name, reason=reason):
            return f"{name} left: {reason}"
        case NodeLost(name=name, reason=reason):
            return f"{name} lost: {reason}"
        case NodeExcluded(name=name, reason=reason, by=by, age_s=age_s) if age_s:
            return f"knows {name} as excluded ({by}): {reason}"
        case NodeExcluded(name=name, reason=reason, by=by):
            return f"{name} excluded ({by}): {reason}"
        case NodeReadmitted(name=name, reason=reason):
            return f"{name} readmitted: {reason}"
    return ""


def _of_job(what: Event) -> str:
    """What its ranks and agents do. Empty: it is about something else."""
    match what:
        case ControlRequested(rank=rank, kind=kind, reason=reason):
            return f"rank {rank} asks to {kind}: {reason}"
        case Decided(decision=decision, reason=reason):
            return f"decides to {decision}: {reason}"
        case RoundFormed():
            nodes = " ".join(what.nodes)
            return f"round {what.round} of {nodes}, group rank {what.group_rank}, {what.world_size} ranks ({what.reason})"
        case FailureSeen(failure=failure):
            return f"{describe(failure)}{' (stopped by us)' if failure.innocent else ''}"
        case RankHung(rank=rank, reason=reason):
            return f"rank {rank} hung: {reason}"
        case SignalReceived(signal=name):
            return f"received {name}"
        case GuardianLost():
            return "its guardian was killed"
        case JobEnded():
            return f"ends with {what.exit_code} ({what.outcome}): {what.reason}"
    return ""
