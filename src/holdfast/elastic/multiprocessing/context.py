"""A group of workers on this host: start, wait, close. Subclasses say what a worker is."""

from __future__ import annotations

import logging
import multiprocessing.connection
import os
import signal
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.logs_specs import LogsSpecs
from holdfast.elastic.multiprocessing.signal_exception import signals_held
from holdfast.elastic.multiprocessing.strays import MARK
from holdfast.elastic.multiprocessing.tail_log import TailLog
from holdfast.runtime.process.last_watch import LastWatch

SHUTDOWN_TIMEOUT_S = 30  # Seconds between asking workers to end and killing them, by default. torchrun's.

before_start: list[Callable[[], None]] = []
"""What is done before any worker is started: `api` says, where torch's users replace things."""

logger = logging.getLogger(__name__)


@dataclass
class RunProcsResult:
    """How a group ended, by local rank. Programs return None; a stream that went to the console has an empty path."""

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return bool(self.failures)


class PContext(ABC):
    """A group of workers. Whether it lives, succeeded or failed holds for all of it together."""

    shutdown_timeout: float = SHUTDOWN_TIMEOUT_S
    """Seconds that the other workers are given to end after one has failed. See `allow`."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        self.name = name
        self.nprocs = len(args)
        dest = logs_specs.reify(envs)
        validate_full_rank(dest.stdouts, self.nprocs, "stdouts")
        validate_full_rank(dest.stderrs, self.nprocs, "stderrs")
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.stdouts = dest.stdouts
        self.stderrs = dest.stderrs
        self.error_files = dest.error_files
        self._mark = uuid.uuid4().hex
        self._marks = {MARK: f"{os.environ.get(MARK, '')}:{self._mark}"}
        """What every worker's environment has besides."""
        self._last_watch: LastWatch | None = None
        self._tail_logs = [
            TailLog(name, dest.tee_stdouts, sys.stdout, log_line_prefixes),
            TailLog(name, dest.tee_stderrs, sys.stderr, log_line_prefixes),
        ]

        def filtered(path: str, words: list[str] | None, files: dict[int, str]) -> TextIO | None:
            if not words:
                return None
            kept = open(path, "w", errors="replace", buffering=1)  # noqa: SIM115
            has_one = lambda line: any(word in line for word in words)
            self._tail_logs.append(TailLog(name, files, kept, log_line_prefixes, log_line_filter=has_one))
            return kept

        self.filtered_stdout = filtered(dest.filtered_stdout, duplicate_stdout_filters, dest.tee_stdouts)
        self.filtered_stderr = filtered(dest.filtered_stderr, duplicate_stderr_filters, dest.tee_stderrs)

    def allow(self, seconds: float) -> None:
        """Give the other workers so many seconds to end after one has failed."""
        self.shutdown_timeout = seconds

    def start(self) -> None:
        """Start the workers. In the main thread, signals that end us raise `SignalException`, once all are started."""
        for do in before_start:
            do()
        with signals_held():
            self._start()
            self._watch()
            for tail_log in self._tail_logs:
                tail_log.start()

    def _watch(self) -> None:
        """Should this process be killed, whatever the workers have started goes too."""
        self._last_watch = LastWatch(self._mark, MARK)
        self._last_watch.begin_away()

    @abstractmethod
    def _start(self) -> None:
        """Start the processes."""

    @abstractmethod
    def _poll(self) -> RunProcsResult | None:
        """None while all run; else how all ended, after those that still ran have been stopped."""

    @abstractmethod
    def pids(self) -> dict[int, int]:
        """Local rank → pid."""

    @abstractmethod
    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Signal the workers that run; kill those that still do after `timeout` seconds."""

    def _sentinels(self) -> list[Any]:
        """What becomes readable when `_poll` may have something new to say. Empty: it is asked every `period` seconds."""
        return []

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait until the group has ended, up to `timeout` seconds (negative: for ever; 0: only look). None: it still runs.

        An end is seen at once; `period` is how often to look where it cannot be. A handled signal raises `SignalException`:
        close the group with that signal then.
        """
        if timeout == 0:
            return self._poll()
        deadline = float("inf") if timeout < 0 else time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            result = self._poll()
            if result is not None:
                return result
            self.await_exit(min(period, left))
            self._settle(min(period, left))
        return None

    def await_exit(self, limit_s: float) -> None:
        """Until `_poll` may have something new to say, or `limit_s` seconds."""
        sentinels = self._sentinels()
        if sentinels:
            multiprocessing.connection.wait(sentinels, limit_s)
        else:
            time.sleep(limit_s)

    def _settle(self, limit_s: float) -> None:  # noqa: B027 - for most there is nothing to do
        """Once a worker has ended: up to `limit_s` seconds in which others may end by themselves."""

    @staticmethod
    def _tell_of_failure(failure: ProcessFailure, what: str) -> None:
        where = f"local_rank: {failure.local_rank} (pid: {failure.pid})"
        logger.error("failed (exitcode: %s) %s of %s", failure.exitcode, where, what)

    def close(self, death_sig: signal.Signals | None = None, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        """End all workers: `death_sig` (SIGTERM), and SIGKILL after `timeout` seconds. Then finish the logs.

        May be called again."""
        self._close(death_sig=death_sig or signal.SIGTERM, timeout=timeout)
        if self._last_watch is not None:
            self._last_watch.end()
            self._last_watch = None
        for tail_log in self._tail_logs:
            tail_log.stop()
        for file in (self.filtered_stdout, self.filtered_stderr):
            if file:
                file.close()


def validate_full_rank(d: Mapping[int, Any], nprocs: int, what: str) -> None:
    expected = set(range(nprocs))
    if set(d) != expected:
        raise RuntimeError(f"{what}, local rank mapping mismatch, expected: {expected}, actual: {set(d)}")
