"""Is this node fit? Checked before each round, where the user wants that, and heard whenever it changes.

    joining ──CheckNode──▶ (checks run) ──NodeChecked──▶ Join, with the reason if it is unfit
    running ──NodeChecked: unfit──▶ Request to exclude it; again each time that it is found, since a spare may have come

The node does not join before the checks have answered, whatever the coordinator says meanwhile.
"""

from __future__ import annotations

from holdfast.agent.group.job_end import exit
from holdfast.agent.group.messages import CheckNode, NodeChecked, Send
from holdfast.agent.group.state import Phase, State, Step, joined_with
from holdfast.core.job.events import ExcludedBy
from holdfast.core.job.report import Outcome
from holdfast.core.machine import Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import OWN_ASK, Request, RequestKind

LONGEST_WHY = 500  # Characters of a reason that a coordinator takes.


def check(state: State) -> Step:
    """Before a `Join`."""
    return replace(state, checking=True), [CheckNode(after_failure=bool(state.workers.failures))]


def checked(state: State, seen: NodeChecked) -> Step:
    """The coordinator hears it with the `Join`. While workers run, it is asked to go on without this node."""
    unfit = seen.unfit[:LONGEST_WHY]
    is_news, state = unfit != state.join.unhealthy, joined_with(state, unhealthy=unfit)
    if state.checking and seen.asked:
        return _answered(replace(state, checking=False))
    if state.checking:
        return state, []
    if state.phase is Phase.JOINING:
        return state, [Send(message=state.join)] if is_news else []
    if state.phase is Phase.RUNNING and unfit:
        node, kind = state.join.node, RequestKind.EXCLUDE
        wanted = Request(node=node, kind=kind, target=state.join.name, ask=OWN_ASK, reason=unfit, by=ExcludedBy.ITSELF)
        return state, [Send(message=wanted)]
    return state, []


def _answered(state: State) -> Step:
    """The checks before a round have ended."""
    if state.phase is not Phase.JOINING:
        return state, []
    if (unfit := state.join.unhealthy) and state.backend == "memory":
        return exit(state, 1, outcome=Outcome.FAILED, complaint=f"this node is unfit, and the job has no other: {unfit}")
    return state, [Send(message=state.join)]


def noted(state: State, text: str) -> Step:
    """What the coordinator says to that. The same again is silence."""
    if text == state.health_answer:
        return state, []
    return replace(state, health_answer=text), [Say(text=f"health: {text}", level="warning")]
