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
    """An agent starts. This is the first event of each agent, with the command that it runs."""

    pid: int  # Process id of the agent.
    host: str  # Name of the node: `--node-name`, else the host name.
    version: str  # Version of Holdfast.
    argv: tuple[str, ...]  # The training script and its arguments.
    min_nodes: int  # A round needs at least this many nodes.
    max_nodes: int  # A round has at most this many nodes.
    nproc: int  # Workers on this node.
    max_restarts: int  # Restart budget of the job.
    backend: str  # Rendezvous backend: memory (one node) · embedded · static · etcd


class Degraded(Event):
    """This host lacks something; the event says what the agent does instead."""

    what: str  # What this host cannot do, in words.
    instead: str  # What the agent does instead. Empty: nothing, or `what` says it.


class JoinRequested(Event):
    """This node asked to take part in the next round."""

    round: int  # The round after this node's last.
    backend: str  # As in `AgentStarted`.
    endpoint: str  # Where the nodes meet, `host:port`. Empty: the job has one node.


class RoundFormed(Event):
    """A round begins: its nodes and ranks are settled."""

    round: int  # Number of the round, from 1; unique within a job.
    nodes: tuple[str, ...]
    """Names of the nodes, in group-rank order. In rounds of more than 64 nodes only group rank 0 knows them."""
    group_rank: int  # Rank of this node among the nodes, from 0.
    world_size: int  # Number of workers on all nodes.
    master_addr: str  # MASTER_ADDR of the workers.
    master_port: int  # MASTER_PORT of the workers.
    waited_s: float  # Seconds since this node asked to take part.
    reason: str  # Why the round began, in words.


class WorkerStarted(Event):
    """The agent started the process of one rank."""

    rank: int  # Global rank.
    local_rank: int  # Rank among the workers of this node, from 0.
    pid: int  # Process id, on this host.
    argv: tuple[str, ...]  # Command line of the worker.
    log_dir: str | None  # Folder of its logs and error file. None: they are not kept.
    spare: bool = False  # True: the worker was a warm spare, which had already imported the script's modules.
    cold_because: str = ""  # Why it started cold although warm spares are on, in words. Empty otherwise.
    in_place: bool = False  # True: the process of the round before goes on with this one.


class SpareReady(Event):
    """A warm spare has imported the script's modules, and waits."""

    local_rank: int  # Local rank of the worker that it may become. With `--warm-mode fork` it serves all local ranks.
    pid: int  # Process id of the spare.
    import_s: float  # Seconds that its imports took, at low priority.
    mb: float  # MiB of memory that it does not share.


class SpareLost(Event):
    """A warm spare ended without becoming a worker."""

    local_rank: int  # As in `SpareReady`.
    pid: int  # Process id of the spare.
    reason: str  # Why, in words.


class StateAgreed(Event):
    """What the ranks of a round go on from, agreed before any of them begins (`life.state`)."""

    round: int  # Which begins now.
    step: int | None  # The same for all ranks. None: no rank has a state any more, and their script says the step.
    state_from: tuple[str, ...]  # Where each rank of this node has it from, as in `RanksBegun`, which tells what came of it.


class RanksBegun(Event):
    """How the ranks of this node started, up to the first step of each or the end of one before its first step.

    Times are seconds since the start of the processes, of the slowest rank. None: no rank of this node got there, or
    reported it."""

    booted_s: float | None  # Until Python began to run the script.
    joining_s: float | None  # Until the script's first call of `init_process_group`. By then most of its imports are done.
    joined_s: float | None  # Until that call returned: the ranks have met in a first collective.
    restored_s: float | None  # Until it had loaded its state, from a checkpoint or the stash.
    restore_s: float  # Seconds that loading took in total.
    stepped_s: float | None  # Until the end of its first step.
    first_step: int | None = None
    """Number of that step, as the script reports it; the lowest of all ranks. None: the script reports none."""
    state_step: int | None = None  # The step that all ranks agreed to go on from (`life.state`). None: the script has none.
    state_from: tuple[str, ...] = ()
    """Where each rank of this node has that state from: its own `memory`, `rank N`, the `stash`, or its `script`."""


class RanksEnded(Event):
    """How far the ranks of this node got before the last of them ended. Values are those of the rank that got furthest.

    Times are seconds since the start of the processes, as in `RanksBegun`."""

    last_step: int | None  # Number of its last step, as the script reports it. None: the script reports none.
    last_step_s: float | None  # Until the end of its last step, reported or counted. None: it made no step.
    saved_s: float | None  # Until the end of the last checkpoint. None: the ranks reported none.


class WorkerDying(Event):
    """The kernel released the worker's robust mutex: the worker is dead, but the kernel still frees its memory."""

    rank: int  # Global rank.
    local_rank: int  # Rank among the workers of this node, from 0.
    pid: int  # Process id of the worker.
    exitcode: int | None  # Exit code; negative for a signal. None: not known yet.


