"""Which columns stand before every line of this log, and what are they? Found by how they behave, not by a list of formats.

A collector of logs (a container's runtime, a cloud, kubectl, journald, a shell's `ts`) puts the same columns before each line.
So a column is what nearly all lines have in one place, however different they are: a time, or one of a few values of one shape.
A column that tells writers apart says who speaks: what else its lines say of ranks tells which rank that is, and whether
a pod's number is one. What a line's own program puts there is left to `prefix`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.value import Value, replace
from holdfast.diagnosis.logs.prefix import COLOUR, TIME, Speaker, index, is_own, seconds, split

SAMPLE = 48 << 10  # Bytes of a file's beginning, and as many of its end, by which its columns are known.
LEAST = 6  # Lines, no two alike but for numbers, by which columns are known.
MOST = 1500  # Lines of a sample that are looked at.
ALIKE = 8  # Some so many lines are looked at of those that differ by numbers only.
SHARE = 0.97  # So many of them have a column, if it is one.
COLUMNS = 10
LEAST_PODS = 16  # So few pods, of which some may be silent, have numbers below this.
OWN = 0.5  # Of so many lines a launcher's own mark is left to `prefix`.
LONGEST = 160  # Letters of one column.

WRITERS = ("writer", "host")  # Roles of columns that name who writes. A host's number, behind which a colon stands, is no rank.
STREAM = frozenset({"stdout", "stderr", "out", "err", "o", "e"})
FLAGS = frozenset({"F", "P"})  # CRI: a whole line, or a part of one.
LEVEL = frozenset("TRACE DEBUG INFO NOTICE WARN WARNING ERROR ERR CRITICAL FATAL SEVERE PANIC I W E F D T".split())

_TOKEN = re.compile(r"(\[[^\]\n]{1,80}\]|\([^)\n]{1,80}\)|<[^>\n]{1,80}>|\{[^}\n]{1,140}\}|[^\s|]+)( *\| ?|:? +|\t|:)")
_NUMBER = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_RUN = re.compile(r"\w+")
_RANKED = re.compile(r"(?i)(?:global_?)?(?:rank|task|proc(?:ess)?|replica)[-_=: ]?(\d{1,5})\b")
_ONLY_DIGITS = re.compile(r"\W*(\d{1,5})\W*$")
_LOCAL = re.compile(r"\[default([1-9]\d*)\]|\blocal_rank[=: ]+([1-9]\d*)|^\S+:\d+:\d+ \[([1-9]\d*)\]|--local_rank=([1-9]\d*)")
_HOSTS = re.compile(r"[\w.-]+:")
_TELLS_RANKS = re.compile(r"(?i)(?<!local_)(?<!local )rank[ =:]?\d")
_NAMED = re.compile(r"[-_./@=\d]")
_PROGRAM = re.compile(r"[\w./@-]+\[\d+\]:?")  # syslog's: a program and its pid, on the host that stands before.
_POD = re.compile(r"pod/([\w.-]+)")
_LEAD = re.compile(r"(?:master|chief)(?:-\d+)?(?:-|$)")

TEXT_KEYS = ("log", "message", "msg", "textPayload", "MESSAGE", "line", "text", "body", "event")
NODE_KEYS = ("pod", "pod_name", "host", "hostname", "node", "node_name", "instance", "container_name", "_HOSTNAME")
TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "asctime")


class Column(Value):
    """One of the columns."""

    role: str  # time, writer, host (a writer that is no pod), or nothing that matters.
    pattern: str  # What stands there, with what parts it from the next.


class Frame(Value):
    """What stands before each line of one log."""

    columns: tuple[Column, ...] = ()
    is_json: bool = False  # Each line is a JSON object, in which the text stands under one of `TEXT_KEYS`.
    ranks: Mapping[str, int] = {}  # Of writers whose rank is known.
    pids: Mapping[tuple[str, int], int] = {}  # Of processes, by node and pid, whose lines elsewhere name their rank.
    ordinal: int | None = None  # What to add to a pod's number to have its rank. None: it says nothing of ranks.
    alone: bool = True  # No two writers are told apart by a column.

    def split(self, line: str, speaker: Speaker) -> tuple[Speaker, str]:
        """(who wrote it, what). `speaker`: who writes the file."""
        if self.is_json and line.startswith("{"):
            return self._of_object(line, speaker)
        if not self.columns:
            return self._inner(speaker, line, speaker, "")
        text = COLOUR.sub("", line) if "\x1b" in line else line
        at, writer, when = 0, "", None
        for column, pattern in zip(self.columns, compiled(self)):
            found = pattern.match(text, at)
            if found is None:
                return self._inner(speaker, line, speaker, "")
            at = found.end()
            if column.role == "time":
                when = seconds(found[0]) if when is None else when
            elif column.role in WRITERS:
                writer = found[0].rstrip(" |:\t")
        return self._inner(self._of_writer(writer, speaker, when), text[at:], speaker, writer)

    def _inner(self, outer: Speaker, text: str, file: Speaker, writer: str) -> tuple[Speaker, str]:
        said, rest = split(text, outer)
        ours = said.mark if said is not outer else ""
        if said.pod and said.rank is None and file.rank is None:
            said = replace(said, rank=self.of_pod(said.pod))
        if outer.at is not None and said.at != outer.at:
            said = replace(said, at=outer.at)
        mark = f"{writer}\0{ours}" if writer and not self.alone else ours
        return (said if said.mark == mark else replace(said, mark=mark)), rest

    def _of_writer(self, writer: str, speaker: Speaker, when: float | None) -> Speaker:
        if not writer:
            return speaker if when is None else replace(speaker, at=when)
        name = writer.strip("[]()<>{}:| ")
        name = found[1] if (found := _POD.match(name)) else name
        rank, node, local = speaker.rank, speaker.node, speaker.local
        if rank is None:
            rank = self._rank_of(writer, name)
        is_node = not (_PROGRAM.fullmatch(name) or _ONLY_DIGITS.match(name) or _RANKED.fullmatch(name))
        if not self.alone and not node and is_node:
            node = name.split("[")[0].rstrip(":")
        return replace(speaker, rank=rank, node=node, local=local, at=when)

    def _rank_of(self, writer: str, name: str) -> int | None:
        if writer in self.ranks:
            return self.ranks[writer]
        return None if self.alone else self.of_pod(name)

    def of_pod(self, name: str) -> int | None:
        """Its rank, where this log's pods are one rank each."""
        if self.ordinal is None:
            return None
        if _LEAD.search(name):
            return 0
        number = index(name)
        return None if number is None else number + self.ordinal

    def _of_object(self, line: str, speaker: Speaker) -> tuple[Speaker, str]:
        try:
            said = json.loads(line)
        except ValueError:
            return self._inner(speaker, line, speaker, "")
        text = _first(said, TEXT_KEYS)
        if text is None and isinstance(said, dict):  # a cloud's: the program's own record stands within
            text = next((found for one in said.values() if (found := _first(one, TEXT_KEYS)) is not None), None)
        if not isinstance(said, dict) or text is None:
            return self._inner(speaker, line, speaker, "")
        flat = {**said, **{key: value for one in said.values() if isinstance(one, dict) for key, value in one.items()}}
        when, writer = _first(flat, TIME_KEYS), _first(flat, NODE_KEYS) or ""
        outer = self._of_writer(writer, speaker, None if when is None else seconds(when))
        rank = flat.get("rank")
        if outer.rank is None and isinstance(rank, int):
            outer = replace(outer, rank=rank)
        return self._inner(outer, text.rstrip("\n"), speaker, writer)

    def key(self, head: bytes) -> str:
        """What a line that begins so shows of its writer, as `Speaker.mark` has it, and what follows."""
        line = head.decode("utf-8", "replace")
        if not self.columns and not self.is_json and "\x1b" not in line:
            return line
        if self.is_json:
            speaker, text = self.split(line, Speaker())
            return speaker.mark + text
        text, at, writer = COLOUR.sub("", line), 0, ""
        for column, pattern in zip(self.columns, compiled(self)):
            found = pattern.match(text, at)
            if found is None:
                return line
            at, writer = found.end(), found[0].rstrip(" |:\t") if column.role in WRITERS else writer
        return (f"{writer}\0" if writer and not self.alone else "") + text[at:]


