"""Who wrote this line? Takes off what torch, launchers, schedulers and loggers put before it, and reads from it who speaks.

[rank3]: …   [Rank 3] …   3: …   [default3]:…     torch · srun --label and ft_launcher · torchrun --tee (a local rank)
n7:4711:4712 [3] …                                NCCL: host, pid, thread, local GPU
Nov 21 12:00:00 n7 kernel: …   [4711.123] …       syslog, the kernel's own
[pod/train-3/main] …   2026-11-21T12:00:00Z …     kubectl, and times of all kinds
[1,3]<stderr>:…   (Worker pid=4711, ip=10.0.0.7) …   trainer/0 [1]:…      mpirun's tags · Ray · torchx (a local rank)
(head, rank=0, pid=4711) …                        SkyPilot: a node, by its name and number
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.core.value import Value, quicken, replace


class Process(Value, mixin=True):
    """Which process is meant, as far as it is known, and when."""

    rank: int | None = None
    local: int | None = None  # Its place on its node.
    member: int | None = None  # Its rank in the process group that it speaks of, where that is told beside its own.
    node: str = ""
    pid: int | None = None
    at: float | None = None  # Seconds within an epoch of its own: only to be compared with others of one format.


class Speaker(Process):
    """Who has written something."""

    mark: str = ""  # What its lines begin with, without colours and columns, where several write into one file.
    pod: str = ""  # A pod's name, which may tell by its number which rank it is (`frame`).


quicken(Speaker)  # one for each line of a flood

COLOUR = re.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_RANK = re.compile(r"\[(?:PG [^\]]*)?[Rr]ank[ =]?(?P<rank>\d+)\]:? ?(?:\|\| ?)?")
_LABEL = re.compile(r" *(?P<rank>\d+): ")
_TEE = re.compile(r"\[[A-Za-z_][\w-]*?(?P<local>\d+)\]: ?")
_PLACE = re.compile(r"\[(?P<local>\d{1,3})\]: ?")
_MPI = re.compile(r"\[(?:[\w.-]+@)?\d+,(?:mpirank:)?(?P<rank>\d+)(?:,[\w.-]+)?\]<std(?:out|err|diag)>: ?")
_RAY = re.compile(r"\((?:[\w.<>:-]+ )?pid=(?P<pid>\d+)(?:, ip=(?P<node>[\w.:-]+))?\) ")
_VLLM = re.compile(r"\(Worker(?:_DP0)?(?:_PP0)?_TP(?P<rank>\d+)(?:_EP\d+)? pid=(?P<pid>\d+)\) ")
_SGLANG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: DP0)?(?: PP0)? TP(?P<rank>\d+)(?: EP\d+)?\] ")
"""Where ranks differ by their place in tensor parallelism only, that is their rank."""
_SKY = re.compile(r"\((?P<node>[\w.-]+), rank=\d+, pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?\) ")
_TORCHX = re.compile(r"(?P<node>[a-z][\w.]*/\d+) (?=\[|[A-Z ]|[\w.]+(?:Error|Exception)\b)")
_NCCL = re.compile(r"(?P<node>[A-Za-z0-9][\w.-]*):(?P<pid>\d+):\d+ \[(?P<local>\d+)\] ")
_POD = re.compile(r"\[pod/(?P<node>[\w.-]+?)/[\w.-]+\] ?")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_ISO = re.compile(
    rf"[\[(]?\d{{4}}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T]{_CLOCK}(?:[.,](?P<fraction>\d+))?(?:Z|[+-]\d\d:?\d\d)?[\])]?[ :,]*"
)
_TF = re.compile(r"\[?[IWEF] \S+?\.(?:cc|cpp|cu|h|py):\d+\] ")
TIME = re.compile(
    r"[\[(<]?(?:\d{4}[-/.]\d\d[-/.]\d\d[T _]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d (?:\d{4} )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?: \d{4})?"
    r"|\d{1,2}[-/ ][A-Z][a-z]{2}[-/ ]\d{4}[: ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?|1\d{9}(?:\.\d+)?|1\d{12}|1\d{18}| *\d{1,9}\.\d{3,9})[\])>]?(?: ?[|,-] | |: ?|(?<=\])|\t)"
)
"""A time of any kind, with what parts it from what follows."""
_CLOCK_ONLY = re.compile(r"[\[(]?\d\d:\d\d:\d\d(?:[.,]\d+)?[\])]? (?=\S)|1[5-9]\d{8}\.\d{3,9} ")
_CRI = re.compile(r"std(?:out|err) [FP] ")
_UNIT = re.compile(r"(?P<node>[A-Za-z][\w.-]*) (?!srun|slurm)[\w./@:-]+\[\d+\]: ")
_GLOG = re.compile(rf"\[?[IWEF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK}\.(?P<fraction>\d+) +(?:\d+ )?\S+?:\d+\] ?")
_SYSLOG = re.compile(
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? (?P<node>[\w.-]+) "
    r"(?:(?!srun|slurm|systemd)[\w./@-]+\[\d+\]: |(?=[\w./-]+(?:\[\d+\])?: ))"
)
_KERNEL = re.compile(r"(?:kernel: )?\[ *\+?\d+\.\d+\] |kernel: ")
_DMESG = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ")
_RELAYED = re.compile(
    r"std(?:out|err): (?=\S)|- [\w.-]+ - [A-Z]+ - (?=\[rank\d)|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\] "
)
"""Of a process whose output another one prints; vLLM's, of each line of a traceback."""
_HOST = re.compile(
    r"(?![A-Z]{1,4}\d{4}:)(?P<node>[A-Za-z][\w.-]*?\d[\w.-]*|(?:\d{1,3}\.){3}\d{1,3}): +"
    r"(?=NVRM|\[|srun|slurmstepd|kernel|Traceback|[A-Z]|[\w.]+(?:Error|Exception)\b|[\w.-]+:\d+:\d+ \[)"
)

