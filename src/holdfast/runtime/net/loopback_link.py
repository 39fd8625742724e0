"""How does a coordinator's own node reach it? By a link to itself, with two ends in one process and no socket between.

Nobody has to prove anything here, and nothing is encoded; what is said arrives first in the loop's next turn, after what others
are told in this one.
"""

from __future__ import annotations

from holdfast.core.machine import Observation
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Message


class Loopback:
    """Links whose other end is here."""

    def __init__(self) -> None:
        self.pairs: dict[int, int] = {}  # Either end → the other.
        self.said: list[Observation] = []  # What has not been heard yet.

    def open(self, link: int, guest: int) -> None:
        """A link from us, and the same as a guest's."""
        self.pairs |= {link: guest, guest: link}
        self.said += [LinkUp(link=guest, ours=False), LinkUp(link=link, ours=True)]

    def say(self, link: int, message: Message) -> None:
        """Say it over one end; it comes out of the other."""
        self.said.append(Arrived(link=self.pairs[link], message=message))

    def close(self, link: int) -> None:
        """Hang up at one end: what that one has said is still heard, and both go down."""
        if (other := self.pairs.pop(link, None)) is not None:
            del self.pairs[other]
            self.said = [seen for seen in self.said if not (isinstance(seen, Arrived) and seen.link == link)]
            reason = "closed by the other side"
            self.said += [LinkDown(link=other, reason=reason), LinkDown(link=link, reason=reason)]

    def heard(self) -> list[Observation]:
        """What has been said since the last call."""
        said, self.said = self.said, []
        return said
