"""Who leads, where the nodes have only each other? The machine of one node; every node of an embedded job has one.

    following ──no Renewed for a lease──▶ seeking ──a majority's votes──▶ leading ──the mandate is over──▶ following
        ▲                                   │  ▲
        └──── Leads: somebody else ─────────┘  └─ each goes down the line that it holds, and asks

The sibling of `rendezvous.election.store_election`: there a store elects, here those who had a seat do. A node that has lost
the coordinator goes down the line of its roster and says `Seek` to each in turn. One that leads, or has a leader, answers
`Leads`. One that is in the line, is free itself and has the support of a majority answers `Propose`, and with a majority's
`Vote`s it leads. A node votes once in a term, for nobody whose roster is older than its own, and not while a promise binds it
(`rendezvous.election.leader_lease`).

The agent at the job's endpoint begins as the coordinator. If the first node that comes has a roster, the job was
there before: then it is a node as any other, the first in line.

State: `succession_state`. What a line of the table does: `leading`, `following`, `seeking`, `voting`. All roles and what leads
from one to another, as a walk of this machine finds them: docs/reference/succession.md.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Finish, Leads, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election import following, forced, leading, seeking
from holdfast.rendezvous.election.ballot import Ballot
from holdfast.rendezvous.election.elector_memory import ElectorMemory, Keeping, Remembered, to_remember
from holdfast.rendezvous.election.leader_lease import Mandate
from holdfast.rendezvous.election.messages import Follow, ForceAsked, MemberLink, Reported, RunOver
from holdfast.rendezvous.election.succession_state import (
    AgentLeaves,
    JobEnded,
    Knocked,
    LeaderNamed,
    LeaderSeeks,
    LeaseRenewed,
    Role,
    Seated,
    ServesOrigin,
    Setup,
    SpareOrNot,
    State,
    Step,
    TakenIn,
    hung_up,
    looks_by,
)
from holdfast.rendezvous.election.voting import asked_to_vote, claimed, stand, supported, took_over, voted, votes_kept
from holdfast.rendezvous.election.witness_claims import Claimed, Claims


class Succession:
    """The machine."""

    def __init__(self, setup: Setup, *, founder: bool, fresh_life: str) -> None:
        """`founder`: this agent serves the job's endpoint. `fresh_life`: names the run that it would found."""
        self.founder = founder
        before = setup.before or ElectorMemory()
        self.state = State(
            setup=setup,
            role=Role.FOLLOWING,
            life=fresh_life,
            leader=setup.origin,
            roster_at=setup.began_at,
            ballot=Ballot(setup.endpoint),
            claims=Claims(has_witness=setup.witness),
            term=before.term,
            keeping=Keeping(is_wanted=setup.is_remembered, kept=before, latest=before),
        )
        self.known: tuple[object, ...] = ()  # Term, roster and endpoint when it was last looked what to keep.

    # --- what the node asks ---------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where others reach this node, and it would serve. Empty: nowhere."""
        return self.state.setup.endpoint

    @property
    def life(self) -> str:
        """The run of the job that this node belongs to."""
        return self.state.life

    @property
    def term(self) -> int:
        """The latest in which this node led, followed or voted."""
        return self.state.term

    @property
    def roster(self) -> Roster | None:
        """What this node holds in case the coordinator is lost."""
        return self.state.roster

    @property
    def mandate(self) -> Mandate | None:
        """None: this node does not lead."""
        return self.state.mandate

    def at_ease(self, now: float) -> bool:
        """This node leads, and to answer a renewal is all that there is to do."""
        state = self.state
        if state.mandate is None or state.role is Role.FOUNDING or now >= self.deadline():
            return False
        return not state.claims.may_ask(now) or state.mandate.is_ample(now)

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """Lead, if we are at the endpoint; follow the node that is."""
        follows: Step = (self.state, [Follow(endpoint=self.state.setup.origin)])
        self.state, out = leading.founded(self.state, now) if self.founder else follows
        return out + self._remember(now)  # the endpoint, above all

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`. Links that are not ours, and messages of members, are ignored."""
        if isinstance(seen, Reported):
            self.state, out = transition(self.state, seen, now)
            return out + self._remember(now)
        state, over = _lead_within_mandate(self.state, now)
        did: list[Action] = []
        if not isinstance(seen, Tick):  # which comes before everything that a leader hears: thousands of words a second
            state, did = transition(state, seen, now)
        self.state, due = _due(state, now)
        keeps = self._remember(now)
        self.state, votes = votes_kept(self.state, now)
        return over + did + due + keeps + votes

    def _remember(self, now: float) -> list[Action]:
        """Have kept what this node now knows, and must not forget."""
        state = self.state
        known = state.term, state.roster, state.setup.endpoint
        if self.known and all(one is other for one, other in zip(known, self.known, strict=True)):
            return []
        is_here = self.known[2:] == known[2:]
        self.known = known
        memory = to_remember(state.keeping.latest, state.roster, state.term)
        if is_here and memory == state.keeping.latest:
            return []
        keeping, keeps = state.keeping.keep(memory, state.setup.endpoint, now)
        self.state = looks_by(replace(state, keeping=keeping), keeping.deaf_at)
        return keeps

    def deadline(self) -> float:
        state = self.state
        if state.mandate is not None:
            return min(state.mandate.counted, state.dial.due_at if state.knocks else NEVER, state.look_at)
        if state.roster is None:
            return min(state.lead_at, state.asks_elders_at)
        return min(max(state.seek_at, state.dial.due_at), state.look_at)


def transition(state: State, seen: Observation, now: float) -> Step:
    """The table, in three parts: what is seen where, and what follows. Time is `_due`'s matter."""
    match seen:  # in every role
        case ForceAsked():
            return forced.asked(state, seen, now)
        case LinkUp(link=link) if state.dial.uses(link):
            return _answered(state, now)
        case LinkDown(link=link, refused=refused) if state.dial.uses(link):
            return _broke(state, refused, now)
        case LinkUp() | LinkDown():
            state.ballot.links_change(seen)
            return state, []
        case Claimed():
            return claimed(state, seen, now)
        case Remembered():
            return replace(state, keeping=state.keeping.heard(seen)), []
        case LeaseRenewed(roster=roster):
            return following.renewed(state, roster, now)
        case TakenIn(life=life):
            return following.taken_in(state, life)
        case MemberLink(up=up):
            return replace(state, linked=up), []
        case SpareOrNot(is_spare=is_spare):
            return replace(state, is_spare=is_spare), []
        case ServesOrigin() if state.role is Role.FOLLOWING and state.roster is None:
            return leading.founded(leading.at_origin(state, now), now)
    return _while_it_leads(state, seen, now) if state.leads else _while_others_lead(state, seen, now)


def _while_it_leads(state: State, seen: Observation, now: float) -> Step:
    match state.role, seen:
        case Role.FOUNDING, Knocked(roster=roster, life=life):
            return leading.knocked_at(state, roster, life, now)
        case ((Role.FOUNDING | Role.LEADING), Seated(line=line)):
            return leading.seated(state, line, now)
        case _, JobEnded():
            return leading.job_ended(state)
        case _, AgentLeaves(reason=reason):
            return leading.left(state, reason, now)
        case _, LeaderNamed(leads=leads):
            return leading.outdone(state, leads, now)
        case _, Arrived(link=link, message=Leads() as leads) if link == state.dial.link:
            return leading.outdone(state, leads, now)
        case _, Arrived(link=link, message=Seek(leads=Leads() as leads)):
            after, out = leading.outdone(state, leads, now)
            return after, out + (after.says_who_leads(link) if after.leads else [])
        case _, Arrived(link=link, message=Seek() as seek) if following.is_in_reach(state, seek.term):
            return _sought(state, seek, link, now)
    return state, []  # a vote that comes late, a link that is not ours


def _while_others_lead(state: State, seen: Observation, now: float) -> Step:
    match seen:
        case LeaderSeeks(roster=Roster() as roster, held_s=held_s) if state.returns_to(roster):
            return took_over(state, roster, held_s, now), []
        case LeaderSeeks():
            return following.leads_no_longer(state, now), []
        case LeaderNamed(leads=leads):
            return following.led_by(state, leads, now)
        case Arrived(link=link, message=Seek(leads=Leads() as leads)):
            believes = following.may_follow(state, leads, now)
            after, out = following.led_by(state, leads, now) if believes else following.disbelieved(state, leads)
            return after, out if after.leader != state.leader else out + state.says_who_leads(link)
        case Arrived(link=state.dial.link, message=Leads() as leads) if following.is_in_reach(state, leads.term):
            return following.led_by(state, leads, now)
        case Arrived(link=link, message=Finish() as finish) if state.dial.uses(link):
            after, hangs_up = hung_up(state, now)
            return after, [*hangs_up, RunOver(finish=finish)]
        case Arrived(link=link, message=Propose() as proposed) if state.dial.uses(link):  # over another our vote would be lost
            return asked_to_vote(state, proposed, now)
        case Arrived(link=link, message=Seek(elder=elder)) if elder:
            is_asked = link == state.dial.link and state.role is Role.SEEKING
            return seeking.referred(state, elder, now) if is_asked else (state, [])
        case Arrived(link=link, message=Vote() as vote):
            return voted(state, vote, link, now)
        case Arrived(link=link, message=Seek() as seek) if following.is_in_reach(state, seek.term):
            return _sought(state, seek, link, now)
    return state, []  # a link that is not ours


def _due(state: State, now: float) -> Step:
    """What time brings."""
    if now >= state.look_at:
        state = replace(state, look_at=NEVER, keeping=state.keeping.waited(now))
        state = looks_by(state, state.keeping.deaf_at)
    match state.role:
        case Role.FOUNDING | Role.LEADING | Role.ENDED:
            return leading.keep_leading(state, now)
        case Role.YIELDING:
            return leading.founded(state, now) if now >= state.lead_at else (state, [])
        case Role.FOLLOWING if state.roster is not None and now >= state.seek_at:
            return _seek(replace(state, role=Role.SEEKING), now)
        case Role.FOLLOWING:
            return seeking.ask_elders(state, now)
        case Role.SEEKING:
            return _seek(state, now)


def _seek(state: State, now: float) -> Step:
    state, out = seeking.go_down(state, now)
    if state.dial.up and not state.said_free and now >= state.free_at:
        state, says = seeking.speak(replace(state, dial=replace(state.dial, until=now + state.dial.wait_s)), now)
        out += says
    if state.role is not Role.SEEKING:  # it leads alone
        return state, out
    state, stands = stand(state, now)
    return state, out + stands


def _lead_within_mandate(state: State, now: float) -> Step:
    if state.mandate is None or state.mandate.ends(now) > now:
        return state, []
    return leading.mandate_over(state, now)


def _answered(state: State, now: float) -> Step:
    """The dialled peer is there: say what we want of it."""
    if state.force is not None:
        return forced.answered(state, state.force, now)
    elder = state.met_elder or state.is_elder(state.dial.to)
    state = replace(state, dial=state.dial.answered(now), refused={}, said_free=False, met_elder=elder)
    if state.leads:
        return state, leading.speak_as_leader(state)
    if state.roster is None and not state.setup.elders:
        return hung_up(state, now)
    state, says = seeking.speak(state, now)
    return state, says + seeking.with_elder(state)


def _broke(state: State, refused: bool, now: float) -> Step:
    """The link to the dialled peer is gone, or there was none."""
    endpoint = state.dial.to
    if state.force is not None and not refused:
        state = forced.silent(state, state.force)
    state = seeking.refusing(state, endpoint, now) if refused else seeking.answering(state, endpoint)
    return replace(state, dial=state.dial.broke(now + leading.KNOCK_S * state.leads)), []


def _sought(state: State, seek: Seek, link: int, now: float) -> Step:
    """A node seeks a leader: tell it of ours, or count it among those that would have us."""
    out: list[Action] = []
    if seek.roster is not None:
        if (report := state.end_of(seek.roster.past.life)) is not None:
            return state, [Transmit(link=link, message=Finish(report=report))]
        if state.role is Role.FOUNDING:
            state, out = leading.knocked_at(state, seek.roster.version, seek.roster.past.life, now)
        if not state.leads and not (state.roster is not None and state.hears_leader):
            state = took_over(state, seek.roster, seek.held_s, now, brings=seek.node or "?")
    state = supported(state, seek, link)
    if state.leads or state.leader not in (seek.node, ""):
        out += state.says_who_leads(link)
    if state.role is Role.SEEKING:
        out += seeking.told_of_elder(state, seek, link)
    if not state.leads and not state.is_in_line:
        out.append(HangUp(link=link))  # we cannot lead: it need not wait for us
    return state, out
