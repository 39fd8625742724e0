"""What happened: the closed catalogue of events. Logs, metrics, reports and dashboards are folds over these.

One event is one JSON line in `events-<node>.jsonl`. The recorder adds the envelope (`seq`, `at_unix`, `node`, `round`,
`attempt`); an event itself carries only what is its own.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job.failure import Failure
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.job.xid import DeviceFault


class Event(Value):
    """Base of all events. The name on disk is the class's name."""


class AgentStarted(Event):
    """An agent's life begins: the first line of each, with what it was asked to run."""

    pid: int  # Of the agent.
    host: str  # Name of the node, as a person knows it: `--node-name`, else the host name.
    version: str  # Of Holdfast.
    argv: tuple[str, ...]  # The training script and its arguments.
    min_nodes: int  # A round needs so many nodes.
    max_nodes: int  # A round has at most so many.
    nproc: int  # Workers on this node.
    max_restarts: int  # Of the job.
    backend: str  # Of the rendezvous: memory (one node) · embedded · static · etcd


class Degraded(Event):
    """Something this host cannot do, and what is used instead."""

    what: str  # What cannot be done, in words.
    instead: str  # What is done instead; empty: nothing, or `what` says it.


class JoinRequested(Event):
    """This node asked to take part in the next round."""

    round: int  # The round after this node's last.
    backend: str  # As in `AgentStarted`.
    endpoint: str  # Where the nodes meet, `host:port`; empty where there is one node.


class RoundFormed(Event):
    """Members agreed. `nodes` in group-rank order."""

    round: int  # Its number, from 1; no number comes twice in a job.
    nodes: tuple[str, ...]
    """Their names, in group-rank order; of more than 64 nodes only group rank 0 knows them."""
    group_rank: int  # This node's place among the nodes, from 0.
    world_size: int  # Workers of all nodes.
    master_addr: str  # MASTER_ADDR of the workers.
    master_port: int  # MASTER_PORT of the workers.
    waited_s: float  # Seconds since this node had asked for it.
    reason: str  # Why there is a new round, in words.


class WorkerStarted(Event):
    """The process of one rank was started."""

    rank: int  # Global rank.
    local_rank: int  # Its place on this node, from 0.
    pid: int  # Its process, on its own host.
    argv: tuple[str, ...]  # Its command line.
    log_dir: str | None  # Where its logs and error file are. None: they are not kept.
    spare: bool = False  # A warm spare has become it: its modules were imported before.
    cold_because: str = ""  # Why no spare has, in words, where there could have been one.


class SpareReady(Event):
    """A warm spare has imported what the script does, and waits."""

    local_rank: int  # Of the worker that it may become; where spares are forked, it is there for all.
    pid: int  # Its process.
    import_s: float  # Seconds that its imports took, at low priority.
    mb: float  # MiB that it has alone.


class SpareLost(Event):
    """A warm spare is no more, though it became no worker."""

    local_rank: int  # As in `SpareReady`.
    pid: int  # Its process.
    reason: str  # In words.


class RanksBegun(Event):
    """How the ranks of this node began: each made its first step, or the first of them ended before it had.

    Seconds since they were started, of the rank that took longest; None: no rank of this node has come so far, or has told."""

    booted_s: float | None  # To where Python began to run the script.
    joining_s: float | None
    """To the script's first call of `init_process_group`: most of what it imports is loaded then."""
    joined_s: float | None  # To that call's return: the ranks have met, by a first collective.
    restored_s: float | None  # To where it had loaded its state, from a checkpoint or the stash.
    restore_s: float  # How long that took, all in all.
    stepped_s: float | None  # To the end of its first step.
    first_step: int | None = None
    """The number of that, the lowest of all ranks', as the script itself told it. None: it has told none."""


class RanksEnded(Event):
    """How far the ranks of this node had come when the last of them was gone: of the one that had come furthest.

    Seconds since they were started, as in `RanksBegun`."""

    last_step: int | None
    """The number of its last step, as the script itself told it. None: it has told none."""
    last_step_s: float | None  # To the end of its last step, told or counted. None: it made none.
    saved_s: float | None
    """To the end of the last checkpoint that was written. None: none was, as far as ranks tell."""


class WorkerDying(Event):
    """The kernel released the worker's robust mutex: it is dead, though its memory is still being freed."""

    rank: int  # Global rank.
    local_rank: int  # Its place on this node, from 0.
    pid: int  # Its process.
    exitcode: int | None  # Negative for a signal. None: not known yet.


