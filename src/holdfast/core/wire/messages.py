"""What the agents of a job and its coordinator say to each other. The same values cross a queue or a wire.

Every message may arrive twice (a link broke and the last one was sent again): all of them are idempotent, because each
names the round that it is about.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.job.ends import Exited
from holdfast.core.job.events import ExcludedBy, HealthState
from holdfast.core.job.failure import Failure, Position
from holdfast.core.job.injection import Injection
from holdfast.core.job.report import JobReport
from holdfast.core.value import Value

LONGEST_LEASE_S = 86400.0
"""Of `--lease`. A node that was granted more would hear of no other coordinator in that time."""


class Message(Value):
    """Base of all messages."""


class Exclusion(Value):
    """A node that must not take part: what a coordinator's successor must know of it."""

    name: str  # As people call the node: another life of it is left out too.
    reason: str
    by: ExcludedBy = ExcludedBy.OPERATOR
    age_s: float = 0.0  # For how long it has been so.
    wanted: bool = False  # It is to be so as soon as the job can go on without that node.


# --- what a successor must know -------------------------------------------------------------------------------------


class Past(Value):
    """What a new leader must know of the job. Durations are ages: no clock is compared with another host's."""

    life: str  # Names this run of the job: another of the same name, later, has another.
    round: int = 0
    restarts: int = 0
    restart_ages_s: tuple[float, ...] = ()  # How long ago each restart of the budget was spent.
    members: int = 0
    """Nodes of that round that were not known to be gone: the next round waits for them, or for their leases to end."""
    largest: int = 0  # Nodes of the largest round.
    fence_s: float = 0.0  # For so long no round may form.
    age_s: float = 0.0  # How long the job has been running.
    excluded: tuple[Exclusion, ...] = ()  # Nodes that must not take part.
    names: dict[str, str] = {}  # Of the nodes that have a say in who leads, by endpoint, where they are few.  # noqa: RUF012
    fault_ages_s: dict[str, tuple[float, ...]] = {}  # noqa: RUF012
    """By node: how long ago its workers were the first to fail, each time (`recovery.policy`)."""
    reached: int | None = None  # The furthest iteration known at the last restart (`recovery.policy`).
    idle_restarts: int = 0  # So many in a row have not got the job any further.
    longest_s: dict[str, float] = {}  # As in `Pace`.  # noqa: RUF012
    calculated_s: dict[str, float] = {}  # As in `Calculated`.  # noqa: RUF012
    report: JobReport | None = None  # How it ended. None: it has not.


class Electorate(Value):
    """Those who have a say in who leads: the nodes that had a seat when it was drawn up."""

    id: int  # The version of the roster that brought it: no two have the same.
    size: int
    mine: bool = False  # The receiver is one of them.
    witness: bool = False  # It has one vote more: two nodes have a majority without one.
    line: tuple[str, ...] = ()  # Endpoints of all of them. Empty: they are too many, or not all are known.

    @property
    def majority(self) -> int:
        """Votes that elect."""
        return (self.size + self.witness) // 2 + 1


class Roster(Value):
    """What each node holds in case the coordinator is lost: who is next, how many must agree, where the job stands."""

    version: int  # Greater than that of every roster before it, under whatever coordinator.
    term: int  # How many times the lead has changed hands.
    promise_s: float  # After each `Renewed`, the receiver supports no other node for so long.
    line: tuple[str, ...]  # Endpoints in order of succession, the coordinator's first.
    electorates: tuple[Electorate, ...]
    """The newest first; an older one has a say until most know its successor."""
    past: Past

    @property
    def largest(self) -> Electorate:
        """The one with most nodes: an older one, where a coordinator has just lost some. Of none where nobody has a say."""
        return max(self.electorates, key=lambda one: one.size, default=Electorate(id=0, size=0))


# --- from an agent to the coordinator -------------------------------------------------------------------------------


