"""How does a host wait for thousands of links without waking up for every message? Behind one descriptor.

While many links say little each (lease renewals), the pool reads every few milliseconds: to wake up, look at the clock and
sleep again costs more than a message. Anything else, such as a worker's death, wakes the host at once. A job of ordinary size,
or one with much traffic, never waits.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from holdfast.core.machine import NEVER, Observation
from holdfast.core.value import Value
from holdfast.runtime.host import Host, Ready

AT_ONCE = 1024  # Links that are heard at one look.


class Pace(Value):
    """When links are looked at together, and how often."""

    many: int = 512
    """Links from which on it is worth it: below, some hundred wake-ups a second cost a few percent of a processor at most."""
    pause_s: float = 0.005
    """Between two looks, at least. Eighty words at one look take two thirds of the time of twenty at each of four."""
    each_s: float = 5e-6  # The same, for each of the links.
    longest_s: float = 0.02  # The same, at most: a lease is 3 s.
    busy: int = 64
    """So many links with something to say at one look are no renewals: a round forms, or a job ends."""
    often: float = 2.0  # Nor are so many times a second for each of them.


class LinkPool(Ready):
    """Descriptors that are waited for behind one of `host`'s.

    Their handlers only take in; `taken_in` then acts on all of it, so that the kernel's TCP and our code do not evict each
    other from the processor's caches."""

    def __init__(self, host: Host, taken_in: Callable[[], list[Observation]], pace: Pace = Pace()) -> None:  # noqa: B008 (a value)
        super().__init__()
        self.host = host
        self.taken_in = taken_in
        self.pace = pace
        self.ready = 0  # Links that had something to say at this look.
        self.look_at = NEVER  # When to look next; NEVER: as soon as there is something.
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
        self.ready = len(ready)
        seen = [*self.heard(ready), *self.taken_in()]
        paused, links, pace = self.look_at != NEVER, len(self.handlers), self.pace
        pause_s = min(max(pace.pause_s, pace.each_s * links), pace.longest_s)
        if links >= pace.many and 0 < len(ready) < max(pace.busy, pace.often * links * pause_s):
            if not paused:
                self.host.unwatch(self.epoll.fileno())
            self.look_at = self.host.now() + pause_s
        elif paused:
            self._be_woken()
        return seen