class WorkerExited(Event):
    """The process of one rank is gone, its memory freed."""

    rank: int  # Global rank.
    local_rank: int  # Its place on this node, from 0.
    pid: int  # Its process, which is no more.
    exitcode: int  # Negative for a signal.


class FailureSeen(Event):
    """A worker ended badly, or was stopped because another had."""

    failure: Failure  # As described [below](#the-failure-in-it).


class RankHung(Event):
    """A rank gave no sign of life for longer than its limit. What follows is its end, by us."""

    rank: int  # Global rank.
    local_rank: int  # Its place on this node, from 0.
    pid: int  # Its process.
    reason: str  # Which sign was missed for how long, and its limit, in words.
    quiet_s: float = 0.0  # Seconds since that sign.


class StacksKept(Event):
    """This node's ranks were looked at, because a rank of the job hung: where each of them was."""

    path: str  # Folder with a file for each rank, on this host.
    ranks: tuple[int, ...]  # Global ranks that have shown their Python stacks.
    silent: tuple[int, ...]  # Ranks that have not: what the kernel says of them is in their files.
    reason: str  # For whose sake, in words.


class ControlKind(StrEnum):
    """What a rank's script may ask of the job. `core.page.layout.CONTROL_KINDS` has the same words."""

    EXCLUDE = "exclude"  # Its node is left out.
    STOP = "stop"  # The job stops.
    RESTART = "restart"  # All ranks restart.
    CONTINUE = "continue"  # Nothing is done.


class ControlRequested(Event):
    """A worker asked for something that concerns the whole job."""

    rank: int  # Global rank.
    local_rank: int  # Its place on this node, from 0.
    kind: ControlKind
    """exclude (its node) · stop (the job) · restart (all ranks) · continue (nothing is done)"""
    reason: str  # What it said, in words.


class LimitsLearned(Event):
    """From what the ranks do, limits have been learned for their silences, or have changed."""

    limits_s: dict[str, float]
    """By kind of silence (first · beat · out · section NAME): from when on a rank is suspected to hang."""
    longest_s: dict[str, float]
    """Likewise: the longest that ranks of this node have been silent lately, while all was well."""


class LimitsCalculated(Event):
    """The script has calculated limits, and the coordinator knows them: ranks of later rounds begin with them, on any node."""

    limits_s: dict[str, float]  # By kind of silence, as in `LimitsLearned`.


class Unwatched(Event):
    """No rank has given a sign of life by itself: no heartbeat, no section, no step, no matching line in a log."""

    after_s: float  # Seconds since the ranks were started.
    still_s: float | None
    """They count as hung after so many seconds in which the whole node has stood still. None: not even then."""


class StragglerSeen(Event):
    """A rank, or a whole node, is much slower than the others, and has been for a while."""

    name: str  # Of the node.
    rank: int  # Global rank; -1: the node as a whole.
    series: str  # What it is slow at: `step`, or a section's name.
    took_s: float  # Median of its last period, in seconds.
    typical_s: float  # Median of those that it is compared with.
    against: str  # the node's other ranks · its own past · the other nodes


class StragglerOver(Event):
    """It is as fast as the others again."""

    name: str  # Of the node.
    rank: int  # Global rank; -1: the node as a whole.
    series: str  # What it was slow at.
    against: str  # As in `StragglerSeen`.


class WatchdogExpired(Event):
    """A worker did not leave a scope in time (`timer.expires`), or another process with a timer."""

    pid: int  # The process whose timer it was.
    scope: str  # The timer's name, as the script gave it.
    expired_s: float  # Seconds since the timer's time was up.


class Decided(Event):
    """A decision, with its reason in words. `why` prints exactly this."""

    decision: Verdict
    """restart · rejoin · carry-on (the same round, without those that failed) · stop · finish"""
    reason: str  # In words.
    delay_s: float = 0.0  # Seconds to wait before the next round, after crashes at once.
    restarts_left: int | None = None  # Of the job, after this decision. None: nobody counts.


class StopSent(Event):
    """Workers were asked to stop."""

    signal: str  # Its name, such as `SIGTERM`.
    grace_s: float  # Seconds that the workers have before SIGKILL.
    reason: str  # Why they are to stop, in words.
    ranks: tuple[int, ...]  # Global ranks of those that were asked.


