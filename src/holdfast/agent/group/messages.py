"""What is a node's group shown, and what does it want done? The words between the machine (`agent.group.machine`) and its
host.
"""

from __future__ import annotations

from holdfast.core.job.events import ControlKind
from holdfast.core.job.failure import Evidence, Position
from holdfast.core.job.report import JobReport
from holdfast.core.machine import Action, Observation
from holdfast.core.page.in_memory import Holding
from holdfast.core.page.stash import Held, Kept, OnDisk
from holdfast.core.value import Value
from holdfast.core.wire.messages import Assigned, Message


class Told(Observation):
    """The coordinator said something."""

    message: Message


class JoinNews(Observation):
    """The next `Join` says this: the fields are named as there."""


class PortHeld(JoinNews):
    """The World holds this port for the next round, in case this node gets group rank 0."""

    master_port: int


class MadeWay(Observation):
    """This agent was told to go, and another's coordinator takes over: it has nothing left to do."""

    reason: str


class Started(Observation):
    """A worker runs."""

    local_rank: int
    pid: int
    argv: tuple[str, ...]
    log_dir: str | None
    at: float = 0.0  # When its start began, by the host's clock.
    at_unix: float | None = None  # The same moment, seconds since the epoch. None: when it is seen.
    spare: bool = False  # A warm spare has become it.
    cold_because: str = ""  # Why none has, where there could have been one.
    in_place: bool = False  # The process of the round before goes on.


class StartFailed(Observation):
    """A worker could not be started."""

    local_rank: int
    message: str
    at_unix: float


class Ended(Observation):
    """A worker is dying, or gone."""

    local_rank: int
    pid: int
    exitcode: int | None  # None: not known yet.
    gone: bool  # False: dead, but the kernel still frees its memory. True: reaped.
    at_unix: float
    evidence: Evidence


class Lives(Observation):
    """A worker can begin another round in place, or no longer, or has let go of its round and waits for the next."""

    local_rank: int
    pid: int
    in_place: bool
    let_go: bool


class Ending(Observation):
    """A worker's script is over: its interpreter ends in good order, with a code that is not known yet."""

    local_rank: int
    pid: int
    at_unix: float


class Stuck(Observation):
    """A worker sleeps in the kernel, deaf to every signal, for longer than the user allows; or it is to end, and the disk of
    its log does not answer."""

    local_rank: int
    pid: int
    asleep_s: float
    at_unix: float


class Hung(Observation):
    """A worker has given no sign of life for longer than its limit."""

    local_rank: int
    pid: int
    reason: str
    """Which sign, for how long, and its limit: `no heartbeat for 12.3 s (limit 12 s), in section checkpoint`."""
    at_unix: float
    quiet_s: float = 0.0  # For how long.


class PaceKnown(Observation):
    """How this node's ranks get on, for the coordinator: as in `core.wire.messages.Pace`."""

    longest_s: dict[str, float]
    typical_s: dict[str, float]
    straggler: str
    busy_s: float


class SavesSeen(Observation):
    """A rank has begun to write a checkpoint, or none writes any more."""

    open: bool


class LimitsKnown(Observation):
    """A worker has calculated limits, the same on every rank: by kind of silence, all that there are so far."""

    limits_s: dict[str, float]


class Looked(Observation):
    """What `LookAtWorkers` has found, of those that live. Their stacks are in hand, until `KeepStacks` or another look."""

    positions: tuple[Position, ...]


class TimerExpired(Observation):
    """A worker did not leave a scope in time (`timer.expires`); `signum` is what its timer asks for."""

    pid: int
    scope: str
    signum: int
    late_s: float


class LeaseOver(Observation):
    """The coordinator has not answered for a whole lease: others may go on without us, so our workers must not."""

    reason: str
    until: float  # The last moment at which a worker of ours may live.
    patience_s: float = 0.0  # How long the coordinator is looked for, at most, before this node gives up.


class StopAsked(Observation):
    """An operator wants the job stopped."""

    reason: str
    grace_s: float | None = None  # None: the usual grace


class ToCoordinator(Observation):
    """An operator asks something of the coordinator, or this node answers what one asked through another."""

    message: Message


class ControlAsked(Observation):
    """A worker asks for something that concerns the whole job."""

    local_rank: int
    kind: ControlKind
    reason: str


class Reached(JoinNews):
    """How far the job has come, as this node can tell: before its first `Join`, and when the workers of a round are gone."""

    reached: int | None  # None: it cannot tell.


