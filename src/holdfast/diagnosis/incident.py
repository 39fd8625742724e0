"""What is kept of a failure? One folder for each round, in which each node has one: several may share a run's directory.

    incidents/round-3/n7/failure-rank-3.json   how it ended: exit code or signal, its error file's content, its log's last lines
                         rank-3.txt            where it was when a rank hung: the stacks of all its threads; or, when another
                                               failed, where its main thread was when it was asked to end
                         record-rank-3         torch's record of its collectives, where a rank that hung could still be asked
                         dump-rank-3           torch's flight recorder, where the rank has left one
                         kernel.txt            the kernel's log from ten minutes before to one after, where it may be read
                         memory.txt            what this process's memory groups say: limits, peaks, how often the kernel killed
                         health.json           what its checks said of the node when it failed, where there are any

What a rank did that failed by itself is kept at once; the rest when the next workers run, or the job ends: no restart waits for
it. Whole logs stay where they are: none is ever overwritten.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from holdfast.core.job.failure import Failure, in_order
from holdfast.core.value import to_plain
from holdfast.runtime.hardware import cgroups
from holdfast.runtime.hardware.kmsg import now_s, parsed
from holdfast.runtime.hardware.kmsg import records as of_kernel
from holdfast.runtime.private_files import make_folder, private
from holdfast.telemetry.record.plain_values import from_plain

BEFORE_S, AFTER_S = 600.0, 60.0
"""Around the failure, the kernel's log is kept: what came before it may be its cause, and of what it says of dying GPUs and
groups without memory the last comes when the processes are gone."""

MOST_RECORDS = 50_000  # Of the kernel's log: its ring has some thousands.
MOST_BYTES = 64 << 20  # Of one flight recorder's file.

HEALTH = "health.json"
KERNEL, MEMORY = "kernel.txt", "memory.txt"
FAILURE = "failure-rank-"

OF_MEMORY = ("memory.events", "memory.max", "memory.high", "memory.peak", "memory.current", "memory.swap.events")


def keep_failures(folder: Callable[[int], str], failures: Iterable[Failure]) -> None:
    """Keep what is known of each rank's failure in the `folder` of its round. OSError where that cannot be."""
    for failure in failures:
        make_folder(kept := folder(failure.round))
        path = os.path.join(kept, f"{FAILURE}{failure.rank}.json")
        with open(path, "w", encoding="utf-8", opener=private) as file:
            json.dump(to_plain(failure), file, indent=2, default=str)


def keep(
    folder: str,
    *,
    age_s: float,
    stacks: Mapping[int, str],
    records: Mapping[int, str],
    verdicts: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Keep all that can be had in `folder`. `age_s`: seconds since it failed; `stacks`: by rank, kept where no more
    of it is; `records`: by rank, where its flight recorder writes to; `verdicts`: of the node's checks, as plain data.
    OSError where the folder cannot be written to; what cannot be read is left out, and the file says why."""
    make_folder(folder)
    _write(os.path.join(folder, KERNEL), kernel_log(now_s() - age_s - BEFORE_S, now_s() - age_s + AFTER_S))
    _write(os.path.join(folder, MEMORY), memory())
    if verdicts:
        with open(os.path.join(folder, HEALTH), "w", encoding="utf-8", opener=private) as file:
            json.dump(verdicts, file, indent=2)
    for rank, told in stacks.items():
        if not os.path.exists(path := os.path.join(folder, f"rank-{rank}.txt")):
            _write(path, told.splitlines())
    for rank, path in records.items():
        _copy(path, os.path.join(folder, f"dump-rank-{rank}"))


def failures(folder: str) -> list[Failure]:
    """Those that were kept in `folder` or in folders of it. What is none is left out."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            if name.startswith(FAILURE):
                try:
                    said = json.loads(_read(os.path.join(place, name)))
                except ValueError:
                    continue
                found.append(from_plain(Failure, said) if isinstance(said, dict) else None)
    return in_order(failure for failure in found if failure is not None)


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


def kernel_log(since: float, until: float, path: str = "/dev/kmsg") -> Iterator[str]:
    """Its lines between these moments (seconds since the host's start, as the kernel counts them)."""
    try:
        for record in islice(of_kernel(path), MOST_RECORDS):
            if (told := _told(record, since, until)) is not None:
                yield told
    except OSError as error:
        yield f"the kernel's log cannot be read: {error.strerror}"


def memory(root: str = "/") -> Iterator[str]:
    """What this process's groups and their parents say of memory, and the host."""
    for folder in cgroups.folders(root):
        for name in OF_MEMORY:
            if said := _read(os.path.join(root, folder, name)):
                yield f"/{folder}/{name}: {' '.join(said.split())}"
    yield from _read(os.path.join(root, "proc/meminfo")).splitlines()[:5]


def _told(record: str, since: float, until: float) -> str | None:
    """`[4711.123456] text` of `6,1234,4711123456,-;text`."""
    found = parsed(record)
    if found is None or not since <= found[1] <= until:
        return None
    return f"[{found[1]:12.6f}] {found[2]}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _write(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.writelines(f"{line}\n" for line in lines)


def _copy(path: str, to: str) -> None:
    try:
        with open(path, "rb") as file:
            said = file.read(MOST_BYTES)
    except OSError:
        return
    with open(to, "wb", opener=private) as file:
        file.write(said)
