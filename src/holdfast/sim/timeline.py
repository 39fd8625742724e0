"""What happens next? The simulator's only clock: true time, which no simulated node can read."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Happening = Callable[[], None]


class Timeline:
    """Happenings in order of time; those of the same moment in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Happening]] = []
        self._count = 0

    def at(self, when: float, what: Happening) -> None:
        """Plan something; what should have been already is next."""
        self._count += 1
        heapq.heappush(self._planned, (max(when, self.now), self._count, what))

    def after(self, seconds: float, what: Happening) -> None:
        """Plan something for `seconds` from now."""
        self.at(self.now + seconds, what)

    def step(self, until: float) -> bool:
        """Let the next thing happen; False when there is none before `until`, and then it is `until`."""
        if not self._planned or self._planned[0][0] > until:
            self.now = until
            return False
        self.now, _, what = heapq.heappop(self._planned)
        what()
        return True

    def run(self, until: float) -> None:
        """Let time pass up to `until`."""
        while self.step(until):
            pass
