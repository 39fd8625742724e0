"""Which lines of a log does a rule know, and who wrote them? Reads whole logs, at some hundred MB/s where they are ordinary.

A training log says the same a million times with other numbers. So the digits are taken out of a block, and each shape that is
left is looked at once (a set). Only new shapes are searched for the rules' words, all together (`sieve`), and only lines whose
shape has a word are read.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from holdfast.core.value import fields_of, replace
from holdfast.diagnosis.evidence import End, Sighting, writer
from holdfast.diagnosis.judgement import EXCEPTION
from holdfast.diagnosis.judgement import Frame as Call
from holdfast.diagnosis.logs import ends, tail
from holdfast.diagnosis.logs.aftermath import SEARCHED, followed, is_progress
from holdfast.diagnosis.logs.frame import SAMPLE, Frame, learn
from holdfast.diagnosis.logs.prefix import Speaker, index
from holdfast.diagnosis.logs.sieve import Sieve
from holdfast.diagnosis.meaning import TRACEBACK, Meaning, Meanings
from holdfast.diagnosis.opinions.learned_words import shape, tells
from holdfast.diagnosis.rule import Rule, Rules
from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM

BLOCK = 1 << 20  # Bytes that are read together.
LONGEST = 4096  # Bytes of a line that are read.
MOST_SHAPES = 32 << 20  # Bytes of shapes that are remembered.

NEW, MANY, STRANGE = 0.5, 500, 15
"""Where more than this share of a block's lines, and so many, are new, the next blocks are not compared with earlier ones."""

MOST_ALIKE = 4096  # Lines of one shape and file that are read: a flood says nothing new.
FAR = 1000  # A message that comes again so many lines later was survived the first time: the last one counts.
ABOVE = 400  # Lines above an exception's own, others' included, in which its traceback begins.
FURTHER = 64  # Lines after a message that a rule may look at, where its pattern goes on there.
POD = 200  # Lines that the description of a pod may have.
DESCRIBED = ("Name:     ", "Node:     ")  # In the lines of `kubectl describe pod` that say which pod it is, and where.
_DESCRIBED = re.compile(r"^(Name|Node):\s+([\w.-]+)")

_OBJECT = re.compile(r"\b[Pp]od(?:/| [\w-]+/)([a-z0-9][\w.-]*)")
"""The pod of a Kubernetes event: `Warning  NodeNotReady  pod/train-worker-3  …`, `… Pod train/worker-3`."""

_NAMED = re.compile(r"(?i)(?<!local )(?<!local_)\b(?:global[_ ])?rank[ =:#]+(\d{1,5})\b")
"""A rank that a message names: `Rank 11: found NaN in …`."""

_RECORD = re.compile(r"\b(?:ERROR|CRITICAL)\b")
"""In a program's log line that tells of an error; after any other line a traceback stands by chance."""

_WARNING = re.compile(r"\bW\d{4} \d\d:\d\d")
"""Before a line of what its program goes on after: glog's, as torch writes it. Above a traceback it stands by chance."""

_INFORMS = re.compile(r"(?:^|[\[( ])I\d{3,4} \d\d:\d\d:|(?:^|[\[ ])I \S+\.(?:cc|cpp|cu|h|py):\d+\]|\b(?:INFO|DEBUG)\b")
"""Before a line that tells of no failure, as its program says itself: glog's, TensorFlow's and Python's levels."""

_HANDED_ON = re.compile(r"[\w.]+: Caught [\w.]+ in (?:DataLoader worker process|replica|pin memory thread)\b")
"""The error of a worker that torch raises again: the worker's own traceback follows, and says it better."""

_BOX = re.compile(r"[│╭┃┏|] *(?P<path>[^ │┃]*):\d+ in (?P<function>\S+)")
_BOXED = "│╭╰┃┏┗"  # What the lines of a traceback begin with that rich, typer or lightning draws as a box.

HANDED_ON = 4  # Lines after an exception that ends with a colon in which the one that it hands on may stand.

