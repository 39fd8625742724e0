"""The queue of notifications for one webhook, with retry and back-off. Decides only; `webhook_sender` sends.

A deed is told twice: when it is decided and when its outcome is known. In the order in which that was heard, one at a time;
what was not taken is tried again, later each time, and the rest waits behind it. What has been told is a value that can be kept
(`told`), so that another life of ours goes on where this one ended: a message that was under way then comes twice, with the
same id, and none is lost while no more than `WAITING` wait and the supervisor still tells of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from holdfast.core.machine import NEVER
from holdfast.core.value import Value
from holdfast.core.wire.fleet import Act

FIRST_S, LONGEST_S = 1.0, 60.0
"""Before the second attempt, and the longest pause between two; it doubles in between."""

PATIENCE_S = 300.0
"""The longest pause that a receiver may ask for."""

WAITING = 1000
"""Messages that may wait. Of more, the oldest are dropped."""


class Phase(StrEnum):
    """How far a deed is."""

    BEGUN = "begun"
    ENDED = "ended"


class Notification(Value):
    """One message."""

    id: str
    """Of the deed and its phase: the same message has the same id, however often it comes."""
    phase: Phase
    deed: Mapping[str, Any]


class DeliveryQueue:
    """See the module's text."""

    def __init__(self, told: Mapping[str, str] | None, began_unix: float, phases: Sequence[Phase] = tuple(Phase)) -> None:
        """`told`: as it was kept. None: this receiver is new, and hears of nothing that was over before `began_unix`."""
        self.told = dict(told or {})
        """Deed → the last phase of it that has been told."""
        self.since_unix = began_unix if told is None else 0.0
        self.phases = phases
        self.notifications: dict[str, Notification] = {}
        """Those that wait, the oldest first."""
        self.tries, self.try_at = 0, 0.0
        self.dropped = 0

    def hear(self, deeds: Iterable[Mapping[str, Any]]) -> None:
        """These deeds are new, or others than before."""
        for deed in deeds:
            if deed.get("act") in (None, Act.NONE):
                continue
            phase = Phase.ENDED if deed.get("outcome") else Phase.BEGUN
            notification = Notification(id=f"{deed.get('id')}.{phase}", phase=phase, deed=deed)
            at_unix = max(float(deed.get(field) or 0.0) for field in ("at_unix", "ended_at_unix"))
            if at_unix < self.since_unix:
                self.told.setdefault(str(deed.get("id")), phase)  # so that the next life does not tell it either
            elif phase in self.phases and self.told.get(str(deed.get("id"))) not in (phase, Phase.ENDED):
                self.notifications.setdefault(notification.id, notification)
        for old in list(self.notifications)[: max(0, len(self.notifications) - WAITING)]:
            del self.notifications[old]
            self.dropped += 1

    def due(self, now: float) -> Notification | None:
        return next(iter(self.notifications.values()), None) if now >= self.try_at else None

    def deadline(self) -> float:
        """When something is due; NEVER: nothing waits."""
        return self.try_at if self.notifications else NEVER

    def taken(self, notification: Notification) -> None:
        """It has been sent, or never will be."""
        self.notifications.pop(notification.id, None)
        self.told[str(notification.deed.get("id"))] = notification.phase
        self.tries, self.try_at = 0, 0.0

    def failed(self, now: float, wait_s: float = 0.0) -> float:
        """It has not been taken, and is tried again: after how many seconds. `wait_s`: as the receiver asks."""
        self.tries += 1
        pause_s = max(min(LONGEST_S, FIRST_S * 2.0 ** min(self.tries - 1, 10)), min(wait_s, PATIENCE_S))
        self.try_at = now + pause_s
        return pause_s

    def forget(self, known: Iterable[Mapping[str, Any]]) -> None:
        """The supervisor tells of these deeds only: of the others nothing has to be remembered."""
        ids = {str(deed.get("id")) for deed in known}
        self.told = {id: phase for id, phase in self.told.items() if id in ids}
