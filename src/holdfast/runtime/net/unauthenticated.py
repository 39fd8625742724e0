"""Limits for connections that are not authenticated yet, and what is logged about them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.machine import NEVER
from holdfast.core.value import Value
from holdfast.runtime.net.wire import Wire

PER_PEER, IN_ALL = 4, 24
"""Lines about one address, and about all: a scanner with many addresses and words must not fill the log."""

AGAIN_S, LONGEST_S = 60.0, 3600.0  # Until unsaid lines are counted aloud; doubles.


class RejectionLog:
    """Tells each reason once for each address, and counts the rest. `complain` tells a person."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.said: dict[str, set[str]] = {}  # peer → what was said about it
        self.lines = 0
        self.unsaid = 0
        self.last = ""
        self.tell_at = NEVER
        self.pause_s = AGAIN_S

    def note(self, peer: str, line: str, now: float) -> None:
        """`line` is what happened with `peer`: say it, or count it."""
        known = self.said.get(peer, set())
        if line not in known and len(known) < PER_PEER and self.lines < IN_ALL:
            self.said.setdefault(peer, set()).add(line)
            self.lines += 1
            self.complain(line)
            return
        self.unsaid += 1
        self.last = line
        if self.tell_at == NEVER:
            self.tell_at = now + self.pause_s

    def due(self, now: float) -> None:
        """Tell the count, when it is time for that."""
        if now >= self.tell_at:
            self.tell()
            self.pause_s = min(LONGEST_S, 2 * self.pause_s)

    def tell(self) -> None:
        """Tell how often nothing was said."""
        if self.unsaid:
            again = "once more" if self.unsaid == 1 else f"{self.unsaid} times more"
            self.complain(f"such connections came {again}; the last: {self.last}")
        self.unsaid, self.tell_at = 0, NEVER


STRANGERS = 1024
"""At most so many connections without proof at a time. Then the oldest of the address that has most goes, so that a flood from
one host keeps nobody else out."""

CROWD, YOUNG_S = 16, 1.0
"""While no address has more connections without proof than `CROWD`, these are many nodes that come at once: those who come next
wait in the kernel's queue, until the oldest has had `YOUNG_S` for its proof."""


class Limits(Value):
    """What those who have proved nothing may take: see the numbers of the same names."""

    strangers: int = STRANGERS
    crowd: int = CROWD
    young_s: float = YOUNG_S


LIMITS = Limits()


class Strangers:
    """Connections without proof, the oldest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all: dict[int, Wire] = {}
        self._of_peer: dict[str, dict[int, Wire]] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def are_full(self) -> bool:
        """Another has no room."""
        return len(self._all) >= self.limits.strangers

    def add(self, wire: Wire) -> None:
        """One has come."""
        self._all[wire.link] = wire
        self._of_peer.setdefault(wire.peer, {})[wire.link] = wire

    def discard(self, wire: Wire) -> None:
        """It is a stranger no more, in one way or the other."""
        if self._all.pop(wire.link, None) is not None:
            of_peer = self._of_peer[wire.peer]
            del of_peer[wire.link]
            if not of_peer:
                del self._of_peer[wire.peer]

    def are_young(self, now: float, proof_s: float) -> bool:
        """Whether these are likely to be members, who have only just come. `proof_s`: how long each has for its proof."""
        if any(len(wires) > self.limits.crowd for wires in self._of_peer.values()):
            return False
        oldest = next(iter(self._all.values()), None)
        return oldest is not None and now < oldest.until - proof_s + self.limits.young_s

    def least_wanted(self) -> Wire | None:
        """The oldest of the address that has most."""
        most = max(self._of_peer.values(), key=len, default=None)
        return next(iter(most.values())) if most else None