class Join(Message):
    """I have no live worker and am ready for a round newer than `round`."""

    node: str  # Identity of this agent's life: another life on the same host has another.
    name: str  # What people call the node.
    addr: str  # Address at which other nodes reach this one.
    master_port: int  # Port held on this node for a worker of group rank 0 to listen on.
    nproc: int
    role: str
    round: int = 0  # The last round this agent took part in; 0: none.
    group_rank: int | None = None  # Its rank there, which a new coordinator lets it keep.
    known_round: int = 0  # The newest round that it has heard of as a spare.
    wanted_rank: int | None = None  # The infrastructure's rank; static: the group rank. None: any.
    domain: str | None = None
    switches: tuple[str, ...] = ()
    group: str | None = None
    group_size: int = 0  # As in `core.resolve.infrastructure.Infrastructure`.
    unhealthy: str = ""  # Why this node should not take part. Empty: it is fit.
    reached: int | None = None  # The job's iteration, as far as this node can tell.
    endpoint: str = ""
    """Where this agent can be reached by others, and could serve them. Empty: nowhere; then it has no say in who leads."""
    roster: int = 0  # Version of the roster that it holds; 0: none.
    elector_of: tuple[int, ...] = ()  # Electorates in which, by that roster, it has a say.
    longest_s: dict[str, float] = {}  # As in `Pace`, as far as this node knows.  # noqa: RUF012
    calculated_s: dict[str, float] = {}  # As in `Calculated`, as of `round`.  # noqa: RUF012
    life: str = ""
    """The run of the job that `round`, `known_round` and `roster` are of, as in `Past`. Empty: this node has been in none."""
    in_memory: tuple[tuple[int, int, int, int, int, int, int], ...] = ()  # Of its ranks (`core.page.in_memory.Holding`).
    stash: tuple[tuple[int, int, int, int], ...] = ()  # States in memory here (`core.page.stash.Held`).
    kept: tuple[tuple[int, int, int, int, int], ...] = ()  # Of another node's ranks (`core.page.stash.Kept`).
    stash_at: str = ""  # Where it takes such, and gives them. Empty: it has no part in that.
    stash_on_disk: tuple[tuple[str, int, int, int, int, int], ...] = ()  # As in `core.page.stash.OnDisk`.
    stash_replicas: int = 0  # How many other nodes are to keep a copy of what its ranks save.
    logs_at: str = ""  # Where it takes the lines of other nodes' ranks. Empty: nowhere, and it sends none.
    warm: str = ""  # The interpreter of the warm spares that this node keeps. Empty: it keeps none.
    terms: dict[str, str] = {}  # How it was started, as far as all nodes should have been alike, by name.  # noqa: RUF012


class Renew(Message):
    """I am alive."""

    node: str
    round: int
    sent_at: float = 0.0  # On the sender's own clock, which nobody else reads: it comes back in the answer.
    mark: float = 0.0  # That of the last `Renewed` over this link; 0: none yet.
    roster: int = 0  # As in `Join`.
    ahead_s: float | None = None  # Its wall clock minus the coordinator's. None: not known yet.


class Failed(Message):
    """A worker of mine failed; I am stopping the others, unless the round may go on without some (`Assigned.carries_on`)."""

    node: str
    round: int
    failure: Failure
    exited: tuple[Exited, ...] = ()  # Workers of mine that had exited with 0 by then.


class HangFound(Message):
    """A worker of mine hangs: have all ranks looked at before any of them is stopped. `Failed` follows."""

    node: str
    round: int
    rank: int
    reason: str
    within_s: float  # So long may a look take on this node: others are no slower.


class Positions(Message):
    """Where my ranks of that round were when I looked, because one of the job's hangs."""

    node: str
    round: int
    positions: tuple[Position, ...]


class Stopped(Message):
    """All my workers of that round have ended, these of them badly."""

    node: str
    round: int
    failures: tuple[Failure, ...] = ()
    exited: tuple[Exited, ...] = ()  # As in `Failed`.


class Succeeded(Message):
    """All my workers of that round exited with 0."""

    node: str
    round: int
    exited: tuple[Exited, ...] = ()


class Leave(Message):
    """I go for good; `Stopped` follows when my workers have ended. After `Finish`: I have heard it."""

    node: str
    round: int
    reason: str


# --- what is asked of a node, or of the job -------------------------------------------------------------------------


class RequestKind(StrEnum):
    """What may be asked. The coordinator decides about the first four; about any other, the node that it passes it on to."""

    STOP = "stop"  # The job ends.
    RESTART = "restart"  # All ranks of the running round start again.
    EXCLUDE = "exclude"  # The target takes no part any more, and a spare has its place.
    READMIT = "readmit"  # The target may take part again.
    CHECK = "check"  # The target runs checks of its health.
    INJECT = "inject"  # The target plays a fault, for practice.


EVERY_NODE = "*"  # A target: each node of the job.
OWN_ASK = 0  # Number of what a node asks on its own account. Those of its operators count from 1.


