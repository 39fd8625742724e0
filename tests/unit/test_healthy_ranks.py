"""Does a rank that keeps to its limits live? Real pages, real monitors, and a made-up clock that goes on between any two words.

Rank and agent share a page. Whenever either of them reads or writes a word of it, the other may run: a rank beats, begins to be
monitored or enters a section while its page is read, between a look and its judgement, and before an agent that wakes up late
has looked; an agent looks while the rank is in the middle of a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.client import writer as client
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import Tick
from holdfast.monitor.machine import Monitor
from holdfast.monitor.messages import (
    AskGpus,
    GpusSeen,
    MeasureRanks,
    Overdue,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    SeeRanks,
)
from holdfast.runtime.shm.pages import create_page

PHASES = 200
LATE_S = 0.3
"""How late the agent is at most: less than what it forgives, so that nothing is forgiven."""


class Words:
    """A page's words. `between` runs before each is read or written."""

    def __init__(self, words: memoryview, between: Callable[[], None]) -> None:
        self.words, self.between = words, between

    def __getitem__(self, at: int) -> int:
        self.between()
        return self.words[at]

    def __setitem__(self, at: int, value: int) -> None:
        self.between()
        self.words[at] = value

    def cast(self, form: Any) -> memoryview:
        return self.words.cast(form)


class Stage:
    """One rank and its agent."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        limit_s = self.chance.choice((2.0, 3.0, 10.0))
        self.initial_s, self.beat_s = limit_s, self.chance.uniform(0.6, 3.0) * limit_s
        self.step_s, self.warmup_s, self.out_s = (self.chance.uniform(2.0, 6.0) for _ in range(3))
        self.warmup_s *= 5
        self.monitor = Monitor(
            FaultTolerance(
                initial_rank_heartbeat_timeout=self.initial_s,
                rank_heartbeat_timeout=self.beat_s,
                rank_section_timeouts={"step": self.step_s, "warmup": self.warmup_s},
                rank_out_of_section_timeout=self.out_s,
                num_warmup_iterations=2,
            )
        )
        self.now, self.agent_at, self.hung = 1.0, 1.0, list[str]()
        self.rank: Iterator[float] = iter(())
        self.rank_at = self.ends_at = float("inf")
        self.rank_runs = self.agent_runs = False
        monkeypatch.setattr(client, "monotonic_ns", lambda: int(self.now * 1e9))
        self.page, self.writer = create_page(), client.Writer()
        self.writer.attach(self.page.words)
        mapped: Any = self.page.words
        words: Any = Words(mapped, self.between)
        self.page.words = self.writer.words = words
        self.mapped = mapped

    def close(self) -> None:
        self.page.words = self.mapped
        self.writer.words = None
        self.page.close()

    def between(self) -> None:
        """Time goes on between two words; who was suspended goes on, too."""
        if self.chance.random() < 0.05:
            self.until(self.now + self.chance.choice((1e-6, 0.01, 0.1)))

    def until(self, end: float) -> None:
        """Both do what is due by then, unless one of them waits for the other to go on."""
        while True:
            rank_at = float("inf") if self.rank_runs else self.rank_at
            agent_at = float("inf") if self.agent_runs else self.agent_at
            if min(rank_at, agent_at) > end:
                break
            self.now = max(self.now, min(rank_at, agent_at))
            if rank_at <= agent_at:
                self.rank_goes_on()
            else:
                self.agent_looks()
        self.now = max(self.now, end)

    # --- the rank ---------------------------------------------------------------------------------------------------------

    def rank_goes_on(self) -> None:
        self.rank_runs = True
        naps_s = next(self.rank, None)
        self.rank_at = float("inf") if naps_s is None else self.now + naps_s
        self.rank_runs = False

    def below(self, limit_s: float) -> float:
        """Some time within a limit. A tenth is for what else takes time: a host that has other things to do."""
        return limit_s * self.chance.uniform(0.1, 0.88) - 0.2

    def beats(self) -> Iterator[float]:
        """Monitored, it beats; then it is not monitored for a long time, and then again."""
        writer = self.writer
        for _ in range(2):
            yield self.chance.uniform(0.1, 3.0) * self.initial_s
            writer.await_heartbeat()
            writer.set_limits()
            yield self.below(self.initial_s)
            for beat in range(4):
                writer.heartbeat()
                if not beat:
                    writer.heartbeat_came()
                yield self.below(self.beat_s)
            writer.heartbeat()
            writer.set_limits(initial_s=self.initial_s, beat_s=self.beat_s / 2)
            for _ in range(3):
                yield self.below(self.beat_s / 2)
                writer.heartbeat()
            writer.set_limits(*[float("inf")] * 3)
            writer.heartbeat_came()

    def steps(self) -> Iterator[float]:
        """It makes steps, and the first two are slow."""
        writer = self.writer
        step = writer.section("step")
        writer.begin_outside()
        for number in range(9):
            yield self.below(self.out_s)
            with step:
                yield self.below(self.warmup_s if number < 2 else self.step_s)
        writer.end_outside()

    # --- the agent --------------------------------------------------------------------------------------------------------

    def agent_looks(self) -> None:
        self.agent_runs = True
        self.show(Tick())
        self.agent_at = max(self.now, self.monitor.deadline()) + self.chance.uniform(0.0, LATE_S)
        self.agent_runs = False

    def show(self, seen: Any) -> None:
        for action in self.monitor.observe(seen, self.now):
            match action:
                case SeeRanks():
                    seen = RankSeen(local_rank=0, signs=self.page.signs())
                    self.between()
                    self.show(seen)
                case MeasureRanks():
                    still = RankMeasured(local_rank=0, cpu_s=0.0, io_bytes=0, state="S")
                    self.show(RanksMeasured(ranks=(still,)))
                case AskGpus():
                    self.show(GpusSeen(busy=None))
                case Overdue(reason=reason):
                    self.hung.append(reason)

    def play(self, rank: Iterator[float]) -> None:
        """The rank's whole life; what hung is in `hung`."""
        self.monitor.observe(RankStarted(local_rank=0, rank=0, started_at=self.now), self.now)
        self.agent_at = self.monitor.deadline()
        self.rank, self.rank_at = rank, self.now
        while self.rank_at < float("inf") and not self.hung:
            self.until(self.now + 1.0)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Stage]]:
    made: list[Stage] = []

    def make(seed: int) -> Stage:
        made.append(Stage(seed, monkeypatch))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("way", ["beats", "steps"])
def test_a_rank_that_keeps_to_its_limits_lives_whatever_the_phases_of_its_start_and_of_the_looks(stage, way):
    false_kills = {}
    for seed in range(PHASES):
        one = stage(seed)
        one.play(getattr(one, way)())
        if one.hung:
            false_kills[seed] = one.hung
    assert not false_kills


@pytest.mark.parametrize("way", ["beats", "steps"])
def test_and_one_that_does_not_is_found(stage, way):
    one = stage(7)
    one.play(getattr(one, way)())
    if way == "beats":
        one.writer.await_heartbeat()
        one.writer.set_limits()
    else:
        one.writer.begin_outside()
    one.until(one.now + 100.0)
    assert len(one.hung) == 1