_MAY_BEGIN = re.compile(
    r"[\[( \d-]|[IWEF](?:\d{3}| \S)|[A-Z][a-z]{2} [ \d]|kernel: |std[oe]|ERROR \d|CRITICAL \d"
    r"|[A-Za-z][\w.-]*(?:: |:\d|/\d| \S+\[\d)"
)
"""What each of these begins with, or may: of most text, one look tells that none of them does."""

_INDEX = re.compile(r"-(\d{1,5})(?:-[a-z\d]{5})?$")
"""Of a pod's name: which of its job's it is. An Indexed Job's and a JobSet's have five letters of chance after it."""

_FILE_RANK = re.compile(r"(?:^|[/_.-])(?:global_?)?rank[-_.]?(\d+)(?=[/_.-]|$)", re.I)
_FILE_TASK = re.compile(r"(?:^|[/_.-])(?:task|worker|proc|process)[-_.]?(\d+)(?=[/_.-]|$)", re.I)
_FILE_LOCAL = re.compile(r"/attempt_\d+[^/]*/(\d+)/[^/]+$")
_FILE_NODE = re.compile(r"(?:^|[/_.-])((?:node|host|gpu|n)[-_]?\d[\w-]*?)(?=[/_.]|$)", re.I)
_FILE_LOGS = re.compile(r"/logs/([^/]+)/attempt_|/incidents/round-\d+/([^/]+)/")
_FILE_SLURM = re.compile(r"(?:^|/)[\w.-]*?\d{2,}(?:\.\d+)?[-_.](?:t(?:ask)?)?(\d+)\.(?:out|err|log|txt)$")


def of_file(path: str) -> Speaker:
    """Who writes a file of that name, where each rank has its own."""
    rank = _number(_FILE_RANK, path) if _FILE_RANK.search(path) else _number(_FILE_TASK, path)
    if rank is None:
        rank = _number(_FILE_SLURM, path)
    local = _number(_FILE_LOCAL, path)
    node = _FILE_LOGS.search(path) or _FILE_NODE.search(path)
    return Speaker(rank=rank, local=local, node=next(filter(None, node.groups()), "") if node else "")


def index(pod: str) -> int | None:
    """Which of its job's that pod is, by its name."""
    found = _INDEX.search(pod)
    return int(found[1]) if found else None


def split(line: str, speaker: Speaker) -> tuple[Speaker, str]:
    """(who wrote it, what). `speaker`: who writes the file."""
    text = COLOUR.sub("", line) if "\x1b" in line else line
    said: Said = {}
    start = _all(text, 0, said)
    if not said.keys() & {"rank", "local"} and (found := _far(text, start)) is not None:
        start = _all(text, _take(found, said), said)
    if not start:
        return speaker if not speaker.mark else replace(speaker, mark=""), text
    said["mark"], _ = text[: said.pop("until", 0)], said.pop("by", None)
    return replace(speaker, **said), text[start:]