STACK = b"(most recent call first):"  # At the end of the line above a thread's frames, as faulthandler writes them.
LAST = 200  # Lines of a log's end that are looked at, where nothing in it is known.
FRAMES = 300  # Lines, others' included, that a traceback may have.
_FRAME = re.compile(r'  File "([^"]*)", line \d+(?:, in (.*))?')

DIGITS = b"0123456789"


class Raised(NamedTuple):
    """What is known of a traceback when its last line is read."""

    frames: list[Call]
    teller: Speaker | None  # Who raised it, where only its first line says so.
    columns: re.Pattern[str] | None  # What else stands before its lines: columns that `frame` did not find.

    def spoken(self, speaker: Speaker, text: str) -> tuple[Speaker, str]:
        """(who wrote its last line, what it says)."""
        found = self.columns.match(text) if self.columns is not None else None
        who = speaker if self.teller is None else replace(self.teller, mark=speaker.mark)
        return who, text if found is None else text[found.end() :]


class Log:
    """What one file has told."""

    def __init__(self, source: str, speaker: Speaker) -> None:
        self.source, self.speaker = source, speaker
        self.frame = Frame()  # What stands before each of its lines.
        self.sightings: dict[tuple[object, ...], Sighting] = {}
        self.counts: dict[tuple[object, ...], int] = {}  # How often each of them was seen.
        self.ends: list[End] = []
        self.ranks: set[int] = set() if speaker.rank is None else {speaker.rank}
        self.box = ends.Box(source)
        self.lines = 0
        self.writers: set[object] = set(self.ranks)
        self.places: dict[object, int] = {}  # Ranks of writers whose other lines only say their place on a node.
        self.alike: dict[bytes, int] = {}  # Lines that were read, by shape.
        self.raised: dict[int, Raised] = {}  # By line that ends a traceback.
        self.tail = tail.Tail()
        self.stacks: dict[int, str] = {}  # Of ranks that have written theirs here.
        self.said: list[str] = []  # Of its last lines, those that tell of a failure.
        self._pod, self._pod_line = speaker, -POD  # Whom `kubectl describe pod` describes, and since which line.

    def read_up_to(self, line: int) -> None:
        """So many lines have been read."""
        self.lines = line

    def spoken(self, line: str, number: int) -> tuple[Speaker, str]:
        """(who wrote the line, what it says)."""
        speaker, text = self.frame.split(line, self.speaker)
        if (speaker.rank, speaker.local, speaker.node, speaker.pid) == (
            self.speaker.rank,
            self.speaker.local,
            self.speaker.node,
            self.speaker.pid,
        ):
            speaker = self._described(text, number, speaker)
            if speaker.rank is None and speaker.local is None and self.box.spawned is not None:
                speaker = replace(speaker, local=self.box.spawned)
        elif speaker.rank is None and speaker.pid is not None:
            process = speaker.node, speaker.pid
            speaker = replace(speaker, rank=self.box.pids.get(process, self.frame.pids.get(process)))
        return speaker, text

    def _described(self, text: str, number: int, speaker: Speaker) -> Speaker:
        """Who is meant by a line that names nobody: the pod that is being described, if one is."""
        if speaker.rank is None and speaker.local is None and (found := _DESCRIBED.match(text)):
            if found[1] == "Name":
                self._pod = replace(self.speaker, rank=self.frame.of_pod(found[2]), node=found[2])
                self._pod_line = number if index(found[2]) is not None else -POD
            elif number - self._pod_line < POD:
                self._pod = replace(self._pod, node=found[2])
        return self._pod if number - self._pod_line < POD else speaker

    def hear(self, speaker: Speaker, text: str, number: int) -> None:
        """Note who has written, and which end the line tells of."""
        if speaker.rank is not None:
            self.ranks.add(speaker.rank)
            if speaker.local is not None:
                self.places[speaker.node or self.source, speaker.local] = speaker.rank
        self.writers.add(writer(speaker, self.source))
        if (end := self.box.read(text, speaker, number)) is not None:
            self.ends.append(end)
        if len(self.box.pids) > len(self.ranks):  # they have been started, whether they have said anything or not
            self.ranks.update(self.box.pids.values())
            self.writers.update(self.box.pids.values())

    def own_words(self) -> list[str]:
        """Its last lines that tell of a failure, without those of what followed from another's, if there are others."""
        effects = {shape(one.text) for one in self.sightings.values() if one.rule.depth == EFFECT}
        own = [line for line in self.said if shape(line.strip()[:500]) not in effects and not ends.tells_only(line)]
        return own or self.said

    def look_at(self, sample: bytes) -> None:
        """Find what stands before its lines, and what they tell without a word of failure, by some of them."""
        lines = sample.decode("utf-8", "replace").splitlines()
        self.frame = learn(lines, self.speaker)
        self.tail = tail.read([line[:LONGEST] for line in lines], self.frame, self.speaker)

    def look_on(self, after: bytes, start: int) -> None:
        """Add to each sighting what came after it, and how often it came: once, at the end of the log, since a copy of the
        value for each line of a flood would take longest of all. `after`: the log's bytes from `start` on."""
        seen = (
            followed(self.sightings.values(), self.lines, self.speaker, after, start, self.frame)
            if after
            else self.sightings.values()
        )
        self.sightings = {key: replace(one, count=self.counts[key]) for key, one in zip(self.sightings, seen)}


