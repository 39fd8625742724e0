"""What is recorded and told while ranks run? Stragglers, learned limits, a job that gives no sign of life."""

from __future__ import annotations

from holdfast.core.job.events import LimitsLearned, StragglerOver, StragglerSeen, Unwatched
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.value import replace
from holdfast.monitor.messages import Inform
from holdfast.monitor.state import State, Step

NEWS = 1.2  # A learned limit that has changed by this factor is recorded again.

NOTICE_S = 600.0
"""A job of which no rank has given a sign of life for so long is told that it is not watched. The first step of a large model
takes minutes; a user who looks in after ten of them should know."""

NOTICE_PART = 6  # And no later than that part of --still-limit.


def report(state: State, busy_s: float = 0.0) -> Inform:
    """What the coordinator is told. `busy_s`: see `Inform`."""
    told = ", ".join(one.words for one in state.stragglers.told.values())
    return Inform(longest_s=state.learned.known_s(), typical_s=dict(state.stragglers.typical), straggler=told, busy_s=busy_s)


def notice_at(state: State, now: float) -> float:
    """When to look whether a round that begins now shows nothing. NEVER: the user knows, or wants it so."""
    if state.noticed or state.limits.first(None).is_sure:
        return NEVER
    return now + min(NOTICE_S, state.limits.still_s / NOTICE_PART)


def ranks_compared(state: State, now: float) -> Step:
    """A period is over: who has become a straggler, and who has recovered?"""
    rank_of = {i: rank.rank for i, rank in state.ranks.items()}
    stragglers, fresh, over = state.stragglers.judged(rank_of, now)
    actions: list[Action] = []
    for one in fresh:
        seen = StragglerSeen(
            name=state.node,
            rank=one.rank,
            series=one.series,
            took_s=one.took_s,
            typical_s=one.typical_s,
            against=one.against,
        )
        actions += [Record(event=seen), Say(text=f"straggler: {one.words} on {state.node}", level="warning")]
    actions += [
        Record(event=StragglerOver(name=state.node, rank=one.rank, series=one.series, against=one.against)) for one in over
    ]
    return replace(state, stragglers=stragglers, inform_at=min(state.inform_at, now) if fresh else state.inform_at), actions


def coordinator_told(state: State, now: float) -> Step:
    """Tell the coordinator, and record the learned limits if they are others than last time."""
    state, told = replace(state, inform_at=now + state.inform_s), report(state)
    bounds = {kind: state.limits.of_kind(kind) for kind in told.longest_s}
    limits_s = {kind: bound.limit_s for kind, bound in bounds.items() if bound is not None}
    before = state.recorded
    if limits_s.keys() == before.keys() and all(1 / NEWS < limits_s[kind] / before[kind] < NEWS for kind in before):
        return state, [told]
    learned = LimitsLearned(limits_s=limits_s, longest_s=told.longest_s)
    return replace(state, recorded=limits_s), [Record(event=learned), told]


def silence_noticed(state: State, now: float) -> Step:
    """Tell the user once if no rank has given a sign of life. Only the node with rank 0 does."""
    state, ranks = replace(state, notice_at=NEVER), state.ranks.values()
    if all(rank.rank for rank in ranks) or any(rank.glimpse.is_known for rank in ranks):
        return state, []
    waited_s, still_s = now - min(rank.started_at for rank in ranks), state.limits.still_s
    once = f"once its processors and GPUs have stood still for {still_s:g} s it counts as hung (--still-limit none: never)"
    text = (
        f"no rank has given a sign of life in {waited_s:.0f} s: this job is not watched"
        f"{f', but {once}' if still_s < NEVER else ''}. Have the script call "
        "holdfast.client.heartbeat() in its loop, or name a line of its log with --progress-regex"
    )
    event = Unwatched(after_s=waited_s, still_s=state.ft.still_limit)
    return replace(state, noticed=True), [Record(event=event), Say(text=text, level="warning")]
