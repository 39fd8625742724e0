"""Which lines of a log does a rule know, and who wrote them? Reads whole logs, at some hundred MB/s where they are ordinary.

A training log says the same a million times with other numbers. So the digits are taken out of a block of it, and of what is
left each line is looked at once (a set); only shapes that were never seen are searched for the rules' words, and only lines
whose shape has one are read.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right

from holdfast.core.value import replace
from holdfast.diagnosis import ends
from holdfast.diagnosis.evidence import End, Sighting, writer
from holdfast.diagnosis.prefix import Speaker, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from holdfast.diagnosis.rule import Rules

BLOCK = 1 << 20
"""Bytes that are looked at together."""

LONGEST = 4096
"""Of one line, in bytes: what comes later in it is not read."""

MOST_SHAPES = 200_000
"""That are remembered; some 30 MB."""

MOST_ALIKE = 4096
"""Lines of one shape and file that are read: a flood says nothing new."""

SEARCHED = 64 << 20
"""Bytes after the first message in which signs are looked for that its writer went on."""

WENT_ON = 10
"""So many lines of anybody's progress tell that it did: the others cannot go on for long without it. Of its own, in a log
of many ranks, one is enough."""
OWN = 2
"""And in a file of its own so many."""

WORTH_IT = 500
"""Shapes, from which on a pattern of all words is made. That takes some milliseconds, as does looking for each word in them."""

DIGITS = b"0123456789"
MARK = 80
"""Of a line that tells of progress, as many bytes are kept: who writes it stands there."""

_PROGRESS = re.compile(rb"(?:[Ss]tep|[Ii]ter|[Ii]teration|[Ee]poch|[Bb]atch|[Ll]oss)\b[^\w\n]{0,4}\d|it/s")


class Log:
    """What one file has told."""

    def __init__(self, source: str, speaker: Speaker) -> None:
        self.source, self.speaker = source, speaker
        self.sightings: dict[tuple[object, ...], Sighting] = {}
        self.ends: list[End] = []
        self.ranks: set[int] = set() if speaker.rank is None else {speaker.rank}
        self.box = ends.Box(source)
        self.lines = 0
        self.alike: dict[bytes, int] = {}
        self.writers: set[object] = set(self.ranks)


class Scanner:
    """Looks for `rules`. What it has learned of one file's ordinary lines helps with the next."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._words = {word: word.encode().translate(None, DIGITS) for word in (*rules.by_word, *ends.WORDS)}
        self._any: re.Pattern[bytes] | None = None
        """Knows each word. None: so little has been read that it was not worth making."""
        self._shapes: dict[bytes, tuple[str, ...] | None] = {}
        """By shape: words that may be in such a line. None: there are none."""

    def file(self, path: str, speaker: Speaker, *, most_bytes: int | None = None) -> Log:
        """Read a file, or its last `most_bytes`. OSError where it cannot be read."""
        log = Log(path, speaker)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            start = max(0, size - most_bytes) if most_bytes is not None else 0
            for offset, block in _blocks(fd, start):
                self.block(log, block, offset)
            progress = _progress(fd, min((one.offset for one in log.sightings.values() if one.rule.depth), default=None))
            alone = speaker.rank is not None or speaker.local is not None
            for key, one in log.sightings.items():
                went_on = one.rule.depth > 0 and _went_on(progress, one, alone=alone)
                log.sightings[key] = replace(one, recovered=went_on, left=log.lines - one.line)
        finally:
            os.close(fd)
        return log

    def text(self, text: str, source: str = "", speaker: Speaker | None = None) -> Log:
        """Read what is in memory."""
        log = Log(source, speaker or Speaker())
        self.block(log, text.encode("utf-8", "replace"), 0)
        return log

    def block(self, log: Log, block: bytes, offset: int) -> None:
        """Read whole lines, which begin `offset` bytes after the file's beginning."""
        shapes = block.translate(None, DIGITS).split(b"\n")
        wanted = self._wanted(set(shapes))
        if wanted:
            at = offset
            for number, (line, shape) in enumerate(zip(block.split(b"\n"), shapes), log.lines + 1):
                if shape in wanted and (seen := log.alike.get(shape, 0)) < MOST_ALIKE:
                    log.alike[shape] = seen + 1
                    self._line(log, line, number, at, wanted[shape])
                at += len(line) + 1
        log.lines += len(shapes) - (not shapes[-1])

    def _wanted(self, shapes: set[bytes]) -> dict[bytes, tuple[str, ...]]:
        known = self._shapes
        if len(known) > MOST_SHAPES:
            known.clear()
        fresh = shapes - known.keys()
        if self._any is None and len(fresh) > WORTH_IT:
            self._any = re.compile(_any_of(self._words.values()))
        for shape in fresh:
            begin = shape[:LONGEST]
            known[shape] = self._in(begin) or None if self._any is None or self._any.search(begin) else None
        return {shape: words for shape in shapes if (words := known[shape]) is not None}

    def _in(self, shape: bytes) -> tuple[str, ...]:
        return tuple(word for word, bare in self._words.items() if bare in shape)

    def _line(self, log: Log, raw: bytes, number: int, offset: int, words: tuple[str, ...]) -> None:
        line = raw.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST].decode("utf-8", "replace")
        speaker, text = split(line, log.speaker)
        if speaker.rank is not None:
            log.ranks.add(speaker.rank)
        log.writers.add(writer(speaker, log.source))
        if (end := log.box.read(text, speaker, number)) is not None:
            log.ends.append(end)
        if (best := self.rules.best(text, words)) is None:
            return
        rule, found = best
        said = {key: value for key, value in found.groupdict().items() if value is not None}
        rank = int(said["rank"]) if said.get("rank", "").isdigit() else speaker.rank
        sighting = Sighting(
            rule=rule, text=text.strip()[:500], source=log.source, line=number, offset=offset,
            rank=rank, local=int(said["local"]) if "local" in said else speaker.local, node=said.get("node", speaker.node),
            pid=int(said["pid"]) if said.get("pid", "").isdigit() else speaker.pid, at=speaker.at, mark=speaker.mark,
            what=said.get("what", ""), peer=said.get("peer") or said.get("peer_rank") or said.get("peer_rank2") or "",
            seq=int(said["seq"]) if "seq" in said else None, op=said.get("op", ""),
        )  # fmt: skip
        key = (rule.name, rank, sighting.local, sighting.node, sighting.mark, sighting.what if rule.depth == 3 else "")
        if (before := log.sightings.get(key)) is None:
            log.sightings[key] = sighting
        elif rule.depth and _progressed(before, sighting):
            log.sightings[key] = replace(sighting, count=before.count + 1)
        else:
            log.sightings[key] = replace(before, count=before.count + 1)


