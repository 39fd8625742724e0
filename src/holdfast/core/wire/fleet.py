"""What do those who run jobs and the supervisor of all of them say to each other? The words of both, and of the record.

A *reporter* is an agent, or a host's daemon: it says how things are (`Standing`, the newest of which counts), what has gone
wrong (`Trouble`, each until it is heard) and what has become of an order (`Did`). Everything may arrive twice, and means the
same then: reports and troubles are numbered, orders have ids, and an id that is known is not carried out again.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job.injection import Injection
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Message

FLEET = "holdfast supervisor"
"""What links between them name in the place of a job."""


class FleetMessage(Message):
    """Base of all of them. No agent of a job takes one from another."""


class ReporterState(StrEnum):
    """What a node does for a job, as its reporter says: the states of an agent's group."""

    JOINING = "joining"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    ENDED = "ended"


class TroubleKind(StrEnum):
    """What has gone wrong."""

    WORKER = "worker"
    HANG = "hang"
    LOST = "lost"
    """The node is not heard."""
    DEVICE = "device"
    UNFIT = "unfit"
    """The node's own checks say so."""
    OPERATOR = "operator"
    """Nothing: a person wants something done."""
    REPAIR = "repair"
    """Nothing new: a node that was taken out may be repaired."""


class Verb(StrEnum):
    """What an agent can be ordered to do."""

    RESTART = "restart"
    EXCLUDE = "exclude"
    READMIT = "readmit"
    STOP = "stop"
    INJECT = "inject"


class NodeState(StrEnum):
    """How a node is. Of a device: fit, suspect or unfit."""

    FIT = "fit"
    SPARE = "spare"
    SUSPECT = "suspect"
    DRAINING = "draining"
    UNFIT = "unfit"
    LOST = "lost"


class HeldBy(StrEnum):
    """Who holds something against a node."""

    POLICY = "policy"
    OPERATOR = "operator"
    ITSELF = "itself"
    DEVICE = "device"


class SwapStep(StrEnum):
    """Steps by which a node is taken out, in their order."""

    EXCLUDE = "exclude"
    DRAIN = "drain"
    REPLACE = "replace"
    AWAIT = "await"
    """Of an act `replace`: its job needs the node until another is there. Then the job excludes it."""
    WATCH = "watch"


class Act(StrEnum):
    """What can be done about a trouble, by the policy or for an operator."""

    NONE = "none"
    RESTART_WORKERS = "restart-workers"
    """The job's own agents do, unless they cannot."""
    RESTART_JOB = "restart-job"
    """All its ranks, on the same nodes."""
    SWAP = "swap"
    SHRINK = "shrink"
    """The job goes on without the node."""
    REPLACE = "replace"
    """No spare waits, and the job needs all its nodes: another is asked for, and the job waits for it."""
    STOP = "stop"
    UNCORDON = "uncordon"
    """An operator's, as the next two."""
    RESTART = "restart"
    INJECT = "inject"
    CHECK = "check"
    """Of a node that was taken out, as all that follow: its host's deep checks. They come after each of the next three, too."""
    RESET_GPU = "reset-gpu"
    RESTART_DAEMON = "restart-daemon"
    REBOOT = "reboot"
    PROBATION = "probation"
    """It is a spare again. If it is taken out once more within the time, it stays out."""
    REPORT = "report"
    """A person has to repair it."""


class RepairStep(StrEnum):
    """Where a repair is, within each of its acts."""

    READY = "ready"
    """Its host has to be heard, cordoned and empty, and it has to be its turn."""
    RUN = "run"
    CHECK = "check"
    PROBATION = "probation"
    REPORT = "report"
    """Its cloud has to be told by a label that a person has to repair it."""