class WorkersStopped(Event):
    """All workers of the round on this node are gone, with everything below them."""

    took_s: float  # Seconds since they were asked; 0: nobody had to ask.
    killed: tuple[int, ...]  # Ranks that outlived the grace period.


class GpuMemoryReclaimed(Event):
    """Before a restart, the GPUs' memory was looked at until it was free, or for as long as a start waits for it."""

    waited_s: float  # Seconds since the last worker was gone; the nodes met meanwhile.
    looks: int  # How often it was looked at.
    gpus: tuple[int, ...]  # The driver's numbers of the GPUs; the next two have one entry for each.
    first_mb: tuple[float, ...]  # MiB in use at the first look.
    last_mb: tuple[float, ...]  # MiB in use at the last one.
    free: bool  # False: the time was over first, and the workers were started all the same.


class HealthState(StrEnum):
    """How fit a check finds a node, from good to bad."""

    FIT = "fit"
    DEGRADED = "degraded"  # It takes part, and a person should look after it.
    UNFIT = "unfit"  # It does not take part.


class HealthChanged(Event):
    """A check of this node's health has another verdict than before, or another reason for it."""

    check: str  # Its name, with its argument as it was asked for.
    state: HealthState  # fit · degraded (it takes part, and somebody should look after it) · unfit
    before: HealthState  # What it was until then; fit where it had not been asked.
    reason: str  # What was seen, in words.
    advice: str = ""  # What to do about it.
    devices: tuple[DeviceFault, ...] = ()  # What is wrong with which device, where the check can tell.
    took_s: float = 0.0  # Seconds that the check took.


class FaultInjected(Event):
    """A fault was played here, for practice (`holdfast inject`): what follows from it is not the hardware's doing."""

    fault: str  # kill · hang · slow · xid · ecc
    rank: int  # Global rank; -1: it is about a GPU.
    what: str  # What was done, in words.
    by: str  # Who asked for it.
    for_s: float | None = None
    """It is undone after so many seconds. None: it cannot be, or is when the agent ends."""


class FaultOver(Event):
    """A fault that was played has been undone."""

    fault: str  # As in `FaultInjected`.
    rank: int  # As in `FaultInjected`.
    what: str  # As in `FaultInjected`.
    reason: str  # Why it is over, in words.


class NodeJoined(Event):
    """A node asked the coordinator for the first time to take part."""

    name: str  # Of the node, as a person knows it.


class NodeLeft(Event):
    """A node went, and said so."""

    name: str  # Of the node.
    reason: str  # What it said, in words.


class ExcludedBy(StrEnum):
    """Who has a node excluded."""

    OPERATOR = "operator"
    FAILURES = "failures"  # Its workers were the first to fail, again and again.
    SLOWNESS = "slowness"
    SCRIPT = "script"  # A rank of it asked.
    ITSELF = "itself"  # The node has found out that it is unfit.


class NodeExcluded(Event):
    """A node must not take part from now on. It may stay connected as a spare."""

    name: str  # Of the node, as a person knows it.
    reason: str  # What was said against it, in words.
    by: ExcludedBy
    """operator · failures (its workers were the first to fail, again and again) · slowness · script (a rank of it asked) ·
    itself"""
    age_s: float = 0.0
    """Seconds for which it had been so when this coordinator took it over from the one before; 0: it was decided here."""


class NodeReadmitted(Event):
    """A node that was excluded may take part again."""

    name: str  # Of the node.
    reason: str  # Who let it back, or what has changed, in words.


class NodeLost(Event):
    """A node was not heard from for longer than its lease."""

    name: str  # Of the node.
    reason: str  # For how long it was silent, and how long its lease is, in words.
    silent_s: float = 0.0  # Seconds for which it had not been heard from.


class CoordinatorFound(Event):
    """This node has found the coordinator elsewhere than before: what is decided from now on is decided there."""

    endpoint: str  # `host:port`.


class SignalReceived(Event):
    """The agent was sent a signal."""

    signal: str  # Its name, such as `SIGTERM`.


class GuardianLost(Event):
    """The process that was started, which guards the agent, was killed: everything on this node ends at once."""


class JobEnded(Event):
    """The agent's last line: the job is over, or this node's part in it."""

    outcome: Outcome  # succeeded · failed · stopped
    exit_code: int  # Of this agent; negative: it dies by that signal.
    reason: str  # In words.


CATALOGUE: dict[str, type[Event]] = {event.__name__: event for event in Event.__subclasses__()}
"""Name on disk → type."""
