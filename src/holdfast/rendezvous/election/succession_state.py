"""What does a node know of who leads, and what is it shown? The state of `rendezvous.election.succession`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER, Action
from holdfast.core.value import Value, replace
from holdfast.core.wire.links import Transmit
from holdfast.core.wire.messages import Leads, Roster, Vote
from holdfast.rendezvous.election.ballot import Ballot
from holdfast.rendezvous.election.elector_memory import ElectorMemory, Keeping
from holdfast.rendezvous.election.leader_lease import Mandate
from holdfast.rendezvous.election.messages import Reported
from holdfast.rendezvous.election.peer_dialer import Dial
from holdfast.rendezvous.election.roster import comes_before
from holdfast.rendezvous.election.witness_claims import Claims


class Role(StrEnum):
    """Where a node stands."""

    FOUNDING = "founding"  # It leads because nobody else did, and no round has formed yet.
    LEADING = "leading"
    ENDED = "ended"  # It leads, and the job has ended.
    YIELDING = "yielding"  # It founded, met an older run of the job, and leaves the lead to that for a while.
    FOLLOWING = "following"  # It hears a leader, or cannot seek one: it holds no roster.
    SEEKING = "seeking"  # It has heard no leader for a lease, and asks those in its roster's line.


LEADS = (Role.FOUNDING, Role.LEADING, Role.ENDED)


class Setup(Value):
    """What never changes for one node."""

    endpoint: str  # Where others reach this node, and it would serve. Empty: nowhere.
    origin: str  # The job's endpoint, which every node knows.
    lease_s: float
    began_at: float
    job: str = ""  # What people call it.
    witness: bool = False
    goes_on: bool = False  # A side without a majority goes on all the same (--on-split continue).
    known_round: int = 0
    """The last round of an earlier agent of this job on this host that did not see the job's end; 0: none."""
    ended: Mapping[str, JobReport] = {}
    """How earlier runs of the job ended, by their lives, as far as this host knows."""
    is_remembered: bool = False  # What this elector must not forget is kept for the agent's next life at this endpoint.
    before: ElectorMemory | None = None  # What an earlier life at this endpoint has kept. None: nothing is known of one.
    elders: tuple[str, ...] = ()
    """Other nodes' endpoints, as far as an earlier life knew them. For an agent that could not take that life's own endpoint
    again: it has no say, but the job may go on elsewhere than at its endpoint."""
    loyal_at: float = -NEVER
    """Before that, renewals bind nobody: whom an earlier life voted for a moment ago may yet be elected."""


class Proposal(Value):
    """What this node asked others to vote for."""

    at: float  # Its mark: votes bring it back.
    until: float
    votes: frozenset[str]  # Our own is among them once the term is kept.


NO_PROPOSAL = Proposal(at=-NEVER, until=-NEVER, votes=frozenset())


class Force(Value):
    """An operator has named nodes as gone for good, and it is being found out whether they are."""

    ask: int
    lost: tuple[str, ...]  # Their endpoints.
    is_vouched: bool
    called: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()  # Neither an agent answers there nor does the host refuse.


