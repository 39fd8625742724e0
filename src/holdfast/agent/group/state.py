"""Where is this node, and what does it know? The state of `agent.group.machine`: one value, which each step replaces.

    new ──begin──▶ joining ──Assigned──▶ running ──all exited 0──▶ succeeded ──Finish──▶ ended
                      ▲                     │ a worker failed · Stop · a signal            ▲
                      │                     ▼                                              │
                      └───Stop(rejoin)── stopping ──all gone──▶ stopped ──────Finish───────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.signal_forwarding import ScriptSignals
from holdfast.agent.group.worker_table import WorkerTable
from holdfast.core.job.failure import Position
from holdfast.core.machine import NEVER, Action
from holdfast.core.signals import signal
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Assigned, Join


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
    grace_s: float  # Between the request to stop and SIGKILL.
    term_grace_s: float | None = None  # The same, once a signal has told this agent to go. None: as long.

    phase: Phase = Phase.NEW
    join: Join  # What the coordinator is told of this node.
    hosting: bool = False  # The coordinator runs in this process: when this agent goes, the job ends.
    workers: WorkerTable = WorkerTable()
    assigned: Assigned | None = None  # The round of the workers we have or had. None: there was none yet.
    joined_at: float = 0.0
    spare_because: str = ""  # Why there is no place for this node, as the coordinator said last.
    held: bool = False  # The round's workers wait for the GPUs' memory, or for warm spares. They count as starting.
    spares_until: float = -NEVER  # Until when warm spares are worth waiting for.
    memory: MemoryWait = MemoryWait()
    checking: bool = False  # The node's health is being checked: it does not join yet.
    health_answer: str = ""  # What the coordinator said last about the node's health.

    script: ScriptSignals = ScriptSignals()
    look: Look | None = None
    shown: dict[int, Position] = {}  # noqa: RUF012
    """Where the ranks were at the last look of this round, by local rank."""
    stopping: Stopping | None = None
    rejoin: bool | None = None  # Whether another round follows. None: the coordinator has not said yet.
    regrouped: bool = False  # The last stop was for a node that has come: nothing has failed.
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

    def deadline(self) -> float:
        """When a `Tick` has something to do."""
        stop, spares = self.stopping, self.spares_until if self.held and not self.memory.pending else NEVER
        ends = NEVER if stop is None else min(stop.last_words_until, stop.kill_at, stop.abandon_at)
        looked = NEVER if self.look is None else self.look.until
        return min(ends, self.memory.deadline(), spares, looked, self.script.deadline())


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
    return replace(state, workers=state.workers.changed(local_rank, **changes))
