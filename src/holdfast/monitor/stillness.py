"""Since when has a rank done nothing, as far as the kernel tells? Of one rank, from looks at its process and all below it.

Not quite nothing: a rank that waits in a collective has threads that wake up now and then (NCCL's watchdog, a TCPStore's), so
what counts as activity is a share of a core, or some bytes.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.monitor.messages import RankMeasured

BUSY = 0.01
"""Of a core, between two looks: a rank that spends more does something. Threads that only wait need a tenth of that."""

GRAIN_S = 0.02
"""Processor time is counted in ticks of 10 ms."""

BUSY_BYTES = 64 * 1024
"""Read or written between two looks."""

RUNS, STOPPED, DEAF, TRACED = "R", "T", "D", "t"
"""States: running, or waiting for a processor, which is no stillness either; those in which a rank does nothing for others:
stopped by a signal (SIGSTOP), and asleep in the kernel; and that in which a debugger holds it (gdb)."""


class Stillness:
    """What the looks at one rank add up to."""

    def __init__(self) -> None:
        self.last: RankMeasured | None = None
        self.looked_at = -NEVER
        self.since = NEVER
        """It has done nothing since then; NEVER: it has not been looked at twice."""
        self.base: RankMeasured | None = None
        """What was seen then."""
        self.at_work = 0
        """At how many looks in a row it had done something."""
        self.stuck_since = NEVER
        """It was stopped, or asleep in the kernel, at every look since then."""

    def look(self, seen: RankMeasured, now: float) -> None:
        """One look."""
        last, self.last = self.last, seen
        is_active = last is not None and self._is_active(last, seen, now)
        self.at_work = self.at_work + 1 if is_active else 0
        if last is None or is_active:
            self.since, self.base = now, seen
        if seen.state not in (STOPPED, DEAF):
            self.stuck_since = NEVER
        elif self.stuck_since == NEVER:
            self.stuck_since = now
        self.looked_at = now

    def _is_active(self, last: RankMeasured, seen: RankMeasured, now: float) -> bool:
        spent_s, moved = seen.cpu_s - last.cpu_s, abs(seen.io_bytes - last.io_bytes)
        if seen.state == RUNS or spent_s < 0:  # the latter: a process below it has ended, and taken its count along
            return True
        # Between two looks that follow each other closely, whoever shares its core with others spends less than a grain.
        in_all_s = seen.cpu_s - self.base.cpu_s if self.base is not None else 0.0
        return (
            spent_s > BUSY * (now - self.looked_at) + GRAIN_S
            or in_all_s > BUSY * (now - self.since) + GRAIN_S
            or moved > BUSY_BYTES
        )

    def works(self, now: float) -> None:
        """Something else shows that it is not still: a GPU works."""
        self.since, self.base = now, self.last

    def excuse(self, seconds: float) -> None:
        """Everything stood still for so long, we too."""
        self.since += seconds
        self.stuck_since += seconds
