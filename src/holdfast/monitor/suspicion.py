"""A rank has exceeded a learned limit, which is a guess: does it hang, or does the node work?

It hangs once the whole node stands still too, processors and GPUs, and no other node says that a suspect there works. For ranks
that wait for another one are silent as well, and while that one works, it evaluates, or saves. Only a rank that is stopped
(SIGSTOP), or asleep in the kernel all the time, hangs whatever the others do.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.machine import NEVER
from holdfast.core.page.silences import BEAT, FIRST
from holdfast.core.value import replace
from holdfast.monitor.messages import AskGpus, Overdue, RankMeasured, SeeRanks
from holdfast.monitor.reports import report
from holdfast.monitor.silence import AWAITED, Silence
from holdfast.monitor.state import Doubt, Phase, Rank, State, Step, with_rank, with_stillness
from holdfast.monitor.stillness import STOPPED, Stillness

MEASURES, SOONEST_S, LATEST_S = 10, 0.05, 60.0
"""Looks at a suspect's processor time within the time that it must stand still, and the bounds of the time between two."""

AT_WORK = 3
"""A rank that has done something at so many looks in a row is at work, and nodes that wait for it are told so. A thread that
only wakes up now and then is not."""


def measured(state: State, ranks: Iterable[RankMeasured], now: float) -> Step:
    """All ranks were measured, since one is suspected."""
    known = state.ranks
    seen = {one.local_rank: known[one.local_rank].stillness.looked(one, now) for one in ranks if one.local_rank in known}
    state = with_stillness(state, seen)
    if any(rank.is_debugged for rank in state.ranks.values()):  # the others wait for it; it waits for a person
        state = _all_worked(state, now)
    state, actions = _judged(state, now)
    busy_s = busy_for_s(state)
    if now >= state.busy_at and busy_s > 0:
        return replace(state, busy_at=now + busy_s / 2), [*actions, report(state, busy_s)]
    return state, actions


def gpus_seen(state: State, busy: bool | None, now: float) -> Step:
    """The GPUs have been asked, since all processors stand still."""
    if busy:
        state = _all_worked(state, now)
    return _judged(replace(state, phase=Phase.SUSPECTING if busy else Phase.STILL), now)


def busy_for_s(state: State) -> float:
    """A rank here is suspected, and works: for how long that is to be believed. 0: none does."""
    waits_s = min(_waits_s(state), default=NEVER)
    works = any(rank.is_debugged or rank.stillness.at_work >= AT_WORK for rank in state.ranks.values())
    return waits_s if works and waits_s < NEVER else 0.0


def with_next_measure(state: State, now: float) -> State:
    """As long as somebody is suspected, everybody is measured."""
    if waits_s := _waits_s(state):
        at = now + min(max(min(waits_s) / MEASURES, SOONEST_S), LATEST_S)
        phase = Phase.SUSPECTING if state.phase is Phase.WATCHING else state.phase
        return replace(state, phase=phase, measure_at=min(state.measure_at, at))
    if state.phase is Phase.WATCHING:
        return state
    state = with_stillness(state, dict.fromkeys(state.ranks, Stillness()))
    return replace(state, phase=Phase.WATCHING, measure_at=NEVER)


def seems_to_hang(state: State, rank: Rank, silence: Silence, how: str = "") -> Step:
    """This rank seems to hang, by the last look. It is looked at again before that is said (`rank_looks`): since that look it
    may have given a sign of life, or begun to be monitored; and a page that is read while it is written may be half old."""
    looks_again = [] if rank.doubted is not None else [SeeRanks(local_ranks=(rank.local_rank,))]
    doubt = Doubt(kind=silence.kind, since=silence.since, how=how)
    return with_rank(state, replace(rank, doubted=doubt)), [*looks_again]


def hangs(state: State, rank: Rank, silence: Silence, now: float, limit_s: float, how: str = "") -> Step:
    """This rank hangs."""
    silent_s, section = state.silent_s(silence.since, now), rank.glimpse.section
    inside = f", in section {section}" if section and silence.kind in (FIRST, AWAITED, BEAT) else ""
    reason = f"{silence.words(silent_s, limit_s)}{inside}{f'; {how}' if how else ''}"
    state = with_rank(state, replace(rank, look_at=NEVER, suspected=None, doubted=None, overdue=reason))
    return state, [Overdue(local_rank=rank.local_rank, reason=reason, silent_s=silent_s)]


def _judged(state: State, now: float) -> Step:
    """Which suspect hangs? One at most, since its end is the others' too."""
    state = with_next_measure(state, now)
    suspects = state.suspects
    if stuck := [one for one in suspects if one.stood_still(max(one.stillness.stuck_since, one.stillness.since), now)]:
        rank = _furthest_behind(stuck)
        is_stopped = rank.stillness.last is not None and rank.stillness.last.state == STOPPED
        how = "it is stopped (SIGSTOP)" if is_stopped else "it is uninterruptible in the kernel"
        return _suspect_hangs(state, rank, how)
    all_since = max((rank.stillness.since for rank in state.ranks.values()), default=NEVER)
    still = [rank for rank in suspects if now >= state.waits_until and rank.stood_still(all_since, now)]
    match state.phase:
        case Phase.STILL if still:
            how = f"nothing on this node has done anything for {now - all_since:.1f} s"
            return _suspect_hangs(state, _furthest_behind(still), how)
        case Phase.SUSPECTING if still:
            return replace(state, phase=Phase.ASKING), [AskGpus()]
        case Phase.ASKING | Phase.STILL if not still and suspects:
            return replace(state, phase=Phase.SUSPECTING), []
    return state, []


def _suspect_hangs(state: State, rank: Rank, how: str) -> Step:
    assert rank.suspected is not None
    return seems_to_hang(state, rank, rank.suspected, how)


def _furthest_behind(ranks: Iterable[Rank]) -> Rank:
    """The one that the others wait for."""
    return min(ranks, key=lambda one: (one.glimpse.step or 0, one.glimpse.beat_at or one.started_at))


def _all_worked(state: State, now: float) -> State:
    return with_stillness(state, {i: rank.stillness.worked(now) for i, rank in state.ranks.items()})


def _waits_s(state: State) -> list[float]:
    return [rank.suspected.bound.still_s for rank in state.ranks.values() if rank.suspected is not None]
