"""How far is each node's wall clock ahead of the others'? Measured by what renews leases anyway; nothing is ever decided by it.

    member         Renew ──────────────────────────────▶ Renewed heard      ahead = own clock half-way between the two
    coordinator              Renewed, with its own clock                            − the clock that came; wrong by half of
                                                                                     the time in between, at most

The next `Renew` says that number, and `Renewed` the middle (median) of all nodes' numbers: so each knows how far it is ahead of
most others, and a coordinator whose own clock is wrong is known by it, too. The wall clock comes into both as a number, from
the machine's driver: how far it is ahead of the monotonic clock. Pure.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER
from holdfast.core.value import Value
from holdfast.rendezvous.coordinator.membership import Seat, Seats

KEPT = 8  # Comparisons of which the one with the shortest way there and back counts.

SET_S = 0.01
"""From so much on, another distance between a host's two clocks means that one was set: what was measured before is void."""

LEAST = 3  # Nodes that have a middle. Of two nobody can tell whose clock is wrong.

AFRESH_S = 1.0  # How often the middle is worked out.

MOST_S = 1e10  # No clock is more seconds ahead than that.


class ClockLead(Value):
    """How far this node's wall clock is ahead."""

    ahead_s: float
    error_s: float  # It is wrong by so much at most, either way.
    of: str  # Of what.


OF_MOST, OF_ONE = "most other nodes", "the coordinator's node"


class Compared:
    """A member's side."""

    def __init__(self) -> None:
        self.ahead_unix = 0.0
        """What the wall clock shows, less what the monotonic one does. 0: the driver does not say, and nothing is compared."""
        self.middle_s: float | None = None
        self._seen: list[tuple[float, float]] = []  # (error, ahead) of the last few.

    def set(self, ahead_unix: float) -> None:
        """As it is now."""
        if abs(ahead_unix - self.ahead_unix) > SET_S:
            self._seen.clear()
        self.ahead_unix = ahead_unix

    def heard(self, sent_at: float, at_unix: float, middle_s: float | None, now: float) -> None:
        """A `Renew` that was sent at `sent_at` has been answered, when the coordinator's clock showed `at_unix`."""
        self.middle_s = middle_s
        if at_unix and self.ahead_unix:
            error_s = (now - sent_at) / 2
            self._seen = [*self._seen[1 - KEPT :], (error_s, self.ahead_unix + sent_at + error_s - at_unix)]

    @property
    def ahead_s(self) -> float | None:
        """Of the coordinator's clock. None: it is not known."""
        return min(self._seen)[1] if self._seen else None

    @property
    def lead(self) -> ClockLead | None:
        """None: it is not known."""
        if not self._seen:
            return None
        error_s, ahead_s = min(self._seen)
        if self.middle_s is None:
            return ClockLead(ahead_s=ahead_s, error_s=error_s, of=OF_ONE)
        return ClockLead(ahead_s=ahead_s - self.middle_s, error_s=error_s, of=OF_MOST)


class Clocks:
    """The coordinator's side."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.middle_s: float | None = None
        self._look_at = -NEVER

    def heard(self, seat: Seat, ahead_s: float | None, now: float) -> None:
        """What a member knows of its clock."""
        if ahead_s is not None and abs(ahead_s) < MOST_S:
            seat.know_clock(ahead_s)
        if now >= self._look_at:
            self._look_at = now + AFRESH_S
            ours = 0.0  # a member that shares our process has our clock
            said = (ours if seat.here and seat.ahead_s is None else seat.ahead_s for seat in self.seats.values())
            known = sorted(ahead_s for ahead_s in said if ahead_s is not None)
            half = len(known) // 2
            self.middle_s = (known[half] + known[~half]) / 2 if len(known) >= LEAST else None

    @property
    def lead(self) -> ClockLead | None:
        """Of our own node, where that is no member over a link. None: it is not known."""
        return None if self.middle_s is None else ClockLead(ahead_s=-self.middle_s, error_s=0.0, of=OF_MOST)