class RankSaid(Value):
    """One rank of a node. First what differs from rank to rank: a list of them compresses the better."""

    rank: int
    pid: int = -1
    local_rank: int
    beat_age_s: float | None = None
    """Age of its last heartbeat at the time of the report, in seconds. Heartbeats alone cause no report. None: it has none."""
    state: str
    """As `holdfast status` shows it."""
    step: int | None = None
    """Last step that the rank reported. None: it reports none."""
    step_s: float | None = None
    """Duration of that step, in seconds. None: not known."""
    exitcode: int | None = None


class Recovery(Value):
    """How a node came back from the trouble of one round, by its own clock."""

    round: int
    """Which was disturbed."""
    detect_s: float
    """From the trouble until it was seen."""
    act_s: float
    """From then until the ranks of the next round ran."""
    train_s: float
    """From the trouble until each rank had made a step again; where ranks tell of none, as `detect_s` and `act_s`."""
    lost_s: float
    """The same, and the time of the steps that were made again."""


class Repaired(Value):
    """What came of the last order to repair a host, as its daemon says."""

    order: str
    ok: bool
    text: str
    is_busy: bool = False
    """Nothing was done: somebody works there."""


# --- from a reporter ------------------------------------------------------------------------------------------------


class Standing(FleetMessage):
    """How things are on my node, for one job."""

    node: str
    """Identity of this reporter's life."""
    number: int
    """Of what this reporter says: `Heard` names it."""
    name: str
    """What people call the node."""
    domain: str = ""
    """As in `NodeRecord`."""
    job: str
    """As people call it (--rdzv-id). Empty: it waits for any job."""
    proof: str = ""
    """What only the job's own nodes can say (`Identity.name_proof`). Empty: the job has no secret."""
    life: str = ""
    """Of the run of that job. Empty: not known yet."""
    state: str
    """joining · running · stopping · ended, and the like: the group's own word"""
    round: int = 0
    attempt: int = 0
    ranks: tuple[RankSaid, ...] = ()
    spare_because: str = ""
    """Why it has no ranks though it would. Empty: it has, or is on its way."""
    waits: str = ""
    """Why it waits for a coordinator, and what a person can do. Empty: it has one."""
    least: int = 1
    """A round of the job needs so many nodes."""
    members: tuple[str, ...] | None = None
    """Nodes of the job that its coordinator hears. None: the coordinator is not here."""
    unfit: str = ""
    """Why the node must not be used, by its own checks. Empty: it may."""
    outcome: str = ""
    """How the job ended. Empty: it has not."""
    is_open: bool = False
    """The job is unauthenticated: who knows its name can join it."""
    is_watcher: bool = False
    """A host's daemon says it, of ranks that others have started: it sees them, and cannot steer them."""
    limits: dict[str, int] = {}  # noqa: RUF012
    """What the job's own clients have told of how it may be treated, by Google's names."""
    recovery: Recovery | None = None
    """The last one. None: there was none yet."""
    offers: tuple[str, ...] = ()
    """Of a host's daemon: by which acts it can repair its host. Empty: by none."""
    repaired: Repaired | None = None
    """The last one, of a daemon's earlier lives too. None: there was none, or it is not over."""
    is_beside: bool = False
    """A host's daemon says it, beside agents of ours: whether the node lives is theirs to say."""
    boot: str = ""
    """Of a host's daemon: which boot of the host this is, as the kernel calls it."""


class Trouble(FleetMessage):
    """Something has gone wrong on my node."""

    node: str
    number: int
    kind: str
    """worker · hang · device · unfit"""
    round: int = 0
    rank: int = -1
    what: str
    """In words."""
    device: str = ""
    """Which, as the driver calls it. Empty: none is known."""
    xid: int = 0
    """The driver's number for it; 0: none."""
    handled: bool = True
    """The job's own policy decides about it."""
    cause: str = ""
    """How the rank failed, as `core.job.failure.Cause` has it; or oom. Empty: not known."""


class Alive(FleetMessage):
    """I am here, and nothing has changed."""

    node: str


class Did(FleetMessage):
    """What became of an order."""

    node: str
    order: str
    ok: bool
    text: str


