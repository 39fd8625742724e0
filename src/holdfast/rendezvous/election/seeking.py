"""Whom does a node ask that has lost its leader, and when does it give up? Part of `rendezvous.election.succession`."""

from __future__ import annotations

from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Seek
from holdfast.rendezvous.election.messages import GiveUp
from holdfast.rendezvous.election.peer_dialer import WAIT_S
from holdfast.rendezvous.election.roster import aged
from holdfast.rendezvous.election.succession_state import State, Step, hung_up, looks_by
from holdfast.rendezvous.election.voting import won_alone

STAND_S = 1.0  # How long to wait at one's own place in the line for the others to come.

GONE_S = 60.0
"""How long everybody in the line must have refused to be called until a node takes the job to be over. A host that starts again
answers nothing for a while, which counts anew; then its agent has this long to come back, at the endpoint."""

GONE_SPARE_S = 10.0
"""The same for a spare: a job that comes back can do without it, sooner than a spare without its job."""

OF_HALF = "let a third party decide: --witness DIR, which all nodes share; or risk two sides: --on-split continue"
"""What helps where one half is left: one of two nodes, above all."""

OF_MORE = (
    "it joins the others as soon as it reaches one; if they are dead, start the agent at the job's endpoint again; to go on"
    " without them, at the risk of two sides: --on-split continue"
)
"""What helps where fewer than half are left."""


def speak(state: State, now: float) -> Step:
    """Tell the dialled peer what this node holds, and whether its promise is over."""
    free = now >= state.free_at
    state = replace(state, said_free=free)
    if not free:
        dial = replace(state.dial, until=max(state.dial.until, state.free_at + WAIT_S))
        state = looks_by(replace(state, dial=dial), state.free_at)
    roster = replace(state.held, past=aged(state.held.past, now - state.roster_at))
    return state, state.dial.say(Seek(node=state.setup.endpoint, term=state.term, roster=roster, free=free))


def go_down(state: State, now: float) -> Step:
    """Go down the line, from one to the next, and begin again at its end."""
    if now < state.dial.due_at:
        return state, []
    if state.dial.to:
        state, hangs_up = hung_up(answering(state, state.dial.to), now)
        state, goes_on = go_down(state, now)
        return state, hangs_up + goes_on
    line = state.held.line
    if state.place >= len(line):
        state, out = _line_done(replace(state, place=0), now)
        return (state, out) if out else go_down(state, now)
    endpoint = line[state.place]
    state = replace(state, place=state.place + 1)
    if endpoint == state.setup.endpoint:
        return replace(state, dial=replace(state.dial, next_at=now + STAND_S)), []
    dial, out = state.dial.call(endpoint, now)
    return replace(state, dial=dial), out


def answering(state: State, endpoint: str) -> State:
    """That one refuses calls no longer, or its host does not even refuse: its agent may come back."""
    return replace(state, refused={one: at for one, at in state.refused.items() if one != endpoint})


def refusing(state: State, endpoint: str, now: float) -> State:
    """That one's host answers, and no agent does."""
    return replace(state, refused={endpoint: now, **state.refused})


def _line_done(state: State, now: float) -> Step:
    """The whole line has been asked."""
    elder, state = state.met_elder, replace(state, met_elder=False)
    if now < state.free_at:
        return replace(state, dial=replace(state.dial, next_at=now + STAND_S)), []
    if state.setup.goes_on and not elder and state.is_in_line:
        return won_alone(state, now)
    if _all_are_gone(state, now):
        gone = "the agents of all other nodes are gone: the job is over; how it ended is not known here"
        gone += " (most likely this node, a spare, was cut off as it ended)" if state.is_spare else ""
        hint = "the other nodes' agents have printed how, and `holdfast report` tells it there"
        return state, [GiveUp(reason=gone, hint=hint)]
    if state.complained:
        return state, []
    complaint: list[Action] = [Say(text=_trouble(state), level="error")]
    return replace(state, complained=True), complaint


def _all_are_gone(state: State, now: float) -> bool:
    others = [endpoint for endpoint in state.held.line if endpoint != state.setup.endpoint]
    gone_s = GONE_SPARE_S if state.is_spare else GONE_S
    return bool(others) and all(state.refused.get(endpoint, now) <= now - gone_s for endpoint in others)


def _trouble(state: State) -> str:
    """Why nobody leads, and what would help."""
    roster, largest = state.held, state.held.largest
    what = f"the coordinator at {state.leader or roster.line[0]} is lost, or cut off from this node"
    if largest.size == 2 and not largest.witness:
        stays = "the other of two nodes cannot know which, so its ranks stay stopped"
        return f"{what}; {stays}\n  hint: {OF_HALF}"
    here, lacking = state.ballot.most_short(roster)
    late = len(state.ballot.willing) - here
    more = f" ({late} more here came too late to have a say)" if late else ""
    short = f"{here} of {lacking.size} nodes are here, and {lacking.majority} could go on{more}: the ranks stay stopped"
    return f"{what}; {short}\n  hint: {OF_HALF if 2 * here == lacking.size and not lacking.witness else OF_MORE}"
