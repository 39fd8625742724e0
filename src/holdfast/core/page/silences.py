"""How can a rank be silent, and what was the longest of each lately? Limits are learned and calculated by these kinds.

Of each kind the longest of the last day counts: an outlier raises a limit for a day at most, and what comes once per epoch is
still known. What has come once, and never again, is kept: a start, or the setup of a script.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER

FIRST, BEAT, OUT = "first", "beat", "out"
"""Kinds of silence: until the first heartbeat, from one to the next, with no section open. The others are sections."""

WINDOW_S, WINDOWS = 3 * 3600.0, 8  # A day, in parts that are forgotten one after the other.


def in_section(name: str) -> str:
    """The kind of silence."""
    return f"section {name}"


class Lately:
    """The longest of what came in the last day."""

    def __init__(self) -> None:
        self.windows = [0.0]
        self.rolls_at = -NEVER

    def add(self, seconds: float, now: float) -> None:
        """It took so long."""
        if self.rolls_at == -NEVER:
            self.rolls_at = now + WINDOW_S
        while now >= self.rolls_at and self.rolls_at != NEVER:
            self.rolls_at += WINDOW_S
            self.windows = [*self.windows[-WINDOWS + 1 :], 0.0]
        self.windows = [*self.windows[:-1], max(self.windows[-1], seconds)]

    @property
    def longest_s(self) -> float:
        """0: nothing has come."""
        return max(self.windows)
