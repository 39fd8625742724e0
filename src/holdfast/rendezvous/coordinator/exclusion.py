"""The list of excluded nodes with reasons. Decided in `failure_handling`, `admission` and `requests`.

Nodes are remembered by name: over rounds, over restarts of a node's agent, and, by `kept` and `resume`, over coordinators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.core.job.events import ExcludedBy
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.messages import Exclusion

CHARS = 500
"""Characters of a reason that are kept: a successor is told all of them, and a store's values are small."""

MOST_OWN = 1024
"""Nodes that are remembered for their own word that they are unfit: one that comes back says so again."""


class Excluded(dict[str, tuple[Exclusion, float]]):
    """All of them, by name: what, and since when on our clock."""

    def __init__(self, *, back_after_s: float = NEVER) -> None:
        self.back_after_s = back_after_s
        """How long one lasts; NEVER: until somebody readmits the node. A node's own word lasts until it says otherwise, and
        whoever was declared lost is left out until somebody readmits it."""
        self.changes = 0  # How often somebody has been added, wanted or removed.
        self.wanted: dict[str, tuple[Exclusion, float]] = {}
        """Nodes that a script wants left out, and that the job cannot go on without yet. Likewise."""

    def why(self, name: str) -> str:
        """Why that node must not take part; empty: it may."""
        return self[name][0].reason if name in self else ""

    def by(self, name: str) -> ExcludedBy | None:
        """Who has it excluded. None: it is not excluded."""
        return self[name][0].by if name in self else None

    def absent(self, names: Collection[str]) -> int:
        """How many others than these an operator has excluded."""
        return sum(one.by is ExcludedBy.OPERATOR and name not in names for name, (one, _) in self.items())

    def add(self, name: str, reason: str, by: ExcludedBy, now: float) -> None:
        """Leave it out from now on."""
        self[name] = Exclusion(name=name, reason=reason[:CHARS], by=by), now
        self.wanted.pop(name, None)
        self.changes += 1
        if by is ExcludedBy.ITSELF and len(own := [name for name in self if self.by(name) is by]) > MOST_OWN:
            del self[own[0]]

    def want(self, name: str, reason: str, by: ExcludedBy, now: float) -> None:
        """Leave it out as soon as the job can go on without it. The first wish counts."""
        if name not in self.wanted:
            self.wanted[name] = Exclusion(name=name, reason=reason[:CHARS], by=by, wanted=True), now
            self.changes += 1

    def remove(self, name: str) -> None:
        """Let it take part again."""
        self.pop(name, None)
        self.wanted.pop(name, None)
        self.changes += 1

    def over(self, now: float) -> list[str]:
        """Those whose time is up."""
        return [name for name in self if now >= self._ends(name)]

    def deadline(self) -> float:
        """When the first one's time is up."""
        return min((self._ends(name) for name in self), default=NEVER)

    def kept(self, now: float) -> tuple[Exclusion, ...]:
        """What a successor must know."""
        return tuple(replace(one, age_s=now - since) for one, since in (*self.values(), *self.wanted.values()))

    def resume(self, kept: Iterable[Exclusion], now: float) -> None:
        """Take over from a predecessor."""
        for one in kept:
            (self.wanted if one.wanted else self)[one.name] = one, now - one.age_s

    def _ends(self, name: str) -> float:
        one, since = self[name]
        return NEVER if one.by in (ExcludedBy.ITSELF, ExcludedBy.DECLARED_LOST) else since + self.back_after_s
