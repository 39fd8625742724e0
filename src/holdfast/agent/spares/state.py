"""Which spares are there, and how far are the ranks? The state of `agent.spares.machine`: one value."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from holdfast.core.machine import NEVER
from holdfast.core.value import Value, replace

PATIENCE = 3.0
"""So many times as long as the last one took to import, one is waited for: on a busy host a cold start would be slower, too."""


class Phase(StrEnum):
    """How far the node's ranks are."""

    IDLE = "idle"  # There are none, or they are ending.
    STARTING = "starting"
    TRAINING = "training"
    STANDING_BY = "standby"  # The node waits for a place, and knows from others what its ranks would import.


class SlotState(StrEnum):
    """Where a place's spare is."""

    NONE = "none"
    IMPORTING = "importing"
    WAITING = "waiting"


class Slot(Value):
    """The place of one spare, and what is known of the spare."""

    number: int
    local_rank: int
    state: SlotState = SlotState.NONE
    pid: int = -1
    since: float = -NEVER
    reads: Collection[str] = ()
    size_bytes: int = 0
    stale: str = ""  # Why it cannot be used any more. Empty: it can.
    trouble: str = "none was ready yet"  # Why there is none.
    guessed: bool = False  # It was made while the node waited: with the environment of a place that is not known yet.
    vain: bool = False  # The last one found its environment contradicted: the next one might as well.


class State(Value):
    """All that the machine knows."""

    phase: Phase = Phase.IDLE
    slots: tuple[Slot, ...]
    thrifty: bool = False  # Spares are made only if there is memory for them.
    fork: bool = False  # One spare is for all workers.
    look_at: float = NEVER
    quiet_since: float = 0.0  # Since when the ranks have loaded no module.
    modules: int = -1
    failures: int = 0  # So many spares could not be made.
    proven: bool = False  # Ranks have trained here that had all run our bootstrap.
    import_s: float = 0.0  # How long the last one's imports took. 0: none has been ready yet.
    said: frozenset[str] = frozenset()

    def slots_in(self, where: SlotState) -> list[Slot]:
        """Those whose spare is there."""
        return [slot for slot in self.slots if slot.state is where]

    def slot_of(self, pid: int) -> Slot | None:
        """None: no spare, or no longer one."""
        return next((slot for slot in self.slots if slot.pid == pid), None)

    def changed(self, slot: Slot, **changes: Any) -> State:
        """This is known of a slot now."""
        after = tuple(replace(one, **changes) if one.number == slot.number else one for one in self.slots)
        return replace(self, slots=after)

    def emptied(self, slot: Slot, why: str) -> State:
        """Its spare is gone."""
        return self.changed(slot, state=SlotState.NONE, pid=-1, trouble=why, stale="")

    @property
    def awaited_until(self) -> float:
        """Until when spares that import are worth waiting for; in the past: none is."""
        under_way = [slot.since for slot in self.slots_in(SlotState.IMPORTING) if not slot.vain]
        return max(under_way) + PATIENCE * self.import_s if under_way and self.import_s else -NEVER


def no_spares(nproc: int, wanted: int | None, *, fork: bool = False) -> State:
    """Where it begins. `wanted` None: one for each worker, if there is memory for it. `fork`: one for all."""
    count = 1 if fork else nproc if wanted is None else wanted
    slots = tuple(Slot(number=number, local_rank=number % nproc) for number in range(count))
    return State(slots=slots, thrifty=wanted is None, fork=fork)
