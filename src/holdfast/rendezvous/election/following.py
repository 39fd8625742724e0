"""Follower role: accepts a leader and its roster, and stops voting while bound by a promise. Who is believed to lead?

Transitions of `rendezvous.election.succession`. Whoever has the job's token can say of a node that it leads. What the hearer
knows of its own decides:

    a leader with a mandate     no: others can elect nobody before that is over (`leader_lease`). Unless the other leads the run
                                that this host was in before: then this one was begun unawares
    a forced leader             its operator was wrong if one that is declared lost leads: then that one goes on
    a leader whose job ended    no
    a leader without a mandate  the later term; and before the first round anybody: nothing runs that could be lost
    a node under a lease        its own coordinator's word only: no lease outlives a mandate, so nobody else can lead
    a node whose lease is over  yes, unless the term is out of reach
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Leads, Roster
from holdfast.rendezvous.election.forced import FORCED_TERMS
from holdfast.rendezvous.election.messages import Follow
from holdfast.rendezvous.election.peer_dialer import CONNECT_S
from holdfast.rendezvous.election.succession_state import NO_PROPOSAL, Role, State, Step, hung_up

TERMS_AHEAD = 1 << 16
"""A term grows by one in each election, and by `FORCED_TERMS` for an operator. One that is further ahead is no node's:
believed, it would leave no number for the next."""


# --- its own leader -----------------------------------------------------------------------------------------------------


def renewed(state: State, roster: Roster | None, now: float) -> Step:
    """The member heard a `Renewed`, perhaps with a newer roster."""
    said: list[Action] = []
    if roster is not None and _is_news(state, roster):
        role = state.role if state.leads else Role.FOLLOWING
        term, life = max(state.term, roster.term), roster.past.life
        state = replace(state, role=role, roster=roster, roster_at=now, drawn_at=now, term=term, life=life)
        said = _announced(roster)
    state, hangs_up = _bound(state, now)
    return state, said + hangs_up


def led_by(state: State, leads: Leads, now: float) -> Step:
    """Somebody says who leads. Old news changes nothing."""
    if leads.term < state.term or leads.endpoint == state.setup.endpoint:
        return state, []
    if leads.endpoint == state.leader and (state.linked or state.role is not Role.SEEKING):
        return state, []  # else it leads again: our member need not wait until it tries the next time
    if leads.term == state.term and state.hears_leader and leads.endpoint < state.leader:
        return state, []  # two were forced to lead, each by an operator: as they would settle it between them
    return followed(state, leads, now)


def leads_no_longer(state: State, now: float) -> State:
    """Our leader's agent says that it leads nobody: it has stepped down, or was started again. Seek with it, at once: there is
    no answer to wait for, and it may know less than we."""
    if state.role is not Role.FOLLOWING or state.roster is None or now >= state.seek_at:
        return state
    line = state.roster.line
    return replace(state, seek_at=now, place=line.index(state.leader) if state.leader in line else 0)


def followed(state: State, leads: Leads, now: float) -> Step:
    """Go to that leader."""
    if leads.life != state.life:
        state = forgotten(state)  # another job by the same name, which had begun unawares; who has a say in it has none here
    state = replace(
        state,
        role=Role.FOLLOWING,
        leader=leads.endpoint,
        term=max(state.term, leads.term),
        lead_at=NEVER,
        seek_at=now + state.setup.lease_s,
        force=None,
        place=0,
        linked=False,
    )
    state, hangs_up = hung_up(state, now)
    return state, [*hangs_up, Follow(endpoint=leads.endpoint)]


def taken_in(state: State, life: str) -> Step:
    """Our coordinator has said which run of the job it leads: what is held of another is void."""
    return (forgotten(state) if state.roster is not None and state.roster.past.life != life else state), []


def forgotten(state: State) -> State:
    """What this node holds is of another run of the job."""
    state.ballot.clear()
    role = state.role if state.leads else Role.FOLLOWING
    return replace(state, role=role, roster=None, proposal=NO_PROPOSAL, lead_at=NEVER)


def _is_news(state: State, roster: Roster) -> bool:
    return state.roster is None or state.is_of_another_run(roster) or roster.version > state.roster.version


def _announced(roster: Roster) -> list[Action]:
    newest, *older = (one.size for one in roster.electorates)
    nodes = f"{newest} nodes{''.join(f', and the {size} of before,' for size in older)}"
    if len(roster.line) < 2:
        return []
    what = f"the {nodes} choose another, first of all {', '.join(roster.line[1:4])}"
    return [Say(text=f"if the coordinator is lost, {what}", level="debug")]


def _bound(state: State, now: float) -> Step:
    """Promise our support to the leader that has just been heard."""
    if state.leader in ("", state.setup.endpoint):
        return state, []  # it was our own word, and binds nobody
    if state.roster is None:
        return replace(state, renewed_at=now), []
    state = replace(
        state,
        role=Role.FOLLOWING,
        force=None,
        renewed_at=now,
        free_at=max(state.free_at, now + state.roster.promise_s),
        seek_at=now + state.setup.lease_s,
        place=1,
        met_elder=False,
        complained=False,
        refused={},
        dial=replace(state.dial, connect_s=CONNECT_S),
    )
    return hung_up(state, now)


# --- what is said of others ---------------------------------------------------------------------------------------------


def is_in_reach(state: State, term: int) -> bool:
    """Whether a node of this job may know of that term."""
    return 0 <= term <= state.term + TERMS_AHEAD


def gives_way(state: State, leads: Leads) -> bool:
    """This node leads: whether it is to follow the one that says so too."""
    own = state.setup.endpoint
    if leads.endpoint == own or not is_in_reach(state, leads.term):
        return False
    is_later = (leads.term, leads.endpoint) > (state.term, own)
    match state.role:
        case Role.ENDED:
            return False
        case Role.FOUNDING:
            return True
        case _ if leads.life != state.life and state.setup.before is not None and leads.life == state.setup.before.life:
            return True
        case _ if leads.endpoint in state.declared_lost:
            return is_later or leads.term <= state.term - FORCED_TERMS // 2  # it was not forced itself
    return is_later and not state.office.bodies


def may_follow(state: State, leads: Leads, now: float) -> bool:
    """Another than this node's own coordinator says that one leads: whether it is to be followed."""
    is_led = now < state.renewed_at + state.setup.lease_s or (state.roster is None and state.linked)
    return is_in_reach(state, leads.term) and not is_led


def disbelieved(state: State, leads: Leads) -> Step:
    """Say so once: it may be an attack, or a node that was cut off and hears it now."""
    if leads.endpoint in (state.disbelieved, state.setup.endpoint, state.leader) or leads.term < state.term:
        return state, []
    why = "this agent has the mandate" if state.leads else "this node has a coordinator"
    text = f"a node says that {leads.endpoint} leads the job: not believed, since {why}"
    said: list[Action] = [Say(text=text, level="warning")]
    return replace(state, disbelieved=leads.endpoint), said
