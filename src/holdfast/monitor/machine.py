"""Does this node get on? One machine over the questions of the package: who hangs, how long is long, who is slow.

      Tick · RankSeen · RanksMeasured · GpusSeen        SeeRanks · MeasureRanks · AskGpus
    ──────────────────────────────────────────▶ Monitor ───────────────────────────────▶ a driver
    (`agent.workers.monitor_driver`, `sim`)
                                                   │
                                                   └─▶ Overdue · Record · Inform (the coordinator)

It outlives rounds: what has been learned in one holds in the next.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import OnStraggler
from holdfast.core.job.events import LimitsLearned, StragglerOver, StragglerSeen, Unwatched
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.monitor.glimpse import durations, glimpse
from holdfast.monitor.limits import Learner, Limits
from holdfast.monitor.liveness import Liveness, Rank
from holdfast.monitor.messages import Inform, RankGone, RankSeen, RanksMeasured, RankStarted
from holdfast.monitor.stragglers import Stragglers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.config.fault_tolerance import FaultTolerance

INFORM_S = 60.0
"""Seconds between two words to the coordinator: one small message per node. A thousand nodes make some twenty a second."""

NEWS = 1.2
"""A learned limit that has changed by this factor is recorded again."""

NOTICE_S = 600.0
"""A job of which no rank has given a sign of life for so long is told that it is not watched. The first step of a large model
takes minutes; whoever looks in after ten of them should know."""

NOTICE_PART = 6
"""And no later than that part of --still-limit."""


class Monitor:
    """The machine."""

    def __init__(self, ft: FaultTolerance, *, node: str, start_up_s: float = 0.0, inform_s: float = INFORM_S) -> None:
        self.ft = ft
        self.node = node
        self.inform_s = inform_s
        self.learner = Learner({})
        self.limits = Limits(ft, self.learner, start_up_s=start_up_s)
        self.liveness = Liveness(self.limits)
        self.stragglers = Stragglers()
        self.learned: dict[str, float] = {}
        """The limits that were recorded last, by kind of silence."""
        self.inform_at = self.notice_at = NEVER
        self.busy_at = -NEVER
        """When the coordinator is told again that a rank here works in silence."""
        self.noticed = False

    def begin_round(self, job_s: Mapping[str, float], now: float) -> None:
        """Other ranks are about to start; the job is known to need `job_s`, by kind of silence."""
        self.learner.heed(job_s)
        self.liveness = Liveness(self.limits)
        self.stragglers = Stragglers()
        self.inform_at, self.busy_at = now + self.inform_s, -NEVER
        if not self.noticed and not self.limits.first(None).is_sure:
            self.notice_at = now + min(NOTICE_S, self.limits.still_s / NOTICE_PART)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        rank = self.liveness.ranks.get(getattr(seen, "local_rank", -1))
        before = rank.glimpse if rank is not None else None
        out = self.liveness.observe(seen, now)
        match seen:
            case RankSeen() if rank is not None and before is not None and self.ft.on_straggler != OnStraggler.IGNORE:
                self.stragglers.saw(rank.local_rank, rank.rank, durations(before, rank.glimpse), now)
            case RankStarted() | RankGone() if not self.liveness.ranks:
                self.inform_at = self.notice_at = NEVER
                self.stragglers.pause()
            case RanksMeasured() if now >= self.busy_at and (busy_s := self.liveness.busy_s) > 0:
                self.busy_at = now + busy_s / 2
                out.append(self._word(busy_s))
            case Tick():
                out += self._due(now)
        return out

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return min(self.liveness.deadline(), self.stragglers.judge_at, self.inform_at, self.notice_at)

    def heed(self, job_s: Mapping[str, float], busy_s: float, now: float) -> None:
        """The coordinator says what the job needs, and for how long to wait for another node, which works in silence."""
        self.learner.heed(job_s)
        self.liveness.wait_for_others(now + busy_s)

    # --- what time brings -----------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Action]:
        out: list[Action] = []
        if now >= self.stragglers.judge_at:
            out += self._compare(now)
        if now >= self.inform_at:
            self.inform_at = now + self.inform_s
            out += self._note_limits()
            out.append(self._word())
        if now >= self.notice_at:
            out += self._notice(now)
        return out

    def _word(self, busy_s: float = 0.0) -> Inform:
        told = ", ".join(one.words for one in self.stragglers.told.values())
        typical_s = dict(self.stragglers.typical)
        return Inform(longest_s=self.learner.known_s(), typical_s=typical_s, straggler=told, busy_s=busy_s)

    def _compare(self, now: float) -> list[Action]:
        fresh, over = self.stragglers.judge(now)
        out: list[Action] = []
        for one in fresh:
            seen = StragglerSeen(
                name=self.node,
                rank=one.rank,
                series=one.series,
                took_s=one.took_s,
                typical_s=one.typical_s,
                against=one.against,
            )
            out += [Record(event=seen), Say(text=f"straggler: {one.words} on {self.node}", level="warning")]
            self.inform_at = min(self.inform_at, now)
        for one in over:
            out.append(Record(event=StragglerOver(name=self.node, rank=one.rank, series=one.series, against=one.against)))
        return out

    def _note_limits(self) -> list[Action]:
        """Record the learned limits, if they are others than last time."""
        limits = {kind: bound.limit_s for kind in self.learner.known_s() if (bound := self.limits.learned(kind)) is not None}
        same = limits.keys() == self.learned.keys() and all(
            1 / NEWS < limit_s / self.learned[kind] < NEWS for kind, limit_s in limits.items()
        )
        if same:
            return []
        self.learned = limits
        return [Record(event=LimitsLearned(limits_s=limits, longest_s=self.learner.known_s()))]

    def _notice(self, now: float) -> list[Action]:
        self.notice_at = NEVER
        ranks = self.liveness.ranks.values()
        if (
            self.noticed
            or not any(rank.rank == 0 for rank in ranks)
            or any(rank.glimpse.first_at is not None for rank in ranks)
        ):
            return []
        self.noticed = True
        waited_s = now - min(rank.started_at for rank in ranks)
        still_s = self.limits.still_s
        once = f"once its processors and GPUs have stood still for {still_s:g} s it counts as hung (--still-limit none: never)"
        text = (
            f"no rank has given a sign of life in {waited_s:.0f} s: this job is not watched"
            f"{f', but {once}' if still_s < NEVER else ''}. Have the script call "
            "holdfast.client.heartbeat() in its loop, or name a line of its log with --progress-regex"
        )
        return [Record(event=Unwatched(after_s=waited_s, still_s=self.ft.still_limit)), Say(text=text, level="warning")]

    # --- for people -----------------------------------------------------------------------------------------------------

    def shown(self, looked: RankSeen, now: float) -> dict[str, object]:
        """What is known of a rank, now that somebody has looked: for `holdfast status`. Empty: nothing."""
        local_rank = looked.local_rank
        rank = self.liveness.ranks.get(local_rank)
        if rank is None:
            return {}
        fresh = Rank(local_rank, rank.rank, rank.started_at)
        seen = glimpse(looked, now)
        fresh.seen(seen)
        return {
            "beat_age_s": None if seen.beat_at is None else now - seen.beat_at,
            "beats": seen.beats,
            "step": seen.step,
            "step_s": seen.signs.step_took_s or None,
            "section": seen.section,
            "limits": self._shown_limits(fresh),
            "overdue": rank.overdue,
            "stragglers": [one.words for one in self.stragglers.told.values() if one.local_rank == local_rank],
        }

    def _shown_limits(self, rank: Rank) -> list[dict[str, object]]:
        """Of each silence of the rank that goes on: the limit from which it is overdue, or only suspected (learned, usual)."""
        return [
            {
                "of": clock.kind,
                "limit_s": clock.bound.limit_s if clock.bound.limit_s < NEVER else None,
                "basis": "given" if clock.bound.is_sure else "learned" if self.learner.is_ready(clock.kind) else "usual",
            }
            for clock in self.liveness.clocks(rank)
        ]
