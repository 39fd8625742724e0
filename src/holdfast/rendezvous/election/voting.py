"""Who is chosen? Support, proposals, votes and the witness's word. Part of `rendezvous.election.succession`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.links import Transmit
from holdfast.core.wire.messages import Leads, Past, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election.following import is_in_reach
from holdfast.rendezvous.election.forced import declared_lost, is_forced
from holdfast.rendezvous.election.leader_lease import TERM, Body, Mandate, is_version_of
from holdfast.rendezvous.election.messages import Lead
from holdfast.rendezvous.election.roster import adopted, aged, elector_of
from holdfast.rendezvous.election.succession_state import NO_PROPOSAL, Proposal, Role, State, Step, hung_up, looks_by
from holdfast.rendezvous.election.witness_claims import Claimed
from holdfast.rendezvous.lease import FENCE_S

ALONE_S = 30.0  # After so long without a leader one node's word on who has a say is enough.
PROPOSE_S = 1.0  # How long a proposal waits for its votes, at least. They take a round trip, and a link takes three.


def supported(state: State, seek: Seek, link: int) -> State:
    """A node that seeks a leader has come; it may support us."""
    if not state.is_of_another_run(seek.roster):
        state.ballot.came(seek, link)  # who has a say in another run has none in ours, though both count from one
    return replace(state, refused={}) if state.refused else state


def took_over(state: State, roster: Roster, held_s: float, now: float, *, brings: str = "") -> State:
    """Take a newer roster from one that would support us: what it says of itself does not hold for us. `held_s`: for how long
    it has been known; `brings`: by which node, if it is not our own leader's."""
    if state.roster is not None and (state.is_of_another_run(roster) or state.roster.version >= roster.version):
        return state
    if state.roster is not None and brings and not _is_borne_out(state, state.roster, roster, brings, now):
        return state
    if not is_in_reach(state, roster.term) or not is_version_of(roster.term, roster.version):
        return state
    roster = replace(roster, past=replace(roster.past, report=None))  # how the job ended is for its coordinator to say
    if state.roster is None:
        if not state.keeping.may_recall(roster, state.setup.known_round):
            return state  # by then others had a say: our earlier life had told them, and let go of these
        roster = state.keeping.recalled(roster, state.setup.known_round)
    if state.roster is not None:
        roster = replace(roster, promise_s=min(roster.promise_s, state.roster.promise_s))
    before = state.roster or state.keeping.latest.roster
    held = adopted(roster, state.setup.endpoint, () if before is None else elector_of(before))
    drawn_at = now - held_s
    if state.roster is None:
        # We may have promised something as an elector under our endpoint's name in an earlier life, or by a `Renewed` that
        # brought us none. And the coordinator counts on nodes that it has not heard for a promise from when it drew the
        # roster up.
        promised_at = max(state.setup.began_at, state.renewed_at, drawn_at)
        state = replace(
            state,
            role=Role.FOLLOWING,
            free_at=max(state.free_at, promised_at + roster.promise_s),
            seek_at=max(now, state.renewed_at + state.setup.lease_s),
            place=0,
        )
    return looks_by(replace(state, roster=held, roster_at=now, drawn_at=drawn_at, life=roster.past.life), state.free_at)


def _is_borne_out(state: State, ours: Roster, roster: Roster, brings: str, now: float) -> bool:
    """Whether another node's word is enough for that roster. Who has a say by ours must have one by it, too: a coordinator
    drops an electorate only when most in it know the next. So else most in it have to bring such a roster, or nobody else has
    come for long: those others are gone."""
    newest = ours.electorates[0] if ours.electorates else None
    if newest is None or any((one.id, one.size) == (newest.id, newest.size) for one in roster.electorates):
        return True
    if max(state.seek_at, state.free_at) + ALONE_S <= now:
        return True
    bring = {brings, state.setup.endpoint}
    for node, link in state.ballot.links.items():
        known = state.ballot.seeks[link].roster
        if known is not None and known.version >= roster.version:
            bring.add(node)
    return len(state.ballot.of(ours, newest, bring)) >= newest.majority


def stand(state: State, now: float) -> Step:
    """Propose ourselves if a majority would have us."""
    if not state.is_in_line or (state.dial.up and state.is_elder(state.dial.to)):
        return state, []
    if now < (free_at := max(state.free_at, state.proposal.until)):
        return (looks_by(state, free_at) if state.ballot.seeks else state), []
    if short := state.ballot.short(state.held, state.ballot.willing):
        # Where one vote more would do, ask for it.
        if not state.claims.may_ask(now) or not state.ballot.lacks_the_witness(state.held, short):
            return state, []
        newest = short[0].id == state.held.electorates[0].id
        missing = (one for one in state.held.line if newest and one not in state.ballot.willing)
        claims, out = state.claims.ask(state.life, short[0].id, state.setup.endpoint, missing)
        return replace(state, claims=claims), out
    until = now + max(PROPOSE_S, state.dial.connect_s)
    proposal = Proposal(at=now, until=until, votes=frozenset())  # our own vote comes when the term is kept
    state = looks_by(replace(state, term=1 + max(state.term, state.ballot.term), proposal=proposal), proposal.until)
    if not state.ballot.short(state.held, {state.setup.endpoint}):
        return state, []
    propose = Propose(term=state.term, mark=now, roster=state.held.version)
    return state, [Transmit(link=link, message=propose) for link in state.ballot.links.values()]


