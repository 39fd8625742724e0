"""What the agents of a job and its coordinator say to each other. The same values cross a queue or a wire.

Every message may arrive twice (a link broke and the last one was sent again): all of them are idempotent, because each
names the round that it is about.
"""

from __future__ import annotations

from holdfast.core.failure import Failure
from holdfast.core.report import JobReport
from holdfast.core.value import Value


class Message(Value):
    """Base of all messages."""


class Exclusion(Value):
    """A node that must not take part: what a coordinator's successor must know of it."""

    name: str
    """As people call the node: another life of it is left out too."""
    reason: str
    by: str = "operator"
    """operator · failures (its workers were the first to fail, again and again) · itself"""
    age_s: float = 0.0
    """For how long it has been so."""


# --- from an agent to the coordinator -------------------------------------------------------------------------------


class Join(Message):
    """I have no live worker and am ready for a round newer than `round`."""

    node: str
    """Identity of this agent's life: another life on the same host has another."""
    name: str
    """What people call the node."""
    addr: str
    """Address at which other nodes reach this one."""
    master_port: int
    """Port held on this node for a worker of group rank 0 to listen on."""
    nproc: int
    role: str
    round: int = 0
    """The last round this agent took part in; 0: none."""
    group_rank: int | None = None
    """Its rank there: a coordinator that was not there lets the nodes keep theirs."""
    known_round: int = 0
    """The newest round that it has heard of as a spare: workers of that may live on other nodes."""
    wanted_rank: int | None = None
    """Rank that the infrastructure gave; with the static backend the group rank itself. None: any."""
    domain: str | None = None
    switches: tuple[str, ...] = ()
    group: str | None = None
    group_size: int = 0
    """As in `core.infrastructure.Infrastructure`."""
    unhealthy: str = ""
    """Why this node should not take part, as it has found out itself. Empty: it is fit, as far as it knows."""


class Renew(Message):
    """I am alive."""

    node: str
    round: int
    sent_at: float = 0.0
    """On the sender's own clock, which nobody else reads: it comes back in the answer."""


class Failed(Message):
    """A worker of mine failed; I am stopping the others."""

    node: str
    round: int
    failure: Failure


class Stopped(Message):
    """All my workers of that round have ended, these of them badly."""

    node: str
    round: int
    failures: tuple[Failure, ...] = ()


class Succeeded(Message):
    """All my workers of that round exited with 0."""

    node: str
    round: int


class Leave(Message):
    """I go for good; `Stopped` follows when my workers have ended. After `Finish`: I have heard it."""

    node: str
    round: int
    reason: str


class StopJob(Message):
    """An operator, through this agent, wants the whole job stopped."""

    node: str
    reason: str


class Exclude(Message):
    """An operator, through this agent, wants a node left out of the job, and a spare in its place."""

    node: str
    ask: int
    """Number of the request in this agent's life: `Noted` answers it."""
    name: str
    reason: str


class Readmit(Message):
    """An operator, through this agent, wants an excluded node to be taken again."""

    node: str
    ask: int
    name: str
    reason: str


class StoreAsk(Message):
    """Do this in the key-value store of that round, over a link that carries nothing else (see `rendezvous.store`)."""

    node: str
    ask: int
    """Comes back in the answer."""
    round: int
    op: str
    keys: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    number: int = 0
    wait_s: float = 0.0
    """How long to wait for keys that are not there."""


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


class Stop(Message):
    """Stop your workers of that round; then join again, or report `Stopped` and wait for the end.

    To a node that is joining already: the coordinator does not know it (any more); say `Join` again.
    """

    round: int
    reason: str
    rejoin: bool


class Waiting(Message):
    """You are a spare: there is no place for you in that round, for this reason."""

    round: int
    reason: str


class Noted(Message):
    """What became of an operator's request."""

    ask: int
    ok: bool
    text: str


class Renewed(Message):
    """You are still a member: for `lease_s` seconds from when you sent what this answers."""

    lease_s: float
    sent_at: float = 0.0


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
    """Empty: it was done. Else one of the words in `rendezvous.table`, and `reason` for people."""
    reason: str = ""
