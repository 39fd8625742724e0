"""Since when has a rank done nothing, as far as the kernel tells? Of one rank, from looks at its process and all below it.

Not quite nothing: a rank that waits in a collective has threads that wake up now and then (NCCL's watchdog, a TCPStore's), so
what counts as activity is a share of a core, or some bytes.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER
from holdfast.core.value import Value, replace
from holdfast.monitor.messages import RankMeasured

BUSY = 0.01
"""Of a core, between two looks: a rank that spends more does something. Threads that only wait need a tenth of that."""

GRAIN_S = 0.02  # Processor time is counted in ticks of 10 ms.

BUSY_BYTES = 64 * 1024  # Read or written between two looks.

RUNS, STOPPED, DEAF, TRACED = "R", "T", "D", "t"
"""States: running, or waiting for a processor, which is no stillness either; those in which a rank does nothing for others:
stopped by a signal (SIGSTOP), and asleep in the kernel; and that in which a debugger holds it (gdb)."""


class Stillness(Value):
    """What the looks at one rank add up to."""

    last: RankMeasured | None = None
    looked_at: float = -NEVER
    since: float = NEVER  # It has done nothing since then; NEVER: it has not been looked at twice.
    base: RankMeasured | None = None  # What was seen then.
    at_work: int = 0  # At how many looks in a row it had done something.
    stuck_since: float = NEVER  # It was stopped, or asleep in the kernel, at every look since then.

    def looked(self, seen: RankMeasured, now: float) -> Stillness:
        is_active = self.last is not None and self._is_active(self.last, seen, now)
        is_new = self.last is None or is_active
        return Stillness(
            last=seen,
            looked_at=now,
            since=now if is_new else self.since,
            base=seen if is_new else self.base,
            at_work=self.at_work + 1 if is_active else 0,
            stuck_since=min(self.stuck_since, now) if seen.state in (STOPPED, DEAF) else NEVER,
        )

    def _is_active(self, last: RankMeasured, seen: RankMeasured, now: float) -> bool:
        spent_s, moved = seen.cpu_s - last.cpu_s, abs(seen.io_bytes - last.io_bytes)
        if seen.state == RUNS or spent_s < 0:  # the latter: a process below it has ended, and taken its count along
            return True
        # Between two looks that follow each other closely, a rank that shares its core spends less than a grain.
        in_all_s = seen.cpu_s - self.base.cpu_s if self.base is not None else 0.0
        return (
            spent_s > BUSY * (now - self.looked_at) + GRAIN_S
            or in_all_s > BUSY * (now - self.since) + GRAIN_S
            or moved > BUSY_BYTES
        )

    def worked(self, now: float) -> Stillness:
        """Something else shows that it is not still: a GPU works."""
        return replace(self, since=now, base=self.last)

    def excused(self, seconds: float) -> Stillness:
        """Everything stood still for so long, we too."""
        return replace(self, since=self.since + seconds, stuck_since=self.stuck_since + seconds)
