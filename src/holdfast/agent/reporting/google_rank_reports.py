"""How does Google's host daemon, or ours, hear of this agent's ranks? From the events that the agent records anyway.

    started → RUNNING, and a beat each second while the agent's loop turns      all ended with 0 → COMPLETE
    failed → FAILED: the one that did, not those that were stopped for it       stopped → nothing, and goodbye at the end

The user sets GCP_HOST_DAEMON_PORT; other `GCP_*` variables describe the workload. Nothing here waits for the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.agent.component import Component
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Event, FailureSeen, WorkerExited, WorkersStopped, WorkerStarted
from holdfast.core.machine import NEVER, Observation
from holdfast.core.value import replace
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, WorkerInfo, WorkloadInfo, worker_address
from holdfast.runtime.daemon_client import DaemonClient, worker_at

PORT = "GCP_HOST_DAEMON_PORT"

TEXTS = {"GCP_WORKLOAD_NAME": "workload_name", "GCP_JOB_NAME": "job_name", "GCP_CONTAINER_NAME": "container_name"}
NUMBERS = {
    "GCP_NUM_DP_REPLICAS": "num_data_replicas",
    "GCP_MAX_NUM_DP_REPLICAS": "max_num_data_replicas",
    "GCP_MIN_NUM_DP_REPLICAS": "min_num_data_replicas",
    "GCP_NUM_NODES_PER_DP": "num_nodes_per_data_replica",
    "GCP_CONTAINER_TERMINATION_THRESHOLD_S": "container_termination_threshold_s",
    "GCP_WORKLOAD_DOWNTIME_THRESHOLD_S": "workload_downtime_threshold_s",
    "GCP_MAX_IN_JOB_RESTARTS": "max_in_job_restarts",
    "GCP_MAX_WORKLOAD_RESTARTS": "max_workload_restarts",
}
SCALING = "GCP_ENABLE_WORKLOAD_SCALING"

BEAT_S = 1.0  # Between two heartbeats of a rank. Google's daemon looks at whole seconds; its shortest useful timeout is a few.

LOOK_S = 0.05
"""Until the daemon has taken up a rank for the first time: how often to look whether it has, for the line that says so."""


class RankReports(Component):
    """One of the agent's parts. Made by `rank_reports`."""

    notes = WorkerStarted, FailureSeen, WorkerExited, WorkersStopped

    def __init__(
        self,
        port: int,
        workload: WorkloadInfo,
        say: Callable[[str], None],
        complain: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`say` writes a line that people look for, `complain` one that tells what cannot be had."""
        self.port, self.workload, self.say, self.complain, self.clock = port, workload, say, complain, clock
        self.reports = DaemonClient(port)
        self.trouble = ""  # What was complained of last.
        self.workers: dict[int, WorkerInfo] = {}  # By local rank, of the round that runs.
        self.finished: set[int] = set()  # Local ranks that have ended with 0.
        self.beating: set[int] = set()  # Local ranks that are told as running each second.
        self.unannounced: set[int] = set()  # Local ranks that the daemon has not taken up yet.
        self.beat_at = self.look_at = NEVER

    def recorded(self, event: Event, at_unix: float) -> None:
        match event:
            case WorkerStarted(rank=rank, local_rank=local_rank):
                self._started(rank, local_rank)
            case FailureSeen(failure=failure):
                self.beating.discard(failure.local_rank)
                if not failure.innocent:
                    self._tell(failure.local_rank, FAILED)
            case WorkerExited(local_rank=local_rank, exitcode=0):
                self.finished.add(local_rank)
                if self.finished.issuperset(self.workers):
                    self.beating.clear()
                    for each in self.workers:
                        self._tell(each, COMPLETE)
            case WorkersStopped():
                self.beating.clear()

    def _started(self, rank: int, local_rank: int) -> None:
        if not self.beating:  # the first of a round, which may have other ranks than the last
            self.finished.clear()
            self.beat_at = self.clock() + BEAT_S
        self.finished.discard(local_rank)
        known = self.workers.get(local_rank)
        if known is None or known.global_rank != rank:
            self.unannounced.add(local_rank)
            self.look_at = self.clock() + LOOK_S
            self.workers[local_rank] = worker_at(worker_address(self.port, local_rank), local_rank, rank)
            if known is None:
                self.reports.register(self.workers[local_rank].worker_address, self.workload)
        self.beating.add(local_rank)
        self._tell(local_rank, RUNNING)

    def _tell(self, local_rank: int, state: int) -> None:
        if local_rank in self.workers:
            self.workers[local_rank] = worker = replace(self.workers[local_rank], state=state)
            self.reports.say(worker)

    @property
    def due_at(self) -> float:
        """When a rank beats, or may have been taken up."""
        beat_at = self.beat_at if self.beating else NEVER
        return min(beat_at, self.look_at) if self.unannounced and not self.reports.trouble else beat_at

    def due(self) -> list[Observation]:
        """Beat, and say which ranks the daemon knows."""
        self.look_at = self.clock() + LOOK_S
        for local_rank in [one for one in self.unannounced if self.workers[one].worker_address in self.reports.told]:
            self.unannounced.discard(local_rank)
            self.say(f"setup_goodput_client for rank {self.workers[local_rank].global_rank} successful")
        if (trouble := self.reports.trouble) and not self.trouble:
            self.complain(f"the host daemon at port {self.port} is out of reach, and gets its reports later: {trouble}")
        self.trouble = trouble
        if self.beating and (now := self.clock()) >= self.beat_at:
            self.beat_at = now + BEAT_S
            for local_rank in self.beating:
                self._tell(local_rank, RUNNING)
        return []

    def close(self) -> None:
        """The agent ends. What failed or completed stays as it is; the others say goodbye, so that nobody misses them."""
        for worker in self.workers.values():
            if worker.state == RUNNING:
                self.reports.leave(worker)
        self.reports.close()
        self.due()


def rank_reports(
    config: RunConfig,
    environ: Mapping[str, str],
    job: str,
    say: Callable[[str], None],
    complain: Callable[[str], None],
    clock: Callable[[], float],
) -> RankReports | None:
    """The part, as `environ` has it. None: its port is wrong, as `complain` is told."""
    port, trouble = _number(environ, PORT, 0)
    if trouble or not 0 < port < 65536:
        complain(f"{PORT}={environ[PORT]} is not a port number (1 to 65535): the host daemon gets no rank reports")
        return None
    info, troubles = workload(environ, job, config.max_restarts)
    for trouble in troubles:
        complain(trouble)
    return RankReports(port, info, say, complain, clock)


def workload(environ: Mapping[str, str], job: str, max_restarts: int) -> tuple[WorkloadInfo, list[str]]:
    """What the `GCP_*` variables say of the job, else Google's defaults, and what is wrong with them."""
    given: dict[str, str | int | bool] = {
        "workload_name": job,
        "container_termination_threshold_s": 60,
        "workload_downtime_threshold_s": 180,
        "max_in_job_restarts": max_restarts,
        "max_workload_restarts": 1,
        "workload_scaling_enabled": environ.get(SCALING, "").lower() in ("true", "1"),
    }
    troubles = []
    for variable, field in TEXTS.items():
        if value := environ.get(variable):
            given[field] = value
    for variable, field in NUMBERS.items():
        number, trouble = _number(environ, variable, int(given.get(field, 0)))
        given[field] = number
        troubles += [trouble] if trouble else []
    return WorkloadInfo(**given), troubles  # type: ignore[arg-type]


def _number(environ: Mapping[str, str], variable: str, default: int) -> tuple[int, str]:
    """Its value, and what is wrong with it."""
    text = environ.get(variable, "")
    if not text or (text.isascii() and text.isdigit() and int(text) < 1 << 31):
        return int(text or default), ""
    return default, f"{variable}={text} is not a number: {default} is used"