class Bye(FleetMessage):
    """I go, and this is not a failure of my node."""

    node: str
    reason: str


WORD_CHARS, WORDS_CHARS, ANSWER_CHARS = 100, 500, 1000
"""Of a reporter's texts: a name, what happened, and what became of an order. Longer ones are cut, since they are kept."""


def shortened(message: FleetMessage) -> FleetMessage:
    """A reporter's message with texts of such lengths."""
    match message:
        case Standing(state=state, outcome=outcome):
            short = {"state": state[:WORD_CHARS], "outcome": outcome[:WORDS_CHARS]}
        case Trouble(kind=kind, what=what, device=device, cause=cause):
            short = {"kind": kind[:WORD_CHARS], "device": device[:WORD_CHARS], "cause": cause[:WORD_CHARS]}
            short["what"] = what[:WORDS_CHARS]
        case Did(text=text):
            short = {"text": text[:ANSWER_CHARS]}
        case _:
            return message
    return replace(message, **short) if any(getattr(message, field) != text for field, text in short.items()) else message


# --- from the supervisor --------------------------------------------------------------------------------------------


class Heed(FleetMessage):
    """You are known. A reporter that is silent for `lease_s` counts as lost."""

    lease_s: float
    generation: int
    """Of the supervisor's lives: orders of an older one are not carried out any more."""


class Heard(FleetMessage):
    """What you said with that number is kept."""

    number: int


class NotHeard(FleetMessage):
    """What you say is not heard, and the link is closed."""

    reason: str


class Order(FleetMessage):
    """Do this."""

    order: str
    """Its id: the same one, said again, is the same order."""
    generation: int
    verb: str
    """restart (all ranks) · exclude · readmit (a node) · stop (the job) · inject (a fault, on the agent's own node); to a
    daemon also check · reset-gpu · restart-daemon · reboot"""
    target: str = ""
    """The node that it is about, where it is about one."""
    round: int = 0
    """A restart is of this round only; 0: of whichever runs."""
    reason: str
    injection: Injection | None = None
    """Which fault. None: the verb is another."""

    @property
    def words(self) -> str:
        """For people."""
        return f"the supervisor orders: {f'{self.verb} {self.target}'.rstrip()}: {self.reason}"


VERBS = tuple(Verb)

# --- what is kept ---------------------------------------------------------------------------------------------------


class Change(Value):
    """One past state of a node or of a device, and its reason."""

    state: str
    reason: str
    at_unix: float


class DeviceKept(Value):
    """One GPU."""

    name: str
    state: str
    """fit · suspect · unfit"""
    reason: str
    xid: int = 0
    at_unix: float
    history: tuple[Change, ...] = ()
    """The last ten reports about it, with its state at the time."""


class Repair(Value):
    """A node that was taken out and is being repaired, and the progress of that. Written to disk before each step."""

    act: Act
    """check · reset-gpu · restart-daemon · reboot · probation · report"""
    step: RepairStep
    """ready · run · check · probation · report"""
    id: str
    """Id of the decision, which is in the record once it has begun."""
    tries: int = 0
    """How often its host was not empty when it was to begin."""
    daemon: str = ""
    """The life of the host's daemon that was ordered to do it."""
    boot: str = ""
    """Which boot of the host it was when this began."""
    until_unix: float = 0.0
    """When the step has taken too long, or the probation is over."""
    waits: str = ""
    """What it waits for. Empty: for nothing but the host."""


class NodeRecord(Value):
    """What the supervisor knows of a node."""

    name: str
    state: str
    """fit · suspect · unfit · draining · spare · lost"""
    standing: str
    """fit · suspect · unfit · draining: the verdict about the node, wherever it runs"""
    reason: str
    by: str = ""
    """Who set the verdict: policy · operator · itself · device. Empty: nobody."""
    domain: str = ""
    """NVLink or network domain of the node. Empty: not known."""
    devices: tuple[DeviceKept, ...] = ()
    history: tuple[Change, ...] = ()
    """The last 100 changes; the last 20 in a list of all nodes."""
    repair: Repair | None = None
    """None: it is not being repaired, nor on probation."""


