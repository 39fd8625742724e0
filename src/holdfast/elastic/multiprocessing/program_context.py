"""A group of workers that are programs, each with its process group and all its descendants."""

from __future__ import annotations

import logging
import os
import signal
import time
from multiprocessing.connection import wait
from typing import Any

from holdfast.elastic.multiprocessing.context import SHUTDOWN_TIMEOUT_S, PContext, RunProcsResult
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.logs_specs import LogsSpecs
from holdfast.elastic.multiprocessing.signal_exception import signals_held
from holdfast.elastic.multiprocessing.strays import Running, Strays, end, living
from holdfast.elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
from holdfast.runtime.process.process import pidfd_open

SETTLE_S = 0.1
"""Seconds in which others may end by themselves after a first has, before they are stopped for it: what makes all ranks fail
at once is not told as one failure and many SIGTERMs. torchrun's monitor interval, which has the same effect."""

logger = logging.getLogger(__name__)


class SubprocessContext(PContext):
    """Workers that are programs."""

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, duplicate_stdout_filters, duplicate_stderr_filters
        )
        self.subprocess_handlers: dict[int, SubprocessHandler] = {}
        self._running_local_ranks = set(range(self.nprocs))
        self._failures: dict[int, ProcessFailure] = {}
        self._numa_options = numa_options
        self._pidfds: dict[int, int | None] = {}

    def _start(self) -> None:
        if self.subprocess_handlers:
            raise ValueError("The subprocess handlers already initialized. Most likely the start method got called twice.")
        for local_rank in range(self.nprocs):
            self.subprocess_handlers[local_rank] = get_subprocess_handler(
                entrypoint=str(self.entrypoint),
                args=self.args[local_rank],
                env=self.envs[local_rank] | self._marks,
                stdout=self.stdouts[local_rank],
                stderr=self.stderrs[local_rank],
                local_rank_id=local_rank,
                numa_options=self._numa_options,
            )

    def _poll(self) -> RunProcsResult | None:
        self._running_local_ranks -= self._capture_process_failures()
        if self._running_local_ranks and not self._failures:
            return None
        self.close(timeout=self.shutdown_timeout)
        self._running_local_ranks -= self._capture_process_failures()  # those that we stopped are listed too
        if not self._failures:
            values = dict.fromkeys(range(self.nprocs))
            return RunProcsResult(return_values=values, stdouts=self.stdouts, stderrs=self.stderrs)
        first = min(self._failures.values(), key=lambda failure: failure.timestamp)
        self._tell_of_failure(first, f"binary: {self.entrypoint}")
        return RunProcsResult(failures=self._failures, stdouts=self.stdouts, stderrs=self.stderrs)

    def _capture_process_failures(self) -> set[int]:
        """Note the failures among the running; returns those that have ended."""
        ended = set()
        for local_rank in sorted(self._running_local_ranks):
            process = self.subprocess_handlers[local_rank].proc
            with signals_held():
                exitcode = process.poll()
            if exitcode is None:
                continue
            ended.add(local_rank)
            if exitcode != 0:
                self._failures[local_rank] = ProcessFailure(local_rank, process.pid, exitcode, self.error_files[local_rank])
        return ended

    def pids(self) -> dict[int, int]:
        return {local_rank: handler.proc.pid for local_rank, handler in self.subprocess_handlers.items()}

    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        if not self.subprocess_handlers:
            return
        deadline = time.monotonic() + timeout
        leaders = set(self.pids().values())
        running = [worker for worker in map(_running, self.subprocess_handlers.values()) if not worker.ends_within(0)]
        groups = {worker.pid for worker in running}
        with Strays(pid for pid in living(leaders, self._mark) if _group_of(pid) not in groups) as strays:
            strays.signal(death_sig)
        end(running, death_sig, deadline, timeout)
        with Strays(pid for pid in living(leaders, self._mark) if pid not in leaders) as left:
            left.end(deadline)
        for pidfd in self._pidfds.values():
            if pidfd is not None:
                os.close(pidfd)
        self._pidfds = {}

    def _sentinels(self) -> list[Any]:
        for local_rank in self._running_local_ranks - self._pidfds.keys():
            self._pidfds[local_rank] = pidfd_open(self.subprocess_handlers[local_rank].proc.pid)
        running = [self._pidfds[local_rank] for local_rank in self._running_local_ranks]
        return [] if None in running else running

    def _settle(self, limit_s: float) -> None:
        settled_at = time.monotonic() + min(SETTLE_S, limit_s)
        running = self._sentinels()
        ended = set(wait(running, 0))
        while ended and (left := settled_at - time.monotonic()) > 0 and len(ended) < len(running):
            ended |= set(wait([pidfd for pidfd in running if pidfd not in ended], left))


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _running(handler: SubprocessHandler) -> Running:
    return Running(handler.proc.pid, handler.close, lambda: handler.proc.poll() is not None)
