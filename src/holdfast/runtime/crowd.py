"""How are thousands of links waited for, without waking up for every word? Together, behind one descriptor of the host's.

While many links say a little each (leases that are renewed), what has come is taken in every few milliseconds: to be woken, to
look at the clock and to sleep again costs more than a message. Whatever else the host waits for, such as the death of a worker
of ours, wakes it all the same. A job of ordinary size, and one in which much is said, is not made to wait.
"""

from __future__ import annotations

import select

from holdfast.core.machine import NEVER
from holdfast.runtime.host import Ready

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Observation
    from holdfast.runtime.host import Host

MANY = 512
"""Links from which on it is worth it: below, some hundred wake-ups a second cost a few percent of a processor at most."""

PAUSE_S = 0.005
"""Between two looks. A lease is 3 s, and an order to restart reaches thousands of nodes within 0.3 s."""

BUSY = 64
"""So many links with something to say at one look are no renewals: a round forms, or a job ends."""

AT_ONCE = 1024
"""Links that are heard at one look."""


class Crowd(Ready):
    """Descriptors that are waited for behind one of `host`'s."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self.look_at = NEVER
        """When to look next; NEVER: as soon as there is something."""
        self._be_woken()

    def due(self, now: float) -> list[Observation]:
        """What has come, if it is time to look."""
        return self._look() if now >= self.look_at else []

    def close(self) -> None:
        """Give the descriptor back."""
        self.host.unwatch(self.epoll.fileno())
        self.epoll.close()

    def _be_woken(self) -> None:
        self.look_at = NEVER
        self.host.watch(self.epoll.fileno(), select.EPOLLIN, lambda events: self._look())

    def _look(self) -> list[Observation]:
        ready = self.epoll.poll(0, AT_ONCE)
        seen = self.heard(ready)
        paused = self.look_at != NEVER
        if len(self.handlers) >= MANY and 0 < len(ready) < BUSY:
            if not paused:
                self.host.unwatch(self.epoll.fileno())
            self.look_at = self.host.now() + PAUSE_S
        elif paused:
            self._be_woken()
        return seen
