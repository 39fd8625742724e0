"""What does a script measure, and when? Sections of its code, on each rank, from one report to the next."""

from __future__ import annotations

import functools
import inspect
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from holdfast.client.worker import this_worker
from holdfast.straggler.cupti import CuptiManager
from holdfast.straggler.interval_tracker import ReportIntervalTracker
from holdfast.straggler.reporting import INDIVIDUAL, RELATIVE, Report, ReportGenerator
from holdfast.straggler.statistics import Statistic, Summary, summary_of

KEPT = 8 * 1024  # Durations of each section, and of each kernel, between two reports: the newest.


@dataclass(frozen=True)
class CallableId:
    """A function that is to be measured: `name` of `obj`."""

    obj: object
    name: str
    arg_filter_fn: Callable[[inspect.BoundArguments], bool] | None = None
    extra_args_fn: Callable[[inspect.BoundArguments], dict[str, Any]] | None = None
    ignored_args: tuple[str, ...] | None = None

    def __str__(self) -> str:
        if inspect.ismodule(self.obj):
            return f"{self.obj.__name__}.{self.name}"
        if inspect.isclass(self.obj):
            return f"{self.obj.__module__}.{self.obj.__name__}.{self.name}"
        return f"{type(self.obj).__name__}.{self.name}"


@dataclass
class CustomSection:
    """One section, as far as it has been measured since the last report."""

    name: str
    location: str  # FILE:LINE that entered it first.
    total_entry_cnt: int = 0
    max_elapseds_len: ClassVar[int] = KEPT
    cpu_elapsed_times: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))  # In milliseconds.


