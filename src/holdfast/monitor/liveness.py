"""Which rank hangs? The machine that knows since when each rank of a node has been silent, and how long it may be.

    silence                     runs from                         limit
    no heartbeat yet            the start of its process          initial; where it is learned, any sign of life ends it
    no heartbeat                its last one                      between two heartbeats
    in a section                its opening                       of that section; `step` in the first iterations: of `warmup`
    outside of sections         the last one's closing            out of section, from the first section on
    the process does not end    the end of its script             --least-limit, as if it had been learned

A limit that was given is kept to the letter. One that was learned is a guess (`monitor.limits`): whoever has exceeded it is
only suspected, and hangs once the whole node stands still too, processors and GPUs, and no other node says that a suspect there
works. For ranks that wait for another one are silent as well, and while that one works, it evaluates, or saves. Only who is
stopped (SIGSTOP), or asleep in the kernel all the time, hangs whatever the others do.

Pages are read at the moment when a limit could run out, and every GLANCE_S, so that what changes in between is known by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.page.silences import BEAT, FIRST, OUT, in_section
from holdfast.core.value import Value
from holdfast.monitor.glimpse import Glimpse, glimpse, learn
from holdfast.monitor.limits import END, Bound, Limits
from holdfast.monitor.messages import (
    AskGpus,
    GpusSeen,
    MeasureRanks,
    Overdue,
    RankGone,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    SeeRanks,
)
from holdfast.monitor.stillness import STOPPED, TRACED, Stillness

GLANCE_S, SHORTEST_S = 2.0, 0.05
"""Seconds between two looks at all pages: a limit that a script sets itself is in force after that time at the latest, and gaps
between heartbeats are known that well. Of a limit that is shorter than four of them it is a quarter, so that most of a pause of
our own within that limit is seen; but no page is read more often than each SHORTEST_S."""

PAUSE_S = 1.0
"""Whoever is waked so much too late was stopped itself, and its ranks perhaps with it (a suspended job, a frozen cgroup, a host
that swaps): that time counts against nobody. Where looks come more often than that, it is the time between two."""

PAUSES = 16
"""So many of those are remembered."""

MEASURES, SOONEST_S, LATEST_S = 10, 0.05, 60.0
"""Looks at a suspect's processor time within the time that it must stand still, and the bounds of the time between two."""

AT_WORK = 3
"""Whoever has done something at so many looks in a row is at work, and nodes that wait for it are told so. A thread that only
wakes up now and then is not."""

DEBUGGER = "debugger"
"""The section in which a rank is while pdb or another prompt waits for somebody's words (`client.hooks`)."""

EPSILON_S = 1e-6
"""Sums of floating-point times come out an ulp early."""


class Gpus(Enum):
    """Whether the GPUs work, in the present stillness."""

    UNASKED = "unasked"
    ASKED = "asked"
    IDLE = "idle"
    """Or nobody can tell."""


class Clock(Value):
    """One silence of a rank that is going on."""

    kind: str
    since: float
    bound: Bound

    def words(self, silent_s: float, limit_s: float) -> str:
        """`no heartbeat for 12.3 s (limit 12 s)`."""
        learned = "" if self.bound.is_sure else "learned "
        limit = f" ({learned}limit {limit_s:g} s)" if 0 < limit_s < NEVER else ""
        match self.kind:
            case "first":
                return f"no sign of life for {silent_s:.1f} s after its start{limit}"
            case "beat":
                return f"no heartbeat for {silent_s:.1f} s{limit}"
            case "end":
                return f"its script has ended, but not its process for {silent_s:.1f} s{limit}"
            case "out":
                return f"outside of any section for {silent_s:.1f} s{limit}"
        return f"in {self.kind} for {silent_s:.1f} s{limit}"


class Rank:
    """What is known of one rank."""

    def __init__(self, local_rank: int, rank: int, started_at: float) -> None:
        self.local_rank, self.rank, self.started_at = local_rank, rank, started_at
        self.glimpse = Glimpse(at=started_at)
        self.look_at = NEVER
        """When one of its limits could run out; NEVER: it is being looked at, or has none."""
        self.suspected: Clock | None = None
        """The silence for which it is suspected. None: it is not."""
        self.still = Stillness()
        self.overdue = ""
        """What it was found to hang for. Empty: it was not, so far."""

    def seen(self, glimpse: Glimpse) -> None:
        """It was looked at."""
        self.glimpse = glimpse

    def judged(self, look_at: float, suspected: Clock | None) -> None:
        """It is well or only suspected, and worth another look then."""
        self.look_at, self.suspected = look_at, suspected

    def hangs(self, overdue: str) -> None:
        """It was found to hang."""
        self.overdue, self.look_at, self.suspected = overdue, NEVER, None

    def looked_after(self) -> None:
        """Nobody is suspected any more."""
        self.still = Stillness()

    def stood_still(self, since: float) -> bool:
        """It has stood still since then for as long as a suspect must."""
        return self.suspected is not None and since >= self.suspected.bound.still_s

    @property
    def is_debugged(self) -> bool:
        """Somebody looks into it, from inside or outside."""
        last = self.still.last
        return (last is not None and last.state == TRACED) or any(one.name == DEBUGGER for one in self.glimpse.open_sections)


