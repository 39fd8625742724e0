"""How long does the GPU take for each kernel? By torch's own profiler, which measures on every kind of GPU that torch knows.

Without a GPU, and beside a profiler of the script's, nothing is measured.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from holdfast.straggler.statistics import Statistic, summary_of

NO_KERNELS = ("Memcpy", "Memset")
"""What the profiler calls other work of a GPU."""


class KernelStats(NamedTuple):
    """Of one kernel's runs, in microseconds."""

    min: float
    max: float
    median: float
    avg: float
    stddev: float
    num_calls: int


class CuptiManager:
    """Measures kernels between `start_profiling` and `stop_profiling`, which nest. Any thread may call it."""

    def __init__(self, bufferSize: int = 1_000_000, numBuffers: int = 8, statsMaxLenPerKernel: int = 4096) -> None:
        """Of each kernel the newest `statsMaxLenPerKernel` durations are kept. The profiler chooses its own buffers."""
        self.most = statsMaxLenPerKernel
        self.is_initialized = False
        self.started_cnt = 0
        self.lock = threading.Lock()
        self._durations: dict[str, deque[float]] = {}
        self._profile: Any = None  # None: none runs.
        self._has_warned = False

    def initialize(self) -> None:
        with self.lock:
            self.is_initialized = True

    def shutdown(self) -> None:
        """End it, and forget what was measured."""
        with self.lock:
            self._stop()
            self._durations.clear()
            self.is_initialized, self.started_cnt = False, 0

    def start_profiling(self) -> None:
        with self.lock:
            self._check()
            self.started_cnt += 1
            if self.started_cnt == 1 and torch.cuda.is_available():
                self._start()

    def stop_profiling(self) -> None:
        """RuntimeError: it was not started."""
        with self.lock:
            self._check()
            if not self.started_cnt:
                raise RuntimeError("stop_profiling: nothing is being profiled")
            self.started_cnt -= 1
            if not self.started_cnt:
                self._stop()

    def get_results(self) -> dict[str, KernelStats]:
        """By the kernels' names, of what was measured since `reset_results`."""
        with self.lock:
            self._check()
            return {name: _stats(list(durations)) for name, durations in self._durations.items()}

    def reset_results(self) -> None:
        with self.lock:
            self._check()
            self._durations.clear()

    def _check(self) -> None:
        if not self.is_initialized:
            raise RuntimeError("CuptiManager: call initialize() first")

    def _start(self) -> None:
        torch.cuda.synchronize()  # What was launched before is not ours.
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        if self._attempted(profile.start):
            self._profile = profile

    def _stop(self) -> None:
        if self._profile is None:
            return
        profile, self._profile = self._profile, None
        torch.cuda.synchronize()  # What has been launched is still running, and would be lost.
        if not self._attempted(profile.stop):
            return
        for event in profile.profiler.kineto_results.events():
            if event.device_type() == torch.autograd.DeviceType.CUDA and not event.name().startswith(NO_KERNELS):
                self._durations.setdefault(event.name(), deque(maxlen=self.most)).append(event.duration_ns() / 1e3)

    def _attempted(self, do: Callable[[], object]) -> bool:
        """False: the profiler cannot be had, as beside another one."""
        try:
            do()
        except RuntimeError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"kernels are not measured: {error}", RuntimeWarning, stacklevel=5)
            return False
        return True


def _stats(durations: list[float]) -> KernelStats:
    told = summary_of(durations)
    return KernelStats(
        min=told[Statistic.MIN],
        max=told[Statistic.MAX],
        median=told[Statistic.MED],
        avg=told[Statistic.AVG],
        stddev=told[Statistic.STD],
        num_calls=len(durations),
    )