class Scanner:
    """Looks for `rules`. What it has learned of one file's ordinary lines helps with the next."""

    def __init__(self, rules: Rules | Meanings) -> None:
        self.meanings = rules if isinstance(rules, Meanings) else Meanings(rules)
        self.rules = self.meanings.rules
        self._of_bare: dict[bytes, list[str]] = {}  # Words by what is left of them in a shape.
        for word in dict.fromkeys((*self.meanings.words, *ends.WORDS, *DESCRIBED)):
            self._of_bare.setdefault(word.encode().translate(None, DIGITS), []).append(word)
        self._sieve = Sieve(self._of_bare)
        self._shapes: dict[bytes, list[str] | None] = {}
        """By shape: words that may be in such a line. None: there are none."""
        self._size = 0  # Bytes of them.
        self._strange = 0  # Blocks that are still to be read as if no line had come before.

    def file(self, path: str, speaker: Speaker, *, most_bytes: int | None = None) -> Log:
        """Read a file, or its last `most_bytes`. OSError where it cannot be read."""
        log = Log(path, speaker)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            start = max(0, size - most_bytes) if most_bytes is not None else 0
            sample = _sample(fd, start, size)
            log.look_at(sample)
            for offset, block in _blocks(fd, start):
                self.block(log, block, offset)
            begin = min((one.offset for one in log.sightings.values() if one.rule.depth > EFFECT), default=None)
            log.look_on(b"" if begin is None else os.pread(fd, SEARCHED, begin), begin or 0)
            self._guess(log, sample)
        finally:
            os.close(fd)
        return log

    def text(self, text: str, source: str = "", speaker: Speaker | None = None) -> Log:
        """Read what is in memory."""
        log = Log(source, speaker or Speaker())
        whole = text.encode("utf-8", "replace")
        sample = whole if len(whole) <= 2 * SAMPLE else b"\n".join((whole[:SAMPLE], whole[-SAMPLE:]))
        log.look_at(sample)
        self.block(log, whole, 0)
        log.look_on(whole, 0)
        self._guess(log, sample)
        return log

    def _guess(self, log: Log, sample: bytes) -> None:
        """Keep those of its last lines that tell of a failure; take what they tell by words, where nothing else is known."""
        best: tuple[float, Sighting] | None = None
        before = b""
        lines = sample.rstrip(b"\n").split(b"\n")[-LAST:]
        is_known = bool(log.ends or log.sightings)
        begun = next((at for at, line in enumerate(lines) if is_progress(line)), 0)  # What stands above was survived.
        for number, line in enumerate(lines, log.lines - len(lines) + 1):
            whole = _decoded(line)
            if (is_known and not tells(whole)) or number <= log.lines - len(lines) + begun or _is_source(line, before):
                before = line
                continue
            before = line
            speaker, text = log.frame.split(whole, log.speaker)
            if tells(text):
                log.said.append(text)
            if not is_known and (found := self.meanings.guess(text)) is not None:
                rule, match = found
                said = _groups(match)
                meant = _meant(rule, said, text, speaker, log.frame)
                seen = _sighting(rule, said, meant, text, log.source, max(1, number), 0)
                if best is None or rule.confidence > best[0]:
                    best = rule.confidence, seen
        if best is not None:
            log.sightings["words",] = best[1]

    def block(self, log: Log, block: bytes, offset: int) -> None:
        """Read whole lines, which begin `offset` bytes after the file's beginning."""
        bare = block.translate(None, DIGITS)
        shapes = bare.split(b"\n")
        if STACK in block:
            self._stacks(log, block.split(b"\n"))
        if wanted := self._wanted(bare, shapes):
            at, before = offset, b""
            lines = block.split(b"\n")
            for here, (line, shape) in enumerate(zip(lines, shapes)):
                if shape in wanted and (seen := log.alike.get(shape, 0)) < MOST_ALIKE and not _is_source(line, before):
                    log.alike[shape] = seen + 1
                    self._line(log, wanted[shape], lines, here, at)
                    if TRACEBACK.encode() in line:
                        self._raised(log, wanted, lines, shapes, here, at)
                at, before = at + len(line) + 1, line
        log.read_up_to(log.lines + len(shapes) - (not shapes[-1]))

    def _stacks(self, log: Log, lines: list[bytes]) -> None:
        """Keep what ranks have written of where their threads are."""
        for here, line in enumerate(lines):
            if STACK not in line:
                continue
            who, title = log.frame.split(_decoded(line), log.speaker)
            if who.rank is None:
                continue
            own = [title]
            for other in lines[here + 1 : here + FRAMES]:
                speaker, text = log.frame.split(_decoded(other), log.speaker)
                if speaker.mark == who.mark and not text.startswith("  "):
                    break
                own += [text] if speaker.mark == who.mark else []
            log.stacks[who.rank] = "\n".join((log.stacks.get(who.rank, ""), *own))

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

    def _raised(
        self, log: Log, wanted: Mapping[bytes, list[str]], lines: list[bytes], shapes: list[bytes], here: int, offset: int
    ) -> None:
        """Find the end of the traceback that begins in the line `here`, and its frames; read it, if it has no word."""
        speaker, header = log.frame.split(_decoded(lines[here]), log.speaker)
        before = _before(header.partition(TRACEBACK)[0])
        frames: list[Call] = []
        at = offset + len(lines[here]) + 1
        own, teller = (speaker.rank, speaker.local, speaker.mark), None
        below, first = log.frame.split(_decoded(lines[here + 1]) if here + 1 < len(lines) else "", log.speaker)
        if below.mark == "" and speaker.mark and _FRAME.match(first):  # a logger has marked the first line of its record only
            own, teller = (below.rank, below.local, below.mark), speaker
        for number in range(here + 1, min(len(lines), here + FRAMES)):
            who, text = log.frame.split(_decoded(lines[number]), log.speaker)
            if before is not None and (found := before.match(text)) is not None:
                text = text[found.end() :]
            is_own = (who.rank, who.local, who.mark) == own
            if is_own and not _is_frame(text, frames) and text and not text.startswith(" "):
                log.raised[log.lines + number + 1] = Raised(frames, teller, before)
                if shapes[number] not in wanted:
                    self._line(log, [], lines, number, at)
                return
            at += len(lines[number]) + 1

    def _line(self, log: Log, words: list[str], lines: list[bytes], here: int, offset: int) -> None:
        """Read the line `here` of a block's `lines`, which begins `offset` bytes after the file's beginning."""
        number = log.lines + here + 1
        _, redrawn, last = lines[here].rstrip(b"\r").rpartition(b"\r")
        line = last[:LONGEST].decode("utf-8", "replace")
        words = [word for word in words if word in line] if redrawn else words  # others stood in what was drawn over
        speaker, text = log.spoken(line, number)
        raised = log.raised.pop(number, None)
        if raised is not None:
            speaker, text = raised.spoken(speaker, text)
        log.hear(speaker, text, number)
        further = functools.partial(_further, log, lines, here + 1, speaker)
        best = self._meaning(text, words, raised, line.removesuffix(text), further)
        if best is None:
            return
        rule, found = best
        said = _groups(found)
        meant = _meant(rule, said, text, speaker, log.frame)
        key = _key(rule, meant, said.get("what", ""))
        log.counts[key] = log.counts.get(key, 0) + 1
        before = log.sightings.get(key)
        known = None if _is_survived(before, rule, number) else before
        if known is not None and not known.logged:
            return  # the same again: of a flood each line comes here
        caught = _may_be_caught(rule, before)
        warned = caught and raised is not None and _WARNING.search(line.removesuffix(text)) is not None
        logged = warned or (caught and _was_logged(log, lines[max(0, here - ABOVE) : here], speaker))
        seen = known or _sighting(rule, said, meant, text, log.source, number, offset)
        log.sightings[key] = replace(seen, logged=logged, recovered=warned or (logged and seen.recovered))


    def _meaning(
        self, text: str, words: list[str], raised: Raised | None, head: str, further: Callable[[], list[str]]
    ) -> Meaning | None:
        """What a line means. `head`: what stands before its text; `further`: the lines after it."""
        if _HANDED_ON.match(text) or (raised is not None and text.rstrip().endswith(":") and _tells_more(further())):
            return None
        best = self.meanings.best(text, words, raised.frames if raised is not None else (), is_raised=raised is not None)
        if best is None or (raised is None and best[0].depth in (SYMPTOM, CAUSE) and _INFORMS.search(head)):
            return None
        rule, found = best
        if "\\n" in rule.pattern:
            found = self.rules.match(rule, "\n".join((text, *further()))) or found
        return rule, found


