"""Which files tell of a failure, and what is in them? Reads logs of any launcher, and a job's own directory."""

from __future__ import annotations

import os
from collections import ChainMap, deque
from collections.abc import Iterator, Sequence

from holdfast.core.errors import UsageError
from holdfast.core.value import replace
from holdfast.diagnosis.evidence import Evidence
from holdfast.diagnosis.hangs.recorder_file import Record, read
from holdfast.diagnosis.incident import FAILURE, KERNEL, MEMORY
from holdfast.diagnosis.logs.prefix import Speaker, of_file
from holdfast.diagnosis.logs.scan import Log, Scanner
from holdfast.diagnosis.meaning import Meanings
from holdfast.diagnosis.opinions.learned_words import distinct
from holdfast.diagnosis.rule import Rules

MOST_FILES = 20_000
MOST_STACK = 4 << 20
STACK = (
    b"(most recent call first):",
    b"\nThread 0x",
    b'(idle): "MainThread"',
    b'(active): "MainThread"',
    b'(active+gil): "MainThread"',
)
"""One of these is in the beginning of a file with a rank's stacks."""

SKIPPED = (
    *(".pt", ".pth", ".safetensors", ".bin", ".npy", ".npz", ".pkl"),
    *(".gz", ".zip", ".tar", ".so", ".pyc", ".jsonl", ".sock"),
)
"""Ends of names that are no logs."""

OF_HOST = (KERNEL, MEMORY)  # What these say of others' processes is no word of the job's: rules know what concerns it.
BEGINS_SKIPPED = (".", FAILURE)  # And beginnings: `collect` reads what is kept of a failure.


def gather(paths: Sequence[str], rules: Rules | Meanings, *, most_bytes: int | None = None) -> Evidence:
    """What these logs and directories of logs tell. `most_bytes`: of each file, from its end. UsageError: there are none."""
    files = list(_files(paths))
    if paths and not files:
        raise UsageError(f"there are no logs in {', '.join(paths)}", hint="name files, or folders that have some")
    scanner = Scanner(rules)
    logs: list[Log] = []
    stacks: dict[int, str] = {}
    records: list[Record] = []
    for path in files[:MOST_FILES]:
        try:
            speaker, head = of_file(path), _head(path)
            if (record := _record(path, head)) is not None:
                records.append(record)
            elif speaker.rank is not None and any(mark in head for mark in STACK):
                with open(path, encoding="utf-8", errors="replace") as file:
                    stacks[speaker.rank] = file.read(MOST_STACK)
            else:
                logs.append(scanner.file(path, speaker, most_bytes=most_bytes))
        except OSError as error:
            if path in paths:
                raise UsageError(f"{path} cannot be read: {error.strerror}", hint="check its path and rights") from error
    sources = len(logs) + len(stacks) + len(records)
    stacks = {**ChainMap(*(log.stacks for log in logs)), **stacks}
    return replace(_told(logs), tails=tuple(log.tail for log in logs), stacks=stacks, records=tuple(records), sources=sources)


def _told(logs: Sequence[Log]) -> Evidence:
    """What logs tell together."""
    ends = tuple(end for log in logs for end in log.ends)
    ranks = {rank for log in logs for rank in log.ranks} | {end.rank for end in ends if end.rank is not None}
    hosts = {place: host for log in logs for place, host in log.box.hosts.items()}
    sightings = (one for log in logs for one in log.sightings.values())
    return Evidence(
        sightings=tuple(replace(one, node=hosts.get(one.node, one.node)) for one in sightings),
        ends=ends,
        pids={pid: rank for log in logs for pid, rank in log.box.pids.items()},
        ranks=tuple(sorted(ranks)),
        writers=_writers(logs),
        said=_said(logs),
    )


def _said(logs: Sequence[Log]) -> tuple[str, ...]:
    """Their lines that tell of a failure; those of the log that tells most come last."""
    spoken = (log for log in sorted(logs, key=_telling) if os.path.basename(log.source) not in OF_HOST)
    return distinct(line for log in spoken for line in log.own_words())


def _telling(log: Log) -> tuple[int, float]:
    """How much a log tells of the failure: of many logs most tell of others that went with it, or of nothing."""
    return max(((one.rule.depth, one.rule.confidence) for one in log.sightings.values()), default=(-1, float(bool(log.ends))))


def _writers(logs: Sequence[Log]) -> int:
    places = {place: rank for log in logs for place, rank in log.places.items()}
    return len({places.get(one, one) for log in logs for one in log.writers} - {None})


def of_text(text: str, rules: Rules, *, source: str = "", speaker: Speaker | None = None) -> Evidence:
    """What a text tells."""
    log = Scanner(rules).text(text, source, speaker)
    sightings, ranks, said = tuple(log.sightings.values()), tuple(sorted(log.ranks)), distinct(log.own_words())
    told = Evidence(sightings=sightings, ends=tuple(log.ends), ranks=ranks, pids=log.box.pids, sources=1, said=said)
    return replace(told, tails=(log.tail,), stacks=log.stacks)


def ends(paths: Sequence[str], told: Evidence, *, logs: int, lines: int) -> list[Sequence[str]]:
    """The last lines of so many logs among these; first come those in which a rule has found something."""
    telling = {seen.source for seen in told.sightings}
    found: list[Sequence[str]] = []
    for path in sorted(_files(paths), key=lambda path: path not in telling):
        if len(found) == logs:
            break
        try:
            if b"\0" not in _head(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    found.append(list(deque(file, lines)))
        except OSError:
            continue  # the others tell
    return found


def _head(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _record(path: str, head: bytes) -> Record | None:
    """A flight recorder's file, if it is one."""
    if not (head.startswith(b"\x80") or (head.lstrip().startswith(b"{") and b'"entries"' in head)):
        return None
    try:
        return read(path)
    except ValueError:
        return None


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise UsageError(f"there is no {path}")
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if not name.endswith(SKIPPED) and not name.startswith(BEGINS_SKIPPED) and os.path.isfile(file):
                    yield file
