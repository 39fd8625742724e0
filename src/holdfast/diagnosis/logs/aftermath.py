"""Did the writer of a message go on? Looks at what stands after it in its log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection

from holdfast.core.value import replace
from holdfast.diagnosis.evidence import Sighting
from holdfast.diagnosis.logs.frame import Frame
from holdfast.diagnosis.logs.prefix import Speaker
from holdfast.diagnosis.tables import EFFECT

SEARCHED = 64 << 20  # Bytes after the first message in which signs of progress are searched.

WENT_ON = 10
"""So many lines of progress by anybody show that the writer went on: the others cannot go on for long without it. In a log of
many ranks one line of its own is enough."""
OWN = 2  # And in a file of its own so many.
HEAD = 320  # Bytes of a line in which its writer stands.

_NEWLINE = re.compile(rb"\n")
_TOLD = rb"\b[^\w\n]{0,4}\d"
_PROGRESS = (
    re.compile(rb"tep(?<=[Ss]tep)" + _TOLD),
    re.compile(rb"ter(?<=[Ii]ter)" + _TOLD),
    re.compile(rb"teration(?<=[Ii]teration)" + _TOLD),
    re.compile(rb"poch(?<=[Ee]poch)" + _TOLD),
    re.compile(rb"atch(?<=[Bb]atch)" + _TOLD),
    re.compile(rb"oss(?<=[Ll]oss)" + _TOLD),
    re.compile(rb"it/s"),
)
"""Each begins with fixed letters: `re` finds these ten times as fast as one pattern of all."""


def is_progress(line: bytes) -> bool:
    """Whether a line tells of progress."""
    return any(sign.search(line) for sign in _PROGRESS)


def followed(
    sightings: Collection[Sighting], lines: int, speaker: Speaker, after: bytes, start: int, frame: Frame
) -> list[Sighting]:
    """The same sightings, each with what came after it. `after`: the log's bytes from `start` on; `lines`: how many lines the
    log has; `speaker`: who writes the file; `frame`: what stands before its lines."""
    progress = _progress(after, start, frame)
    alone = speaker.rank is not None or speaker.local is not None
    marked = _by_mark(sightings, after, start, frame)
    found = []
    for one in sightings:
        own, left = alone and not one.mark, lines - one.line
        if one.mark and one.offset >= start:
            own, left = True, len(marked[one.mark]) - bisect_right(marked[one.mark], one.offset)
        went_on = one.rule.depth > EFFECT and _went_on(progress, one, alone=alone)
        found.append(replace(one, recovered=one.recovered or went_on, left=left, own=own))
    return found


def _by_mark(sightings: Collection[Sighting], after: bytes, start: int, frame: Frame) -> dict[str, list[int]]:
    """Where lines begin with the marks of what was seen, of the bytes from `start` on: one pass for any number of marks."""
    lines: dict[str, list[int]] = {one.mark: [] for one in sightings if one.mark and one.offset >= start}
    lengths = sorted(set(map(len, lines)))
    for newline in _NEWLINE.finditer(after) if lines else ():
        begin = newline.end()
        head = frame.key(after[begin : begin + HEAD])
        for length in lengths:
            if (at := lines.get(head[:length])) is not None:
                at.append(start + begin)
    return lines


def _progress(after: bytes, start: int, frame: Frame) -> list[tuple[int, str]]:
    """(where, how the line begins) of lines that tell of progress, of the bytes from `start` on."""
    begins = sorted({after.rfind(b"\n", 0, one.start()) + 1 for sign in _PROGRESS for one in sign.finditer(after)})
    return [(start + begin, frame.key(after[begin : begin + HEAD])) for begin in begins]


def _went_on(progress: list[tuple[int, str]], one: Sighting, *, alone: bool) -> bool:
    """`alone`: nobody else writes into that file."""
    later = progress[bisect_right(progress, (one.offset, "\U0010ffff")) :]
    if len(later) >= (OWN if alone and not one.mark else WENT_ON):
        return True
    return bool(one.mark) and any(line.startswith(one.mark) for _, line in later)
