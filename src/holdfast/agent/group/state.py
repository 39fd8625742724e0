"""Where is this node, and what does it know of itself and of its workers? The state of `agent.group.machine`: one value.

Each step replaces it.

    new ──begin──▶ joining ──Assigned──▶ running ──all exited 0──▶ succeeded ──Finish──▶ ended
                      ▲                     │ a worker failed · Stop · a signal            ▲
                      │                     ▼                                              │
                      └───Stop(rejoin)── stopping ──all gone──▶ stopped ──────Finish───────┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.signal_forwarding import ScriptSignals
from holdfast.core.job.ends import LEAVING, Exited, cause_of, follows
from holdfast.core.job.failure import Cause, Evidence, Failure, Position
from holdfast.core.machine import NEVER, Action
from holdfast.core.signals import signal
from holdfast.core.value import Value, replace
from holdfast.core.wire.demands import Demands
from holdfast.core.wire.messages import Assigned, Join

# --- its workers ------------------------------------------------------------------------------------------------------------


class WorkerState(StrEnum):
    """Where a worker is."""

    STARTING = "starting"
    RUNNING = "running"
    LET_GO = "let go"  # It lives, but is of no round: it goes on with the next.
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
    ending_at: float = -NEVER  # When its interpreter began to end.
    left_at_unix: float | None = None
    """Since when it leaves by itself. None: it does not, or was told to stop first."""
    overdue: str = ""  # Which limit it has exceeded, in words. Empty: none.
    overdue_at_unix: float = 0.0
    in_place: bool = False  # It can let go of its round, and begin another.
    kept: bool = False  # It was there before this round, and is to begin it in place.
    begin_until: float = NEVER  # When it has to have begun this round in place. NEVER: it has, or is a new process.
    began_at_unix: float = 0.0  # When it was told to.
    struck: bool = False  # It was sent its deadly signal before the others are stopped.
    injected: str = ""  # What was played on it when it hung, as `Failure.injected`.
    stacks_path: str | None = None  # Where its stacks are. None: it has not been looked at, or they are not kept.

    @property
    def spoke_at(self) -> float:
        """Since when it may be about to end by itself."""
        return max(self.asked_at, self.ending_at)

    @property
    def ids(self) -> dict[str, int]:
        """What events name it by."""
        return {"rank": self.rank, "local_rank": self.local_rank, "pid": self.pid}

    @property
    def charged_with(self) -> str:
        """What was found against it, in words."""
        return self.charge[1] if self.charge else ""

    @property
    def is_of_no_round(self) -> bool:
        """It has let go of one and has not begun another, or ended meanwhile."""
        return self.state is WorkerState.LET_GO or self.kept or self.pid < 0

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
    stop_on_request: bool = False  # Nobody had failed then: the agent was told to go.
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
        """Those of the round that are not gone."""
        return tuple(i for i, worker in self.seats.items() if worker.state not in (WorkerState.GONE, WorkerState.LET_GO))

    @property
    def let_go(self) -> tuple[int, ...]:
        """Those that live and are of no round."""
        return tuple(i for i, worker in self.seats.items() if worker.state is WorkerState.LET_GO)

    @property
    def kept(self) -> tuple[int, ...]:
        """Those that are to begin the round in place."""
        return tuple(i for i, worker in self.seats.items() if worker.kept)

    @property
    def exited(self) -> tuple[Exited, ...]:
        """Those that have exited with 0, or are about to as far as is known, and were not told to."""
        return tuple(
            Exited(rank=worker.rank, local_rank=i, pid=worker.pid, at_unix=worker.left_at_unix)
            for i, worker in self.seats.items()
            if worker.left_at_unix is not None and worker.exitcode == 0
        )

    @property
    def can_work(self) -> bool:
        """Whether some run that we have not killed."""
        working = (WorkerState.STARTING, WorkerState.RUNNING)
        return any(worker.state in working and i not in self.killed for i, worker in self.seats.items())

    def ranks(self, local_ranks: Iterable[int]) -> tuple[int, ...]:
        """Their global ranks."""
        return tuple(self.seats[i].rank for i in local_ranks)

    def gone(self, local_ranks: Iterable[int]) -> WorkerTable:
        """These are no more."""
        seats = {i: replace(self.seats[i], state=WorkerState.GONE) for i in local_ranks}
        return replace(self, seats={**self.seats, **seats})

    def not_started(self) -> WorkerTable:
        """Those that are still to start are not even tried; who was there before waits for another round."""
        starting = [worker for worker in self.seats.values() if worker.state is WorkerState.STARTING]
        where = {True: WorkerState.LET_GO, False: WorkerState.GONE}
        seats = {one.local_rank: replace(one, state=where[one.kept], kept=False) for one in starting}
        return replace(self, seats={**self.seats, **seats})

    def failed(self, worker: Worker, at_unix: float, cause: Cause, evidence: Evidence) -> WorkerTable:
        """One has failed, or more is known of it. The first news says when and why."""
        before = self.failures.get(worker.local_rank)
        message = worker.charged_with
        if not message:
            message = LEAVING if cause is Cause.EARLY else cause_of(worker.exitcode, evidence)[1]
        seen_at = at_unix if worker.left_at_unix is None else min(at_unix, worker.left_at_unix)
        failure = Failure(
            node=self.node,
            rank=worker.rank,
            local_rank=worker.local_rank,
            role=self.role,
            pid=worker.pid,
            exitcode=worker.exitcode,
            at_unix=before.at_unix if before else min(evidence.at_unix or at_unix, seen_at),
            cause=before.cause if before else cause,
            message=message,
            trouble=evidence.trouble,
            traceback=evidence.traceback,
            error_file=evidence.error_file,
            error_record=evidence.error_record,
            log_tail=evidence.log_tail,
            log_path=evidence.log_path,
            oom=evidence.oom,
            injected=evidence.injected or worker.injected,
            stacks_path=worker.stacks_path,
            follows=not worker.charge and follows(message, evidence),
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
            return Cause.STOPPED if worker.left_at_unix is None else Cause.EARLY
        cause = cause_of(worker.exitcode, evidence)[0]
        # A code, without an exception, is how a script (or a shell) answers the signal.
        answered = cause is Cause.EXIT and self.stop_on_request and worker.left_at_unix is None
        return Cause.STOPPED if answered else cause


def workers_of(join: Join, assigned: Assigned, before: WorkerTable) -> WorkerTable:
    """Those of a round, before they start. Who has let go of the round before goes on."""
    pids = {i: before[i].pid for i in before.let_go}
    seats = {
        i: Worker(local_rank=i, rank=assigned.base_rank + i, pid=pids.get(i, -1), in_place=i in pids, kept=i in pids)
        for i in range(join.nproc)
    }
    return WorkerTable(node=join.name, role=join.role, round=assigned.round, attempt=assigned.restart_count, seats=seats)


# --- the node ---------------------------------------------------------------------------------------------------------------


class Phase(StrEnum):
    """Where the node is."""

    NEW = "new"
    JOINING = "joining"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"


class Stopping(Value):
    """One stop of one round's workers."""

    since: float
    kill_at: float  # NEVER: they have been killed.
    abandon_at: float = NEVER
    speaking: tuple[int, ...] = ()
    """Local ranks that have just asked for something: they may end by themselves for a moment."""
    last_words_until: float = NEVER
    regrouping: tuple[int, ...] = ()  # Local ranks that have been asked to let go of the round in place.
    regroup_until: float = NEVER  # When those that have not are killed.


