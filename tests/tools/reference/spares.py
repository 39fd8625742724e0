"""What may be seen of warm spares, and what follows? Found by walking `agent.spares.machine`: docs/reference/spares.md.

The walk is of a node with one rank, and one spare for it. Its steps are told twice: by the phase of the rank, and by the spare.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from holdfast.agent.spares import messages as seen
from holdfast.agent.spares.machine import QUIET_S, step
from holdfast.agent.spares.state import Phase, SlotState, State, no_spares
from holdfast.core.machine import NEVER, Tick
from holdfast.core.value import replace
from tools.reference.phases import Seen, Step, drawn, table, walked

HEAD = """\
# Warm spares: phases and observations

<!-- Made by `make reference`. Do not edit. -->

One machine, `Spares`, decides when a spare is made, used, kept and ended. A program walks the machine for this page, on a
node with one rank and one spare: it feeds every possible event to every state, until no new state comes up. [Warm
spares](../how-to/warm-restarts.md) says what spares are for.

## The phases of the ranks

"""

SLOTS = """
## The states of a spare

"""


def walks() -> tuple[set[Step], set[Step]]:
    """Every step that there is: by the phase of the ranks, and by the state of the spare."""
    first = [no_spares(1, 1)]
    by_phase = walked(first, _everything, step, lambda state: state.phase, _key)
    return by_phase, walked(first, _everything, step, lambda state: state.slots[0].state, _key)


def page(ranks: set[Step], slots: set[Step]) -> str:
    """The whole page."""
    of_ranks = HEAD + drawn(ranks, begins=Phase.IDLE) + table(ranks, tuple(Phase))
    return of_ranks + SLOTS + drawn(slots, begins=SlotState.NONE) + table(slots, tuple(SlotState), of="state")


def _everything(state: State, now: float) -> Iterator[Seen]:
    (slot,) = state.slots
    yield "a round's workers have been started", seen.RoundBegan(), now
    yield "the ranks end", seen.RoundEnds(), now
    if state.phase is not Phase.STANDING_BY:
        yield "the ranks have ended, and no next ranks are known", seen.RoundOver(), now
    if state.phase is Phase.IDLE:
        yield "other nodes have said what the ranks would import", seen.StandingBy(), now
    if state.look_at != NEVER:
        yield "time passes", Tick(), max(now, state.look_at)
    alone = {slot.pid: 9} if slot.pid >= 0 else {}
    look = seen.Surveyed(reached=True, beating=False, modules=1, room_bytes=1, total_bytes=0, sizes=alone)
    yield "a look: the ranks show heartbeats", replace(look, beating=True), now
    yield "a look: the ranks show no heartbeats, and load modules", replace(look, modules=state.modules + 1), now
    quiet = replace(look, modules=state.modules)
    yield "a look: the ranks show no heartbeats, and have loaded nothing for long", quiet, now + QUIET_S
    if state.phase is not Phase.STANDING_BY:
        yield "a look: the ranks are between two rounds", replace(look, between=True), now
    match slot.state:
        case SlotState.NONE:
            yield "a spare has been started", seen.Made(slot=0, pid=7), now
            yield "a spare could not be started", seen.Made(slot=0, trouble="t"), now
        case SlotState.IMPORTING:
            ready = seen.Ready(pid=7, import_s=1.0, reads=frozenset({"A"}), size_bytes=9)
            yield "the spare has imported everything", ready, now
        case SlotState.WAITING if not slot.stale:
            yield "the spare has become the worker", seen.Used(pid=7), now
            yield "the spare has refused", seen.Used(pid=7, trouble="t"), now
    if slot.pid >= 0:
        yield "the spare has ended", seen.Lost(pid=7, reason="r"), now
    for changed, text in (({}, "is"), ({"A": (None, "1")}, "is no longer")):
        due = seen.WorkerDue(local_rank=0, changed={7: changed})
        yield f"a worker is due, and the spare's environment {text} right", due, now


def _key(state: State) -> Hashable:
    """What tells states apart: times only by whether there are any."""
    (slot,) = state.slots
    known = state.look_at != NEVER, state.modules >= 0, min(state.failures, 3), state.proven, bool(slot.size_bytes)
    return state.phase, slot.state, bool(slot.stale), slot.vain, slot.guessed, *known
