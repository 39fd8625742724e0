"""How are thousands of links waited for, without waking up for every word? Together, behind one descriptor of the host's.

While many links say a little each (leases that are renewed), what has come is taken in every few milliseconds: to be woken, to
look at the clock and to sleep again costs more than a message. Whatever else the host waits for, such as the death of a worker
of ours, wakes it all the same. A job of ordinary size, and one in which much is said, is not made to wait.
"""

from __future__ import annotations

import select

from holdfast.core.machine import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Observation
    from holdfast.runtime.host import Handler, Host

MANY = 512
"""Links from which on it is worth it: below, some hundred wake-ups a second cost a few percent of a processor at most."""

PAUSE_S = 0.005
"""Between two looks. A lease is 3 s, and an order to restart reaches thousands of nodes within 0.3 s."""

BUSY = 64
"""So many links with something to say at one look are no renewals: a round forms, or a job ends."""

AT_ONCE = 1024
"""Links that are heard at one look."""


class Crowd:
    """Descriptors, as `Host` knows them: `watch`, `rewatch`, `unwatch`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.epoll = select.epoll()
        self.handlers: dict[int, Handler] = {}
        self.look_at = NEVER
        """When to look next; NEVER: as soon as there is something."""
        self._watch()

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """See `Host.watch`."""
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def rewatch(self, fd: int, events: int) -> None:
        """See `Host.rewatch`."""
        self.epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """See `Host.unwatch`."""
        if self.handlers.pop(fd, None):
            self.epoll.unregister(fd)

    def due(self, now: float) -> list[Observation]:
        """What has come, if it is time to look."""
        return self._look() if now >= self.look_at else []

    def close(self) -> None:
        """Give the descriptor back."""
        self.host.unwatch(self.epoll.fileno())
        self.epoll.close()

    def _watch(self) -> None:
        self.look_at = NEVER
        self.host.watch(self.epoll.fileno(), select.EPOLLIN, lambda events: self._look())

    def _look(self) -> list[Observation]:
        ready = self.epoll.poll(0, AT_ONCE)
        seen: list[Observation] = []
        for fd, events in ready:
            if handler := self.handlers.get(fd):
                seen += handler(events)
        paused = self.look_at != NEVER
        if len(self.handlers) >= MANY and 0 < len(ready) < BUSY:
            if not paused:
                self.host.unwatch(self.epoll.fileno())
            self.look_at = self.host.now() + PAUSE_S
        elif paused:
            self._watch()
        return seen
