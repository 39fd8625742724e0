"""An operator names nodes that are gone for good: may the others go on without them? Part of `rendezvous.election.succession`.

Electors that are too few wait: those that they miss may be cut off, and at work. An operator knows more, and says so once, on
any of the nodes that wait. That node calls each of the named ones: an agent that answers is not gone; a host that refuses the
call has no agent any more; one that does not answer at all may be cut off, and is taken for gone only if the operator vouches
for it (`powered_off`). Then a new roster is drawn up, of a far later term: the named ones have no say by it, and are excluded.
The others take it over as any newer roster, and a majority of them elects.

Where the operator was wrong, two sides lead until they meet: then that of the later term goes on, and the other's nodes have
no part in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from holdfast.core.job.events import ExcludedBy
from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Electorate, Exclusion, Past, Roster
from holdfast.rendezvous.election.leader_lease import TERM
from holdfast.rendezvous.election.messages import ForceAnswered, ForceAsked
from holdfast.rendezvous.election.roster import aged
from holdfast.rendezvous.election.succession_state import NO_PROPOSAL, Force, Role, State, Step, hung_up

FORCED_TERMS = 1 << 12
"""How much later the term is: whatever others have elected meanwhile, beyond a cut, is earlier."""


def asked(state: State, seen: ForceAsked, now: float) -> Step:
    """Begin to find out whether those are gone."""
    if trouble := _trouble(state, seen.lost):
        return state, [ForceAnswered(ask=seen.ask, ok=False, text=trouble)]
    force = Force(ask=seen.ask, lost=_endpoints(state.held, seen.lost), is_vouched=seen.powered_off)
    state, hangs_up = hung_up(replace(state, force=force), now)
    state, calls = call_next(replace(state, dial=replace(state.dial, next_at=now)), now)
    return state, hangs_up + calls


def _trouble(state: State, lost: Collection[str]) -> str:
    """Why that cannot be done. Empty: it can."""
    if state.leads:
        return "this node leads the job: it has a coordinator"
    if state.role is not Role.SEEKING or state.roster is None:
        return f"this node waits for no election: its coordinator is at {state.leader or 'a place that it does not know'}"
    if not state.is_in_line:
        return "this node has no say in who leads: ask on another that waits"
    names = state.roster.past.names
    if unknown := sorted(set(lost) - set(names.values())):
        return f"no node {', '.join(unknown)} has a say in who leads; those that have: {', '.join(sorted(names.values()))}"
    if names.get(state.setup.endpoint) in lost:
        return "this node is one of those that are named as lost"
    return "" if lost else "which nodes are gone for good? name them"


def call_next(state: State, now: float) -> Step:
    """Call the next of the named ones; or conclude, if all have been called."""
    assert state.force is not None
    left = [endpoint for endpoint in state.force.lost if endpoint not in state.force.called]
    if not left:
        return _concluded(state, state.force, now)
    dial, calls = state.dial.call(left[0], now)
    return replace(state, dial=dial, force=replace(state.force, called=(*state.force.called, left[0]))), calls


def answered(state: State, force: Force, now: float) -> Step:
    """One of them is there."""
    text = f"{named(state, [state.dial.to])} is not lost: its agent answers at {state.dial.to}"
    state, hangs_up = hung_up(replace(state, force=None), now)
    return state, [*hangs_up, ForceAnswered(ask=force.ask, ok=False, text=text)]


def silent(state: State, force: Force) -> State:
    """The one that was called does not even refuse."""
    return replace(state, force=replace(force, silent=(*force.silent, state.dial.to)))


def _concluded(state: State, force: Force, now: float) -> Step:
    state, lost = replace(state, force=None), named(state, force.lost)
    if force.silent and not force.is_vouched:
        text = (
            f"{named(state, force.silent)} may be cut off from this node, and at work: its host does not even refuse a call."
            " Make sure that it has no power, or no network, and say so: --powered-off"
        )
        return state, [ForceAnswered(ask=force.ask, ok=False, text=text)]
    roster = without(replace(state.held, past=aged(state.held.past, now - state.roster_at)), force.lost, state.term)
    state.ballot.clear()
    state = replace(state, roster=roster, roster_at=now, term=roster.term, proposal=NO_PROPOSAL, place=0, complained=False)
    what = f"an operator has declared {lost} lost: {roster.largest.size} nodes have a say now, and {lost} cannot join again"
    answer = f"{lost}: declared lost; {roster.largest.majority} of {roster.largest.size} nodes elect a coordinator now"
    out: list[Action] = [Say(text=what, level="warning"), ForceAnswered(ask=force.ask, ok=True, text=answer)]
    return state, out


def without(roster: Roster, lost: Collection[str], term: int) -> Roster:
    """The roster in which those endpoints have no say, and are left out of every round."""
    term = max(term, roster.term) + FORCED_TERMS
    names = roster.past.names
    electorates = [cut for one in roster.electorates if (cut := _cut(one, lost)).size > 0]
    fenced = {
        names[endpoint]: Exclusion(name=names[endpoint], reason="an operator declared it lost", by=ExcludedBy.DECLARED_LOST)
        for endpoint in lost
        if endpoint in names
    }
    excluded = (*(one for one in roster.past.excluded if one.name not in fenced), *fenced.values())
    return replace(
        roster,
        version=term * TERM,
        term=term,
        line=tuple(one for one in roster.line if one not in lost),
        electorates=tuple(electorates),
        past=replace(roster.past, excluded=excluded),
    )


def _cut(one: Electorate, lost: Collection[str]) -> Electorate:
    """Where its nodes are not known, all of those had a say: else the others could never be a majority."""
    line = tuple(endpoint for endpoint in one.line if endpoint not in lost)
    size = len(line) if one.line else max(0, one.size - len(lost))
    return replace(one, size=size, line=line, witness=False)


def is_forced(past: Past) -> bool:
    """Whether nodes have been declared lost: then leases may be held yet of which no voter's promise tells."""
    return any(one.by == ExcludedBy.DECLARED_LOST for one in past.excluded)


def declared_lost(roster: Roster) -> frozenset[str]:
    """Endpoints of the nodes that are excluded as such."""
    lost = {one.name for one in roster.past.excluded if one.by == ExcludedBy.DECLARED_LOST}
    return frozenset(endpoint for endpoint, name in roster.past.names.items() if name in lost)


def named(state: State, endpoints: Iterable[str]) -> str:
    """What people call the nodes there."""
    names = state.held.past.names
    return ", ".join(names.get(endpoint, endpoint) for endpoint in endpoints)


def _endpoints(roster: Roster, names: Collection[str]) -> tuple[str, ...]:
    return tuple(endpoint for endpoint, name in sorted(roster.past.names.items(), key=lambda one: one[1]) if name in names)
