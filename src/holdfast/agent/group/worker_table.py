"""What is known of a round's workers, and what have they died of? Values; `agent.group.worker_events` changes them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any

from holdfast.core.job.failure import Cause, Evidence, Failure
from holdfast.core.machine import NEVER
from holdfast.core.signals import signal
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Assigned, Join


class WorkerState(StrEnum):
    """Where a worker is."""

    STARTING = "starting"
    RUNNING = "running"
    DYING = "dying"  # Dead, but the kernel still frees its memory.
    GONE = "gone"


class Worker(Value):
    """What is known of one worker."""

    local_rank: int
    rank: int
    pid: int = -1
    state: WorkerState = WorkerState.STARTING
    exitcode: int | None = None
    charge: tuple[Cause, str] | None = None
    """(cause, message) of what was found against it while it still ran. None: nothing."""
    asked_at: float = -NEVER  # When it last asked for something.
    overdue: str = ""  # Which limit it has exceeded, in words. Empty: none.
    overdue_at_unix: float = 0.0
    struck: bool = False  # It was sent its deadly signal before the others are stopped.
    stacks_path: str | None = None  # Where its stacks are. None: it has not been looked at, or they are not kept.

    @property
    def ids(self) -> dict[str, int]:
        """What events name it by."""
        return {"rank": self.rank, "local_rank": self.local_rank, "pid": self.pid}

    @property
    def charged_with(self) -> str:
        """What was found against it, in words."""
        return self.charge[1] if self.charge else ""

    @property
    def hangs(self) -> bool:
        """It was found to hang, and nothing has been done about it."""
        return self.state is WorkerState.RUNNING and bool(self.overdue) and not self.struck


class WorkerTable(Value):
    """The workers of one round on this node."""

    node: str = ""
    role: str = ""
    round: int = 0
    attempt: int = 0
    seats: dict[int, Worker] = {}  # noqa: RUF012
    """By local rank."""
    stop_signal: int = 0  # They were told to stop by it. 0: they were not.
    killed: frozenset[int] = frozenset()
    failures: dict[int, Failure] = {}  # noqa: RUF012

    def __getitem__(self, local_rank: int) -> Worker:
        return self.seats[local_rank]

    def __contains__(self, local_rank: int) -> bool:
        return local_rank in self.seats

    def values(self) -> Collection[Worker]:
        """All of them, by local rank."""
        return self.seats.values()

    @property
    def alive(self) -> tuple[int, ...]:
        """Those that are not gone."""
        return tuple(i for i, worker in self.seats.items() if worker.state is not WorkerState.GONE)

    @property
    def can_work(self) -> bool:
        """Whether some run that we have not killed."""
        working = (WorkerState.STARTING, WorkerState.RUNNING)
        return any(worker.state in working and i not in self.killed for i, worker in self.seats.items())

    def ranks(self, local_ranks: Iterable[int]) -> tuple[int, ...]:
        """Their global ranks."""
        return tuple(self.seats[i].rank for i in local_ranks)

    def changed(self, local_rank: int, /, **changes: Any) -> WorkerTable:
        """This is known of one of them now."""
        return replace(self, seats={**self.seats, local_rank: replace(self.seats[local_rank], **changes)})

    def gone(self, local_ranks: Iterable[int]) -> WorkerTable:
        """These are no more."""
        seats = {i: replace(self.seats[i], state=WorkerState.GONE) for i in local_ranks}
        return replace(self, seats={**self.seats, **seats})

    def failed(self, worker: Worker, at_unix: float, cause: Cause, evidence: Evidence) -> WorkerTable:
        """One has failed, or more is known of it. The first news says when and why."""
        before = self.failures.get(worker.local_rank)
        failure = Failure(
            node=self.node,
            rank=worker.rank,
            local_rank=worker.local_rank,
            role=self.role,
            pid=worker.pid,
            exitcode=worker.exitcode,
            at_unix=before.at_unix if before else min(evidence.at_unix or at_unix, at_unix),
            cause=before.cause if before else cause,
            message=worker.charged_with or evidence.message,
            traceback=evidence.traceback,
            error_file=evidence.error_file,
            error_record=evidence.error_record,
            log_tail=evidence.log_tail,
            log_path=evidence.log_path,
            stacks_path=worker.stacks_path,
            round=self.round,
            attempt=self.attempt,
        )
        return replace(self, failures={**self.failures, worker.local_rank: failure})

    def cause(self, worker: Worker, evidence: Evidence) -> Cause:
        """What a worker has died of that did not end with 0 (`core.job.failure`)."""
        if worker.charge:
            return worker.charge[0]
        by = -worker.exitcode if worker.exitcode is not None and worker.exitcode < 0 else 0
        if by and by in (self.stop_signal, signal.SIGKILL if worker.local_rank in self.killed else 0):
            return Cause.STOPPED
        if evidence.traceback or evidence.error_record:
            return Cause.EXCEPTION
        return Cause.SIGNAL if by > 0 else Cause.EXIT


def workers_of(join: Join, assigned: Assigned) -> WorkerTable:
    """Those of a round, before they start."""
    seats = {i: Worker(local_rank=i, rank=assigned.base_rank + i) for i in range(join.nproc)}
    return WorkerTable(node=join.name, role=join.role, round=assigned.round, attempt=assigned.restart_count, seats=seats)