class Detector:
    """This rank's; its methods are the class's."""

    initialized: ClassVar[bool] = False
    scores_to_compute: ClassVar[Sequence[str]] = ()
    gather_on_rank0: ClassVar[bool] = True
    profiling_interval: ClassVar[int] = 1
    custom_sections: ClassVar[dict[str, CustomSection]] = {}
    original_callables: ClassVar[dict[CallableId, Any]] = {}
    cupti_manager: ClassVar[CuptiManager]
    reporter: ClassVar[ReportGenerator]
    report_interval_tracker: ClassVar[ReportIntervalTracker]

    def __new__(cls) -> Detector:
        raise RuntimeError(f"{cls.__name__} has no instances: call its methods on the class")

    @classmethod
    def initialize(
        cls,
        scores_to_compute: Sequence[str] | str = "all",
        gather_on_rank0: bool = True,
        profiling_interval: int = 1,
        report_time_interval: float = 60,
        node_name: str | None = None,
    ) -> None:
        """Begin. `scores_to_compute`: `relative_perf_scores`, `individual_perf_scores`, or both (`all`). `profiling_interval`:
        each n-th entry of a section is measured. `report_time_interval`: seconds between two reports of
        `generate_report_if_interval_elapsed`. `node_name`: what the reports call this node (default: its host name)."""
        if cls.initialized:
            raise RuntimeError("Detector.initialize: it has begun; call shutdown() first")
        if profiling_interval < 1:
            raise ValueError(f"profiling_interval: {profiling_interval!r} is not 1 or more")
        cls.scores_to_compute = (RELATIVE, INDIVIDUAL) if scores_to_compute == "all" else scores_to_compute
        cls.gather_on_rank0, cls.profiling_interval = gather_on_rank0, profiling_interval
        cls.custom_sections, cls.original_callables = {}, {}
        cls.cupti_manager = CuptiManager(statsMaxLenPerKernel=KEPT)
        cls.cupti_manager.initialize()
        cls.reporter = ReportGenerator(cls.scores_to_compute, gather_on_rank0, node_name=node_name or socket.gethostname())
        cls.report_interval_tracker = ReportIntervalTracker(report_time_interval, profiling_interval)
        cls.initialized = True

    @classmethod
    def shutdown(cls) -> None:
        """End, and give wrapped functions back. Nothing happens where it has not begun."""
        if cls.initialized:
            cls.cupti_manager.shutdown()
            cls.restore_original_callables()
            cls.initialized = False

    @classmethod
    def generate_report(cls) -> Report | None:
        """Of what was measured since the last one. Collective. None: rank 0 has it."""
        cls._check()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        report = cls.reporter.generate_report(cls._section_summaries(), cls._kernel_summaries())
        for section in cls.custom_sections.values():
            section.cpu_elapsed_times.clear()
        cls.cupti_manager.reset_results()
        return report

    @classmethod
    def generate_report_if_interval_elapsed(cls) -> Report | None:
        """To be called in each step, by all ranks. None: none is due, or rank 0 has it."""
        cls._check()
        cls.report_interval_tracker.iter_increase()
        return cls.generate_report() if cls.is_interval_elapsed() else None

    @classmethod
    def is_interval_elapsed(cls) -> bool:
        """Did the last `generate_report_if_interval_elapsed` make a report?"""
        return cls.report_interval_tracker.is_interval_elapsed()

    @classmethod
    @contextmanager
    def detection_section(cls, name: str | None = None, profile_cuda: bool = True) -> Iterator[None]:
        """Measure what is in it: its time, and with `profile_cuda` the GPU's kernels. Without a name its line is its name."""
        cls._check()
        frame = sys._getframe(2)  # the one that has the `with`; between is contextlib's
        location = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        section = cls.custom_sections.setdefault(name or location, CustomSection(name or location, location))
        is_measured = section.total_entry_cnt % cls.profiling_interval == 0
        section.total_entry_cnt += 1
        with _told_to_agent(section.name):
            if not is_measured:
                yield
                return
            kernels = cls.cupti_manager if profile_cuda else None
            if kernels is not None:
                kernels.start_profiling()
            begun = time.perf_counter_ns()
            try:
                yield
                section.cpu_elapsed_times.append((time.perf_counter_ns() - begun) * 1e-6)
            finally:
                if kernels is not None and kernels.started_cnt:  # shutdown() may have been called in it
                    kernels.stop_profiling()

    @classmethod
    def wrap_callables(cls, callable_ids: Iterable[CallableId], profile_cuda: bool = True) -> None:
        """From now on each call of these is a section, called by `str(callable_id)`."""
        for callable_id in callable_ids:
            original = inspect.getattr_static(callable_id.obj, callable_id.name, None)
            cls.original_callables[callable_id] = original, callable_id.name in getattr(callable_id.obj, "__dict__", {})
            wrapped = cls._build_wrapper(getattr(callable_id.obj, callable_id.name), callable_id, profile_cuda)
            is_static = inspect.isclass(callable_id.obj) and isinstance(original, (staticmethod, classmethod))
            setattr(callable_id.obj, callable_id.name, staticmethod(wrapped) if is_static else wrapped)

    @classmethod
    def restore_original_callables(cls) -> None:
        """Their calls are no longer measured."""
        for callable_id, (original, was_own) in cls.original_callables.items():
            if was_own:
                setattr(callable_id.obj, callable_id.name, original)
            else:
                delattr(callable_id.obj, callable_id.name)  # its class has it
        cls.original_callables = {}

    @classmethod
    def _build_wrapper(cls, function: Callable[..., Any], callable_id: CallableId, profile_cuda: bool) -> Callable[..., Any]:
        name = str(callable_id)

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with cls.detection_section(name, profile_cuda):
                return function(*args, **kwargs)

        return measured

    @classmethod
    def _section_summaries(cls) -> dict[str, Summary]:
        sections = cls.custom_sections.items()
        return {name: summary_of([*one.cpu_elapsed_times]) for name, one in sections if one.cpu_elapsed_times}

    @classmethod
    def _kernel_summaries(cls) -> dict[str, Summary]:
        return {
            name: {
                Statistic.MIN: stats.min,
                Statistic.MAX: stats.max,
                Statistic.MED: stats.median,
                Statistic.AVG: stats.avg,
                Statistic.STD: stats.stddev,
                Statistic.NUM: stats.num_calls,
            }
            for name, stats in cls.cupti_manager.get_results().items()
        }

    @classmethod
    def _check(cls) -> None:
        if not cls.initialized:
            raise RuntimeError("Detector: call initialize() first")


def _told_to_agent(name: str) -> AbstractContextManager[Any]:
    """The same section for our agent, where there is one and the name fits."""
    try:
        return this_worker.named(name)
    except ValueError:
        return nullcontext()
