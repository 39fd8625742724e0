"""How are the workers of one host run, as functions or programs, and what watches them and the agent?

An exit is seen at once. Around the workers: the timer watchdog (`TORCHELASTIC_ENABLE_FILE_TIMER=1`), the health check server
(`TORCHELASTIC_HEALTH_CHECK_PORT`), and the check for workers that hang inside the kernel.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable
from string import Template
from typing import Any

import holdfast.elastic.timer as timer
from holdfast.elastic import events
from holdfast.elastic.metrics import prof
from holdfast.elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsSpecs,
    PContext,
    ProcessFailure,
    RunProcsResult,
    start_processes,
)
from holdfast.elastic.multiprocessing.signal_exception import signals_held
from holdfast.elastic.utils import macros
from holdfast.elastic.utils.logging import get_logger
from holdfast.elastic.utils.process_state import is_uninterruptible_state, read_proc_state

from .api import RunResult, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from .health_check_server import TORCHELASTIC_HEALTH_CHECK_PORT as TORCHELASTIC_HEALTH_CHECK_PORT
from .health_check_server import HealthCheckServer, server_from_environment
from .worker_env import local_rank_env, worker_env

logger = get_logger(__name__)

TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TORCHELASTIC_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
WATCHDOG_INTERVAL_S = 0.1


def _resolve_uninterruptible_state_timeout(explicit: float | None) -> float:
    """Seconds: what was told, else what the environment says. 0: do not check."""
    told = os.environ.get(TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT) or 0 if explicit is None else explicit
    try:
        return max(0.0, float(told))
    except ValueError:
        return 0.0


class _AliveCallbackProxy:
    """What a health check server asks that is started before there is an agent: now, until it is given the agent's answer."""

    def __init__(self) -> None:
        self._delegate: Callable[[], int] | None = None

    def set_delegate(self, delegate: Callable[[], int]) -> None:
        """From now on, ask this."""
        self._delegate = delegate

    def __call__(self) -> int:
        return int(time.time()) if self._delegate is None else self._delegate()