_COMPILED: dict[tuple[Column, ...], tuple[re.Pattern[str], ...]] = {}


def compiled(frame: Frame) -> tuple[re.Pattern[str], ...]:
    """The patterns of its columns."""
    found = _COMPILED.get(frame.columns)
    if found is None:
        found = _COMPILED[frame.columns] = tuple(re.compile(column.pattern) for column in frame.columns)
    return found


def learn(lines: Sequence[str], speaker: Speaker) -> Frame:
    """What stands before lines of which these are some."""
    plain = [COLOUR.sub("", line) for line in lines if line.strip()]
    objects = sum(line.startswith("{") and line.rstrip().endswith("}") for line in plain)
    if plain and objects >= SHARE * len(plain):
        frame = Frame(is_json=True)
        writers = {_first_of_line(line) for line in plain[:MOST]} - {""}
        return _told(replace(frame, alone=len(writers) < 2), plain, speaker)
    kinds: dict[str, list[str]] = {}
    for line in plain[:MOST]:
        kinds.setdefault(_NUMBER.sub("0", line[: LONGEST * 2]), []).append(line)
    sample = [line for alike in kinds.values() for line in alike[:: max(1, len(alike) // ALIKE)]]
    if len(kinds) < LEAST:
        return _told(Frame(), plain, speaker)
    if sum("kernel: " in line for line in sample) > OWN * len(sample):
        return _told(Frame(), plain, speaker)
    columns, alone = _columns(sample)
    return _told(Frame(columns=columns, alone=alone), plain, speaker)


def _columns(sample: list[str]) -> tuple[tuple[Column, ...], bool]:
    """Those of the lines, from the left; whether none tells writers apart."""
    columns: list[Column] = []
    starts = [(line, 0) for line in sample]
    alone = True
    while len(columns) < COLUMNS:
        if sum(is_own(line, at) for line, at in starts) > OWN * len(starts):
            break
        found = _time(starts) or _few(starts, len(columns))
        if found is None:
            break
        column, starts, several = found
        if several and not alone:  # a second one that tells writers apart: of a container beside its pod, or of a host
            column = replace(column, role="")
        columns.append(column)
        alone = alone and not several
    # A word that all lines have may be the beginning of ordinary text: it is a column beside others only.
    if all(one.role == "maybe" for one in columns):
        columns = []
    return tuple(replace(one, role="" if one.role == "maybe" else one.role) for one in columns), alone


Starts = list[tuple[str, int]]


def _time(starts: Starts) -> tuple[Column, Starts, bool] | None:
    found = [(line, TIME.match(line, at)) for line, at in starts]
    there = [(line, one.end()) for line, one in found if one is not None]
    if len(there) < SHARE * len(starts):
        return None
    return Column(role="time", pattern=f"({TIME.pattern})"), there, False


def _few(starts: Starts, before: int) -> tuple[Column, Starts, bool] | None:
    """A column that has one of a few values, all of one shape."""
    tokens = [(line, one) for line, at in starts if (one := _TOKEN.match(line, at)) is not None and len(one[1]) <= LONGEST]
    values = Counter(one[1] for _, one in tokens)
    kept = _alike(tokens, values)
    again = sum(count > 1 for count in values.values())
    if len(kept) < SHARE * len(starts) or len(values) > max(3, len(tokens) / 3) or (again * 2 < len(values) > 3):
        return None
    role, several = _role({one[1].strip("[]:()<>{}") for _, one in kept}, len(kept) == len(starts), before)
    if role is None:
        return None
    if role == "writer" and all(_HOSTS.fullmatch(one[0].rstrip()) for _, one in kept):
        role = "host"
    pattern = re.compile(_pattern([one for _, one in kept]))
    left = [(line, end.end()) for line, one in kept if (end := pattern.match(line, one.start())) is not None]
    return Column(role=role, pattern=pattern.pattern), left, several


def _alike(there: Sequence[Any], values: Counter[str]) -> list[Any]:
    """The tokens of the most common shapes."""
    if set(values) <= STREAM or set(values) <= FLAGS or {value.strip("[]:()<>") for value in values} <= LEVEL:
        return list(there)
    shapes = Counter(re.sub(r"\w+", "w", one[1]) for _, one in there)
    top = {shape for shape, _ in shapes.most_common(2)}
    return [(line, one) for line, one in there if re.sub(r"\w+", "w", one[1]) in top]


def _role(names: set[str], all_have: bool, before: int) -> tuple[str | None, bool]:
    """(what a column of these values is, whether it tells writers apart); (None, …): it may be ordinary text."""
    is_sure = all_have or before > 0
    several = len(names) > 1
    if names <= STREAM or names <= FLAGS or {name.upper() for name in names} <= LEVEL:
        return ("" if is_sure else None), False
    if all(name.isdigit() for name in names):
        return ("writer" if is_sure else None), several
    if not all_have:
        return None, several
    if all(_NAMED.search(name) for name in names):
        return "writer", several
    # The same on all lines: of a bare word it takes more to tell that it is none of the text.
    return (None if several else "maybe"), several


def _shape(value: str) -> str:
    """A pattern of such values: words stand for any words, what parts them for itself."""
    if _RUN.fullmatch(value) and not any(letter.isdigit() for letter in value):
        return re.escape(value)
    if value[0] in "{":
        return r"\{[^}]*\}"
    return "".join(r"\w+" if _RUN.fullmatch(part) else re.escape(part) for part in re.findall(r"\w+|\W+", value))


def _pattern(tokens: Sequence[re.Match[str]]) -> str:
    """Of the column, and of what parts it from the next, which is not the text's own indentation."""
    shapes = "|".join(sorted({_shape(one[1]) for one in tokens}, key=lambda one: (-len(one), one)))
    gap = Counter(re.sub(" +", " ", one[2]) for one in tokens).most_common(1)[0][0]
    if "|" in gap or gap == "\t":
        return rf"(?:{shapes}){' *[|] ?' if '|' in gap else gap}"
    least: dict[str, int] = {}
    for one in tokens:
        least[one[1]] = min(least.get(one[1], len(one[2])), len(one[2]))
    head = ":" if gap.startswith(":") else ""
    is_padded = len(set(least.values())) > 1 and len({len(value) + width for value, width in least.items()}) == 1
    if is_padded and len(least) <= 64:
        return "|".join(rf"{re.escape(value)}{head} {{{width - len(head)}}}" for value, width in sorted(least.items()))
    return rf"(?:{shapes}){head} {{{max(0, min(least.values()) - len(head))}}}"


def _told(frame: Frame, plain: Sequence[str], speaker: Speaker) -> Frame:
    """The same, with what its lines tell of which writer is which rank."""
    blank = replace(frame, ordinal=None)
    said: dict[str, set[int]] = {}
    pids: dict[tuple[str, int], set[int]] = {}
    several, pods = False, set()
    for line in plain[:MOST]:
        who, text = blank.split(line, Speaker())
        if who.pid is not None and who.rank is not None:
            pids.setdefault((who.node, who.pid), set()).add(who.rank)
        writer, _, inner = who.mark.rpartition("\0")
        pod = writer or who.pod
        if not pod:
            continue
        pods.add(pod)
        rest = inner + text
        several = several or _LOCAL.search(rest) is not None
        for one in re.findall(r"(?i)\[(?:PG [^\]]*)?rank ?(\d+)\]", rest):
            said.setdefault(pod, set()).add(int(one))
    only = {pod: next(iter(ranks)) for pod, ranks in said.items() if len(ranks) == 1}
    one_each = len(only) == len(said) and len(set(only.values())) == len(only) and not several
    named = {
        pod: int(found[1]) for pod in pods if (found := _RANKED.search(pod) or _ONLY_DIGITS.match(pod.strip("[]()<>{}:| ")))
    }
    return replace(
        frame,
        ranks=_known(only if one_each else {}, named, pods),
        ordinal=_ordinal(pods, only, one_each, plain, blank),
        pids={pid: next(iter(ranks)) for pid, ranks in pids.items() if len(ranks) == 1},
    )


def _known(only: dict[str, int], named: dict[str, int], pods: set[str]) -> dict[str, int]:
    """Ranks of writers: as their lines say, else as their names do, where that does not contradict it."""
    if any(named.get(pod, rank) != rank for pod, rank in only.items()):
        return only
    return {**(named if len(named) == len(pods) > 1 else {}), **only}


def _counts(frame: Frame, pods: set[str], plain: Sequence[str]) -> bool:
    """Whether numbers of pods may be ranks: pods have written it, no hosts, or its lines name ranks otherwise."""
    if any(one.role == "host" for one in frame.columns):
        return False
    some = plain[:MOST]
    return bool(pods) or any(_TELLS_RANKS.search(one) or frame.split(one, Speaker())[0].rank is not None for one in some)


def _ordinal(pods: set[str], only: dict[str, int], one_each: bool, plain: Sequence[str], frame: Frame) -> int | None:
    """What makes a rank of a pod's number, where each has one."""
    if not one_each or not _counts(frame, pods, plain):
        return None
    numbers = [number for pod in pods if (number := index(pod)) is not None]
    if numbers and max(numbers) >= max(LEAST_PODS, 2 * len(pods)):
        return None  # such numbers are hosts' names
    shifts = {rank - number for pod, rank in only.items() if not _LEAD.search(pod) and (number := index(pod)) is not None}
    if len(shifts) > 1:
        return None
    leads = {pod for pod in pods if _LEAD.search(pod)}
    return shifts.pop() if shifts else int(bool(leads) and len(leads) < len(pods))


def _first(said: Any, keys: Sequence[str]) -> str | None:
    found = next((said[key] for key in keys if key in said), None) if isinstance(said, dict) else None
    return found if isinstance(found, str) else str(found) if isinstance(found, (int, float)) else None


def _first_of_line(line: str) -> str:
    try:
        said = json.loads(line)
    except ValueError:
        return ""
    flat = {**said, **{key: value for one in said.values() if isinstance(one, dict) for key, value in one.items()}}
    return _first(flat, NODE_KEYS) or ""
