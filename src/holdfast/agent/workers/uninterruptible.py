"""Which worker is stuck in the kernel? A process in uninterruptible sleep (state D) takes no signal, SIGKILL included.

Every page that comes from a disk costs a moment of it. Only a worker that is asleep at every look for a whole `limit_s` is
stuck, in a driver or on a dead mount. The user asks for it by TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT.
"""

from __future__ import annotations

from collections.abc import Mapping

UNINTERRUPTIBLE = "D"  # The letter of /proc for such a sleep.

LOOKS = 10  # Looks within the limit: so many samples in a row are no chance. torchrun looks every --monitor-interval, 0.1 s.

DEAF_LOG_S = 0.2
"""The same for a worker that is to end, where the disk of its log does not answer: most likely it waits for that."""

LONGEST_S, SHORTEST_S = 1.0, 0.02  # Bounds of the time between two looks.


class Sleepers:
    """The workers that were asleep at the last look, and since when."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.interval_s = min(LONGEST_S, max(SHORTEST_S, limit_s / LOOKS))
        self.look_at = 0.0  # When (monotonic) to look again.
        self.since: dict[int, float] = {}  # pid → first look of the present sleep
        self.told: set[int] = set()

    def look(self, states: Mapping[int, str], now: float) -> list[tuple[int, float]]:
        """(pid, seconds asleep) of those that have become stuck, each once; `states` has the letters of all that live."""
        self.look_at = now + self.interval_s
        self.since = {pid: self.since.get(pid, now) for pid, state in states.items() if state == UNINTERRUPTIBLE}
        self.told &= self.since.keys()
        stuck = [(pid, now - at) for pid, at in self.since.items() if now - at >= self.limit_s and pid not in self.told]
        self.told.update(pid for pid, _ in stuck)
        return stuck
