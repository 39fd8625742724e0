"""Start a group of workers, each a function or a program, and wait for it: all succeed, or the first failure ends them all.

from holdfast.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes

group = start_processes(
    name="trainer",
    entrypoint=train,                                  # or "/usr/bin/python"
    args={0: (1, 2), 1: (3, 4)},
    envs={0: {"LOCAL_RANK": "0"}, 1: {"LOCAL_RANK": "1"}},
    logs_specs=DefaultLogsSpecs(log_dir="/tmp/logs", redirects=Std.ALL),
)
result = group.wait()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.elastic.multiprocessing.api import (
    DefaultLogsSpecs,
    LogsDest,
    LogsSpecs,
    MultiprocessContext,
    PContext,
    ProcessFailure,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    _validate_full_rank,
    to_map,
)

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "start_processes",
    "to_map",
]


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start a worker for each local rank of `args` and `envs`, which must be `0` to `n - 1` in both (else `RuntimeError`).

    A string is a program, its arguments made text; a function runs in a `multiprocessing` child made by `start_method`. `name`
    stands before tee'd lines that `log_line_prefixes` has no prefix for. Tee'd lines with one of the duplicate filters' words
    are copied to a file for all ranks. The result can be waited for, and must be closed if it is not waited for to its end.
    """
    _validate_full_rank(args, len(args), "args")
    _validate_full_rank(envs, len(args), "envs")
    shared: dict[str, Any] = dict(
        name=name,
        entrypoint=entrypoint,
        args=args,
        envs=envs,
        logs_specs=logs_specs,
        log_line_prefixes=log_line_prefixes,
        numa_options=numa_options,
        duplicate_stdout_filters=duplicate_stdout_filters,
        duplicate_stderr_filters=duplicate_stderr_filters,
    )
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(**shared)
    else:
        context = MultiprocessContext(**shared, start_method=start_method)
    try:
        context.start()
    except Exception:
        context.close()
        raise
    return context
