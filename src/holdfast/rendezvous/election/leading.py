"""What does a node do that leads, and when does it stop? Part of `rendezvous.election.succession`."""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Leads, Past, Seek
from holdfast.rendezvous.election.ballot import Ballot
from holdfast.rendezvous.election.following import disbelieved, followed, forgotten, gives_way
from holdfast.rendezvous.election.leader_lease import Mandate
from holdfast.rendezvous.election.messages import Lead, StepDown
from holdfast.rendezvous.election.succession_state import Role, State, Step, hung_up
from holdfast.rendezvous.election.voting import PROPOSE_S
from holdfast.rendezvous.lease import FENCE_S

KNOCK_S = 0.5  # How often a successor looks whether somebody began anew at the job's endpoint.

ELDER_S = 3.0
"""How long, at least, an agent at the endpoint, where another of this job was cut short, waits for a successor's knock before
its first round: a few knocks. It waits as long as that other's leases may last, too."""

YIELD_S = 30.0
"""How long an agent at the endpoint that found an older job leaves the lead to that, if it hears no more of it; or begins none
with fewer nodes than could go on without it."""


def founded(state: State, now: float) -> Step:
    """Lead, since nobody else does."""
    setup = state.setup
    mandate = Mandate(setup.endpoint, term=state.term, lease_s=setup.lease_s, witness=setup.witness)
    state = replace(state, role=Role.FOUNDING, mandate=mandate, leader=setup.endpoint, lead_at=NEVER, linked=False)
    if not setup.known_round:
        return state, [Lead(past=Past(life=state.life))]
    waits = f"an agent of this job was here before and did not see its end: {elder_s(state):g} s for its nodes,"
    waits += " should they go on"
    if (few := voters(state)) > 1:
        waits += f"; {YIELD_S:g} s if fewer than {few} nodes come"
    return state, [Say(text=waits), Lead(past=Past(life=state.life, fence_s=elder_s(state)))]


def elder_s(state: State) -> float:
    """How long a founder waits for a knock before its first round: 0 where no agent of this job was cut short here."""
    return max(ELDER_S, state.setup.lease_s + FENCE_S) if state.setup.known_round else 0.0


def voters(state: State) -> int:
    """How many voters of the earlier run could outvote the others, as this agent's earlier life knew it; 0: there was none."""
    before = state.setup.before
    if not state.setup.known_round or before is None or before.roster is None or before.life in state.setup.ended:
        return 0
    return before.roster.largest.majority


def at_origin(state: State, now: float) -> State:
    """This node is reached at the job's endpoint from now on; nobody knows of it at another. Another agent may have been there
    until now, and promised something."""
    setup = replace(state.setup, endpoint=state.setup.origin, began_at=now, loyal_at=now + PROPOSE_S)
    return replace(state, setup=setup, ballot=Ballot(setup.endpoint))


def seated(state: State, line: tuple[str, ...], now: float) -> Step:
    """A round of ours has formed, or who has a seat has changed."""
    state.office.change(line, now)
    return (replace(state, role=Role.LEADING) if state.role is Role.FOUNDING else state), []


def job_ended(state: State) -> Step:
    """Nobody else need ever lead: the mandate has no end."""
    state.office.waive()
    return (replace(state, role=Role.ENDED) if state.role is Role.LEADING else state), []


def knocked_at(state: State, roster: int, life: str, now: float) -> Step:
    """A founder leaves the lead to an older run of the job, of which a node has come with a roster."""
    if not roster or state.end_of(life) is not None:
        return state, []
    if not life and state.setup.ended and not state.setup.known_round:
        return state, []  # the last run here is over: a node of it changes nothing, and its Join will say what it is of
    state, out = stepped_down(state, "this job was there before, and its nodes choose who leads it", now)
    return replace(state, role=Role.YIELDING if state.roster is None else state.role, lead_at=now + YIELD_S), out


def stepped_down(state: State, reason: str, now: float) -> Step:
    """Lead no longer, and be free to vote."""
    state.ballot.clear()
    dial = replace(state.dial, next_at=now)
    state = replace(state, role=Role.FOLLOWING, mandate=None, leader="", free_at=now, seek_at=now, dial=dial)
    state, hangs_up = hung_up(state, now)
    return state, [StepDown(reason=reason), *hangs_up]


def left(state: State, reason: str, now: float) -> Step:
    """Lead no longer, and do not seek to: this agent is about to end."""
    state, out = stepped_down(state, reason, now)
    return forgotten(state), out


def outdone(state: State, leads: Leads, now: float) -> Step:
    """Another says that it leads too."""
    if not gives_way(state, leads):
        rival = leads.endpoint if leads.endpoint in state.declared_lost else ""  # it may have to give way, and not know of us
        return disbelieved(replace(state, rival=rival), leads)
    state, stops = stepped_down(state, f"{leads.endpoint} leads it", now)
    state, follows = followed(state, leads, now)
    return state, stops + follows


def mandate_over(state: State, now: float) -> Step:
    """Too few are loyal: others may be about to choose another."""
    loyal, all_ = state.office.heard_of(now)
    lost = f"only {loyal} of {all_} nodes answer"
    if state.setup.goes_on:
        state.office.waive()  # until somebody comes or goes
        risk = "going on all the same (--on-split continue); if the others live, and do the same, the job runs twice"
        return state, [Say(text=f"{lost}: {risk}", level="warning")]
    return stepped_down(state, f"{lost}, and the others may go on without them", now)


def keep_leading(state: State, now: float) -> Step:
    """What time brings to a leader: a knock at the job's endpoint, and a question to the witness."""
    state, out = _knock(state, now)
    state, asks = _ask_witness_to_stay(state, now)
    return state, out + asks


def speak_as_leader(state: State) -> list[Action]:
    """Ask an agent that began anew at the endpoint to follow."""
    leads = Leads(endpoint=state.setup.endpoint, term=state.term, life=state.life)
    return state.dial.say(Seek(node=state.setup.endpoint, term=state.term, leads=leads)) if state.knocks else []


def _knock(state: State, now: float) -> Step:
    """Call the endpoint: an agent that begins anew there must hear of us before it can form a round. Every other call goes to
    one that has long been silent: started again, it looks for the coordinator at the job's endpoint, and may find nobody."""
    if not state.knocks or now < state.dial.due_at:
        return state, []
    if state.dial.to:
        return hung_up(replace(state, dial=replace(state.dial, next_at=now + KNOCK_S)), now)
    silent = state.office.silent(now)
    to = silent[state.place // 2 % len(silent)] if silent and state.place % 2 else state.setup.origin
    dial, out = state.dial.call(state.rival or to, now)
    return replace(state, dial=dial, place=state.place + 1, rival=""), out


def _ask_witness_to_stay(state: State, now: float) -> Step:
    if not state.claims.may_ask(now) or not (id := state.office.wants_witness(now)):
        return state, []
    claims, out = state.claims.ask(state.life, id, state.setup.endpoint, state.office.missing(id, now))
    return replace(state, claims=claims), out