def asked_to_vote(state: State, proposed: Propose, now: float) -> Step:
    """Vote once in a term, for nobody whose roster is older, and not while a promise binds us."""
    if state.roster is None or proposed.roster < state.roster.version:
        return state, []
    if proposed.term <= state.term or not is_in_reach(state, proposed.term) or now < max(state.free_at, state.proposal.until):
        return state, []
    dial = replace(state.dial, until=now + state.dial.wait_s)
    vote = Vote(node=state.setup.endpoint, term=proposed.term, mark=proposed.mark)
    free_at = now + state.roster.promise_s
    return replace(state, term=proposed.term, free_at=free_at, dial=dial, owed=(dial.link, vote)), []


def votes_kept(state: State, now: float) -> Step:
    """Say, and count, the votes whose term is kept by now."""
    if not state.keeping.knows_term(state.term):
        return state, []
    if state.owed is not None:
        (link, vote), state = state.owed, replace(state, owed=None)
        return state, state.dial.say(vote) if state.dial.uses(link) and vote.term == state.term else []
    proposal, own = state.proposal, state.setup.endpoint
    if now >= proposal.until or own in proposal.votes:
        return state, []
    return _counted(state, own, now)


def voted(state: State, vote: Vote, link: int, now: float) -> Step:
    """Count a vote for our proposal, and lead with a majority. A link has the vote of the node that came over it only."""
    proposal = state.proposal
    if vote.term != state.term or now >= proposal.until or vote.mark != proposal.at:
        return state, []
    if state.ballot.links.get(vote.node) != link:
        return state, []
    return _counted(state, vote.node, now)


def _counted(state: State, node: str, now: float) -> Step:
    votes = state.proposal.votes | {node}
    state = replace(state, proposal=replace(state.proposal, votes=votes))
    enough = state.setup.endpoint in votes and not state.ballot.short(state.held, votes)
    return _won(state, now) if enough else (state, [])


def claimed(state: State, answer: Claimed, now: float) -> Step:
    """The witness has answered."""
    claims, said = state.claims.answered(answer, now)
    state = replace(state, claims=claims)
    if not answer.granted:
        return looks_by(state, claims.ask_at), said
    state.ballot.claimed(answer.id)
    if state.mandate is not None:
        state.mandate.claimed(answer.id)
    return state, said


def won_alone(state: State, now: float) -> Step:
    """Lead without a majority, as the user has asked for (--on-split continue)."""
    state = replace(state, term=state.term + 1)
    fence_s = FENCE_S + state.setup.lease_s
    return _leading(state, (), {}, fence_s, "without a majority (--on-split continue)", now)


def _won(state: State, now: float) -> Step:
    """Lead with the votes of a majority."""
    roster, ballot, voters = state.held, state.ballot, state.proposal.votes
    until = state.proposal.at + roster.promise_s
    bodies = [
        Body(one.id, one.size, one.line or ballot.of(roster, one, voters), witness=one.witness, claimed=one.id in ballot.claims)
        for one in roster.electorates
    ]
    votes = f"with the votes of {len(voters)} of {roster.electorates[0].size} nodes"
    votes += " and the witness's" if any(body.claimed for body in bodies) else ""
    loyal = dict.fromkeys(voters - {state.setup.endpoint}, until)
    fence_s = FENCE_S + state.setup.lease_s * is_forced(roster.past)
    return _leading(state, bodies, loyal, fence_s, votes, now)


def _leading(state: State, bodies: Collection[Body], loyal: dict[str, float], fence_s: float, how: str, now: float) -> Step:
    endpoint, roster, before = state.setup.endpoint, state.held, state.leader or state.held.line[0]
    mandate = Mandate(
        endpoint,
        term=state.term,
        lease_s=state.setup.lease_s,
        witness=state.setup.witness,
        version=max(roster.version, state.term * TERM),
        bodies=bodies,
        loyal=loyal,
    )
    past = replace(aged(roster.past, now - state.roster_at), fence_s=fence_s)
    links = list(state.ballot.seeks)
    state.ballot.clear()
    state = replace(
        state,
        role=Role.LEADING,
        mandate=mandate,
        leader=endpoint,
        proposal=NO_PROPOSAL,
        lead_at=NEVER,
        declared_lost=declared_lost(roster),
        linked=False,
        dial=replace(state.dial, next_at=now),
    )
    state, hangs_up = hung_up(state, now)
    return state, [*hangs_up, *_told_by(state, before, how, past, links)]


def _told_by(state: State, before: str, how: str, past: Past, links: Iterable[int]) -> Iterable[Action]:
    """What a new leader says: to its node, to people, and to all who have come."""
    lost, endpoint = f"the coordinator at {before} was lost", state.setup.endpoint
    yield Lead(past=past, reason=lost)
    told = f"{lost}: this agent leads the job now, {how}; new nodes can join at {endpoint}"
    yield Say(text=told, level="warning")
    leads = Leads(endpoint=endpoint, term=state.term, life=state.life)
    for link in links:
        yield Transmit(link=link, message=leads)
