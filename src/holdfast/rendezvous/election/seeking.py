"""Whom does a node ask that has lost its leader, and when does it give up? Part of `rendezvous.election.succession`."""

from __future__ import annotations

from holdfast.core.job.events import CoordinatorMissing
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.value import replace
from holdfast.core.wire.links import HangUp, Transmit
from holdfast.core.wire.messages import Seek
from holdfast.rendezvous.election.forced import call_next, silent
from holdfast.rendezvous.election.messages import GiveUp
from holdfast.rendezvous.election.roster import aged
from holdfast.rendezvous.election.succession_state import State, Step, hung_up, looks_by
from holdfast.rendezvous.election.voting import won_alone

STAND_S = 1.0  # How long to wait at one's own place in the line for the others to come.

GONE_S = 60.0
"""How long everybody in the line must have refused to be called until a node takes the job to be over. A host that starts again
answers nothing for a while, which counts anew; then its agent has this long to come back, at the endpoint."""

GONE_SPARE_S = 10.0
"""The same for a spare: a job that comes back can do without it, sooner than a spare without its job."""

MOST_NAMED = 64  # Nodes that a command for a person names.

OF_HALF = "let a third party decide: --witness DIR, which all nodes share; or risk two sides: --on-split continue"
"""What helps where one half is left: one of two nodes, above all."""

OF_MORE = "it joins the others as soon as it reaches one; if they have died, start their agents again on the same hosts"
"""What helps where fewer than half are left."""


def speak(state: State, now: float) -> Step:
    """Tell the dialled peer what this node holds, and whether its promise is over."""
    free = now >= state.free_at
    state = replace(state, said_free=free)
    if not free:
        dial = replace(state.dial, until=max(state.dial.until, state.free_at + state.dial.wait_s))
        state = looks_by(replace(state, dial=dial), state.free_at)
    return state, state.dial.say(seeks(state, now, free=free))


def seeks(state: State, now: float, *, free: bool) -> Seek:
    """What this node says to one that may lead, or seeks a leader too."""
    if state.roster is None:
        return Seek(node=state.setup.endpoint, term=state.term)
    roster = replace(state.roster, past=aged(state.roster.past, now - state.roster_at))
    return Seek(node=state.setup.endpoint, term=state.term, roster=roster, held_s=now - state.drawn_at, free=free)


def referred(state: State, elder: str, now: float) -> Step:
    """The dialled peer would have an elder: go there. Not again and again: it may be out of our reach alone."""
    if elder not in state.held.line or now < state.referred_at + state.dial.wait_s:
        return state, []
    return hung_up(replace(state, referred_at=now, place=state.held.line.index(elder)), now)


def with_elder(state: State) -> list[Action]:
    """We are with an elder, whom we would have: tell those who would have us, and spare it a call of its own."""
    return [action for link, seek in state.ballot.seeks.items() for action in told_of_elder(state, seek, link)]


def told_of_elder(state: State, seek: Seek, link: int) -> list[Action]:
    """The same, to one of them."""
    if not state.dial.up or not state.is_elder(state.dial.to):
        return []
    if seek.node == state.dial.to:
        return [HangUp(link=link)]
    return [Transmit(link=link, message=Seek(node=state.setup.endpoint, term=state.term, elder=state.dial.to))]


def go_down(state: State, now: float) -> Step:
    """Go down the line, from one to the next, and begin again at its end."""
    if now < state.dial.due_at:
        return state, []
    if state.dial.to:
        state = answering(state, state.dial.to) if state.force is None else silent(state, state.force)
        state, hangs_up = hung_up(state, now)
        state, goes_on = go_down(state, now)
        return state, hangs_up + goes_on
    if state.force is not None:
        return call_next(state, now)
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


def ask_elders(state: State, now: float) -> Step:
    """Ask those whom an earlier life knew who leads, one after the other: nobody answers at the job's endpoint."""
    if now < (due := state.asks_elders_at):
        is_over = due == NEVER and state.linked and not state.force
        return hung_up(state, now) if is_over else (state, [])
    state, out = hung_up(state, now)
    if now < state.dial.due_at:
        return state, out
    elders = state.setup.elders
    dial, calls = replace(state.dial, next_at=now + STAND_S).call(elders[(state.place - 1) % len(elders)], now)
    return replace(state, dial=dial, place=state.place + 1), out + calls


def answering(state: State, endpoint: str) -> State:
    """That one refuses calls no longer, or its host does not even refuse: its agent may come back."""
    return replace(state, refused={one: at for one, at in state.refused.items() if one != endpoint})


def refusing(state: State, endpoint: str, now: float) -> State:
    """That one's host answers, and no agent does."""
    return replace(state, refused={endpoint: now, **state.refused})


def _line_done(state: State, now: float) -> Step:
    """The whole line has been asked."""
    elder, state = state.met_elder, replace(state, met_elder=False, dial=state.dial.patient())
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
    reason, hint = _trouble(state)
    complaint: list[Action] = [
        Say(text=f"{reason}\n  hint: {hint}", level="error"),
        Record(event=CoordinatorMissing(reason=reason, hint=hint)),
    ]
    return replace(state, complained=True), complaint


def _all_are_gone(state: State, now: float) -> bool:
    others = [endpoint for endpoint in state.held.line if endpoint != state.setup.endpoint]
    gone_s = GONE_SPARE_S if state.is_spare and state.setup.before is None else GONE_S  # one that is back is missed, too
    return bool(others) and all(state.refused.get(endpoint, now) <= now - gone_s for endpoint in others)


def _trouble(state: State) -> tuple[str, str]:
    """Why nobody leads, and what would help."""
    missing = sorted({name for endpoint, name in state.held.past.names.items() if endpoint not in state.ballot.willing})
    force = f"holdfast force-leader {state.setup.job} --lost {','.join(missing[:MOST_NAMED]) or 'NODE,…'}"
    lost = "the others are" if not missing else f"{', '.join(missing[:MOST_NAMED])} {'is' if len(missing) == 1 else 'are'}"
    forced = f"if {lost} gone for good: {force}"
    roster, largest = state.held, state.held.largest
    what = f"the coordinator at {state.leader or roster.line[0]} is lost, or cut off from this node"
    if largest.size == 2 and not largest.witness:
        stays = "the other of two nodes cannot know which, so its ranks stay stopped"
        return f"{what}; {stays}", f"{OF_HALF}; {forced}"
    here, lacking = state.ballot.most_short(roster)
    late = len(state.ballot.willing) - here
    more = f" ({late} more here came too late to have a say)" if late else ""
    short = f"{here} of {lacking.size} nodes are here, and {lacking.majority} could go on{more}: the ranks stay stopped"
    return f"{what}; {short}", f"{OF_HALF if 2 * here == lacking.size and not lacking.witness else OF_MORE}; {forced}"
