"""Who wrote this line? Takes off what torch, launchers, schedulers and loggers put before it, and reads from it who speaks.

[rank3]: …   [Rank 3] …   3: …   [default3]:…     torch · srun --label and ft_launcher · torchrun --tee (a local rank)
n7:4711:4712 [3] …                                NCCL: host, pid, thread, local GPU
Nov 21 12:00:00 n7 kernel: …   [4711.123] …       syslog, the kernel's own
[pod/train-3/main] …   2026-11-21T12:00:00Z …     kubectl, and times of all kinds
[1,3]<stderr>:…   (Worker pid=4711, ip=10.0.0.7) …   trainer/0 [1]:…      mpirun's tags · Ray · torchx (a local rank)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from holdfast.core.value import Value, quicken, replace


class Speaker(Value):
    """Who has written something, as far as it is known."""

    rank: int | None = None
    local: int | None = None
    """Its place on its node."""
    node: str = ""
    pid: int | None = None
    at: float | None = None
    """When, in seconds within an epoch of its own: only to be compared with others of one format."""
    mark: str = ""
    """What its lines begin with, where several write into one file."""


quicken(Speaker)  # one for each line of a flood

_COLOUR = re.compile(r"\x1b\[[0-9;:]*[mK]")
_RANK = re.compile(r"\[(?:PG [^\]]*)?[Rr]ank ?(\d+)\]:? ?")
_LABEL = re.compile(r" *(\d+): ")
_TEE = re.compile(r"\[([A-Za-z_][\w-]*?)(\d+)\]: ?")
_PLACE = re.compile(r"\[(\d{1,3})\]: ?")
_MPI = re.compile(r"\[(?:[\w.-]+@)?\d+,(\d+)\]<std(?:out|err|diag)>: ?")
_RAY = re.compile(r"\((?:[\w.<>:-]+ )?pid=(\d+)(?:, ip=([\w.:-]+))?\) ")
_TORCHX = re.compile(r"([a-z][\w.]*/\d+) (?=\[|[A-Z ]|[\w.]+(?:Error|Exception)\b)")
_NCCL = re.compile(r"([A-Za-z0-9][\w.-]*):(\d+):\d+ \[(\d+)\] ")
_POD = re.compile(r"\[pod/([\w.-]+?)/[\w.-]+\] ?")
_ISO = re.compile(r"[\[(]?(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|[+-]\d\d:?\d\d)?[\])]?[ :,]*")
_TF = re.compile(r"[IWEF] \S+?\.(?:cc|cpp|cu|h):\d+\] ")
_GLOG = re.compile(r"\[?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) +(?:\d+ )?\S+?:\d+\] ?")
_SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d (\d\d):(\d\d):(\d\d) ([\w.-]+) (?=[\w./-]+(?:\[\d+\])?: )")
_KERNEL = re.compile(r"(?:kernel: )?\[ *\+?\d+\.\d+\] |kernel: ")
_DMESG = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d (\d\d):(\d\d):(\d\d) \d{4}\] ")
_RELAYED = re.compile(
    r"std(?:out|err): (?=\S)|- [\w.-]+ - [A-Z]+ - (?=\[rank\d)|(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?\w+\.py:\d+\] "
)
"""Of a process whose output another one prints; vLLM's, of each line of a traceback."""
_HOST = re.compile(
    r"([A-Za-z][\w.-]*?\d[\w.-]*|(?:\d{1,3}\.){3}\d{1,3}): +"
    r"(?=NVRM|\[|srun|slurmstepd|kernel|Traceback|[A-Z]|[\w.]+(?:Error|Exception)\b|[\w.-]+:\d+:\d+ \[)"
)

