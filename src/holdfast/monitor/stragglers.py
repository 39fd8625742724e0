"""Who is slower than the others, or than it used to be? Of the ranks of a node, by how long their steps and sections take.

Ranks that synchronize in each step all take as long as the slowest, so their steps tell nothing about each other; the sections
that come before they meet (loading data, the forward pass) do, and so do steps against a rank's own past.

Each PERIOD_S the medians of what each rank did are compared. What is slow once is noise; a straggler is slow PERIODS times in a
row, and has recovered when it has not been so for as long.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER
from holdfast.core.outliers import median, too_slow
from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PERIOD_S, PERIODS = 60.0, 3
SAMPLES, KEPT = 3, 64
"""A median needs so many durations; of more than that the newest are kept. With longer steps a period goes on until they are
there."""
PAST, PAST_LEAST = 32, 5
"""Periods of its own past that a rank is compared with, and how many there must be."""
SLOWER_THAN_EVER = 1.5
"""A rank is slower than its own past if it takes so many times the median of that; half of the ranks or more: the job is."""


class Straggler(Value):
    """A rank that is slow at something."""

    local_rank: int
    rank: int
    series: str
    """`step`, or the name of a section."""
    took_s: float
    typical_s: float
    against: str
    """the node's other ranks · its own past"""

    @property
    def words(self) -> str:
        """For people."""
        return f"rank {self.rank} takes {self.took_s:.3g} s for {self.series}, {self.against} {self.typical_s:.3g} s"


OTHERS, OWN_PAST = "the node's other ranks", "its own past"


class Stragglers:
    """All of a node's ranks."""

    def __init__(self, *, period_s: float = PERIOD_S) -> None:
        self.period_s = period_s
        self.judge_at = NEVER
        self.ranks: dict[int, int] = {}
        """local rank → rank"""
        self.samples: dict[tuple[int, str], list[float]] = {}
        self.past: dict[tuple[int, str], list[float]] = {}
        self.slow: dict[tuple[int, str, str], int] = {}
        """How many periods in a row (local rank, series, against) has been slow; negative: has not been, since it was told."""
        self.told: dict[tuple[int, str, str], Straggler] = {}
        self.typical: dict[str, float] = {}
        """Of each series: the median of the ranks in the last period."""

    def saw(self, local_rank: int, rank: int, durations: Mapping[str, float], now: float) -> None:
        """A rank took so many seconds, by series."""
        self.ranks[local_rank] = rank
        if durations and self.judge_at == NEVER:
            self.judge_at = now + self.period_s
        for series, seconds in durations.items():
            kept = self.samples.setdefault((local_rank, series), [])
            kept.append(seconds)
            del kept[:-KEPT]

    def pause(self) -> None:
        """No rank is left to be judged."""
        self.judge_at = NEVER

    def judge(self, now: float) -> tuple[list[Straggler], list[Straggler]]:
        """The period is over. Who has become a straggler, and who has recovered?"""
        self.judge_at = now + self.period_s
        took = {key: median(kept) for key, kept in self.samples.items() if len(kept) >= SAMPLES}
        for key in took:
            del self.samples[key]
        found: dict[tuple[int, str, str], Straggler] = {}
        for series in sorted({series for _, series in took}):
            of_rank = {local_rank: seconds for (local_rank, name), seconds in took.items() if name == series}
            self.typical[series] = median(of_rank.values())
            typical_s, slow = too_slow(of_rank)
            for local_rank in slow:
                self._note(found, local_rank, series, of_rank[local_rank], typical_s, OTHERS)
            for local_rank, typical_s in self._slower_than_ever(series, of_rank).items():
                self._note(found, local_rank, series, of_rank[local_rank], typical_s, OWN_PAST)
        return self._news(found, {series for _, series in took})

    def _note(
        self,
        found: dict[tuple[int, str, str], Straggler],
        local_rank: int,
        series: str,
        took_s: float,
        usual_s: float,
        against: str,
    ) -> None:
        found[local_rank, series, against] = Straggler(
            local_rank=local_rank,
            rank=self.ranks[local_rank],
            series=series,
            took_s=took_s,
            typical_s=usual_s,
            against=against,
        )

    def _slower_than_ever(self, series: str, of_rank: Mapping[int, float]) -> dict[int, float]:
        slower = {}
        for local_rank, seconds in of_rank.items():
            past = self.past.setdefault((local_rank, series), [])
            usual_s = median(past) if len(past) >= PAST_LEAST else NEVER
            if seconds > SLOWER_THAN_EVER * usual_s:
                slower[local_rank] = usual_s
            past.append(seconds)
            del past[:-PAST]
        return slower if len(slower) * 2 < len(of_rank) or len(of_rank) == 1 else {}

    def _news(self, found: dict[tuple[int, str, str], Straggler], judged: set[str]) -> tuple[list[Straggler], list[Straggler]]:
        fresh, over = [], []
        for key in [*found, *(key for key in self.slow if key not in found and key[1] in judged)]:
            if key in found:
                self.slow[key] = max(0, self.slow.get(key, 0)) + 1
                if self.slow[key] == PERIODS and key not in self.told:
                    self.told[key] = found[key]
                    fresh.append(found[key])
            elif key in self.told:
                self.slow[key] = min(0, self.slow[key]) - 1
                if self.slow[key] <= -PERIODS:
                    over.append(self.told.pop(key))
                    del self.slow[key]
            else:
                del self.slow[key]
        return fresh, over