class Stashed(JoinNews):
    """What the ranks of a round have left in this node's memory, now that they are gone."""

    stash: tuple[Held, ...]
    kept: tuple[Kept, ...] = ()  # And those of another node.
    stash_at: str = ""  # Where others can fetch that, and bring more. Empty: nowhere.


class InMemory(JoinNews):
    """What the ranks of a round have in their own memory, or had as they ended, now that they have let go or are gone."""

    in_memory: tuple[Holding, ...]


class StashedOnDisk(JoinNews):
    """What this node's disk has of its ranks' states."""

    stash_on_disk: tuple[OnDisk, ...]


class SatBefore(JoinNews):
    """The group rank that this node had when it wrote that."""

    group_rank: int


class LogsTaken(JoinNews):
    """This agent takes the lines of other nodes' ranks, should it have the coordinator."""

    logs_at: str  # Where.


class ImportsKnown(Observation):
    """What the script has imported here, now that it trains; or more of it."""

    modules: tuple[str, ...]


class GpuUser(Value):
    """A process that is not ours, and has memory on a GPU."""

    pid: int
    name: str
    mb: float | None  # MiB. None: the driver does not say.


class GpuMemory(Value):
    """What is in use on a GPU."""

    index: int  # The driver's number for it.
    used_mb: float
    others: tuple[GpuUser, ...] = ()  # Looked for only where much is in use.


class MemorySeen(Observation):
    """The GPUs have been looked at."""

    gpus: tuple[GpuMemory, ...] = ()  # Those that workers here may use. Empty: there are none, or see `trouble`.
    trouble: str = ""  # Why nobody can tell.


TOO_LATE = "this node's lease ended before it could be started"
"""Why a worker is not started, where others may have gone on without this node by then."""


class LogsOpened(Observation):
    """The log files of a round's workers are there, or will not be: its workers can start."""

    round: int


class NodeChecked(Observation):
    """The node's health is known, as `CheckNode` asked, or has changed by itself."""

    unfit: str  # Why it must not take part. Empty: it may.
    asked: bool = False  # It is the answer to `CheckNode`.


class SparesAwaited(Observation):
    """Warm spares are about to be ready: a round's workers begin sooner if they wait for them until then at the latest."""

    until: float  # In the past: none is to be waited for any more.


class Unguarded(Observation):
    """The guardian is dead: nobody would see to it that a slow end is an end."""


class Send(Action):
    """Say something to the coordinator."""

    message: Message


class OpenLogs(Action):
    """Make the log files of a round's workers; `LogsOpened` follows, however their disk is."""

    assigned: Assigned


class StartWorkers(Action):
    """Start the workers of a round."""

    assigned: Assigned
    kept: tuple[int, ...] = ()  # Local ranks whose processes have let go of the round before: they go on, if they still live.


class SignalWorkers(Action):
    """Send a signal to the process groups of some workers."""

    local_ranks: tuple[int, ...]
    signum: int


class RegroupWorkers(Action):
    """Ask some workers to let go of their round, and to wait for the next. `Lives` follows."""

    local_ranks: tuple[int, ...]


class LookAtWorkers(Action):
    """Have all workers dump their stacks, and see where they are. `Looked` follows, within `within_s` seconds."""

    round: int
    base_rank: int  # Global rank of local rank 0.
    within_s: float


class KeepStacks(Action):
    """Keep what was found at the last look in the incident's folder."""

    reason: str  # Whose hang it was for, in words.


class KillWorkers(Action):
    """SIGKILL some workers with everything below them."""

    local_ranks: tuple[int, ...]


class Sweep(Action):
    """Kill whatever the workers of the last round have left behind."""


class CheckNode(Action):
    """Find out whether this node is fit for another round; `NodeChecked` follows, within the checks' deadlines."""

    after_failure: bool


class LookAtMemory(Action):
    """Find out how much of the GPUs' memory is in use, beside everything else; `MemorySeen` follows."""

    above_mb: float  # Where more is in use, find out by whom.


class FromCoordinator(Action):
    """It is for a part of this agent: the answer to an operator here, what one asks of this node through another
    (`ToCoordinator` may follow), the pace of the job's ranks (`Paced`), what warm spares are to import (`ToImport`)."""

    message: Message


class Exit(Action):
    """This agent is done."""

    code: int  # Negative: die by that signal.
    report: JobReport | None = None
    complaint: str = ""
