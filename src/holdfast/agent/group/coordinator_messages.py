"""What does the coordinator say, and what does this node do then? Also at its silence, where no workers run."""

from __future__ import annotations

from holdfast.agent.group import hang_response, job_end, node_health, round_end, round_start, stopping
from holdfast.agent.group.messages import (
    FromCoordinator,
    HeedPace,
    LearnImports,
    LeaseOver,
    Send,
)
from holdfast.agent.group.state import Phase, State, Step, joined_with
from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import (
    OWN_ASK,
    Assigned,
    Finish,
    LookAround,
    Message,
    Paced,
    Refused,
    Reply,
    Request,
    Stop,
    ToImport,
    Waiting,
)


def told(state: State, message: Message, now: float) -> Step:
    """The coordinator's word."""
    step = _of_round(state, message, now) or _of_others(state, message)
    return step if step is not None else (state, [])  # of a round, or a phase, that is over here


def _of_round(state: State, message: Message, now: float) -> Step | None:
    match state.phase, message:
        case Phase.JOINING, Waiting() as waiting:
            return round_start.waits(state, waiting)
        case Phase.JOINING, Assigned(round=number) as assigned if number > state.round:
            return round_start.start(state, assigned, now)
        case Phase.JOINING, Stop(round=state.round, rejoin=True) if not state.checking:
            return state, [Send(message=state.join)]
        case (Phase.RUNNING | Phase.SUCCEEDED | Phase.STOPPING | Phase.STOPPED), Stop(round=state.round) as stop:
            return _stop(state, stop, now) if state.rejoin is None else (state, [])
        case Phase.RUNNING, LookAround(round=state.round, reason=reason):
            return hang_response.look(state, reason, now)
        case _, LookAround(round=state.round):
            return hang_response.nothing_to_see(state)
        case _, Paced(round=state.round, longest_s=longest_s, busy_s=busy_s):
            return joined_with(state, longest_s=longest_s), [HeedPace(longest_s=longest_s, busy_s=busy_s)]
        case Phase.ENDED, _:
            return None
        case _, Finish() as finish:
            return job_end.finished(state, finish)
        case _, Refused() as no:
            return job_end.refused(state, no)
    return None


def _of_others(state: State, message: Message) -> Step | None:
    """What operators and other nodes want of this one, and the answers to what this one wanted."""
    match message:
        case ToImport(modules=modules) if state.phase is Phase.JOINING:
            return state, [LearnImports(modules=modules)]
        case Reply(ask=ask, text=text) if ask == OWN_ASK:
            return node_health.noted(state, text)
        case Request() | Reply():
            return state, [FromCoordinator(message=message)]
    return None


def _stop(state: State, stop: Stop, now: float) -> Step:
    """The round is over, or the job."""
    state = replace(state, rejoin=stop.rejoin, regrouped=stop.regrouped)
    # The last word is the report's, which says the same.
    said: list[Action] = [Say(text=stop.reason, level="warning")] if stop.rejoin else []
    struck, more = list[Action](), list[Action]()
    if stop.hung is not None and stop.hung in state.workers:
        state, struck = hang_response.condemn(state, stop.hung)
    match state.phase:
        case Phase.RUNNING:  # signals wait for no terminal
            state, stopped = stopping.stop_once_seen(state, stop.reason, now)
            return state, struck + stopped + said
        case Phase.SUCCEEDED:
            state, more = round_end.all_gone(state, now)
        case Phase.STOPPED if state.rejoin:
            state, more = round_start.begin(state, now)
    return state, struck + said + more


def silent(state: State, over: LeaseOver, now: float) -> Step:
    """The coordinator has been silent for a whole lease."""
    if state.phase in (Phase.RUNNING, Phase.STOPPING):
        return stopping.lease_over(state, over, now)
    unknown = "whether the job goes on without this node, or has ended, is not known here"
    text = f"{over.reason}; still trying, for up to {over.patience_s:g} s: {unknown}"
    return state, [Say(text=text, level="warning")]
