"""Which lines of a log does a rule know, and who wrote them? Reads whole logs, at some hundred MB/s where they are ordinary.

A training log says the same a million times with other numbers. So the digits are taken out of a block of it, and of what is
left each line is looked at once (a set); only shapes that were never seen are searched for the rules' words, all together
(`sieve`), and only lines whose shape has one are read.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right

from holdfast.core.value import replace
from holdfast.diagnosis.evidence import End, Sighting, writer
from holdfast.diagnosis.logs import ends
from holdfast.diagnosis.logs.prefix import Speaker, index, split
from holdfast.diagnosis.logs.sieve import Sieve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.diagnosis.rule import Rules

BLOCK = 1 << 20
"""Bytes that are looked at together."""

LONGEST = 4096
"""Of one line, in bytes: what comes later in it is not read."""

MOST_SHAPES = 32 << 20
"""Bytes of shapes that are remembered."""

NEW, MANY, STRANGE = 0.5, 500, 15
"""Where more than this share of a block's lines, and so many, are new, the next ones are not compared with what came before."""

MOST_ALIKE = 4096
"""Lines of one shape and file that are read: a flood says nothing new."""

SEARCHED = 64 << 20
"""Bytes after the first message in which signs are looked for that its writer went on."""

WENT_ON = 10
"""So many lines of anybody's progress tell that it did: the others cannot go on for long without it. Of its own, in a log
of many ranks, one is enough."""
OWN = 2
"""And in a file of its own so many."""

TRACEBACK = 400
"""Lines above an exception's own, others' included, in which its traceback begins."""

_OBJECT = re.compile(r"\b[Pp]od(?:/| [\w-]+/)([a-z0-9][\w.-]*)")
"""Of whom Kubernetes speaks in an event: `Warning  NodeNotReady  pod/train-worker-3  …`, `… Pod train/worker-3`."""

DESCRIBED = ("Name:     ", "Node:     ")
"""In the lines of `kubectl describe pod` that say which pod it is, and where."""
_DESCRIBED = re.compile(r"^(Name|Node):\s+([\w.-]+)")
POD = 200
"""Lines that such a description may have."""

FURTHER = 64
"""Lines after a message that a rule may look at, where its pattern goes on there."""

_RECORD = re.compile(r"\b(?:ERROR|CRITICAL)\b")
"""In a line of a program's log that tells of an error; of any other line it is chance that a traceback follows."""

_NEWLINE = re.compile(rb"\n")
DIGITS = b"0123456789"
MARK = 80
"""Of a line that tells of progress, as many bytes are kept: who writes it stands there."""

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
"""Each begins with letters that are always the same, which `re` looks for ten times as fast as for one pattern of all."""


class Log:
    """What one file has told."""

    def __init__(self, source: str, speaker: Speaker) -> None:
        self.source, self.speaker = source, speaker
        self.sightings: dict[tuple[object, ...], Sighting] = {}
        self.counts: dict[tuple[object, ...], int] = {}
        """How often each of them was seen."""
        self.ends: list[End] = []
        self.ranks: set[int] = set() if speaker.rank is None else {speaker.rank}
        self.box = ends.Box(source)
        self.lines = 0
        self.alike: dict[bytes, int] = {}
        self.writers: set[object] = set(self.ranks)
        self.places: dict[object, int] = {}
        """Ranks of writers whose other lines only say their place on a node."""
        self.pod = speaker
        """Of whom `kubectl describe pod` speaks, from that line on."""
        self.pod_line = -POD