class LocalElasticAgent(SimpleElasticAgent):
    """Runs the workers as processes of this host.

    `logs_specs`: where their streams go (a temporary folder, if not given). `start_method`: for functions; also taken as the
    second argument. `log_line_prefix_template`: a `string.Template` of `role_name`, `local_rank` and `rank`, before each tee'd
    line. `uninterruptible_state_timeout`: seconds after which a worker in an uninterruptible sleep fails the group, for good.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs | str | None = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        if isinstance(logs_specs, str):
            start_method, logs_specs = logs_specs, DefaultLogsSpecs()
        self._start_method = start_method
        self._pcontext: PContext | None = None
        self._rdzv_handler = spec.rdzv_handler
        self._log_line_prefix_template = log_line_prefix_template
        self._worker_watchdog: timer.FileTimerServer | None = None
        self._logs_specs: LogsSpecs = DefaultLogsSpecs() if logs_specs is None else logs_specs
        self._health_check_server = health_check_server
        self._uninterruptible_state_timeout = _resolve_uninterruptible_state_timeout(uninterruptible_state_timeout)
        self._uninterruptible_state_first_seen: dict[int, float] = {}  # pid → monotonic time
        self._expired_timers: dict[int, str] = {}  # pid → scope

    # Start and stop.

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        assert worker_group.store is not None, "workers are started after a rendezvous"
        restart_count = spec.max_restarts - self._remaining_restarts
        use_agent_store = spec.rdzv_handler.use_agent_store
        args: dict[int, tuple[Any, ...]] = {}
        envs: dict[int, dict[str, str]] = {}
        prefixes: dict[int, str] = {}
        for worker in worker_group.workers:
            rank = worker.local_rank
            args[rank] = tuple(macros.substitute(list(spec.args), str(rank)))
            envs[rank] = worker_env(worker_group, worker, restart_count, use_agent_store)
            self._set_local_rank_env(envs[rank], rank, spec)
            prefixes[rank] = Template(self._log_line_prefix_template or "").safe_substitute(
                role_name=spec.role, rank=worker.global_rank, local_rank=rank
            )
        self._setup_local_watchdog(envs=envs)
        self._setup_healthcheck()
        assert spec.entrypoint is not None
        with signals_held():  # until the workers are ours: to be told to end is then to end them, with all of their grace
            self._pcontext = start_processes(
                name=spec.role,
                entrypoint=spec.entrypoint,
                args=args,
                envs=envs,
                logs_specs=self._logs_specs,
                log_line_prefixes=prefixes if self._log_line_prefix_template else None,
                start_method=self._start_method,
                numa_options=spec.numa_options,
                duplicate_stdout_filters=spec.duplicate_stdout_filters,
                duplicate_stderr_filters=spec.duplicate_stderr_filters,
            )
        self._pcontext.allow(self._shutdown_timeout)
        return dict(self._pcontext.pids())

    def _set_local_rank_env(self, worker_env: dict[str, str], local_rank: int, spec: WorkerSpec) -> None:
        """Add the worker's local rank and its GPUs; a subclass may choose them otherwise."""
        worker_env.update(local_rank_env(local_rank, spec))

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop them. The health check server keeps answering."""
        self._close_workers(signal.SIGTERM, self._shutdown_timeout)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        try:
            self._close_workers(death_sig, timeout)
        finally:
            if self._health_check_server is not None:
                self._health_check_server.stop()
                self._health_check_server = None

    def _close_workers(self, death_sig: signal.Signals, timeout: int) -> None:
        if self._worker_watchdog is not None:
            self._worker_watchdog.stop()
            self._worker_watchdog = None
        self._uninterruptible_state_first_seen.clear()
        if self._pcontext:
            self._pcontext.close(death_sig, timeout)

    # Watch.

    def _wait_for_news(self, seconds: float) -> None:
        if self._pcontext is None:  # a subclass that starts its workers otherwise
            super()._wait_for_news(seconds)
        else:
            self._pcontext.await_exit(seconds)

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._pcontext is not None, "there are no workers to look at"
        expected, found = {worker.id for worker in worker_group.workers}, set(self._pcontext.pids().values())
        if expected != found:
            role = worker_group.spec.role
            logger.error("[%s] lost track of the workers: started pids %s, now there are %s", role, expected, found)
            return RunResult(state=WorkerState.UNKNOWN)
        ended = self._pcontext.wait(0)
        if ended:
            return self._by_global_rank(ended, worker_group)
        limit_s = self._uninterruptible_state_timeout
        stuck = self._check_uninterruptible_state_timeout(worker_group, limit_s) if limit_s > 0 else None
        return stuck or RunResult(state=WorkerState.HEALTHY)

    def _by_global_rank(self, ended: RunProcsResult, group: WorkerGroup) -> RunResult:
        ranks = {worker.local_rank: worker.global_rank for worker in group.workers}
        if not ended.is_failed():
            values = {ranks[local_rank]: value for local_rank, value in ended.return_values.items()}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        for failure in ended.failures.values():
            if failure.pid in self._expired_timers and failure.exitcode < 0:
                scope = self._expired_timers[failure.pid]
                failure.explained(f"Its timer {scope} expired, so it was ended ({failure.signal_name()})")
        failures = {ranks[local_rank]: failure for local_rank, failure in ended.failures.items()}
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _check_uninterruptible_state_timeout(self, worker_group: WorkerGroup, timeout: float) -> RunResult | None:
        """UNHEALTHY once a worker has been in an uninterruptible sleep for `timeout` seconds, and no restarts any more.

        What holds it there (a GPU, a network card, a file system) would hold its successor on this host, too.
        """
        if self._pcontext is None:
            return None
        role, pids = worker_group.spec.role, set(self._pcontext.pids().values())
        for gone in self._uninterruptible_state_first_seen.keys() - pids:
            del self._uninterruptible_state_first_seen[gone]
        stuck = False
        for pid in pids:
            asleep_s = self._update_uninterruptible_dwell(pid, role, timeout)
            if asleep_s is not None and asleep_s >= timeout:
                stuck = True
                what = f"Worker pid={pid} has been in uninterruptible sleep (D-state) for {asleep_s:.1f} s"
                then = "the worker group is UNHEALTHY and will not be restarted on this host"
                logger.error("[%s] %s (limit %.1f s): %s", role, what, timeout, then)
        if not stuck:
            return None
        self._remaining_restarts = 0
        return RunResult(state=WorkerState.UNHEALTHY)

    def _update_uninterruptible_dwell(self, pid: int, role: str, timeout: float) -> float | None:
        """Seconds for which the process has been in uninterruptible sleep; None: it is not, or this is unknown."""
        state = read_proc_state(pid)
        if state is None:
            return None
        if not is_uninterruptible_state(state):
            self._uninterruptible_state_first_seen.pop(pid, None)
            return None
        if pid not in self._uninterruptible_state_first_seen:
            self._uninterruptible_state_first_seen[pid] = time.monotonic()
            limit = f"UNHEALTHY if that lasts {timeout:.1f} s"
            logger.warning("[%s] Worker pid=%s entered uninterruptible sleep (D-state); %s", role, pid, limit)
            return 0.0
        return time.monotonic() - self._uninterruptible_state_first_seen[pid]

    def _failures_of_unhealthy(self, worker_group: WorkerGroup) -> dict[int, ProcessFailure]:
        found = {}
        for worker in worker_group.workers:
            if worker.id in self._uninterruptible_state_first_seen:
                failure = ProcessFailure(worker.local_rank, worker.id, -signal.SIGKILL, "<N/A>")
                found[worker.global_rank] = failure.explained("It hung in an uninterruptible sleep (D-state), and was killed")
        return found

    # The timer watchdog.

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Start it if it is wanted, and tell the workers where it listens."""
        path = os.getenv(TORCHELASTIC_TIMER_FILE)
        if os.getenv(TORCHELASTIC_ENABLE_FILE_TIMER) == "1":
            path = path or os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
            run_id = envs[0]["TORCHELASTIC_RUN_ID"] if envs else ""
            self._worker_watchdog = timer.FileTimerServer(
                file_path=path, run_id=run_id, max_interval=WATCHDOG_INTERVAL_S, daemon=True, log_event=self._log_watchdog_event
            )
            self._worker_watchdog.start()
        if path is not None:
            for env in envs.values():
                env[TORCHELASTIC_TIMER_FILE] = path

    def _log_watchdog_event(self, name: str, request: timer.FileTimerRequest | None) -> None:
        details = {"watchdog_event": name}
        if request is not None:
            details |= {
                "worker_pid": str(request.worker_pid),
                "scope_id": request.scope_id,
                "expiration_time": str(request.expiration_time),
                "signal": str(request.signal),
            }
            if name == "kill worker process":
                self._expired_timers[request.worker_pid] = request.scope_id
            logger.warning("%s: pid %s, scope %s, signal %s", name, request.worker_pid, request.scope_id, request.signal)
        event = events.Event(name, events.EventSource.AGENT, metadata=self._event_metadata("RUNNING", details))
        events.record(event, self._worker_group.spec.event_log_handler)

    # The health check server.

    def _setup_healthcheck(self) -> None:
        """Start it if it is wanted and not there yet. It outlives restarts, and answers between two rounds."""
        if self._health_check_server is None:
            self._health_check_server = server_from_environment(self._get_alive_time)

    def _get_alive_time(self) -> int:
        """Epoch seconds of the last progress: the watchdog's while it runs, else now."""
        if self._worker_watchdog is not None and not self._in_exit_barrier:
            return self._worker_watchdog.get_last_progress_time()
        return int(time.time())