_MAY_BEGIN = re.compile(
    r"[\[( \d-]|[IWEF](?:\d{4}| \S)|[A-Z][a-z]{2} [ \d]|kernel: |std[oe]|ERROR \d|CRITICAL \d|[A-Za-z][\w.-]*(?:: |:\d|/\d)"
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
    text = _COLOUR.sub("", line) if "\x1b" in line else line
    said: Said = {}
    start = 0
    for _ in range(6):
        end = _one(text, start, said)
        if end == start:
            break
        start = end
    if not start:
        return speaker if not speaker.mark else replace(speaker, mark=""), text
    until = said.pop("until", 0)
    said["mark"] = text[:until] if text is line else _as_written(line, until)
    return replace(speaker, **said), text[start:]


def _as_written(line: str, shown: int) -> str:
    """How a line begins, up to so many letters that are no colours."""
    end = 0
    for colour in _COLOUR.finditer(line):
        if colour.start() - end > shown:
            break
        shown -= colour.start() - end
        end = colour.end()
    return line[: end + shown]


def _one(text: str, at: int, said: Said) -> int:
    """Take off one prefix at `at`, if one is there; where it ends."""
    if _MAY_BEGIN.match(text, at) is None:
        return at
    for match, read in _ANYWHERE:
        if found := match(text, at):
            read(found, said)
            return found.end()
    if at == 0 and (found := _HOST.match(text, at) or _TORCHX.match(text, at)):
        said["node"], said["until"] = found[1], found.end()
        return found.end()
    if (at == 0 or "node" in said) and (found := _PLACE.match(text, at)):
        said["local"], said["until"] = int(found[1]), found.end()
        return found.end()
    return at


Said = dict[str, Any]
"""Fields of a `Speaker`, as far as prefixes tell them; `until`: where what names the writer ends."""


def _rank(found: re.Match[str], said: Said) -> None:
    said["rank"], said["until"] = int(found[1]), found.end()


def _nccl(found: re.Match[str], said: Said) -> None:
    said["node"], said["pid"], said["local"] = found[1], int(found[2]), int(found[3])


def _ray(found: re.Match[str], said: Said) -> None:
    said["pid"], said["until"] = int(found[1]), found.end()
    if found[2]:
        said["node"] = found[2]


def _tee(found: re.Match[str], said: Said) -> None:
    said["local"], said["until"] = int(found[2]), found.end()


def _pod(found: re.Match[str], said: Said) -> None:
    said["node"], said["until"] = found[1], found.end()
    if (number := index(found[1])) is not None:
        said.setdefault("rank", number)


def _date(found: re.Match[str], said: Said) -> None:
    said["at"] = _seconds(*found.groups())


def _date_without_year(found: re.Match[str], said: Said) -> None:
    said["at"] = _seconds("0", *found.groups())


def _syslog(found: re.Match[str], said: Said) -> None:
    said["node"] = found[4]


def _nothing(found: re.Match[str], said: Said) -> None:
    pass


_ANYWHERE: tuple[tuple[Callable[[str, int], re.Match[str] | None], Callable[[re.Match[str], Said], None]], ...] = (
    (_RANK.match, _rank),
    (_NCCL.match, _nccl),
    (_LABEL.match, _rank),
    (_MPI.match, _rank),
    (_RAY.match, _ray),
    (_TEE.match, _tee),
    (_POD.match, _pod),
    (_ISO.match, _date),
    (_GLOG.match, _date_without_year),
    (_SYSLOG.match, _syslog),
    (_DMESG.match, _nothing),
    (_KERNEL.match, _nothing),
    (_TF.match, _nothing),
    (_RELAYED.match, _nothing),
)
"""Prefixes that may follow one another, and what each tells; the first that matches counts."""


def _seconds(year: str, month: str, day: str, hour: str, minute: str, second: str, fraction: str | None) -> float:
    days = int(month) * 31 + int(day)
    return ((days * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second) + float(f"0.{fraction or 0}")


def _number(pattern: re.Pattern[str], path: str) -> int | None:
    every = pattern.findall(path)
    return int(every[-1]) if every else None