class Request(Message):
    """An operator, a rank or a node wants this. From an agent to the coordinator, and from there to the target."""

    node: str = ""  # The agent that passes it on; empty from the coordinator.
    kind: RequestKind
    target: str = ""  # Name of a node, or EVERY_NODE. Empty: the job.
    ask: int | None = None  # Its number, which `Reply` names. None: no reply is wanted.
    round: int = 0  # The round that it is about, where it is about one.
    rank: int = -1  # The rank that asks. -1: an operator does, or the node itself.
    by: ExcludedBy = ExcludedBy.OPERATOR  # OPERATOR or ITSELF.
    reason: str = ""
    checks: tuple[str, ...] = ()  # Those that CHECK runs.
    injection: Injection | None = None  # What INJECT plays.

    @property
    def is_of_a_rank(self) -> bool:
        """A script asks for it, not an operator."""
        return self.rank >= 0

    @property
    def needs_no_seat(self) -> bool:
        """An operator may ask for it through an agent that is no member (any more)."""
        return not self.is_of_a_rank and self.kind in (RequestKind.STOP, RequestKind.EXCLUDE, RequestKind.READMIT)


class Checked(Value):
    """What one check has found, as `health.verdict` has it."""

    check: str
    state: HealthState
    reason: str
    advice: str = ""
    took_s: float = 0.0


class Reply(Message):
    """What came of a request. From the target to the coordinator, and from there to the asker."""

    ask: int
    node: str = ""  # The agent that says it; empty from the coordinator.
    name: str = ""
    """The node that has done it. Empty: it is the coordinator's own word; to a request to EVERY_NODE the names of those that
    were asked, one a line."""
    ok: bool = True
    text: str = ""  # What was done, or why it was not.
    verdicts: tuple[Checked, ...] = ()  # What checks have found.


# --- from an agent to the coordinator, continued ------------------------------------------------------------------------


class StoreAsk(Message):
    """Do this in that round's key-value store (`rendezvous.kvstore.machine`), over a link of its own."""

    node: str
    ask: int  # Comes back in the answer.
    round: int
    op: str
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0
    wait_s: float = 0.0  # How long to wait for keys that are not there.


class Pace(Message):
    """How my ranks of that round get on: once a minute, so that the job knows how long is long, and which node is slow."""

    node: str
    round: int
    longest_s: dict[str, float]  # By kind of silence: the longest that healthy ranks needed lately.
    typical_s: dict[str, float] = {}  # By series (`step`, or a section): the median of this node's ranks.  # noqa: RUF012
    straggler: str = ""  # Ranks of this node that are much slower than its others, in words. Empty: none is.
    busy_s: float = 0.0
    """A rank here is silent for longer than was learned, and works: other nodes may wait for it for so long. 0: none does."""


class Saving(Message):
    """A rank of mine has begun to write a checkpoint, or none does any more: said where the job grows after one only."""

    node: str
    round: int
    open: bool


class Calculated(Message):
    """The job's script has calculated limits: they hold for ranks that start next. The node of group rank 0 says it."""

    node: str
    round: int
    limits_s: dict[str, float]  # As in `Pace`: by kind of silence, all that have been calculated so far.


class Imports(Message):
    """What the job's script has imported here: for those that wait with warm spares. The node of group rank 0 says it."""

    node: str
    python: str  # As in `Join.warm`: another interpreter has other modules.
    modules: tuple[str, ...]  # In order of loading, with what the script had changed before.


IMPORTS_CHARS = 1 << 19
"""Most characters of all that is in an `Imports`. torch has 70,000, with transformers it is three times as many."""


class Seek(Message):
    """I have lost my coordinator: who leads? And if nobody does: I would have you, once I am free to say so."""

    node: str  # The sender's endpoint: that is how electors are known to each other.
    term: int  # The latest term in which it has voted, or has had a leader.
    roster: Roster | None = None
    held_s: float = 0.0  # For how long the roster has been known by now.
    free: bool = False  # It owes its support to nobody (any more).
    elder: str = ""  # Whom it would have itself, and the receiver may go to. Empty: the sender says this of itself.
    leads: Leads | None = None  # It leads, and asks an agent that began anew to follow.


class Vote(Message):
    """You shall lead. I support nobody else for as long as the roster says, nor ever in this term."""

    node: str
    term: int
    mark: float


# --- from the coordinator to an agent -------------------------------------------------------------------------------