class WorkerExited(Event):
    """The process of one rank is gone, and its memory is free."""

    rank: int  # Global rank.
    local_rank: int  # Rank among the workers of this node, from 0.
    pid: int  # Process id that the worker had.
    exitcode: int  # Exit code; negative for a signal.


class FailureSeen(Event):
    """A worker failed, or the agent stopped it because another worker failed."""

    failure: Failure  # Fields as [below](#the-failure-in-it).


class RankHung(Event):
    """A rank gave no sign of life for longer than its limit. The agent ends it next."""

    rank: int  # Global rank.
    local_rank: int  # Rank among the workers of this node, from 0.
    pid: int  # Process id of the rank.
    reason: str  # Which sign was missing, for how long, and the limit, in words.
    quiet_s: float = 0.0  # Seconds since the last sign of that kind.


class StacksKept(Event):
    """A rank of the job hung, so the agent recorded where each rank of this node was."""

    path: str  # Folder with one file per rank, on this host.
    ranks: tuple[int, ...]  # Global ranks that gave their Python stacks.
    silent: tuple[int, ...]  # Global ranks that did not; their files hold what the kernel knows of them.
    reason: str  # Why, in words: which rank hung.


class ControlKind(StrEnum):
    """What a rank's script may ask of the job. `core.page.layout.CONTROL_KINDS` has the same words."""

    EXCLUDE = "exclude"  # Its node is left out.
    STOP = "stop"  # The job stops.
    RESTART = "restart"  # All ranks restart.
    CONTINUE = "continue"  # Nothing is done.


class ControlRequested(Event):
    """A worker's script asked for something that concerns the whole job."""

    rank: int  # Global rank.
    local_rank: int  # Rank among the workers of this node, from 0.
    kind: ControlKind
    """exclude (its node) · stop (the job) · restart (all ranks) · continue (nothing is done)"""
    reason: str  # The script's own reason.


class LimitsLearned(Event):
    """The limits that the agent learns from the ranks' silences exist now, or changed."""

    limits_s: dict[str, float]
    """By kind of silence (first · beat · out · section NAME): seconds after which a rank is suspected to hang."""
    longest_s: dict[str, float]
    """By kind of silence: longest recent silence of this node's ranks, in seconds, while all was well."""


class LimitsCalculated(Event):
    """The script calculated limits, and the coordinator has them: in later rounds, ranks on any node start with them."""

    limits_s: dict[str, float]  # By kind of silence, as in `LimitsLearned`.


class Unwatched(Event):
    """No rank has sent a sign of life: no heartbeat, section, step or matching log line."""

    after_s: float  # Seconds since the ranks started.
    still_s: float | None  # Ranks count as hung after the whole node was idle for this many seconds. None: never.


class StragglerSeen(Event):
    """A rank, or a whole node, is much slower than the others, and has been so for a while."""

    name: str  # Name of the node.
    rank: int  # Global rank; -1: the node as a whole.
    series: str  # What is slow: `step`, or a section's name.
    took_s: float  # Median of its last period, in seconds.
    typical_s: float  # Median of the others in the comparison, in seconds.
    against: str  # Compared with: the node's other ranks · its own past · the other nodes


class StragglerOver(Event):
    """The rank or node is as fast as the others again."""

    name: str  # Name of the node.
    rank: int  # Global rank; -1: the node as a whole.
    series: str  # What was slow.
    against: str  # As in `StragglerSeen`.


class WatchdogExpired(Event):
    """A worker, or another process with a timer, did not leave a scope in time (`timer.expires`)."""

    pid: int  # Process id of the timer's owner.
    scope: str  # Name of the timer, from the script.
    expired_s: float  # Seconds since the timer expired.


class Decided(Event):
    """The coordinator's decision, with its reason in words. `why` prints exactly this."""

    decision: Verdict  # restart · rejoin · carry-on (the same round, without the failed ranks) · stop · finish
    reason: str  # Why, in words.
    delay_s: float = 0.0  # Seconds to wait before the next round, if workers crash right after they start.
    restarts_left: int | None = None  # Restarts that the job has left after this decision. None: there is no count.


class StopSent(Event):
    """The agent asked workers to stop."""

    signal: str  # Name of the signal, such as `SIGTERM`. `regroup`: to let go of the round, and to live on.
    grace_s: float  # Seconds until SIGKILL.
    reason: str  # Why the workers stop, in words.
    ranks: tuple[int, ...]  # Global ranks of these workers.


class WorkersStopped(Event):
    """All workers of the round on this node are gone, with all their child processes."""

    took_s: float  # Seconds since the agent asked them to stop; 0: it did not have to ask.
    killed: tuple[int, ...]  # Global ranks that outlived the grace period and got SIGKILL.


