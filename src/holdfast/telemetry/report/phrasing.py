"""How are numbers, lengths of time and sets of ranks said to people?"""

from __future__ import annotations

import time
from collections.abc import Iterable

from holdfast.core.config import grammar


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 5` for 0, 1, 2, 3 and 5."""
    return grammar.ranges(sorted(set(numbers))).replace(",", ", ")


def span(seconds: float) -> str:
    """A length of time for people: `0.3 s`, `42 s`, `13 min 5 s`, `2 h 13 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.001 else "0 s"
    whole = round(seconds)
    for unit, size, below, smaller in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def moment(at_unix: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """A point in time, in UTC: nodes may stand in different zones."""
    return time.strftime(form, time.gmtime(at_unix))


def iso(at_unix: float, between: str = "T", end: str = "Z") -> str:
    """A point in time to the millisecond, in UTC: `2026-01-31T12:00:00.123Z`."""
    return f"{moment(at_unix, f'%Y-%m-%d{between}%H:%M:%S')}.{int(at_unix % 1 * 1000):03d}{end}"


def local_moment(at_unix: float) -> str:
    """A point in time as torchrun has it, in this host's zone: `2026-01-31_12:00:00`."""
    return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(at_unix))


def count(number: int, noun: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
