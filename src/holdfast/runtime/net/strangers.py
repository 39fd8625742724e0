"""Which connections have proved nothing yet, and which of them goes when there is no room? Counted by address."""

from __future__ import annotations

from holdfast.core.value import Value
from holdfast.runtime.net.wire import Wire

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
