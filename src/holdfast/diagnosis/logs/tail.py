"""What do a log's lines tell where none has a word of failure? Whose line was the last, how long was it silent, what became of
the loss and of each step's time.

Read from the log's beginning and end only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from holdfast.core.value import Value
from holdfast.diagnosis.logs.frame import Frame
from holdfast.diagnosis.logs.prefix import Speaker

BEGIN, END = 60, 200  # Lines that are looked at.
LEAST = 6  # Numbers of a kind, below which they tell nothing.

_WHEN = re.compile(r"(?:\d{4}[-/](\d\d)[-/](\d\d)[T _]|\b[IWE](\d\d)(\d\d) )(\d\d):(\d\d):(\d\d)")
_RANK = re.compile(r"(?i)(?<![a-z])(?<!local )(?<!local_)rank[ =:#]+(\d{1,5})\b")
_LOSS = re.compile(r"(?i)\bloss['\"]?(?: *[:=] *| )(nan|inf|[-+]?\d+\.\d+(?:e[-+]?\d+)?)\b")
_NORM = re.compile(r"(?i)\b(?:grad(?:ient)?[_ ]?norm|gnorm)['\"]?(?: *[:=] *| )(nan|inf|[-+]?\d+\.\d+(?:e[-+]?\d+)?)\b")
_TIME = re.compile(
    r"(?i)(?:\b(?:step|iter(?:ation)?|batch)[ _]?time['\"]?(?: \((?:s|ms)\))?|elapsed time per iteration \(ms\)|\bTime)"
    r"[:=] *(\d+\.\d+)|\b(\d+\.\d+) ?s(?:ec)?/(?:it|step)"
)


class Tail(Value):
    """What the beginning and the end of one log tell."""

    last: Mapping[int, str] = {}  # Of each rank its last line.
    silent_s: float = 0.0  # Before the last line that says when.
    usual_s: float = 0.0  # Between two such lines, mostly.
    losses: tuple[float, ...] = ()  # In their order.
    norms: tuple[float, ...] = ()  # Of gradients.
    times: tuple[float, ...] = ()  # Of steps, in one unit.


def read(lines: Sequence[str], frame: Frame, speaker: Speaker) -> Tail:
    """What these lines, in their order, tell. `speaker`: who writes the file."""
    last: dict[int, str] = {}
    when: list[float] = []
    lines = lines if len(lines) <= BEGIN + END else [*lines[:BEGIN], *lines[-END:]]
    for line in lines[-END:]:
        who, text = frame.split(line, speaker)
        named = _RANK.findall(text)
        rank = int(named[0]) if who.rank is None and len(named) == 1 else who.rank
        if rank is not None and text.strip():
            last[rank] = text.strip()
        when += [_seconds(*found) for found in _WHEN.findall(line)[-1:]]
    gaps = [later - earlier for earlier, later in pairwise(when)]
    return Tail(
        last=last,
        silent_s=gaps[-1] if gaps else 0.0,
        usual_s=median(gaps[:-1]) if len(gaps) > LEAST else 0.0,
        losses=tuple(float(one) for line in lines if "oss" in line for one in _LOSS.findall(line)),
        norms=tuple(float(one) for line in lines if "norm" in line for one in _NORM.findall(line)),
        times=tuple(_of_steps(lines)),
    )


def _of_steps(lines: Iterable[str]) -> list[float]:
    told = (line for line in lines if "ime" in line or "s/" in line)
    return [float(one or other) for line in told for one, other in _TIME.findall(line)[:1]]


def _seconds(*found: str) -> float:
    month, day, hour, minute, second = (int(one) for one in found if one)
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second