class Assigned(Message):
    """You are in: start your workers."""

    round: int
    restart_count: int
    group_rank: int
    group_world_size: int
    base_rank: int
    world_size: int
    role_base_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    nodes: tuple[str, ...]
    """Names, in group-rank order; only told to group rank 0 and in small jobs (a table for everybody is O(N²))."""
    reason: str
    carries_on: bool = False
    """The round may go on without some of its workers: where one fails, the others of its node are left alone until `Stop`."""
    longest_s: dict[str, float] = {}  # As in `Pace`, of earlier rounds.  # noqa: RUF012
    calculated_s: dict[str, float] = {}  # As in `Calculated`, of earlier rounds.  # noqa: RUF012
    life: str = ""  # Names this run of the job, as in `Past`.
    state: tuple[int, int] | None = None  # Round and step of what ranks have in memory, if all go on from there.
    state_from: tuple[str, ...] = ()
    """Where each rank here has its state from (`core.page.in_memory.Foreseen`). Empty: the ranks see when they have met."""
    stash: tuple[int, int] | None = None  # Round and step of the newest state that all ranks can restore.
    stash_from: str = ""  # Where this node has to fetch that. Empty: it has it.
    stash_disk: tuple[str, int, int] | None = None  # Life, round and step of what it has to read from its disk. None: nothing.
    stash_partners: tuple[str, ...] = ()  # Where other nodes keep what this one's ranks save. Empty: none does.
    stash_tickets: dict[str, str] = {}  # noqa: RUF012
    """By those addresses: what shows there that states of this node's ranks are its own, to bring and to fetch."""
    logs_at: str = ""  # Where the coordinator's node takes the lines of all ranks. Empty: it takes none.

    @property
    def state_step(self) -> int | None:
        """The step that all ranks go on from. None: they see when they have met, or their script says it."""
        found = self.stash if "stash" in self.state_from else self.state
        return None if found is None else found[1]


class Paced(Message):
    """What all nodes' ranks need: the answer to `Pace` where it is more than the node knows; to all, if one node works."""

    round: int
    longest_s: dict[str, float]
    busy_s: float = 0.0  # As in `Pace`, of another node.


class Stop(Message):
    """Stop your workers of that round, then join again, or say `Stopped` and wait. To a joining node: say `Join` again."""

    round: int
    reason: str
    rejoin: bool
    hung: int | None = None
    """Local rank, on that node, of a worker that hangs, though its own limit has not told so. None: none does."""
    regrouped: bool = False  # Nothing has failed: all ranks ran, and run again with a node more.
    on_request: bool = False  # Nothing has failed: an operator, or a node's agent that was told to go, ends the job.
    anew: bool = False  # The restart was asked for: no process goes on in place, with what its script has in memory.


class LookAround(Message):
    """A rank of that round hangs: keep the stacks of yours, and tell me where they are."""

    round: int
    reason: str  # Which rank on which node, in words.


class Waiting(Message):
    """You are a spare: there is no place for you in that round, for this reason."""

    round: int
    reason: str
    life: str = ""  # As in `Assigned`.


class Notice(Message):
    """Say this to whoever looks at this node."""

    text: str
    level: str = "warning"  # As of `Say`.
    waits_for: str = ""  # Where no round runs: what the next one waits for.


class ToImport(Message):
    """While you wait: this is what your workers would import. As in `Imports`."""

    python: str
    modules: tuple[str, ...]


class Renewed(Message):
    """You are still a member: for `lease_s` seconds from when you sent what this answers."""

    lease_s: float
    sent_at: float = 0.0
    mark: float = 0.0  # When this was said, on the coordinator's clock: it comes back in the next `Renew`.
    roster: Roster | None = None  # A newer one than the member said it holds.
    at_unix: float = 0.0  # The coordinator's wall clock, for comparison only.
    middle_s: float | None = None  # Median of the nodes' wall clocks minus that. None: not known.


class Propose(Message):
    """I have the support of a majority: vote for me."""

    term: int
    mark: float  # On the candidate's clock: it comes back in the vote.
    roster: int  # Version of the roster that it holds.


class Leads(Message):
    """The coordinator is there."""

    endpoint: str
    term: int
    life: str  # Of the job, as in `Past`.


class Finish(Message):
    """The job is over."""

    report: JobReport


class Refused(Message):
    """You cannot take part."""

    reason: str
    hint: str = ""


class StoreAnswer(Message):
    """What came of it."""

    ask: int
    values: tuple[bytes, ...] = ()
    number: int = 0
    error: str = ""
    """Empty: it was done. Else one of the words in `rendezvous.kvstore.table`, and `reason` for people."""
    reason: str = ""
