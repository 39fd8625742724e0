"""Time passes: which ranks are looked at or measured, what is told, and what if we were not there ourselves?

Pages are read at the moment when a limit could run out, and at every glance, so that what changes in between is known by then.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action
from holdfast.core.value import replace
from holdfast.monitor import reports
from holdfast.monitor.messages import MeasureRanks, SeeRanks
from holdfast.monitor.state import State, Step

PAUSE_S = 1.0
"""A monitor that wakes up so much too late was stopped itself, and its ranks perhaps with it (a suspended job, a frozen cgroup,
a host that swaps): that time counts against nobody. Where looks come more often than that, it is the time between two."""

PAUSES = 256  # So many of those are remembered: one that is forgotten counts against the ranks.


def due(state: State, now: float) -> Step:
    """Do what is due."""
    state, actions = _looks_due(state, now)
    if now >= state.stragglers.judge_at:
        state, more = reports.ranks_compared(state, now)
        actions += more
    if now >= state.inform_at:
        state, more = reports.coordinator_told(state, now)
        actions += more
    if now >= state.notice_at:
        state, more = reports.silence_noticed(state, now)
        actions += more
    return state, actions


def _looks_due(state: State, now: float) -> Step:
    actions, is_glance, is_measure = list[Action](), now >= state.glance_at, now >= state.measure_at
    looked = tuple(i for i, rank in state.ranks.items() if is_glance or now >= rank.look_at)
    if looked:
        actions.append(SeeRanks(local_ranks=looked))
        ranks = {i: replace(rank, look_at=NEVER) if i in looked else rank for i, rank in state.ranks.items()}
        state = replace(state, ranks=ranks, glance_at=now + state.glance_s if is_glance else state.glance_at)
    if is_measure:
        actions.append(MeasureRanks(local_ranks=tuple(state.ranks)))
        state = replace(state, measure_at=NEVER)
    return state, actions


def absence_excused(state: State, now: float) -> State:
    """Remember for how long we were not there, if we were not: nobody is blamed for that time."""
    since = state.looks_at
    if now - since <= min(PAUSE_S, state.glance_s):
        return state
    ranks = {
        i: replace(rank, stillness=rank.stillness.excused(now - since), look_at=max(rank.look_at, now))
        for i, rank in state.ranks.items()
    }
    return replace(
        state,
        pauses=(*state.pauses[1 - PAUSES :], (since, now)),
        glance_at=max(state.glance_at, now),
        measure_at=max(state.measure_at, now),
        ranks=ranks,
    )
