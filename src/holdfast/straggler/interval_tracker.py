"""After how many steps is a report due, so that it comes about every so many seconds, and in the same step on all ranks?"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import torch

from holdfast.core.outliers import median
from holdfast.straggler.dist_utils import all_reduce, get_device_for_backend


class ReportIntervalTracker:
    """Counts steps. After the first `INTERVAL_ESTIMATION_ITERS` of them the ranks agree on how many make an interval."""

    INTERVAL_ESTIMATION_ITERS: ClassVar[int] = 16

    def __init__(self, time_interval: float = 60.0, profiling_interval: int = 1) -> None:
        self.time_interval, self.profiling_interval = time_interval, profiling_interval
        self.current_iter = 0
        self.iter_interval: int | None = None  # None: not agreed on yet.
        self.prev_iter_start_time: float | None = None
        self.step_times: list[float] = []

    def iter_increase(self) -> None:
        """A step more. Collective in the step in which the ranks agree."""
        self.current_iter += 1
        if self.iter_interval is not None:
            return
        now = time.monotonic()
        if self.prev_iter_start_time is not None:
            self.step_times.append(now - self.prev_iter_start_time)
            if len(self.step_times) == self.INTERVAL_ESTIMATION_ITERS:
                self.iter_interval = self._agreed(self.time_interval / max(median(self.step_times), 1e-9))
                self.step_times.clear()
        self.prev_iter_start_time = time.monotonic()

    def _agreed(self, steps: float) -> int:
        told: Any = torch.tensor([steps], dtype=torch.float32, device=get_device_for_backend())
        all_reduce(told, op=torch.distributed.ReduceOp.MAX)
        return max(1, int(told.item()), self.profiling_interval)

    def is_interval_elapsed(self) -> bool:
        """Is a report due in this step?"""
        return self.iter_interval is not None and self.current_iter % self.iter_interval == 0
