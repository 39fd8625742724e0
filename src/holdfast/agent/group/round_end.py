"""The workers of a round end one by one: what do their ends add up to?"""

from __future__ import annotations

from holdfast.agent.group.job_end import exit
from holdfast.agent.group.messages import Send, Sweep
from holdfast.agent.group.round_start import begin
from holdfast.agent.group.state import Phase, State, Step
from holdfast.core.job.events import WorkersStopped
from holdfast.core.machine import Action, Record
from holdfast.core.value import replace
from holdfast.core.wire.messages import Stopped, Succeeded


def settle(state: State, now: float) -> Step:
    """See whether all workers have ended, and how."""
    if state.workers.alive:
        return state, []
    if state.phase is Phase.RUNNING and not state.workers.failures:
        state = replace(state, phase=Phase.SUCCEEDED)
        return state, [Send(message=Succeeded(node=state.join.node, round=state.round))]
    return all_gone(state, now) if state.phase in (Phase.RUNNING, Phase.STOPPING) else (state, [])


def all_gone(state: State, now: float) -> Step:
    """The round's workers are no more: clean up behind them, and tell the coordinator."""
    took_s = 0.0 if state.stopping is None else now - state.stopping.since
    killed = state.workers.ranks(sorted(state.workers.killed))
    failures = tuple(state.workers.failures.values())
    actions: list[Action] = [Sweep(), Record(event=WorkersStopped(took_s=took_s, killed=killed))]
    actions.append(Send(message=Stopped(node=state.join.node, round=state.round, failures=failures)))
    state = replace(state, phase=Phase.STOPPED, stopping=None)
    more: list[Action] = []
    if state.rejoin:
        state, more = begin(state, now)
    elif state.leaving and not state.hosting:
        state, more = exit(state, 1, complaint=f"stopped: it {state.leaving.why}")
    return state, actions + more


def after(step: Step, now: float) -> Step:
    """The same step, and what it adds up to."""
    state, actions = step
    state, more = settle(state, now)
    return state, actions + more