class Liveness:
    """The machine. What was seen goes to `limits`' learner, which says what the limits are."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ranks: dict[int, Rank] = {}
        self.glance_at = self.measure_at = NEVER
        self.glance_s = GLANCE_S
        self.gpus = Gpus.UNASKED
        self.waits_until = -NEVER
        """Until then a node that stands still waits for another one's ranks, which work."""
        self.pauses: list[tuple[float, float]] = []
        """When we were not there: beginning and end."""

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        self._excuse(now)
        match seen:
            case RankStarted(local_rank=local_rank, rank=number, started_at=started_at):
                rank = self.ranks[local_rank] = Rank(local_rank, number, started_at)
                self._plan_glance(now)
                return self._judge(rank, now)
            case RankGone(local_rank=local_rank):
                self.ranks.pop(local_rank, None)
                if not self.ranks:
                    self.glance_at = self.measure_at = NEVER
            case RankSeen(local_rank=local_rank) if local_rank in self.ranks:
                return self._seen(self.ranks[local_rank], seen, now)
            case RanksMeasured(ranks=measured):
                self._measured(measured, now)
                return self._judge_still(now)
            case GpusSeen(busy=busy):
                self.gpus = Gpus.UNASKED if busy else Gpus.IDLE
                if busy:
                    self._all_work(now)
                return self._judge_still(now)
            case Tick():
                return self._due(now)
        return []

    def wait_for_others(self, until: float) -> None:
        """Another node's ranks work in silence, and ours may wait for them until then."""
        self.waits_until = max(self.waits_until, until)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return min(self.glance_at, self.measure_at, *(rank.look_at for rank in self.ranks.values()))

    def _due(self, now: float) -> list[Action]:
        out: list[Action] = []
        glance = now >= self.glance_at
        if due := tuple(i for i, rank in self.ranks.items() if glance or now >= rank.look_at):
            out.append(SeeRanks(local_ranks=due))
        for i in due:
            self.ranks[i].judged(NEVER, self.ranks[i].suspected)
        if glance:
            self.glance_at = now + self.glance_s
        if now >= self.measure_at:
            self.measure_at = NEVER
            out.append(MeasureRanks(local_ranks=tuple(self.ranks)))
        return out

    def _seen(self, rank: Rank, seen: RankSeen, now: float) -> list[Action]:
        before = rank.glimpse
        rank.seen(glimpse(seen, now))
        if before.signs.limits.count != rank.glimpse.signs.limits.count:
            self._plan_glance(now)
        if not any(end > before.at for _, end in self.pauses):  # else some of the time was nobody's fault
            learn(self.limits.learner, rank.started_at, before, rank.glimpse)
        return self._judge(rank, now)

    def _plan_glance(self, now: float) -> None:
        shortest_s = min(self.limits.shortest_s(rank.glimpse.signs) for rank in self.ranks.values())
        self.glance_s = min(max(shortest_s / 4, SHORTEST_S), GLANCE_S)
        self.glance_at = min(self.glance_at, now + self.glance_s)

    # --- by the clock ---------------------------------------------------------------------------------------------------

    def clocks(self, rank: Rank) -> Iterator[Clock]:
        """Every silence of the rank that is going on and could have a limit."""
        seen, signs, limits = rank.glimpse, rank.glimpse.signs, self.limits
        if signs.exit_at is not None:
            yield Clock(kind=END, since=signs.exit_at, bound=limits.ending())
            return
        if seen.beat_at is not None:
            yield Clock(kind=BEAT, since=seen.beat_at, bound=limits.beat(signs))
        elif (first := limits.first(signs)).is_sure or not signs.sections:
            yield Clock(kind=FIRST, since=rank.started_at, bound=first)
        for one in seen.open_sections:
            yield Clock(kind=in_section(one.name), since=one.open_since or 0.0, bound=limits.section(one, signs))
        if signs.out_since is not None and signs.sections and not seen.open_sections:
            yield Clock(kind=OUT, since=signs.out_since, bound=limits.out(signs))

    def _judge(self, rank: Rank, now: float) -> list[Action]:
        """Judge it by its clocks, and say when to look again."""
        look_at, suspected = NEVER, None
        rank.judged(look_at, suspected)
        if rank.overdue:
            return []
        for clock in self.clocks(rank):
            bound, silent_s = clock.bound, self.elapsed(clock.since, now)
            if silent_s >= bound.busy_s - EPSILON_S:
                return self._overdue(rank, clock, silent_s, bound.busy_s)
            if silent_s >= bound.limit_s - EPSILON_S:
                look_at = min(look_at, now + bound.busy_s - silent_s)
                if bound.still_s < (suspected.bound.still_s if suspected else NEVER):
                    suspected = clock
            else:
                look_at = min(look_at, now + min(bound.limit_s, bound.busy_s) - silent_s)
        rank.judged(look_at, suspected)
        self._plan_measures(now)
        return []

    def _overdue(self, rank: Rank, clock: Clock, silent_s: float, limit_s: float, how: str = "") -> list[Action]:
        inside = rank.glimpse.section if clock.kind in (FIRST, BEAT) else ""
        rank.hangs(clock.words(silent_s, limit_s) + (f", in section {inside}" if inside else "") + how)
        return [Overdue(local_rank=rank.local_rank, reason=rank.overdue, silent_s=silent_s)]

    # --- by what the node does ------------------------------------------------------------------------------------------

    def _plan_measures(self, now: float) -> None:
        """As long as somebody is suspected, everybody is measured."""
        waits = [rank.suspected.bound.still_s for rank in self.ranks.values() if rank.suspected]
        if waits:
            self.measure_at = min(self.measure_at, now + min(max(min(waits) / MEASURES, SOONEST_S), LATEST_S))
        elif self.measure_at != NEVER:
            self.measure_at, self.gpus = NEVER, Gpus.UNASKED
            for rank in self.ranks.values():
                rank.looked_after()

    def _measured(self, measured: Iterable[RankMeasured], now: float) -> None:
        for one in measured:
            if one.local_rank in self.ranks:
                self.ranks[one.local_rank].still.look(one, now)
        if any(rank.is_debugged for rank in self.ranks.values()):  # the others wait for it; it waits for a person
            self._all_work(now)

    def _all_work(self, now: float) -> None:
        for rank in self.ranks.values():
            rank.still.works(now)

    def _judge_still(self, now: float) -> list[Action]:
        """All have been measured: which suspect hangs? One at most, since its end is the others' too."""
        self._plan_measures(now)
        all_since = max((rank.still.since for rank in self.ranks.values()), default=NEVER)
        ranks = [rank for rank in self.ranks.values() if rank.suspected is not None]
        if stuck := [rank for rank in ranks if rank.stood_still(now - max(rank.still.stuck_since, rank.still.since))]:
            rank = _furthest_behind(stuck)
            stopped = rank.still.last is not None and rank.still.last.state == STOPPED
            return self._hangs(rank, now, "it is stopped (SIGSTOP)" if stopped else "it sleeps in the kernel, deaf to signals")
        still = [rank for rank in ranks if now >= self.waits_until and rank.stood_still(now - all_since)]
        if not still:
            self.gpus = Gpus.UNASKED
            return []
        if self.gpus is not Gpus.IDLE:
            asked, self.gpus = self.gpus, Gpus.ASKED
            return [AskGpus()] if asked is Gpus.UNASKED else []
        how = f"nothing on this node has done anything for {now - all_since:.1f} s"
        return self._hangs(_furthest_behind(still), now, how)

    def _hangs(self, rank: Rank, now: float, how: str) -> list[Action]:
        clock = rank.suspected
        assert clock is not None
        return self._overdue(rank, clock, self.elapsed(clock.since, now), clock.bound.limit_s, f"; {how}")

    @property
    def busy_s(self) -> float:
        """A rank here is suspected, and works: for how long that is to be believed. 0: none does."""
        waits = [rank.suspected.bound.still_s for rank in self.ranks.values() if rank.suspected]
        works = any(rank.is_debugged or rank.still.at_work >= AT_WORK for rank in self.ranks.values())
        return min(waits) if waits and works and min(waits) < NEVER else 0.0

    # --- our own absence ------------------------------------------------------------------------------------------------

    def elapsed(self, since: float, now: float) -> float:
        """Seconds from then to now in which we were there."""
        return now - since - sum(end - max(begin, since) for begin, end in self.pauses if end > since)

    def _excuse(self, now: float) -> None:
        due = self.deadline()
        if now - due > min(PAUSE_S, self.glance_s):
            self.pauses = [*self.pauses[1 - PAUSES :], (due, now)]
            self.glance_at, self.measure_at = max(self.glance_at, now), max(self.measure_at, now)
            for rank in self.ranks.values():
                rank.still.excuse(now - due)
                rank.judged(max(rank.look_at, now), rank.suspected)


def _furthest_behind(ranks: Iterable[Rank]) -> Rank:
    """The one that the others wait for."""
    return min(ranks, key=lambda one: (one.glimpse.step or 0, one.glimpse.beat_at or one.started_at))
