"""The log of the supervisor's actions: each is written with its reason when decided, and again with its outcome."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import islice

from holdfast.core.machine import Action
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Act, Deed
from holdfast.supervisor.fleet.messages import Keep

MOST = 5000
"""Deeds that are held in memory, and so can be asked for and count for policies: a year of a fleet that has some ten a day."""


REPLACEMENTS = 5
"""So many of the newest replacements tell how long the orchestrator takes."""

GIVEN = TAKEN_OVER, GOES_ON = "has taken over", "the job goes on with"
"""In the outcome of a swap that was carried out."""

AWAIT_OVER = "await: "
"""How a note begins that no other node has come in time."""


class Result(StrEnum):
    """What came of a deed."""

    OPEN = "open"
    DONE = "done"
    IN_VAIN = "in_vain"
    UNKNOWN = "unknown"
    """The supervisor was restarted meanwhile."""


class ActionLog:
    """All deeds that are remembered, the oldest first."""

    def __init__(self, generation: int, kept: Iterable[Deed] = ()) -> None:
        self.generation = generation
        self.deeds = {deed.id: deed for deed in sorted(kept, key=lambda deed: deed.at_unix)}
        self.totals: dict[tuple[str, str, Result], int] = {}
        """(act, trouble, result) → how many deeds, those that are forgotten meanwhile among them."""
        for deed in self.deeds.values():
            self._count_in(deed, 1)
        self._count = 0

    def about(self, *, node: str = "", job: str = "") -> list[Deed]:
        return [deed for deed in self.deeds.values() if (node and deed.node == node) or (job and deed.job == job)]

    def trouble(self, id: str) -> str:
        """The trouble that a deed is about. Empty: the deed is forgotten."""
        return self.deeds[id].trouble if id in self.deeds else ""

    def replacements(self) -> list[float]:
        """How long it took until a job ran with the node that was asked for, of the newest `REPLACEMENTS`."""
        took = (
            deed.ended_at_unix - deed.at_unix
            for deed in reversed(self.deeds.values())
            if deed.act == Act.REPLACE and any(words in deed.outcome for words in GIVEN)
            and not any(step.startswith(AWAIT_OVER) for step in deed.done)
        )  # fmt: skip
        return list(islice(took, REPLACEMENTS))

    def fresh_id(self) -> str:
        """An id that no deed of any life of the supervisor has."""
        self._count += 1
        return f"{self.generation}-{self._count}"

    def write(self, deed: Deed) -> list[Action]:
        """Write it down, for the first time or anew."""
        if (before := self.deeds.get(deed.id)) is not None:
            self._count_in(before, -1)
        self._count_in(deed, 1)
        self.deeds[deed.id] = deed
        actions: list[Action] = [Keep(table="deeds", key=deed.id, value=deed)]
        for old in list(self.deeds)[: max(0, len(self.deeds) - MOST)]:
            del self.deeds[old]
            actions.append(Keep(table="deeds", key=old, value=None))
        return actions

    def note(self, id: str, step: str) -> list[Action]:
        deed = self.deeds.get(id)
        if deed is None or deed.done[-1:] == (step,):
            return []
        return self.write(replace(deed, done=(*deed.done, step)))

    def close(self, id: str, outcome: str, at_unix: float) -> list[Action]:
        """It is known what came of it. The first word is the last."""
        deed = self.deeds.get(id)
        if deed is None or deed.outcome:
            return []
        return self.write(replace(deed, outcome=outcome, ended_at_unix=at_unix))

    def _count_in(self, deed: Deed, by: int) -> None:
        key = deed.act, deed.trouble, result(deed)
        self.totals[key] = self.totals.get(key, 0) + by


def result(deed: Deed) -> Result:
    """What came of it, in one word."""
    if deed.outcome.startswith("in vain"):
        return Result.IN_VAIN
    return Result.UNKNOWN if deed.outcome.startswith("not known") else Result.DONE if deed.outcome else Result.OPEN