class State(Value):
    """All that a node knows. Only `ballot` and `mandate` grow in place: thousands of nodes speak to them at once."""

    setup: Setup
    role: Role
    life: str  # The run of the job.
    leader: str  # Its endpoint. Empty: none is known.
    ballot: Ballot
    claims: Claims
    mandate: Mandate | None = None  # None: this node does not lead.
    roster: Roster | None = None
    roster_at: float = -NEVER
    drawn_at: float = -NEVER  # Its leader had drawn it up by then.
    term: int = 0  # The latest in which this node led, followed or voted.
    free_at: float = -NEVER  # End of this node's promise.
    seek_at: float = NEVER
    renewed_at: float = -NEVER
    lead_at: float = NEVER  # When a node that yields takes the lead back.
    look_at: float = NEVER  # When something else is due, apart from the links.
    proposal: Proposal = NO_PROPOSAL
    dial: Dial = Dial()
    force: Force | None = None
    referred_at: float = -NEVER  # When another told us last where an elder is.
    place: int = 1  # Whose turn it is in the roster's line.
    met_elder: bool = False  # Somebody earlier in the line answered, in this turn down it.
    said_free: bool = False
    complained: bool = False
    keeping: Keeping = Keeping()
    owed: tuple[int, Vote] | None = None  # A vote that waits until its term is kept, and the link that it goes over.
    refused: Mapping[str, float] = {}
    """Since when those in the line have refused every call: their agents are gone."""
    linked: bool = False  # The member has a link to the leader.
    is_spare: bool = False
    declared_lost: frozenset[str] = frozenset()  # Endpoints that an operator's word has put aside when this node came to lead.
    rival: str = ""  # One of those that is said to lead: whom to call next.
    disbelieved: str = ""  # Of whom it was said last, in vain, that it leads.

    @property
    def leads(self) -> bool:
        return self.role in LEADS

    @property
    def knocks(self) -> bool:
        """Whether this leader calls the job's endpoint, where an agent may begin anew."""
        return self.leads and self.setup.endpoint != self.setup.origin and self.role is not Role.ENDED

    @property
    def asks_elders_at(self) -> float:
        """When this node asks its earlier life's peers who leads. NEVER: it has a coordinator, a roster, or no such peers."""
        if self.role is not Role.FOLLOWING or self.roster is not None or self.linked or self.force or not self.setup.elders:
            return NEVER
        since = self.setup.began_at + self.setup.lease_s if self.seek_at == NEVER else self.seek_at
        return max(since, self.dial.due_at)

    @property
    def is_in_line(self) -> bool:
        """Whether this node may be chosen."""
        return self.roster is not None and self.setup.endpoint in self.roster.line

    @property
    def hears_leader(self) -> bool:
        """Whether this node follows one that leads. Its member may have a link to one that does not: to an agent begun anew."""
        return self.linked and self.role is not Role.SEEKING and self.renewed_at > -NEVER

    @property
    def office(self) -> Mandate:
        """The mandate of a node that leads."""
        assert self.mandate is not None
        return self.mandate

    @property
    def held(self) -> Roster:
        """The roster of a node that seeks."""
        assert self.roster is not None
        return self.roster

    def is_elder(self, endpoint: str) -> bool:
        """Whether `endpoint` stands in the line before this node."""
        return self.roster is not None and comes_before(self.roster, endpoint, self.setup.endpoint)

    def is_of_another_run(self, roster: Roster | None) -> bool:
        """Whether `roster` is of another run than the one held. Where either is none, nobody can tell."""
        return self.roster is not None and roster is not None and roster.past.life != self.roster.past.life

    def end_of(self, life: str) -> JobReport | None:
        """How that run ended. None: it has not, as far as this host knows; the run that this node is in never has."""
        return None if life == self.life else self.setup.ended.get(life)

    def returns_to(self, roster: Roster | None) -> bool:
        """Whether that roster gives this node, which holds none, the say again that its earlier life had."""
        if roster is None or self.roster is not None or self.leads:
            return False
        return self.keeping.latest.life == roster.past.life

    def gives_loyalty(self, now: float) -> bool:
        """Whether the leader may count on this node, which renews its lease: no vote of an earlier life is for another."""
        if now >= self.setup.loyal_at:
            return True
        before = self.setup.before
        return before is not None and self.roster is not None and self.roster.term >= before.term

    def says_who_leads(self, link: int) -> list[Action]:
        """Tell a node that seeks the coordinator where it is, if this node knows."""
        leader = self.setup.endpoint if self.leads else self.leader if self.hears_leader else ""
        return [Transmit(link=link, message=Leads(endpoint=leader, term=self.term, life=self.life))] if leader else []


Step = tuple[State, list[Action]]


def looks_by(state: State, at: float) -> State:
    """Wake the machine at that time, at the latest."""
    return state if state.look_at <= at else replace(state, look_at=at)


def hung_up(state: State, now: float) -> Step:
    """Leave the dialled peer, if there is one."""
    if not state.dial.to:
        return state, []
    dial, out = state.dial.hang_up(now)
    return replace(state, dial=dial), out


# --- what the node around it reports, besides `MemberLink` -----------------------------------------------------------------


class LeaseRenewed(Reported):
    """The member heard a `Renewed`, perhaps with a newer roster."""

    roster: Roster | None = None


class LeaderSeeks(Reported):
    """The agent to which this node went as to its coordinator leads nobody, and shows what it holds."""

    roster: Roster | None
    held_s: float = 0.0


class LeaderNamed(Reported):
    """The member heard who leads."""

    leads: Leads


class TakenIn(Reported):
    """The coordinator said which run of the job it leads."""

    life: str


class SpareOrNot(Reported):
    """Whether this node waits for a place."""

    is_spare: bool


class Knocked(Reported):
    """A node came to this one as to the coordinator."""

    roster: int  # Version of the roster that it holds; 0: none.
    life: str = ""  # The run that it is of. Empty: it has not said.


class Seated(Reported):
    """A round of ours has formed, or who has a seat has changed: their endpoints, in the order of succession."""

    line: tuple[str, ...]


class ServesOrigin(Reported):
    """This node serves the job's endpoint: nobody else did when it was to be called."""


class JobEnded(Reported):
    """The job that this node leads has ended."""


class AgentLeaves(Reported):
    """This agent is about to end, and others go on: it leads no longer, and seeks nobody."""

    reason: str
