"""Did the writer of a message go on? Looks at what stands after it in its log."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection

from holdfast.core.value import replace
from holdfast.diagnosis.evidence import Sighting
from holdfast.diagnosis.logs.prefix import Speaker
from holdfast.diagnosis.tables import EFFECT

SEARCHED = 64 << 20  # Bytes after the first message in which signs of progress are searched.

WENT_ON = 10
"""So many lines of progress by anybody show that the writer went on: the others cannot go on for long without it. In a log of
many ranks one line of its own is enough."""
OWN = 2  # And in a file of its own so many.
MARK = 80  # Bytes that are kept of a line that tells of progress: its writer stands there.

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


def followed(sightings: Collection[Sighting], lines: int, speaker: Speaker, after: bytes, start: int) -> list[Sighting]:
    """The same sightings, each with what came after it. `after`: the log's bytes from `start` on; `lines`: how many lines the
    log has; `speaker`: who writes the file."""
    progress = _progress(after, start)
    alone = speaker.rank is not None or speaker.local is not None
    marked = _by_mark(sightings, after, start)
    found = []
    for one in sightings:
        own, left = alone and not one.mark, lines - one.line
        if one.mark and one.offset >= start:
            own, left = True, len(marked[one.mark]) - bisect_right(marked[one.mark], one.offset)
        went_on = one.rule.depth > EFFECT and _went_on(progress, one, alone=alone)
        found.append(replace(one, recovered=went_on, left=left, own=own))
    return found


def _by_mark(sightings: Collection[Sighting], after: bytes, start: int) -> dict[str, list[int]]:
    """Where lines begin with the marks of what was seen, of the bytes from `start` on: one pass for any number of marks."""
    marks = {one.mark.encode(): one.mark for one in sightings if one.mark and one.offset >= start}
    lines: dict[str, list[int]] = {mark: [] for mark in marks.values()}
    lengths = sorted(set(map(len, marks)))
    for newline in _NEWLINE.finditer(after) if marks else ():
        begin = newline.end()
        for length in lengths:
            if (mark := marks.get(after[begin : begin + length])) is not None:
                lines[mark].append(start + begin)
    return lines


def _progress(after: bytes, start: int) -> list[tuple[int, bytes]]:
    """(where, how the line begins) of lines that tell of progress, of the bytes from `start` on."""
    begins = sorted(after.rfind(b"\n", 0, one.start()) + 1 for sign in _PROGRESS for one in sign.finditer(after))
    return [(start + begin, after[begin : begin + MARK]) for begin in begins]


def _went_on(progress: list[tuple[int, bytes]], one: Sighting, *, alone: bool) -> bool:
    """`alone`: nobody else writes into that file."""
    later = progress[bisect_right(progress, (one.offset, b"\xff")) :]
    if len(later) >= (OWN if alone and not one.mark else WENT_ON):
        return True
    return bool(one.mark) and any(line.startswith(one.mark.encode()) for _, line in later)
