"""What is kept of a failure beside logs and error files, before it is gone? One folder for each round and node.

    incidents/round-3/n7/kernel.txt      the kernel's log of the last ten minutes, where it may be read
                         memory.txt      what this process's memory groups say: limits, peaks, how often the kernel killed
                         record-rank-3   torch's flight recorder, where the ranks have left one
                         health.json     what its checks said of the node when it failed, where there are any

Kept when the next workers run, or the job ends: no restart waits for it. Logs stay where they are: none is ever overwritten.
"""

from __future__ import annotations

import json
import os

from holdfast.runtime import cgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

WINDOW_S = 600.0
"""How far back the kernel's log is kept."""

MOST_RECORDS = 50_000
"""Of the kernel's log: its ring has some thousands."""

MOST_BYTES = 64 << 20
"""Of one flight recorder's file."""

HEALTH = "health.json"

OF_MEMORY = ("memory.events", "memory.max", "memory.high", "memory.peak", "memory.current", "memory.swap.events")


def keep(folder: str, *, now: float, records: Mapping[int, str], verdicts: Sequence[Mapping[str, Any]] = ()) -> None:
    """Keep all that can be had in `folder`. `now`: monotonic seconds; `records`: by rank, where its flight recorder writes to;
    `verdicts`: of the node's checks, as plain data.
    OSError where the folder cannot be written to; what cannot be read is left out, and the file says why."""
    os.makedirs(folder, 0o700, exist_ok=True)
    _write(os.path.join(folder, "kernel.txt"), kernel_log(now - WINDOW_S))
    _write(os.path.join(folder, "memory.txt"), memory())
    if verdicts:
        with open(os.path.join(folder, HEALTH), "w", encoding="utf-8") as file:
            json.dump(verdicts, file, indent=2)
    for rank, path in records.items():
        _copy(path, os.path.join(folder, f"record-rank-{rank}"))


def health(folder: str) -> dict[str, list[dict[str, Any]]]:
    """By node: the verdicts that were kept in a round's folder. What cannot be read is left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        nodes = sorted(os.listdir(folder))
    except OSError:
        return {}
    for node in nodes:
        try:
            said = json.loads(_read(os.path.join(folder, node, HEALTH)) or "[]")
            found[node] = [one for one in said if isinstance(one, dict)]
        except ValueError:
            continue
    return {node: verdicts for node, verdicts in found.items() if verdicts}


def kernel_log(since: float, path: str = "/dev/kmsg") -> Iterator[str]:
    """Its lines since that moment (seconds since the host's start, as the kernel counts them)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        yield f"the kernel's log cannot be read: {error.strerror}"
        return
    try:
        for _ in range(MOST_RECORDS):
            try:
                record = os.read(fd, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # it was overwritten before we came to it: the next one can be read
                continue
            if not record:
                return
            if (told := _told(record.decode("utf-8", "replace"), since)) is not None:
                yield told
    except OSError as error:
        yield f"the kernel's log cannot be read any further: {error.strerror}"
    finally:
        os.close(fd)


def memory(root: str = "/") -> Iterator[str]:
    """What this process's groups and their parents say of memory, and the host."""
    for folder in cgroups.folders(root):
        for name in OF_MEMORY:
            if said := _read(os.path.join(root, folder, name)):
                yield f"/{folder}/{name}: {' '.join(said.split())}"
    yield from _read(os.path.join(root, "proc/meminfo")).splitlines()[:5]


def _told(record: str, since: float) -> str | None:
    """`[4711.123456] text` of `6,1234,4711123456,-;text`."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return None
    at = int(fields[2]) / 1e6
    return f"[{at:12.6f}] {text.splitlines()[0] if text else ''}" if at >= since else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _write(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def _copy(path: str, to: str) -> None:
    try:
        with open(path, "rb") as file:
            said = file.read(MOST_BYTES)
    except OSError:
        return
    with open(to, "wb") as file:
        file.write(said)