def _all(text: str, start: int, said: Said) -> int:
    """Take off the prefixes from `start` on; where the last of them ends."""
    for _ in range(6):
        end = _one(text, start, said)
        if end == start:
            break
        start = end
    return start


def _far(text: str, start: int) -> re.Match[str] | None:
    """A rank's own mark behind what nobody knows: columns of a collector that are none of those above."""
    at = text.find("[rank", start, start + FAR)
    if at <= start or len(text[start:at].split()) > MOST_COLUMNS or ": " in text[start:at]:
        return None
    return _FAR_RANK.match(text, at)


def seconds(text: str) -> float | None:
    """What a time of any kind says, in seconds within an epoch of its own."""
    if found := _HMS.search(text):
        day = _DAY.search(text[: found.start()])
        days = int(day[1]) * 31 + int(day[2]) if day else 0
        return ((days * 24 + int(found[1])) * 60 + int(found[2])) * 60 + float((found[3] or "0").replace(",", "."))
    found = re.search(r"\d+(?:\.\d+)?", text)
    if found is None:
        return None
    said = float(found[0])
    return said / 1e9 if said > 1e17 else said / 1e3 if said > 1e11 else said


_HMS = re.compile(r"(\d\d):(\d\d)(?::(\d\d(?:[.,]\d+)?))?")
_DAY = re.compile(r"(\d\d)[-/.](\d\d)[T _]$")


def _one(text: str, at: int, said: Said) -> int:
    """Take off one prefix at `at`, if one is there; where it ends."""
    if _MAY_BEGIN.match(text, at) is None:
        return at
    for pattern in _ANYWHERE:
        if found := pattern.match(text, at):
            return _take(found, said)
    if "at" in said and (found := _UNIT.match(text, at)):
        return _take(found, said)
    if at == 0 and (found := _HOST.match(text, at) or _TORCHX.match(text, at)):
        return _take(found, said)
    if (at == 0 or "node" in said) and (found := _PLACE.match(text, at)):
        return _take(found, said)
    return at


def is_own(text: str, at: int) -> bool:
    """Whether a launcher's or a library's own mark stands there, which names who writes."""
    return any(pattern.match(text, at) for pattern in _OWN)


Said = dict[str, Any]
"""Fields of a `Speaker`, as far as prefixes tell them; `until`: where what names the writer ends; `by`: the last that told."""

_ANYWHERE = (
    *(_RANK, _NCCL, _LABEL, _MPI, _VLLM, _SGLANG, _RAY, _SKY, _TEE, _POD),
    *(_ISO, _GLOG, _SYSLOG, _DMESG, _KERNEL, _TF, _CRI, _RELAYED, _CLOCK_ONLY),
)
"""Prefixes that may follow one another; the first that matches counts."""

FAR, MOST_COLUMNS = 120, 4
_FAR_RANK = re.compile(r"\[rank[ =]?(?P<rank>\d+)\]:? ?(?:\|\| ?)?(?:\[[IWEF]\d* ?[^\]]*\] )?")

_SERVERS = (_VLLM, _SGLANG, _RAY, _SKY)
_OWN = (_RANK, _NCCL, _MPI, *_SERVERS, _TEE, _LABEL, _TORCHX, _PLACE)  # A launcher's or a library's own marks.
_WRITERS = (_FAR_RANK, _RANK, _LABEL, _MPI, *_SERVERS, _TEE, _POD, _HOST, _TORCHX, _PLACE)  # Those that name the line's writer.


def _take(found: re.Match[str], said: Said) -> int:
    """Note what a prefix's groups tell; where it ends."""
    told = {field: text for field, text in found.groupdict().items() if text is not None}
    if "month" in told:
        said["at"] = _seconds(**told)
        return found.end()
    if found.re is _RANK and "[rank" in said.get("by", ""):  # behind torch's own mark it is the rank within a group
        said["member"] = int(told["rank"])
        return found.end()
    said.update({field: text if field == "node" else int(text) for field, text in told.items()}, by=found[0])
    if found.re is _POD:
        said["pod"] = found["node"]
    if found.re in _WRITERS:
        said["until"] = found.end()
    return found.end()


def _seconds(month: str, day: str, hour: str, minute: str, second: str, fraction: str = "0") -> float:
    days = int(month) * 31 + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second) + float(f"0.{fraction}")


def _number(pattern: re.Pattern[str], path: str) -> int | None:
    every = pattern.findall(path)
    return int(every[-1]) if every else None