class GpuMemoryReclaimed(Event):
    """Before a restart, the agent waited until the GPUs' memory was free, or until the time limit."""

    waited_s: float  # Seconds since the last worker was gone. The nodes meet during this time.
    looks: int  # Number of readings.
    gpus: tuple[int, ...]  # The driver's numbers of the GPUs. The next two fields have one entry per GPU.
    first_mb: tuple[float, ...]  # MiB in use at the first reading.
    last_mb: tuple[float, ...]  # MiB in use at the last reading.
    free: bool  # False: the time limit came first, and the workers started anyway.


class HealthState(StrEnum):
    """How fit a check finds a node, from good to bad."""

    FIT = "fit"
    DEGRADED = "degraded"  # It takes part, and a person should look after it.
    UNFIT = "unfit"  # It does not take part.

    def __repr__(self) -> str:
        return repr(self.value)  # authors of checks print verdicts


class HealthChanged(Event):
    """A health check of this node has a new verdict, or a new reason for it."""

    check: str  # Name and argument of the check.
    state: HealthState  # fit · degraded (it takes part, but a person should look at it) · unfit
    before: HealthState  # Verdict before this one; fit if the check had not run yet.
    reason: str  # What the check found, in words.
    advice: str = ""  # What to do about it.
    devices: tuple[DeviceFault, ...] = ()  # What is wrong with which device, if the check knows.
    took_s: float = 0.0  # Seconds that the check took.


class FaultInjected(Event):
    """An operator injected a fault here for practice (`holdfast inject`). What follows is not a hardware fault."""

    fault: str  # kill · hang · slow · xid · ecc
    rank: int  # Global rank; -1: the fault concerns a GPU.
    what: str  # What the agent did, in words.
    by: str  # Who asked for it.
    for_s: float | None = None
    """The agent undoes it after this many seconds. None: it cannot be undone, or only when the agent ends."""


class FaultOver(Event):
    """The agent undid an injected fault."""

    fault: str  # As in `FaultInjected`.
    rank: int  # As in `FaultInjected`.
    what: str  # As in `FaultInjected`.
    reason: str  # Why it ended, in words.


class NodeJoined(Event):
    """A node asked the coordinator for the first time to take part."""

    name: str  # Name of the node.


class NodeLeft(Event):
    """A node left, and said so."""

    name: str  # Name of the node.
    reason: str  # The node's own reason, in words.


class ExcludedBy(StrEnum):
    """Who has a node excluded."""

    OPERATOR = "operator"
    FAILURES = "failures"  # Its workers were the first to fail, again and again.
    SLOWNESS = "slowness"
    SCRIPT = "script"  # A rank of it asked.
    ITSELF = "itself"  # The node has found out that it is unfit.
    DECLARED_LOST = "declared lost"  # An operator said that it is gone for good (`holdfast force-leader`).


class NodeExcluded(Event):
    """A node must not take part from now on. It may stay connected as a spare."""

    name: str  # Name of the node.
    reason: str  # Why the node is excluded, in words.
    by: ExcludedBy
    """Who excluded it: operator · failures (its workers repeatedly failed first) · slowness · script (one of its ranks asked) ·
    itself · declared lost (by `holdfast force-leader`)"""
    age_s: float = 0.0
    """Seconds for which it was already excluded when this coordinator took over; 0: this coordinator decided it."""


class NodeReadmitted(Event):
    """An excluded node may take part again."""

    name: str  # Name of the node.
    reason: str  # Who readmitted it, or what changed, in words.


class NodeLost(Event):
    """A node was silent for longer than its lease."""

    name: str  # Name of the node.
    reason: str  # How long the node was silent, and how long its lease is, in words.
    silent_s: float = 0.0  # Seconds of silence.


class CoordinatorFound(Event):
    """This node found the coordinator at a new place. Decisions are made there from now on."""

    endpoint: str  # Address of the coordinator, `host:port`.


class CoordinatorMissing(Event):
    """The job has no coordinator, and too few nodes with a say are here to choose one. The ranks stay stopped."""

    reason: str  # Who is here, and how many could go on, in words.
    hint: str = ""  # What a person can do about it.


class SignalReceived(Event):
    """The agent received a signal."""

    signal: str  # Name of the signal, such as `SIGTERM`.


class GuardianLost(Event):
    """The guardian, the process that protects the agent, was killed. Everything on this node ends at once."""


class JobEnded(Event):
    """The agent's last event: the job is over, or this node's part in it."""

    outcome: Outcome  # succeeded · failed · stopped
    exit_code: int  # Exit code of this agent; negative: it dies from that signal.
    reason: str  # Why, in words.


CATALOGUE: dict[str, type[Event]] = {event.__name__: event for event in Event.__subclasses__()}
"""Name on disk → type."""
