"""Who is much slower than the others? One robust test, used for the ranks of a node and for the nodes of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")

LEAST = 3  # Of fewer nobody can tell who is slow and who is fast.

DEVIATIONS = 5.0
"""So many deviations from the median. Estimated by the median absolute deviation, which one outlier, or several, do not move;
1.4826 of it are a standard deviation where times are spread normally."""
SCALE = 1.4826

RATIO, LEAST_S = 1.3, 0.005
"""And by so much slower at least, and so many seconds: where all take the same time to the microsecond, any difference would be
many deviations."""


def median(values: Iterable[float]) -> float:
    """The middle one; of an even number the mean of both. ValueError for none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("median of no values")
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def too_slow(values: Mapping[K, float]) -> tuple[float, list[K]]:
    """The median in seconds, and who took much longer than that, the slowest first."""
    if len(values) < LEAST:
        return 0.0, []
    typical = median(values.values())
    spread = SCALE * median(abs(value - typical) for value in values.values())
    bar = max(typical + DEVIATIONS * spread, RATIO * typical, typical + LEAST_S)
    return typical, sorted((who for who, value in values.items() if value > bar), key=lambda who: -values[who])
