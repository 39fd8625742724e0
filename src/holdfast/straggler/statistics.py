"""What is told of many durations?"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from holdfast.core.outliers import median


class Statistic(enum.Enum):
    """The keys of a summary."""

    MIN = enum.auto()
    MAX = enum.auto()
    MED = enum.auto()
    AVG = enum.auto()
    STD = enum.auto()
    NUM = enum.auto()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


Summary = Mapping[Statistic, float]


def summary_of(durations: Sequence[float]) -> Summary:
    """Of one duration or more."""
    return {
        Statistic.MIN: min(durations),
        Statistic.MAX: max(durations),
        Statistic.MED: median(durations),
        Statistic.AVG: fmean(durations),
        Statistic.STD: stdev(durations) if len(durations) > 1 else float("nan"),
        Statistic.NUM: len(durations),
    }
