"""The one connection that a node without a coordinator makes, to one peer after the other.

`rendezvous.election.succession` decides whom to call, and what to say.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import Value, replace
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.core.wire.messages import Message

LINKS_FROM = 1 << 19  # Numbers of these links, apart from the member's and from those that others open.

CONNECT_S, LONGEST_CONNECT_S = 0.5, 1.5
"""Time for a link to the next in line. A host without power does not even refuse. Where all have been called in vain they may
be far away, since a link takes three round trips: the time doubles. The longest is enough for 200 ms each way."""

WAIT_S = 2.0
"""How long to wait for one that is there, at least. Promises end within a renewal of each other, at most a second apart."""


class Dial(Value):
    """That link."""

    link: int = LINKS_FROM
    to: str = ""  # The dialled peer's endpoint; empty: none.
    up: bool = False
    until: float = NEVER  # How long to stay with it.
    next_at: float = -NEVER  # When to call the next.
    connect_s: float = CONNECT_S

    def uses(self, link: int) -> bool:
        """Whether a call goes over that link."""
        return bool(self.to) and link == self.link

    @property
    def due_at(self) -> float:
        """When to leave the peer, or to call the next."""
        return self.until if self.to else self.next_at

    def call(self, endpoint: str, now: float) -> tuple[Dial, list[Action]]:
        """Begin a link to `endpoint`."""
        link = self.link + 1
        dial = replace(self, link=link, to=endpoint, up=False, until=now + self.connect_s)
        return dial, [Connect(link=link, endpoint=endpoint)]

    def patient(self) -> Dial:
        """With twice the time for a link."""
        return replace(self, connect_s=min(LONGEST_CONNECT_S, 2 * self.connect_s))

    @property
    def wait_s(self) -> float:
        """How long to wait for a dialled peer that is there."""
        return max(WAIT_S, self.connect_s)

    def answered(self, now: float) -> Dial:
        """The link came up."""
        return replace(self, up=True, until=now + self.wait_s)

    def say(self, message: Message) -> list[Action]:
        """Send to the dialled peer."""
        return [Transmit(link=self.link, message=message)]

    def hang_up(self, now: float) -> tuple[Dial, list[Action]]:
        """Leave the dialled peer; the next may be called at once."""
        return self.broke(now), [HangUp(link=self.link)]

    def broke(self, next_at: float) -> Dial:
        """The link is gone; the next may be called then."""
        return replace(self, to="", up=False, next_at=max(self.next_at, next_at))
