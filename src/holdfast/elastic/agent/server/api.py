"""How does an agent run one node's workers to the end? Rendezvous, start, watch, restart, and the wait for the other nodes.

`SimpleElasticAgent` is the loop; how workers are started, stopped and looked at is its subclass's matter.
"""

from __future__ import annotations

import inspect
import json
import signal
import socket
import sys
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import environ
from typing import Any

import holdfast.elastic.utils.store as store_util
from holdfast.elastic.events import Event, EventSource, record
from holdfast.elastic.metrics import prof, put_metric
from holdfast.elastic.multiprocessing import ProcessFailure, SignalException
from holdfast.elastic.rendezvous import RendezvousGracefulExitError
from holdfast.elastic.rendezvous.stores import PatientStore
from holdfast.elastic.utils.logging import get_logger

from . import rank_assignment
from .peers import PeerFailedError, PeerRestartsError, Peers, fail_fast
from .rank_assignment import _RoleInstanceInfo
from .worker_group import DEFAULT_ROLE, ElasticAgent, RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "ProcessFailure",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "_RoleInstanceInfo",
]

logger = get_logger(__name__)

_TERMINAL_STATE_SYNC_ID = "torchelastic/agent/terminal_state"
EXIT_BARRIER_TIMEOUT_S = 300.0  # How long a node whose workers have succeeded waits for the others. torch: 300.
EXIT_BARRIER_ENV = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"


def _get_fq_hostname() -> str:
    return socket.getfqdn(socket.gethostname())


