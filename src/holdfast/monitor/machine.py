"""Does this node make progress? The machine that finds which rank hangs, how long is long for this job, and who is slow.

Its phases are drawn in `monitor.state`. `step` is the table of its transitions; what a line does is a function of the state, in
the file of its situation. Its driver is `agent.workers.monitor_driver`.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.value import replace
from holdfast.monitor import messages, rank_looks, suspicion, time_passing
from holdfast.monitor.glimpse import glimpse
from holdfast.monitor.reports import notice_at
from holdfast.monitor.silence import silences
from holdfast.monitor.state import INFORM_S, Phase, State, Step


class Monitor:
    """The machine: its state, and what others read of it. It outlives rounds: what was learned in one holds in the next."""

    def __init__(self, ft: FaultTolerance, *, node: str = "", inform_s: float = INFORM_S) -> None:
        self.state = State(ft=ft, node=node, inform_s=inform_s)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        self.state, actions = step(self.state, seen, now)
        return actions

    def deadline(self) -> float:
        return self.state.deadline()

    def shown(self, looked: messages.RankSeen, now: float) -> dict[str, object]:
        """What is known of a rank, as it was just looked at: for `holdfast status`. Empty: nothing."""
        state, seen = self.state, glimpse(looked, now)
        rank = state.ranks.get(looked.local_rank)
        if rank is None:
            return {}
        limits = [
            {
                "of": silence.kind,
                "limit_s": silence.bound.limit_s if silence.bound.limit_s < NEVER else None,
                "basis": "given" if silence.bound.is_sure else "learned" if state.learned.is_ready(silence.kind) else "usual",
            }
            for silence in silences(seen, rank.started_at, state.limits)
        ]
        return {
            "beat_age_s": None if seen.beat_at is None else now - seen.beat_at,
            "beats": seen.beats,
            "step": seen.step,
            "step_s": seen.signs.step_took_s or None,
            "section": seen.section,
            "limits": limits,
            "overdue": rank.overdue,
            "stragglers": [one.words for one in state.stragglers.told.values() if one.local_rank == rank.local_rank],
        }


def step(state: State, seen: Observation, now: float) -> Step:
    """The table of transitions."""
    state = time_passing.absence_excused(state, now)
    match state.phase, seen:
        case _, messages.RoundBegan(job_s=job_s):
            return _began(state, job_s, now), []
        case _, messages.PaceHeard(job_s=job_s, busy_s=busy_s):
            learned = replace(state.learned, job_s=job_s)
            return replace(state, learned=learned, waits_until=max(state.waits_until, now + busy_s)), []
        case _, messages.RankStarted():
            return rank_looks.started(state, seen, now)
        case _, messages.RankGone(local_rank=local_rank):
            return rank_looks.gone(state, local_rank)
        case _, messages.FaultPlayed():
            return replace(state, played_until=now), []
        case _, messages.RankSeen(local_rank=local_rank) if local_rank in state.ranks:
            return rank_looks.looked(state, seen, now)
        case Phase.SUSPECTING | Phase.ASKING | Phase.STILL, messages.RanksMeasured(ranks=ranks):
            return suspicion.measured(state, ranks, now)
        case Phase.ASKING, messages.GpusSeen(busy=busy):
            return suspicion.gpus_seen(state, busy, now)
        case _, Tick():
            return time_passing.due(state, now)
        case _, messages.RankSeen() | messages.RanksMeasured() | messages.GpusSeen():
            return state, []  # the rank is gone, or nobody is suspected any more
    raise AssertionError(f"a monitor is never shown {seen!r}")


def _began(state: State, job_s: dict[str, float], now: float) -> State:
    """Other ranks are about to start: forget those of the last round, and keep what was learned."""
    fresh = State(
        ft=state.ft,
        node=state.node,
        inform_s=state.inform_s,
        learned=replace(state.learned, job_s=job_s),
        recorded=state.recorded,
        noticed=state.noticed,
        inform_at=now + state.inform_s,
    )
    return replace(fresh, notice_at=notice_at(fresh, now))
