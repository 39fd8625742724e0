"""Who is slower than the others, or than it used to be? Of the ranks of a node, by how long their steps and sections take.

Ranks that synchronize in each step all take as long as the slowest, so their steps tell nothing about each other; the sections
that come before they meet (loading data, the forward pass) do, and so do steps against a rank's own past.

Each PERIOD_S the medians of what each rank did are compared. What is slow once is noise; a straggler is slow PERIODS times in a
row, and has recovered when it has not been so for as long.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

from holdfast.core.machine import NEVER
from holdfast.core.outliers import median, too_slow
from holdfast.core.value import Value, replace

PERIOD_S, PERIODS = 60.0, 3
SAMPLES, KEPT = 3, 64
"""A median needs so many durations; of more than that the newest are kept. With longer steps a period goes on until they are
there."""
PAST, PAST_LEAST = 32, 5  # Periods of its own past that a rank is compared with, and how many there must be.
SLOWER_THAN_EVER = 1.5
"""A rank is slower than its own past if it takes so many times the median of that; half of the ranks or more: the job is."""

OTHERS, OWN_PAST = "the node's other ranks", "its own past"


class Straggler(Value):
    """A rank that is slow at something."""

    local_rank: int
    rank: int
    series: str  # `step`, or the name of a section.
    took_s: float
    typical_s: float
    against: str  # OTHERS or OWN_PAST.

    @property
    def words(self) -> str:
        return f"rank {self.rank} takes {self.took_s:.3g} s for {self.series}, {self.against} {self.typical_s:.3g} s"


Series: TypeAlias = tuple[int, str]  # Local rank, series.
Slow: TypeAlias = tuple[int, str, str]  # Local rank, series, against whom.


class Stragglers(Value):
    """All of a node's ranks."""

    judge_at: float = NEVER
    samples: dict[Series, tuple[float, ...]] = {}  # noqa: RUF012
    past: dict[Series, tuple[float, ...]] = {}  # noqa: RUF012
    slow: dict[Slow, int] = {}  # noqa: RUF012
    """For how many periods in a row; negative: it has not been slow, since it was told."""
    told: dict[Slow, Straggler] = {}  # noqa: RUF012
    typical: dict[str, float] = {}  # noqa: RUF012
    """Of each series: the median of the ranks in the last period."""

    def saw(self, local_rank: int, durations: Mapping[str, float], now: float) -> Stragglers:
        """A rank took so many seconds, by series."""
        if not durations:
            return self
        new = {(local_rank, name): (*self.samples.get((local_rank, name), ()), took_s) for name, took_s in durations.items()}
        judge_at = now + PERIOD_S if self.judge_at == NEVER else self.judge_at
        return replace(self, judge_at=judge_at, samples={**self.samples, **{key: kept[-KEPT:] for key, kept in new.items()}})

    def judged(self, rank_of: Mapping[int, int], now: float) -> tuple[Stragglers, list[Straggler], list[Straggler]]:
        """The period is over. Who has become a straggler, and who has recovered? `rank_of`: ranks by local rank."""
        took = {key: median(kept) for key, kept in self.samples.items() if len(kept) >= SAMPLES and key[0] in rank_of}
        by_series: dict[str, dict[int, float]] = {}
        for (local_rank, series), took_s in took.items():
            by_series.setdefault(series, {})[local_rank] = took_s
        slower = [one for series in sorted(by_series) for one in self._slower(series, by_series[series], rank_of)]
        slow, told, fresh, over = self._news(slower, by_series)
        after = Stragglers(
            judge_at=now + PERIOD_S,
            samples={key: kept for key, kept in self.samples.items() if key not in took},
            past=self.past | {key: (*self.past.get(key, ()), took_s)[-PAST:] for key, took_s in took.items()},
            slow=slow,
            told=told,
            typical=self.typical | {series: median(took_s.values()) for series, took_s in by_series.items()},
        )
        return after, fresh, over

    def _news(
        self, slower: Iterable[Straggler], judged: Container[str]
    ) -> tuple[dict[Slow, int], dict[Slow, Straggler], list[Straggler], list[Straggler]]:
        found = {(one.local_rank, one.series, one.against): one for one in slower}
        slow, told, over = dict(self.slow), dict(self.told), list[Straggler]()
        for key in found:
            slow[key] = max(0, slow.get(key, 0)) + 1
        fresh = {key: one for key, one in found.items() if slow[key] == PERIODS and key not in told}
        for key in [key for key in slow if key not in found and key[1] in judged]:
            slow[key] = min(0, slow[key]) - 1
            if key not in told or slow[key] == -PERIODS:
                del slow[key]
                over += [told.pop(key)] if key in told else []
        return slow, told | fresh, [*fresh.values()], over

    def _slower(self, series: str, took_s: Mapping[int, float], rank_of: Mapping[int, int]) -> Iterator[Straggler]:
        typical_s, slow = too_slow(took_s)
        pasts = {local_rank: self.past.get((local_rank, series), ()) for local_rank in took_s}
        usual_s = {local_rank: median(past) for local_rank, past in pasts.items() if len(past) >= PAST_LEAST}
        slower = [local_rank for local_rank, past_s in usual_s.items() if took_s[local_rank] > SLOWER_THAN_EVER * past_s]
        if len(slower) * 2 >= len(took_s) > 1:
            slower = []  # the job is slower
        for against, ranks, than_s in ((OTHERS, slow, dict.fromkeys(slow, typical_s)), (OWN_PAST, slower, usual_s)):
            for one in ranks:
                yield Straggler(
                    local_rank=one,
                    rank=rank_of[one],
                    series=series,
                    took_s=took_s[one],
                    typical_s=than_s[one],
                    against=against,
                )