class SimpleElasticAgent(ElasticAgent):
    """The loop. A subclass gives `_start_workers`, `_stop_workers`, `_monitor_workers` and `_shutdown`.

    `exit_barrier_timeout`: seconds that a node which is done waits for the others (else the environment's, else 300).
    `shutdown_timeout`: seconds between asking workers to stop and killing them.
    """

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float | None = None, shutdown_timeout: int = 30) -> None:
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_seconds(exit_barrier_timeout)
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time: float = 0
        self._in_exit_barrier = False
        self._another_round = False  # a peer left this one while we waited for it at the exit barrier
        self._peers = Peers(None, None, None)

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        return self._worker_group

    # What a subclass gives.

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start `local_world_size` workers; return each one's id by local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all of them, in whatever state they are; some may be gone already."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """How do they stand now? Does not wait."""

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        """Let go of everything: `death_sig` to workers that are left, SIGKILL after `timeout` seconds. Any number of times."""

    def _wait_for_news(self, seconds: float) -> None:
        """Until it is worth looking at the workers again, `seconds` at most. A subclass that hears of an exit is sooner."""
        time.sleep(seconds)

    def _failures_of_unhealthy(self, worker_group: WorkerGroup) -> dict[int, ProcessFailure]:
        """Who made the group unhealthy, where `_monitor_workers` did not say."""
        return {}

    # The steps of a round.

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Join the next round, and take ranks, store and address from it."""
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            agreed = spec.rdzv_handler.next_rendezvous()
        self._store = agreed.store
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            workers = self._assign_worker_ranks(agreed.store, agreed.rank, agreed.world_size, spec)
        worker_group.enter(agreed, workers)
        self._peers = Peers(agreed.store, agreed.rank, agreed.world_size)
        logger.info(_round_in_words(worker_group, spec.max_restarts - self._remaining_restarts))

    @prof
    def _assign_worker_ranks(self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> list[Worker]:
        """This node's workers with their ranks in a round of `group_world_size` nodes."""
        return rank_assignment.assign(store, group_rank, group_world_size, spec.role, spec.local_world_size)

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Join a round and start workers for it."""
        spec = worker_group.spec
        self._rendezvous(worker_group)
        logger.info("[%s] Starting worker group", spec.role)
        for local_rank, worker_id in self._start_workers(worker_group).items():
            worker = worker_group.workers[local_rank]
            worker.start_as(worker_id)
            record(self._construct_event("START", EventSource.WORKER, worker), spec.event_log_handler)
        worker_group.become(WorkerState.HEALTHY)

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, and start new ones in a new round."""
        logger.info("[%s] Stopping worker group", worker_group.spec.role)
        self._stop_workers(worker_group)
        worker_group.become(WorkerState.STOPPED)
        self._initialize_workers(worker_group)

    # The loop.

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers, with restarts, to the end, and leave none behind."""
        started = time.monotonic()
        death_sig: signal.Signals | None = None
        try:
            result = self._invoke_run(role)
            self._total_execution_time = time.monotonic() - started
            self._record_metrics(result)
            self._record_worker_events(result)
            return result
        except _graceful_exits() as over:
            logger.info("The job ended without a seat for this node: %s", over)
            return RunResult(WorkerState.SUCCEEDED)
        except SignalException as received:
            death_sig = received.sigval
            logger.warning("Received %s death signal, shutting down workers", received.sigval)
            raise
        finally:
            later = self._end(death_sig)
            self._total_execution_time = time.monotonic() - started
            if later and death_sig is None:
                raise later

    def _end(self, death_sig: signal.Signals | None) -> SignalException | None:
        """`_shutdown`, whatever comes: a signal meanwhile starts it again, the next makes it SIGKILL. Returns the last one."""
        later: SignalException | None = None
        for _ in ("ask", "ask again"):
            try:
                self._call_shutdown(death_sig)
                return later
            except SignalException as again:
                later, death_sig = again, again.sigval
        with _deaf_to_signals():
            self._call_shutdown(signal.SIGKILL)
        return later

    def _call_shutdown(self, death_sig: signal.Signals | None) -> None:
        """`_shutdown` with as much as the subclass's takes."""
        args = () if death_sig is None else (death_sig,)
        limit: dict[str, Any] = {"timeout": self._shutdown_timeout}
        if _takes(self._shutdown, *args, **limit):
            self._shutdown(*args, **limit)
        else:
            self._shutdown(*(args if _takes(self._shutdown, *args) else ()))

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        group = self._worker_group
        spec, role = group.spec, group.spec.role
        logger.info("[%s] starting workers for entrypoint: %s", role, spec.get_entrypoint_name())
        self._initialize_workers(group)
        while True:
            assert group.state != WorkerState.INIT
            self._wait_for_news(spec.monitor_interval)
            result = self._monitor_workers(group)
            group.become(result.state)
            put_metric(f"workers.{role}.remaining_restarts", self._remaining_restarts)
            put_metric(f"workers.{role}.{result.state.name.lower()}", 1)
            match result.state:
                case WorkerState.SUCCEEDED:
                    self._exit_barrier()
                    if not self._another_round:
                        return result
                    self._restart_workers(group)
                case WorkerState.UNHEALTHY | WorkerState.FAILED if self._remaining_restarts > 0:
                    left = f"{self._remaining_restarts}/{spec.max_restarts} attempts left"
                    logger.info("[%s] Worker group %s. %s; will restart worker group", role, result.state.name, left)
                    self._remaining_restarts -= 1
                    self._peers.announce_restart()
                    self._restart_workers(group)
                case WorkerState.UNHEALTHY | WorkerState.FAILED:
                    return self._fail(result)
                case WorkerState.HEALTHY:
                    self._look_around()
                case _:
                    raise RuntimeError(f"[{role}] Worker group in {result.state.name} state")

    def _fail(self, result: RunResult) -> RunResult:
        """No restarts left. An unhealthy group counts as failed, not as a success."""
        group = self._worker_group
        failures = result.failures or self._failures_of_unhealthy(group)
        self._stop_workers(group)
        group.become(WorkerState.FAILED)
        self._peers.announce(_get_fq_hostname(), {rank: failure.exitcode for rank, failure in failures.items()})
        return replace(result, state=WorkerState.FAILED, failures=failures)

    def _look_around(self) -> None:
        """The workers are fine. Does another node wait to join, or has one failed for good?"""
        spec, group = self._worker_group.spec, self._worker_group
        waiting = spec.rdzv_handler.num_nodes_waiting()
        if waiting > 0:
            who = f"{waiting} new nodes from group_rank={group.group_rank}"
            logger.info("[%s] Detected %s; will restart worker group", spec.role, who)
            self._restart_workers(group)
        elif failed := self._peers.news():
            if fail_fast():
                raise PeerFailedError(failed)
            logger.error("[%s] %s. The workers of this node go on", spec.role, failed)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes' workers, so that no node takes its store away from them. An error here fails no worker.

        A signal ends the wait at once, and so does a node that has failed for good. One that restarts its workers takes ours
        with it into the next round: without them its own could not finish, and it would wait for us as we for it.
        """
        group, started = self._worker_group, time.monotonic()
        self._another_round = False
        limit_s = self._exit_barrier_timeout
        logger.info("Local worker group finished (%s). Waiting %s seconds for other agents to finish", group.state, limit_s)
        self._in_exit_barrier = True
        try:
            patient = hasattr(self._store, "check")
            store = PatientStore(self._store, self._stop_waiting_in_vain) if patient else self._store
            size = group.group_world_size or 1
            store_util.barrier(store=store, world_size=size, key_prefix=_TERMINAL_STATE_SYNC_ID, barrier_timeout=limit_s)
            logger.info("Done waiting for other agents. Elapsed: %s seconds", time.monotonic() - started)
        except PeerRestartsError:
            logger.info("[%s] Another node restarts its workers; so does this one", group.spec.role)
            self._another_round = True
        except PeerFailedError as failed:
            logger.error("[%s] %s. Not waiting for it; the workers of this node have succeeded", group.spec.role, failed)
        except SignalException as received:
            logger.warning("Got termination signal: %s", received.sigval)
            raise
        except Exception:
            logger.exception("Error waiting on exit barrier. Elapsed: %s seconds", time.monotonic() - started)
        finally:
            self._in_exit_barrier = False

    def _stop_waiting_in_vain(self) -> None:
        if self._peers.restarting():
            raise PeerRestartsError
        if failed := self._peers.news():
            raise PeerFailedError(failed)

    # What is recorded.

    def get_event_failed(self) -> Event:
        """The agent failed, by the exception being handled."""
        return self._construct_event(state="FAILED", source=EventSource.AGENT, raw_error=traceback.format_exc())

    def get_event_succeeded(self) -> Event:
        """The agent came to its end; its workers may have failed."""
        return self._construct_event(state="SUCCEEDED", source=EventSource.AGENT)

    def _record_worker_events(self, result: RunResult) -> None:
        for worker in self._worker_group.workers:
            failure = result.failures.get(worker.global_rank)
            event = self._construct_event(
                state=self._get_worker_state(worker, result),
                source=EventSource.WORKER,
                worker=worker,
                raw_error=json.dumps(failure.error_file_data) if failure else None,
                exit_code=failure.exitcode if failure else None,
                worker_pid=failure.pid if failure else None,
            )
            record(event, self._worker_group.spec.event_log_handler)

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        if worker.global_rank in result.failures or worker.global_rank in result.return_values:
            return result.state.value
        if result.state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
            return "TERMINATED"  # by us, after another's failure
        raise ValueError(f"Unknown worker: {worker.global_rank}")

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record an event that says how long the block took."""
        started = time.perf_counter()
        try:
            yield
        finally:
            took_ms = (time.perf_counter() - started) * 1000
            event = self._construct_event(state=state, source=EventSource.AGENT, duration_ms=took_ms)
            record(event, self._worker_group.spec.event_log_handler)

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        group = self._worker_group
        details: dict[str, Any] = {"group_world_size": group.group_world_size, "entry_point": group.spec.get_entrypoint_name()}
        if worker:  # each in a list of one, as readers of torch's events expect
            details |= {
                "local_rank": (worker.local_rank,),
                "role_rank": (worker.role_rank,),
                "role_world_size": (worker.role_world_size,),
                "exit_code": (exit_code,),
                "worker_pid": (worker_pid,),
            }
        metadata = self._event_metadata(state, details, worker, raw_error) | {"duration_ms": duration_ms}
        return Event(f"torchelastic.worker.status.{state}", source=source, metadata=metadata)

    def _event_metadata(
        self, state: str, details: dict[str, Any], worker: Worker | None = None, raw_error: str | None = None
    ) -> dict[str, Any]:
        spec = self._worker_group.spec
        return {
            "run_id": spec.rdzv_handler.get_run_id(),
            "global_rank": worker.global_rank if worker else None,
            "group_rank": self._worker_group.group_rank,
            "worker_id": str(worker.id) if worker else None,
            "role": spec.role,
            "hostname": _get_fq_hostname(),
            "state": state,
            "total_run_time": int(self._total_execution_time),
            "rdzv_backend": spec.rdzv_handler.get_backend(),
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "agent_restarts": spec.max_restarts - self._remaining_restarts,
        }

    def _record_metrics(self, group_results: RunResult) -> None:
        spec = self._worker_group.spec
        failed = group_results.is_failed()
        with_retries = self._remaining_restarts != spec.max_restarts
        self._record_flakiness_metric(failed)
        put_metric(f"workers.{spec.role}.run_total", 1)
        for outcome, is_so in (("success", not failed), ("failed", failed)):
            put_metric(f"workers.{spec.role}.run_{outcome}_with_retries", int(is_so and with_retries))
            put_metric(f"workers.{spec.role}.run_{outcome}_no_retries", int(is_so and not with_retries))

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:
        """100: failed, or needed every restart; 0: needed none."""
        spec = self._worker_group.spec
        percent = 100.0 if is_failed else 100.0 - 100.0 * (self._remaining_restarts + 1) / (spec.max_restarts + 1)
        put_metric(f"workers.{spec.role}.flakiness", int(percent))


