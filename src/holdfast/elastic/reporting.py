"""How does stock torchrun report its ranks to Google's host daemon, or ours, with no line of PyTorch changed? Two ways:

    holdfast torchrun …                            torchrun's own main, with two methods of its agent followed
    torchrun --logs-specs holdfast_reports …       the same, through torchrun's own plug-in group for logs specs

With GCP_HOST_DAEMON_PORT set, HEALTHY → RUNNING, FAILED → FAILED, SUCCEEDED → COMPLETE. Of a round that fails only those are
told as FAILED who had ended before the agent stopped the others, although all are in its result. Nothing waits for the daemon.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.agent.reporting.google_rank_reports import BEAT_S, PORT, workload
from holdfast.core.errors import UsageError
from holdfast.core.value import replace
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, WorkerInfo, worker_address
from holdfast.runtime.daemon_client import DaemonClient, worker_at

STOPPED = -15, -9  # exit codes of those whom the agent has ended: SIGTERM, then SIGKILL


class Followed:
    """One agent's ranks."""

    def __init__(self, port: int) -> None:
        self.port, self.reports = port, DaemonClient(port)
        self.workers: dict[int, WorkerInfo] = {}  # by local rank
        self.announced: set[int] = set()  # global ranks of which the daemon is known to know
        self.beat_at = 0.0
        atexit.register(self.close)

    def started(self, agent: Any) -> None:
        """`agent` has started its workers."""
        spec = agent.get_worker_group().spec
        described, troubles = workload(os.environ, spec.rdzv_handler.get_run_id(), spec.max_restarts)
        for trouble in troubles if not self.workers else ():
            _say(trouble)
        for worker in agent.get_worker_group().workers:
            address = worker_address(self.port, worker.local_rank)
            self.reports.register(address, described)
            self.workers[worker.local_rank] = worker_at(address, worker.local_rank, worker.global_rank)
        self._tell(self.workers, RUNNING)

    def monitored(self, agent: Any, ended: Sequence[int], result: Any) -> None:
        """`result` is what the agent has seen; local ranks `ended` were over before it looked."""
        match result.state.name:
            case "HEALTHY":
                if time.monotonic() >= self.beat_at:
                    self._tell(self.workers, RUNNING)
            case "SUCCEEDED":
                self._tell(self.workers, COMPLETE)
            case "FAILED":
                self._tell(culprits(result.failures.values(), ended), FAILED)
        for worker in self.workers.values():
            if worker.global_rank not in self.announced and worker.worker_address in self.reports.told:
                self.announced.add(worker.global_rank)
                _say(f"setup_goodput_client for rank {worker.global_rank} successful")

    def close(self) -> None:
        """The process ends."""
        for worker in self.workers.values():
            if worker.state == RUNNING:
                self.reports.leave(worker)
        self.reports.close()

    def _tell(self, local_ranks: Any, state: int) -> None:
        self.beat_at = time.monotonic() + BEAT_S
        for local_rank in list(local_ranks):
            self.workers[local_rank] = replace(self.workers[local_rank], state=state)
            self.reports.say(self.workers[local_rank])


def culprits(failures: Any, ended: Sequence[int]) -> list[int]:
    """Local ranks that failed by themselves: those that had `ended`; else those that were not stopped; else all."""
    failed = {failure.local_rank: failure.exitcode for failure in failures}
    first = [local_rank for local_rank in ended if local_rank in failed]
    return first or [local_rank for local_rank, code in failed.items() if code not in STOPPED] or list(failed)


def follow() -> None:
    """Have torch's agent report, from now on in this process; without GCP_HOST_DAEMON_PORT nothing is touched."""
    port = os.environ.get(PORT, "")
    if not port:
        return
    if not port.isdigit() or not 0 < int(port) < 65536:
        return _say(f"{PORT}={port} is no port: no host daemon is told of the ranks")
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    if hasattr(LocalElasticAgent, "holdfast_follows"):
        return
    followed, agent_class = Followed(int(port)), LocalElasticAgent
    start, monitor = agent_class._start_workers, agent_class._monitor_workers

    def started(self: Any, worker_group: Any) -> Any:
        ids = start(self, worker_group)
        _unharmed(lambda: followed.started(self))
        return ids

    def monitored(self: Any, worker_group: Any) -> Any:
        ended = _ended(self)
        result = monitor(self, worker_group)
        _unharmed(lambda: followed.monitored(self, ended, result))
        return result

    agent_class._start_workers, agent_class._monitor_workers = started, monitored
    agent_class.holdfast_follows = True


def logs_specs(**options: Any) -> Any:
    """For torchrun's group of logs specs: its own default, and the agent reports."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    follow()
    return DefaultLogsSpecs(**options)


def torchrun(argv: Sequence[str]) -> int:
    """torchrun itself, which reports. Returns when all is well; else it raises, as torchrun does."""
    try:
        from torch.distributed.run import main
    except ImportError as error:
        raise UsageError("PyTorch is not installed, and torchrun is a part of it", hint="`holdfast run` needs none") from error
    follow()
    sys.argv[0] = "torchrun"
    main(list(argv))
    return 0


def _ended(agent: Any) -> list[int]:
    """Local ranks whose processes are over, seen before the agent stops the others for it."""
    context = agent._pcontext
    return [local_rank for local_rank, pid in context.pids().items() if _is_over(pid)] if context is not None else []


def _is_over(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except OSError:
        return True  # the agent has its exit code already


def _unharmed(report: Callable[[], None]) -> None:
    """torchrun goes on whatever is wrong with us, or with what another version of it holds elsewhere."""
    try:
        report()
    except Exception as error:
        _say(f"the ranks are not reported: {type(error).__name__}: {error}")


def _say(text: str) -> None:
    os.write(2, f"holdfast: {text}\n".encode(errors="replace"))
