"""A rank starts, was looked at, or is gone: has it exceeded a limit, and when is it looked at again?

A rank that exceeds a limit that was given hangs. One that exceeds a learned limit is only suspected (`monitor.suspicion`).
Either way a second look, which begins once the first has been judged, must have seen the same silence.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import OnStraggler
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.monitor.glimpse import Glimpse, durations, glimpse, learn
from holdfast.monitor.messages import RankSeen, RankStarted
from holdfast.monitor.silence import Silence, silences
from holdfast.monitor.state import GLANCE_S, SHORTEST_S, Phase, Rank, State, Step, with_rank
from holdfast.monitor.suspicion import hangs, seems_to_hang, with_next_measure

EPSILON_S = 1e-6  # Sums of floating-point times come out an ulp early.


def started(state: State, seen: RankStarted, now: float) -> Step:
    """A rank's process runs."""
    first = Glimpse(at=seen.started_at)
    rank = Rank(local_rank=seen.local_rank, rank=seen.rank, started_at=seen.started_at, glimpse=first)
    phase = Phase.WATCHING if state.phase is Phase.NO_RANKS else state.phase
    return _judged(_with_next_glance(replace(with_rank(state, rank), phase=phase), now), rank, now)


def looked(state: State, seen: RankSeen, now: float) -> Step:
    """A rank was looked at."""
    before, after = state.ranks[seen.local_rank].glimpse, glimpse(seen, now)
    rank = replace(state.ranks[seen.local_rank], glimpse=after)
    state = with_rank(state, rank)
    if before.signs.limits.count != after.signs.limits.count:
        state = _with_next_glance(state, now)
    if _teaches(state, before):
        state = replace(state, learned=learn(state.learned, rank.started_at, before, after))
    if state.ft.on_straggler != OnStraggler.IGNORE:
        state = replace(state, stragglers=state.stragglers.saw(rank.local_rank, durations(before, after), now))
    return _judged(state, rank, now, is_whole=seen.is_whole)


def _teaches(state: State, before: Glimpse) -> bool:
    """Whether what ends between that look and the next took as long as it takes: we were there, and nothing was played."""
    began = (before.at, before.beat_at, *(one.open_since for one in before.open_sections))
    since = min(at for at in began if at is not None)
    return since > state.played_until and not any(end > before.at for _, end in state.pauses)


def gone(state: State, local_rank: int) -> Step:
    """A rank's process has ended."""
    if ranks := {i: rank for i, rank in state.ranks.items() if i != local_rank}:
        return replace(state, ranks=ranks), []
    nothing = dict.fromkeys(("glance_at", "measure_at", "inform_at", "notice_at"), NEVER)
    stragglers = replace(state.stragglers, judge_at=NEVER)
    return replace(state, phase=Phase.NO_RANKS, ranks={}, stragglers=stragglers, **nothing), []


def _judged(state: State, rank: Rank, now: float, *, is_whole: bool = True) -> Step:
    if rank.overdue:
        return with_rank(state, replace(rank, look_at=NEVER, suspected=None)), []
    look_at, suspected, doubt = NEVER, None, rank.doubted
    for silence in silences(rank.glimpse, rank.started_at, state.limits):
        bound, silent_s = silence.bound, state.silent_s(silence.since, now)
        was_seen = doubt is not None and is_whole and doubt.is_of(silence)
        if silent_s >= bound.busy_s - EPSILON_S:
            if was_seen:
                return hangs(state, rank, silence, now, bound.busy_s)
            return seems_to_hang(state, replace(rank, look_at=now + state.glance_s), silence)
        if silent_s >= bound.limit_s - EPSILON_S:
            if was_seen and doubt is not None and doubt.how:
                return hangs(state, rank, silence, now, bound.limit_s, doubt.how)
            look_at = min(look_at, now + bound.busy_s - silent_s)
            suspected = _sooner(suspected, silence)
        else:
            look_at = min(look_at, now + min(bound.limit_s, bound.busy_s) - silent_s)
    rank = replace(rank, look_at=look_at, suspected=suspected, doubted=None if is_whole else doubt)
    return with_next_measure(with_rank(state, rank), now), []


def _sooner(one: Silence | None, other: Silence) -> Silence | None:
    """The one whose rank must stand still for less time; NEVER: none."""
    return other if other.bound.still_s < (one.bound.still_s if one else NEVER) else one


def _with_next_glance(state: State, now: float) -> State:
    shortest_s = min(state.limits.shortest_s(rank.glimpse.signs) for rank in state.ranks.values())
    glance_s = min(max(shortest_s / 4, SHORTEST_S), GLANCE_S)
    return replace(state, glance_s=glance_s, glance_at=min(state.glance_at, now + glance_s))
