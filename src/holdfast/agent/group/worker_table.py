"""What is known of a round's workers, and what have they died of? Says so when asked; `agent.group.machine` decides."""

from __future__ import annotations

from holdfast.agent.group.messages import SignalWorkers
from holdfast.core.job.events import WatchdogExpired
from holdfast.core.job.failure import Cause, Evidence, Failure
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.messages import TimerExpired
    from holdfast.core.wire.messages import Assigned, Join


class WorkerSeat:
    """What the machine knows of one worker."""

    def __init__(self, local_rank: int, rank: int) -> None:
        self.local_rank = local_rank
        self.rank = rank
        self.pid = -1
        self.state = "starting"
        """starting · running · dying · gone"""
        self.exitcode: int | None = None
        self.charge: tuple[Cause, str] | None = None
        """(cause, message) of what was found against it while it still ran. None: nothing."""
        self.asked_at = -NEVER
        """When it last asked for something."""
        self.overdue, self.overdue_at_unix = "", 0.0
        """Which limit it has exceeded, in words (empty: none), and when."""
        self.struck = False
        """It was sent what is to end it, before the others are stopped."""
        self.stacks_path: str | None = None
        """Where its stacks are. None: it has not been looked at, or they are not kept."""

    @property
    def ids(self) -> dict[str, int]:
        """What events name it by."""
        return {"rank": self.rank, "local_rank": self.local_rank, "pid": self.pid}

    @property
    def hangs(self) -> bool:
        """It was found to hang, and nothing has been done about it."""
        return self.state == "running" and bool(self.overdue) and not self.struck


class Crew(dict[int, WorkerSeat]):
    """The workers of one round on this node, by local rank."""

    def __init__(self, join: Join, assigned: Assigned | None = None) -> None:
        """`assigned` None: there was no round yet."""
        self.node, self.role = join.name, join.role
        self.round, self.attempt = (assigned.round, assigned.restart_count) if assigned else (0, 0)
        self.stop_signal = 0
        """What they were told to stop by."""
        self.killed: set[int] = set()
        self.failures: dict[int, Failure] = {}
        if assigned:
            self.update((i, WorkerSeat(i, assigned.base_rank + i)) for i in range(join.nproc))

    @property
    def alive(self) -> tuple[int, ...]:
        """Those that are not gone."""
        return tuple(i for i, worker in self.items() if worker.state != "gone")

    @property
    def can_work(self) -> bool:
        """Whether some run that we have not killed."""
        return any(worker.state in ("starting", "running") and i not in self.killed for i, worker in self.items())

    def ranks(self, local_ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Their global ranks."""
        return tuple(self[i].rank for i in local_ranks)

    def fail(self, worker: WorkerSeat, at_unix: float, cause: Cause, evidence: Evidence) -> Failure:
        """Keep that it failed, or what more is known of it: when and why it did is said once, with the first news."""
        before = self.failures.get(worker.local_rank)
        self.failures[worker.local_rank] = failure = Failure(
            node=self.node,
            rank=worker.rank,
            local_rank=worker.local_rank,
            role=self.role,
            pid=worker.pid,
            exitcode=worker.exitcode,
            at_unix=before.at_unix if before else min(evidence.at_unix or at_unix, at_unix),
            cause=before.cause if before else cause,
            message=worker.charge[1] if worker.charge else evidence.message,
            traceback=evidence.traceback,
            error_file=evidence.error_file,
            error_record=evidence.error_record,
            log_tail=evidence.log_tail,
            log_path=evidence.log_path,
            stacks_path=worker.stacks_path,
            round=self.round,
            attempt=self.attempt,
        )
        return failure

    def timer_expired(self, seen: TimerExpired) -> list[Action]:
        """One of them, or a child of one, did not leave a scope in time that it had set itself."""
        noted = Record(event=WatchdogExpired(pid=seen.pid, scope=seen.scope, expired_s=seen.late_s))
        if seen.signum <= 0:
            text = f"process {seen.pid} did not leave scope {seen.scope} in time; its timer asks for no signal"
            return [noted, Say(text=text, level="warning")]
        for worker in self.values():
            if worker.pid == seen.pid and worker.state == "running":
                worker.charge = Cause.WATCHDOG, f"did not leave scope {seen.scope} in time"
                text = f"rank {worker.rank} {worker.charge[1]}"
                return [
                    noted,
                    Say(text=f"{text}; sent {name_of(seen.signum)}", level="warning"),
                    SignalWorkers(local_ranks=(worker.local_rank,), signum=seen.signum),
                ]
        text = f"process {seen.pid}, which is no rank's main process, did not leave scope {seen.scope} in time; left alone"
        return [noted, Say(text=text, level="warning")]

    def cause(self, worker: WorkerSeat, evidence: Evidence) -> Cause:
        """What one that is dead, and not of 0, has died of (`core.job.failure`)."""
        if worker.charge:
            return worker.charge[0]
        by = -worker.exitcode if worker.exitcode is not None and worker.exitcode < 0 else 0
        if by and by in (self.stop_signal, signal.SIGKILL if worker.local_rank in self.killed else 0):
            return Cause.STOPPED
        if evidence.traceback or evidence.error_record:
            return Cause.EXCEPTION
        return Cause.SIGNAL if by > 0 else Cause.EXIT