def exit_barrier_seconds(told: float | None) -> float:
    """What was told, else what the environment says, else 300."""
    return float(environ.get(EXIT_BARRIER_ENV, EXIT_BARRIER_TIMEOUT_S) if told is None else told)


def _graceful_exits() -> tuple[type[Exception], ...]:
    """What a handler raises when the job ends without a seat for this node. Another package's may raise torch's."""
    torchs = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    return RendezvousGracefulExitError, *([] if torchs is None else [torchs.RendezvousGracefulExitError])


def _takes(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        inspect.signature(hook).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@contextmanager
def _deaf_to_signals() -> Iterator[None]:
    """No signal that has a handler of ours raises in here."""
    ours = {number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}
    try:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)
    except ValueError:  # not the main thread, where handlers never run anyway
        ours = {}
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _round_in_words(group: WorkerGroup, restart_count: int) -> str:
    shown = {
        "restart_count": restart_count,
        **{name: getattr(group, name) for name in ("master_addr", "master_port", "group_rank", "group_world_size")},
        "local_ranks": [worker.local_rank for worker in group.workers],
        "role_ranks": [worker.role_rank for worker in group.workers],
        "global_ranks": [worker.global_rank for worker in group.workers],
        "role_world_sizes": [worker.role_world_size for worker in group.workers],
        "global_world_sizes": [worker.world_size for worker in group.workers],
        "event_log_handler": group.spec.event_log_handler,
    }
    lines = "".join(f"  {name}={value}\n" for name, value in shown.items())
    return f"[{group.spec.role}] Rendezvous complete for workers. Result:\n{lines}"