class Scanner:
    """Looks for `rules`. What it has learned of one file's ordinary lines helps with the next."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._of_bare: dict[bytes, list[str]] = {}
        """Words by what is left of them in a shape."""
        for word in dict.fromkeys((*rules.by_word, *ends.WORDS, *DESCRIBED)):
            self._of_bare.setdefault(word.encode().translate(None, DIGITS), []).append(word)
        self._sieve = Sieve(self._of_bare)
        self._shapes: dict[bytes, list[str] | None] = {}
        """By shape: words that may be in such a line. None: there are none."""
        self._size = 0
        """Bytes of them."""
        self._strange = 0
        """Blocks that are still to be read as if no line had come before."""

    def file(self, path: str, speaker: Speaker, *, most_bytes: int | None = None) -> Log:
        """Read a file, or its last `most_bytes`. OSError where it cannot be read."""
        log = Log(path, speaker)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            start = max(0, size - most_bytes) if most_bytes is not None else 0
            for offset, block in _blocks(fd, start):
                self.block(log, block, offset)
            begin = min((one.offset for one in log.sightings.values() if one.rule.depth), default=None)
            if begin is not None:
                _look_on(log, os.pread(fd, SEARCHED, begin), begin)
        finally:
            os.close(fd)
        _count(log)
        return log

    def text(self, text: str, source: str = "", speaker: Speaker | None = None) -> Log:
        """Read what is in memory."""
        log = Log(source, speaker or Speaker())
        whole = text.encode("utf-8", "replace")
        self.block(log, whole, 0)
        _look_on(log, whole, 0)
        _count(log)
        return log

    def block(self, log: Log, block: bytes, offset: int) -> None:
        """Read whole lines, which begin `offset` bytes after the file's beginning."""
        bare = block.translate(None, DIGITS)
        shapes = bare.split(b"\n")
        if wanted := self._wanted(bare, shapes):
            at, before = offset, b""
            lines = block.split(b"\n")
            for number, (line, shape) in enumerate(zip(lines, shapes), log.lines + 1):
                if shape in wanted and (seen := log.alike.get(shape, 0)) < MOST_ALIKE and not _is_source(line, before):
                    log.alike[shape] = seen + 1
                    self._line(log, line, number, at, wanted[shape], lines)
                at, before = at + len(line) + 1, line
        log.lines += len(shapes) - (not shapes[-1])

    def _wanted(self, bare: bytes, lines: list[bytes]) -> dict[bytes, list[str]]:
        """Which shapes of these lines, together `bare`, have words, and which."""
        if self._strange:
            self._strange -= 1
            return self._told(bare)
        known = self._shapes
        if self._size > MOST_SHAPES:
            known.clear()
            self._size = 0
        shapes = set(lines)
        fresh = shapes - known.keys()
        if len(fresh) > NEW * len(lines) > MANY:
            self._strange = STRANGE
        known.update(dict.fromkeys(fresh))
        text = b"\n".join(fresh)
        self._size += len(text)
        known.update(self._told(text))
        return {shape: words for shape in shapes if (words := known[shape]) is not None}

    def _told(self, text: bytes) -> dict[bytes, list[str]]:
        """By line without digits: its words, if it has any."""
        told: dict[bytes, list[str]] = {}
        for at, bare in self._sieve.inside(text):
            begin = text.rfind(b"\n", 0, at) + 1
            if at + len(bare) - begin <= LONGEST:
                end = text.find(b"\n", at)
                told.setdefault(text[begin : end if end >= 0 else None], []).extend(self._of_bare[bare])
        return told

    def _line(self, log: Log, raw: bytes, number: int, offset: int, words: list[str], around: list[bytes]) -> None:
        line = raw.rstrip(b"\r").rpartition(b"\r")[2][:LONGEST].decode("utf-8", "replace")
        speaker, text = split(line, log.speaker)
        if speaker == log.speaker:
            speaker = _described(log, text, number)
        elif speaker.rank is None and speaker.pid is not None:
            speaker = replace(speaker, rank=log.box.pids.get((speaker.node, speaker.pid)))
        if speaker.rank is not None:
            log.ranks.add(speaker.rank)
        log.writers.add(writer(speaker, log.source))
        if speaker.rank is not None and speaker.local is not None:
            log.places[speaker.node or log.source, speaker.local] = speaker.rank
        if (end := log.box.read(text, speaker, number)) is not None:
            log.ends.append(end)
        if len(log.box.pids) > len(log.ranks):  # they have been started, whether they have said anything or not
            log.ranks.update(log.box.pids.values())
            log.writers.update(log.box.pids.values())
        if (best := self.rules.best(text, words)) is None:
            return
        rule, found = best
        if "\\n" in rule.pattern:
            found = self.rules.match(rule, "\n".join((text, *_further(around, number - log.lines, line)))) or found
        said = {key: value for key, value in found.groupdict().items() if value is not None}
        rank = int(said["rank"]) if said.get("rank", "").isdigit() else speaker.rank
        if rank is None and rule.depth and (pod := _OBJECT.search(text)) is not None:
            rank = index(pod[1].rstrip("."))
        local, node = int(said["local"]) if "local" in said else speaker.local, said.get("node", speaker.node)
        what = said.get("what", "")
        key = (rule.name, rank, local, node, speaker.mark, what if rule.depth == 3 else "")
        log.counts[key] = log.counts.get(key, 0) + 1
        before = log.sightings.get(key)
        progressed = before is not None and rule.depth > 0 and _progressed(before, number)
        if before is not None and not before.logged and not progressed:
            return  # the same again: of a flood each line comes here
        logged = False
        if rule.depth in (1, 2) and (before is None or before.logged):
            here = number - log.lines - 1
            logged = _was_logged(around[max(0, here - TRACEBACK) : here], log.speaker, speaker)
        if before is not None and not progressed:
            log.sightings[key] = before if logged else replace(before, logged=False)
            return
        log.sightings[key] = Sighting(
            rule=rule, text=text.strip()[:500], source=log.source, line=number, offset=offset,
            rank=rank, local=local, node=node,
            pid=int(said["pid"]) if said.get("pid", "").isdigit() else speaker.pid, at=speaker.at, mark=speaker.mark,
            what=what, peer=said.get("peer") or said.get("peer_rank") or said.get("peer_rank2") or "",
            seq=int(said["seq"]) if "seq" in said else None, op=said.get("op", ""), missing=_missing(said), logged=logged,
        )  # fmt: skip