def _is_frame(text: str, frames: list[Call]) -> bool:
    """Whether the line is one of a traceback's frames, which is added, or what belongs to one."""
    if (found := _FRAME.match(text)) is not None:
        frames.append(Call(path=found[1], function=found[2] or ""))
        return True
    if text.startswith("    ") and frames and not frames[-1].source:
        frames[-1] = replace(frames[-1], source=text.strip())
        return True
    if boxed := text[:1] in _BOXED and bool(text):
        frames += [Call(path=found["path"], function=found["function"])] if (found := _BOX.match(text)) is not None else []
    return boxed


def _before(head: str) -> re.Pattern[str] | None:
    """What stands before each line of a traceback in whose first line `head` does. None: nothing, or it is drawn as a box."""
    if not head.strip() or head[0] in _BOXED:
        return None
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(head)))


def _tells_more(further: list[str]) -> bool:
    """Whether lines after an exception that ends with a colon begin with the exception that it hands on."""
    return any(EXCEPTION.match(one) for one in further[:HANDED_ON])


def _groups(found: re.Match[str]) -> dict[str, str]:
    """What the named groups of a pattern have matched."""
    return {name: value for name, value in found.groupdict().items() if value is not None}


def _key(rule: Rule, meant: Speaker, what: str) -> tuple[object, ...]:
    """What makes two messages the same one."""
    return rule.name, meant.rank, meant.local, meant.node, meant.mark, what if rule.depth == MACHINE else ""


