"""Whom does a node call that looks for the coordinator, and until when? The one link of its own, to one after the other.
Whom to call, and what to say, is decided in `rendezvous.election.succession`.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.wire.links import Connect, HangUp, Transmit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.wire.messages import Message

LINKS_FROM = 1 << 19
"""Numbers of these links, apart from the member's and from those that others open."""

CONNECT_S = 0.5
"""Time for a link to the next in line. A host without power does not even refuse."""

WAIT_S = 2.0
"""How long to wait for one that is there. Promises end within a renewal of each other, at most a second apart."""


class Dial:
    """That link."""

    def __init__(self) -> None:
        self.link = LINKS_FROM
        self.to = ""
        """Whom we have called; empty: nobody."""
        self.up = False
        self.until = NEVER
        """How long we stay with them."""
        self.next_at = -NEVER
        """When to call the next."""

    def uses(self, link: int) -> bool:
        """Whether a call goes over that link."""
        return bool(self.to) and link == self.link

    @property
    def due_at(self) -> float:
        """When something is to be done: to leave them, or to call the next."""
        return self.until if self.to else self.next_at

    def call(self, endpoint: str, now: float) -> list[Action]:
        """Begin a link to `endpoint`."""
        self.link += 1
        self.to, self.up, self.until = endpoint, False, now + CONNECT_S
        return [Connect(link=self.link, endpoint=endpoint)]

    def answered(self, now: float) -> None:
        """It came up."""
        self.up, self.until = True, now + WAIT_S

    def say(self, message: Message) -> list[Action]:
        """To whoever it goes to."""
        return [Transmit(link=self.link, message=message)]

    def hang_up(self, now: float) -> list[Action]:
        """Leave them, if there is anybody; the next may be called at once."""
        if not self.to:
            return []
        self.broke(now)
        return [HangUp(link=self.link)]

    def broke(self, next_at: float) -> None:
        """It is gone; the next may be called then."""
        self.to, self.up, self.next_at = "", False, max(self.next_at, next_at)
