"""How many restarts may a job have? At most so many, over its whole life or within a sliding period.

The budget is the job's: one failure on one node spends one restart, however many nodes it takes down with it, and a
membership change spends none. (Erlang/OTP calls the pair intensity and period.)
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.machine import NEVER


class Budget:
    """At most `restarts` restarts within the last `period_s` seconds."""

    def __init__(self, *, restarts: int, period_s: float = NEVER) -> None:
        self.restarts = restarts
        self.period_s = period_s
        self.spent_at: list[float] = []

    def left(self, now: float) -> int:
        """How many may still come at `now`."""
        return self.restarts - sum(1 for at in self.spent_at if now - at < self.period_s)

    def spend(self, now: float) -> bool:
        """Take one. False, and nothing taken, when none is left."""
        if self.left(now) <= 0:
            return False
        self.spent_at = [at for at in self.spent_at if now - at < self.period_s]
        self.spent_at.append(now)
        return True

    def resume(self, ages_s: Iterable[float], *, uncounted: int, now: float) -> None:
        """Take over from a predecessor. `uncounted`: restarts that it did not know of."""
        self.spent_at = [*(now - age_s for age_s in ages_s), *[now] * uncounted]

    def take_back(self) -> None:
        """The restart last taken does not come after all."""
        if self.spent_at:
            self.spent_at.pop()
