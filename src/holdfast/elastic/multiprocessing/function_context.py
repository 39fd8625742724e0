"""A group of workers that each run a function, in a process made by `multiprocessing`, and return a value."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from holdfast.elastic.multiprocessing.context import SHUTDOWN_TIMEOUT_S, PContext, RunProcsResult, validate_full_rank
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.function_worker import ProcessContext, start
from holdfast.elastic.multiprocessing.logs_specs import LogsSpecs
from holdfast.elastic.multiprocessing.strays import Running, Strays, added, end, living
from holdfast.runtime.process.process import descendants

logger = logging.getLogger(__name__)


class MultiprocessContext(PContext):
    """Workers that run a function. Their values are by local rank in the result."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        super().__init__(
            name, entrypoint, args, envs, logs_specs, log_line_prefixes, duplicate_stdout_filters, duplicate_stderr_filters
        )
        self.start_method = start_method
        self._context: Any = multiprocessing.get_context(start_method)
        self._ret_vals: dict[int, Any] = {local_rank: self._context.SimpleQueue() for local_rank in range(self.nprocs)}
        self._return_values: dict[int, Any] = {}
        self._worker_finished_event = self._context.Event()
        self._pc: ProcessContext | None = None
        self._numa_options = numa_options

    def _start(self) -> None:
        if self._pc:
            raise ValueError("The process context already initialized. Most likely the start method got called twice.")
        # In a spawned worker's own environment, which its forked children have too; the tracker serves all of this process.
        if spawned := self.start_method == "spawn":
            multiprocessing.resource_tracker.ensure_running()
        envs = {local_rank: env | self._marks for local_rank, env in self.envs.items()}
        by_rank = (self.args, envs, self.stdouts, self.stderrs, self._ret_vals)
        with added(self._marks if spawned else {}):
            self._pc = start(self._context, self.entrypoint, by_rank, self._worker_finished_event, self._numa_options)  # type: ignore[arg-type]
        for queue in self._ret_vals.values():
            queue._writer.close()  # so that a worker that dies while it writes leaves an end of file, not a wait for ever

    def _is_done(self) -> bool:
        return len(self._return_values) == self.nprocs

    def _sentinels(self) -> list[Any]:
        assert self._pc is not None
        values = [queue._reader for rank, queue in self._ret_vals.items() if rank not in self._return_values]
        return [*self._pc.sentinels, *values]

    def _poll(self) -> RunProcsResult | None:
        assert self._pc is not None
        try:
            self._pc.join(-1)
            self._take_return_values(self._pc)
            if not self._is_done():
                return None
            # Only when all have delivered: a worker that died while waiting for the event would make set() hang.
            self._worker_finished_event.set()
            while not self._pc.join():
                pass
        except Exception as error:
            if not hasattr(error, "error_index"):
                raise
            return self._failed(self._pc, error.error_index, error.error_pid)  # type: ignore[attr-defined]
        validate_full_rank(self._return_values, self.nprocs, "return_value queue")
        self.close()
        return RunProcsResult(return_values=self._return_values, stdouts=self.stdouts, stderrs=self.stderrs)

    def _take_return_values(self, pc: ProcessContext) -> None:
        # At every look: a value that is larger than its pipe keeps the worker from going on.
        for rank in range(self.nprocs):
            if rank in self._return_values:
                continue
            ended = _running(pc.processes[rank]).ends_within(0) and pc.processes[rank].exitcode == 0
            try:
                if not self._ret_vals[rank].empty():
                    self._return_values[rank] = self._ret_vals[rank].get()
                    continue
            except EOFError:
                logger.debug("rank %s ended without a value", rank)
            if ended:  # by os._exit(0), say
                self._return_values[rank] = None

    def _failed(self, pc: ProcessContext, rank: int, pid: int) -> RunProcsResult:
        exitcode = pc.processes[rank].exitcode or 0
        self.close(timeout=self.shutdown_timeout)
        failure = ProcessFailure(local_rank=rank, pid=pid, exitcode=exitcode, error_file=self.error_files[rank])
        name = getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))
        self._tell_of_failure(failure, f"fn: {name} (start_method: {self.start_method})")
        return RunProcsResult(failures={rank: failure}, stdouts=self.stdouts, stderrs=self.stderrs)

    def pids(self) -> dict[int, int]:
        assert self._pc is not None
        return dict(enumerate(self._pc.pids()))

    def _close(self, death_sig: signal.Signals, timeout: float = SHUTDOWN_TIMEOUT_S) -> None:
        if not self._pc:
            return
        deadline = time.monotonic() + timeout
        running = [worker for worker in map(_running, self._pc.processes) if not worker.ends_within(0)]
        with Strays(pid for worker in running for pid in descendants(worker.pid)) as strays:
            end(running, death_sig, deadline, timeout)
            strays.end(deadline)
        with Strays(living((), self._mark)) as left:  # of workers that had ended before
            left.signal(death_sig)
            left.end(deadline)


def _running(process: BaseProcess) -> Running:
    pid = process.pid or 0
    return Running(pid, partial(_send, pid), lambda: not process.is_alive())


def _send(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        logger.debug("process %s had ended", pid)