class NodeKept(NodeRecord):
    """A node, as the supervisor remembers it."""

    heard: dict[str, int] = {}  # noqa: RUF012
    """Reporter's life → the highest number of its troubles that has been dealt with."""


class JobLife(Value):
    """One run of a job."""

    life: str
    at_unix: float
    round: int = 0
    outcome: str = ""
    """Empty: it has not ended."""
    attempt: int = 0  # Restarts of its ranks, once it has ended.


class JobKept(Value):
    """A job over all its lives."""

    name: str
    owner: str = ""
    """SHA-256 of the proof of who may speak for it. Empty: anybody who may speak to the supervisor."""
    lives: tuple[JobLife, ...] = ()
    recovered: int = 0
    """The newest round of the last run whose trouble has been measured."""
    trained_s: float = 0.0
    """Of the last run: seconds × nodes in which ranks ran and got on; and those that were lost."""
    lost_s: float = 0.0


class Histogram(Value):
    """How many durations were how long."""

    counts: tuple[int, ...] = ()
    """By the bounds of `BOUNDS_S`, each the longest that is counted there; the last are longer than all. Empty: none."""
    sum_s: float = 0.0


BOUNDS_S = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""From a death, which is seen within milliseconds, to a large model that is loaded anew."""


class Hour(Value):
    """The incidents of all jobs, in one hour or since the first start of the supervisor."""

    at_unix: float
    """When it began. 0: since the first start."""
    incidents: dict[str, int] = {}  # noqa: RUF012
    """Cause → how many rounds it has ended."""
    detect: Histogram = Histogram()
    """From a trouble until it was seen."""
    act: Histogram = Histogram()
    """From then until the ranks of the next round ran."""
    train: Histogram = Histogram()
    """From a trouble until each rank had made a step again."""
    trained_s: float = 0.0
    """Seconds × nodes in which jobs trained; and those that were lost."""
    lost_s: float = 0.0


class Swap(Value):
    """A node that is being taken out of its job, and the progress of that. Written to disk before each step."""

    id: str
    """Id of the decision. Orders and calls derive their ids from it, so a repeated one has no second effect."""
    node: str
    job: str
    reason: str
    spare: str = ""
    """The spare that takes over. Empty: there is none; the job shrinks, or the scheduler is asked for a new node."""
    round: int = 0
    """Round in which the node had ranks."""
    step: SwapStep = SwapStep.EXCLUDE
    """exclude · drain · replace · await · watch"""
    replaces: bool = False
    """True: the scheduler is asked for another node."""
    awaits: bool = False
    """True: its job cannot go on without it until another node is there."""
    tries: int = 0
    """How often its job was ordered to exclude it, in vain."""
    asked: str = ""
    """What the scheduler has answered, asked for another node. Empty: it was not asked, or has not answered."""
    is_granted: bool = False
    """Whether that was a yes."""
    size: int = 0
    """Nodes of its job when it began."""
    expected_by_unix: float = 0.0
    """Its job could go on with one node less, and waits until then for the node that the scheduler gives. 0: it does not."""


class Deed(Value):
    """The record of one decision of the supervisor."""

    id: str
    at_unix: float
    node: str
    job: str
    trouble: str
    """The trouble: worker · hang · lost · device · unfit · operator · repair"""
    seen: str
    """The observation, in words."""
    policy: str
    act: str
    """none · restart-workers · restart-job · swap · shrink · replace · stop; operators': uncordon · restart · stop · inject;
    repairs': check · reset-gpu · restart-daemon · reboot · probation · report"""
    reason: str
    done: tuple[str, ...] = ()
    """The steps that were carried out."""
    outcome: str = ""
    """The result. Empty: not known yet."""
    ended_at_unix: float = 0.0
