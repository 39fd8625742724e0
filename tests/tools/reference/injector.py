"""What may be seen while a fault is injected, and what follows? docs/reference/injector.md, by a walk of the machine."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import StrEnum

from holdfast.agent.faults.machine import CHECKS, Asked, RankOver, RoundOver, State, Where, step
from holdfast.core.job.injection import Fault, Injection
from holdfast.core.machine import NEVER, Tick
from tools.reference.phases import Seen, Step, drawn, table, walked

HEAD = """\
# Injected faults: states and observations

<!-- Made by `make reference`. Do not edit. -->

One machine, `Injector`, decides how an agent injects faults (`--allow-inject`). A program walks the machine for this page, with
one fault at a time: it feeds every possible event to every state, until no new state comes up. `nothing`: there is no fault.
`running`: a slow rank runs at the moment. `stopped`: a rank is stopped. `planted`: the node's checks read a fault.

## The states

"""


class Phase(StrEnum):
    """Where the one fault stands, if there is one."""

    NOTHING = "nothing"
    RUNNING = Where.RUNNING.value
    STOPPED = Where.STOPPED.value
    PLANTED = Where.PLANTED.value


def walk() -> set[Step]:
    """Every step that there is."""
    return walked([State()], _everything, step, _phase, _key)


def page(steps: set[Step]) -> str:
    """The whole page."""
    return HEAD + drawn(steps, begins=Phase.NOTHING) + table(steps, tuple(Phase), of="state")


def _everything(state: State, now: float) -> Iterator[Seen]:
    for fault in Fault:
        if not state.played or (fault not in CHECKS and state.played[0].where is not Where.PLANTED):
            wanted = Injection(fault=fault, for_s=None if fault is Fault.KILL else 1.0)
            asked = Asked(injection=wanted, ranks={0: (0, 7)}, looks_s={"xid": 60.0, "gpu": 60.0})
            yield f"`{fault}` is asked for", asked, now
    yield "its rank has ended", RankOver(local_rank=0), now
    yield "the ranks are being stopped", RoundOver(), now
    if (until := min((one.until for one in state.played), default=NEVER)) != NEVER:
        yield "its time is over", Tick(), until
    if state.deadline() < until:
        yield "its turn is over", Tick(), state.deadline()


def _phase(state: State) -> Phase:
    return Phase(state.played[0].where) if state.played else Phase.NOTHING


def _key(state: State) -> Hashable:
    return _phase(state), tuple(one.turn_at == NEVER for one in state.played)