def _is_survived(before: Sighting | None, rule: Rule, number: int) -> bool:
    """Whether the same message came so long before the line `number` that its writer went on."""
    return before is not None and rule.depth > EFFECT and number - before.line > FAR


def _may_be_caught(rule: Rule, before: Sighting | None) -> bool:
    """Whether such a message may be of an error that its program has caught, as far as the same ones `before` tell."""
    return rule.depth in (SYMPTOM, CAUSE) and (before is None or before.logged)


def _sighting(
    rule: Rule, said: Mapping[str, str], meant: Speaker, text: str, source: str, line: int, offset: int
) -> Sighting:
    """What a line says, by the groups of its rule's pattern."""
    seq, size = (int(said[group]) if group in said else None for group in ("seq", "size"))
    return Sighting(
        **{field: told for field, told in fields_of(meant).items() if field != "pod"},
        rule=rule, text=text.strip()[:500], source=source, line=line, offset=offset,
        what=said.get("what", ""), peer=said.get("peer") or said.get("peer_rank") or said.get("peer_rank2") or "",
        seq=seq, size=size, op=said.get("op", ""), missing=_missing(said),
    )  # fmt: skip


def _meant(rule: Rule, said: Mapping[str, str], text: str, speaker: Speaker, frame: Frame) -> Speaker:
    """Whom a message is about: whom it names, else its writer."""
    rank = int(said["rank"]) if said.get("rank", "").isdigit() else speaker.rank
    if rank is None and rule.depth > EFFECT and (pod := _OBJECT.search(text)) is not None:
        rank = frame.of_pod(pod[1].rstrip("."))
    if rank is None and speaker.local is None and rule.depth > EFFECT and len(named := set(_NAMED.findall(text))) == 1:
        rank = int(named.pop())
    local = int(said["local"]) if "local" in said else speaker.local
    pid = int(said["pid"]) if said.get("pid", "").isdigit() else speaker.pid
    return replace(speaker, rank=rank, local=local, node=said.get("node", speaker.node), pid=pid)