def _any_of(words: Iterable[bytes]) -> bytes:
    """A pattern for any of them, as a tree of their letters: a flat alternation takes fifteen times as long."""
    tree: dict[int, Any] = {}
    for word in words:
        node = tree
        for letter in word:
            node = node.setdefault(letter, {})
        node[-1] = {}
    return _branches(tree)


def _branches(node: dict[int, Any]) -> bytes:
    if -1 in node:
        return b""
    each = [re.escape(bytes([letter])) + _branches(below) for letter, below in node.items()]
    return each[0] if len(each) == 1 else b"(?:" + b"|".join(each) + b")"


def _progressed(before: Sighting, after: Sighting) -> bool:
    """A message that comes again much later was survived the first time: the last one counts then."""
    return after.line - before.line > 1000


def _blocks(fd: int, start: int) -> Iterator[tuple[int, bytes]]:
    """(where it begins, whole lines) from `start` on."""
    rest, at = b"", start
    while piece := os.pread(fd, BLOCK, start):
        start += len(piece)
        head, end, tail = piece.rpartition(b"\n")
        if not end and len(rest) < 16 * BLOCK:
            rest += piece
            continue
        block = rest + (head + end if end else piece)
        yield at, block
        at, rest = at + len(block), tail if end else b""
    if rest:
        yield at, rest


def _progress(fd: int, start: int | None) -> list[tuple[int, bytes]]:
    """(where, how the line begins) of lines that tell of progress, from `start` on. None: nobody needs to know."""
    if start is None:
        return []
    after = os.pread(fd, SEARCHED, start)
    found = []
    for one in _PROGRESS.finditer(after):
        begin = after.rfind(b"\n", 0, one.start()) + 1
        found.append((start + begin, after[begin : begin + MARK]))
    return found


def _went_on(progress: list[tuple[int, bytes]], one: Sighting, *, alone: bool) -> bool:
    """`alone`: nobody else writes into that file."""
    later = progress[bisect_right(progress, (one.offset, b"\xff")) :]
    if len(later) >= (OWN if alone and not one.mark else WENT_ON):
        return True
    return bool(one.mark) and any(line.startswith(one.mark.encode()) for _, line in later)