class Look(Value):
    """The ranks are being looked at, because one hangs here or elsewhere."""

    until: float
    reason: str  # Whose hang it is, in words.
    stop_because: str = ""  # Why the workers are stopped after the look. Empty: they are not.


class Leaving(Value):
    """Something has told this node to go."""

    signum: int  # A lost guardian counts as SIGTERM.
    since: float
    why: str


class State(Value):
    """All that the machine knows. First what the user has chosen."""

    backend: str = "memory"
    endpoint: str = ""
    hang_signal: int = signal.SIGKILL  # Ends a rank that hangs.
    checks: bool = False  # The node's health is checked before each round.
    clean_stop_is_success: bool = False
    """Exit with 0 where a signal ended the job and every worker here ended with 0 (ft_launcher)."""
    regroup_s: float = 10.0  # How long one that can begin again in place may take to let go of its round. 0: none is asked.
    grace_s: float  # Between the request to stop and SIGKILL.
    term_grace_s: float | None = None  # The same, once a signal has told this agent to go. None: as long.

    phase: Phase = Phase.NEW
    join: Join  # What the coordinator is told of this node.
    hosting: bool = False  # The coordinator runs in this process: when this agent goes, the job ends.
    workers: WorkerTable = WorkerTable()
    assigned: Assigned | None = None  # The round of the workers we have or had. None: there was none yet.
    joined_at: float = 0.0
    spare_because: str = ""  # Why there is no place for this node, as the coordinator said last.
    waits_for: str = ""  # What the next round waits for, as the coordinator said last.
    held: bool = False  # The round's workers wait for log files, GPUs' memory or warm spares. They count as starting.
    opening_logs: bool = False  # Their log files are being made.
    spares_until: float = -NEVER  # Until when warm spares are worth waiting for.
    memory: MemoryWait = MemoryWait()
    checking: bool = False  # The node's health is being checked: it does not join yet.
    health_answer: str = ""  # What the coordinator said last about the node's health.

    demands: Demands = Demands()  # What the coordinator has passed on lately.
    refused: str = ""  # Why the last of it was too much. Empty: it was not.
    script: ScriptSignals = ScriptSignals()
    look: Look | None = None
    shown: dict[int, Position] = {}  # noqa: RUF012
    """Where the ranks were at the last look of this round, by local rank."""
    stopping: Stopping | None = None
    rejoin: bool | None = None  # Whether another round follows. None: the coordinator has not said yet.
    regrouped: bool = False  # The last stop was for a node that has come: nothing has failed.
    on_request: bool = False  # The last stop ends the job because somebody asked for it: nothing has failed.
    anew: bool = False  # The last stop wants new processes: none goes on in place.
    leaving: Leaving | None = None
    in_a_hurry: bool = False  # It was told to go twice, or once after the job's end.

    @property
    def round(self) -> int:
        """The round of the workers we have or had; 0 before the first."""
        return self.assigned.round if self.assigned else 0

    @property
    def is_early(self) -> bool:
        """No round has had workers of ours yet."""
        return self.phase in (Phase.NEW, Phase.JOINING) and self.round == 0

    @property
    def is_between(self) -> bool:
        """Our workers of one round are ending, or gone, and another round follows."""
        ending = self.phase is Phase.STOPPING and self.rejoin is True
        return ending or (self.phase is Phase.JOINING and self.round > 0)

    @property
    def may_start(self) -> bool:
        """The round's workers wait for nothing but time."""
        return self.held and not self.memory.pending and not self.opening_logs

    @property
    def begin_until(self) -> float:
        """When a worker that is to begin the round in place is late. NEVER: none is awaited, or the round is over."""
        beginning = self.workers.values() if self.phase is Phase.RUNNING else ()
        return min((worker.begin_until for worker in beginning), default=NEVER)

    def deadline(self) -> float:
        """When a `Tick` has something to do."""
        stop, spares = self.stopping, self.spares_until if self.may_start else NEVER
        ends = NEVER if stop is None else min(stop.last_words_until, stop.regroup_until, stop.kill_at, stop.abandon_at)
        looked = NEVER if self.look is None else self.look.until
        passed_on = self.script.deadline() if self.script.held else NEVER
        return min(ends, self.memory.deadline(), spares, looked, passed_on, self.begin_until)


Step: TypeAlias = tuple[State, list[Action]]  # What follows from one observation.


def first(actions: Sequence[Action], step: Step) -> Step:
    """The same step, behind these actions."""
    state, more = step
    return state, [*actions, *more]


def joined_with(state: State, **known: Any) -> State:
    """The next `Join` says this too."""
    return replace(state, join=replace(state.join, **known))


def with_worker(state: State, local_rank: int, /, **changes: Any) -> State:
    """This is known of a worker now."""
    seats = {**state.workers.seats, local_rank: replace(state.workers[local_rank], **changes)}
    return replace(state, workers=replace(state.workers, seats=seats))