def _further(log: Log, lines: list[bytes], after: int, speaker: Speaker) -> list[str]:
    """The lines after one, as far as a rule may look: of the same writer, where each says whose it is."""
    further = [log.frame.key(one[:LONGEST]) for one in lines[after : after + FURTHER]]
    # Of a line that shows no writer's mark it may be the text that goes on; what another writer has written is not.
    return [
        one.removeprefix(speaker.mark)
        for one in further
        if one.startswith(speaker.mark) or not log.frame.split(one, NOBODY)[0].mark
    ]


NOBODY = Speaker()


def _decoded(line: bytes) -> str:
    return line[:LONGEST].decode("utf-8", "replace")


def _sample(fd: int, start: int, size: int) -> bytes:
    """Whole lines of a file's beginning and end."""
    if size - start <= 2 * SAMPLE:
        return os.pread(fd, size - start, start)
    head, tail = os.pread(fd, SAMPLE, start), os.pread(fd, SAMPLE, size - SAMPLE)
    return head.rpartition(b"\n")[0] + b"\n" + tail.partition(b"\n")[2]


def _missing(said: Mapping[str, str]) -> tuple[int, ...]:
    """Ranks that a line names as those that are waited for, or each of its further lines one."""
    lines = re.findall(r"\n[^\n]*?\b(\d+)(?:: \[|$)", said.get("lines", ""), re.M)
    return tuple(map(int, said["missing"].split(",") if "missing" in said else lines))


def _is_source(line: bytes, before: bytes) -> bool:
    """A traceback shows the script's own line after the place where it stands. What that could say, nobody has said."""
    return b"    " in line and b'  File "' in before and b'", line ' in before


def _was_logged(log: Log, above: list[bytes], speaker: Speaker) -> bool:
    """Whether the traceback that ends after these lines hangs below a line of the program's log: it caught what it tells of."""
    if not any(TRACEBACK.encode() in line for line in above):
        return False  # to ask of each line who wrote it takes a thousand times as long
    said = (log.frame.split(_decoded(line), log.speaker) for line in reversed(above))
    own = (text for who, text in said if (who.rank, who.local, who.mark) == (speaker.rank, speaker.local, speaker.mark))
    for text in own:
        if text.startswith(TRACEBACK):
            return _RECORD.search(next(own, "")) is not None
        if not text.startswith(" "):
            return False
    return False


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