def _count(log: Log) -> None:
    """Give each sighting its count, once: a copy of the value for each line of a flood would take longest of all."""
    for key, count in log.counts.items():
        if count > 1:
            log.sightings[key] = replace(log.sightings[key], count=count)


def _described(log: Log, text: str, number: int) -> Speaker:
    """Who is meant by a line that names nobody: the pod that is being described, if one is."""
    if log.speaker.rank is None and log.speaker.local is None and (found := _DESCRIBED.match(text)):
        if found[1] == "Name":
            rank = index(found[2])
            log.pod, log.pod_line = replace(log.speaker, rank=rank, node=found[2]), -POD if rank is None else number
        elif number - log.pod_line < POD:
            log.pod = replace(log.pod, node=found[2])
    return log.pod if number - log.pod_line < POD else log.speaker


def _further(lines: list[bytes], after: int, line: str) -> list[str]:
    """The lines after one, as far as a rule may look, without what that one begins with."""
    further = (one[:LONGEST].decode("utf-8", "replace") for one in lines[after : after + FURTHER])
    mark = split(line, Speaker())[0].mark
    return [one.removeprefix(mark) for one in further]


def _missing(said: Mapping[str, str]) -> tuple[int, ...]:
    """Ranks that a line names as those that are waited for, or each of its further lines one."""
    named = said["missing"].split(",") if "missing" in said else re.findall(r"\n[^\n]*?\b(\d+): \[", said.get("lines", ""))
    return tuple(map(int, named))


def _is_source(line: bytes, before: bytes) -> bool:
    """A traceback shows the script's own line after the place where it stands. What that could say, nobody has said."""
    return b"    " in line and b'  File "' in before and b'", line ' in before


def _was_logged(above: list[bytes], default: Speaker, speaker: Speaker) -> bool:
    """Whether the traceback that ends after these lines hangs below a line of the program's log: it caught what it tells of."""
    texts = (line[:LONGEST].decode("utf-8", "replace") for line in reversed(above))
    said = (split(text, default) for text in texts if text.startswith(speaker.mark))
    own = (text for who, text in said if (who.rank, who.local, who.mark) == (speaker.rank, speaker.local, speaker.mark))
    for text in own:
        if text.startswith("Traceback (most recent call last)"):
            return _RECORD.search(next(own, "")) is not None
        if not text.startswith(" "):
            return False
    return False


def _progressed(before: Sighting, line: int) -> bool:
    """A message that comes again much later was survived the first time: the last one counts then."""
    return line - before.line > 1000


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


def _look_on(log: Log, after: bytes, start: int) -> None:
    """What came after each message, of the bytes from `start` on: did its writer go on?"""
    progress = _progress(after, start)
    alone = log.speaker.rank is not None or log.speaker.local is not None
    lines = _by_mark(log, after, start)
    for key, one in log.sightings.items():
        own, left = alone and not one.mark, log.lines - one.line
        if one.mark and one.offset >= start:
            own, left = True, len(lines[one.mark]) - bisect_right(lines[one.mark], one.offset)
        went_on = one.rule.depth > 0 and _went_on(progress, one, alone=alone)
        log.sightings[key] = replace(one, recovered=went_on, left=left, own=own)


def _by_mark(log: Log, after: bytes, start: int) -> dict[str, list[int]]:
    """Where lines begin with the marks of what was seen, of the bytes from `start` on: one pass for any number of marks."""
    marks = {one.mark.encode(): one.mark for one in log.sightings.values() if one.mark and one.offset >= start}
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
