"""Which rounds of which jobs began, and ended? Seen from what the fleet's answers say of jobs, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.value import Value, replace
from holdfast.core.wire.fleet import ReporterState


class RoundSeen(Value):
    """One round of a job, from when it was first seen."""

    job: str
    life: str
    round: int
    attempt: int
    nodes: tuple[str, ...]
    ranks: int
    began_unix: float
    ended_unix: float = 0.0


class Rounds:
    """Those that run."""

    def __init__(self) -> None:
        self.open: dict[str, RoundSeen] = {}
        """By job."""

    def hear(self, jobs: Iterable[Mapping[str, Any]], at_unix: float) -> list[RoundSeen]:
        """What is new of some jobs; the rounds that it has ended."""
        ended = []
        for job in jobs:
            name = str(job.get("name"))
            was, now = self.open.get(name), _round(job, name, at_unix)
            if was is not None and (now is None or (now.life, now.round) != (was.life, was.round)):
                ended.append(replace(self.open.pop(name), ended_unix=at_unix))
            if now is not None:
                self.open.setdefault(name, now)
        return ended


def life_at(jobs: Iterable[Mapping[str, Any]], job: str, at_unix: float) -> str:
    """The life that a job was in at that time; empty: not known."""
    lives = [life for one in jobs if one.get("name") == job for life in one.get("lives") or ()]
    begun = [str(life.get("life")) for life in lives if float(life.get("at_unix") or 0.0) <= at_unix]
    return begun[-1] if begun else ""


def _round(job: Mapping[str, Any], name: str, at_unix: float) -> RoundSeen | None:
    if job.get("state") != ReporterState.RUNNING:
        return None
    lives: Sequence[Mapping[str, Any]] = job.get("lives") or ({},)
    return RoundSeen(
        job=name,
        life=str(lives[-1].get("life", "")),
        round=int(job.get("round") or 0),
        attempt=int(job.get("attempt") or 0),
        nodes=tuple(map(str, job.get("nodes") or ())),
        ranks=int(job.get("ranks") or 0),
        began_unix=at_unix,
    )
