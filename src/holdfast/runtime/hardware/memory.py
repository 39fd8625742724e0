"""How much memory may still be taken here, and how much would come back if a process ended?"""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.runtime.hardware import cgroups


def room_bytes(root: str = "/") -> tuple[int, int]:
    """Bytes that can be had without an OOM kill, and bytes in all: the host's, or this container's if fewer. (0, 0): not
    known."""
    host = _lines(os.path.join(root, "proc/meminfo"))
    room, total = host.get("MemAvailable:", 0) * 1024, host.get("MemTotal:", 0) * 1024
    for limit, used in groups(root):
        if limit < total:
            room, total = min(room, max(0, limit - used)), limit
    return room, total


def groups(root: str = "/") -> Iterator[tuple[int, int]]:
    """Of each control group around us that has a limit, from the widest on: the limit, and the bytes in use that the kernel
    cannot give back."""
    for group in reversed(cgroups.folders(root)):
        folder = os.path.join(root, group)
        limit, used = _number(f"{folder}/memory.max"), _number(f"{folder}/memory.current")
        if limit is not None and used is not None:
            yield limit, used - _lines(f"{folder}/memory.stat").get("inactive_file", 0)


def private_bytes(pid: int) -> int:
    """What only this process has, swap included; 0: it has ended, or may not be looked at. Milliseconds for a large one."""
    said = _lines(f"/proc/{pid}/smaps_rollup")
    return 1024 * (said.get("Private_Clean:", 0) + said.get("Private_Dirty:", 0) + said.get("Swap:", 0))


def _lines(path: str) -> dict[str, int]:
    """`word number` on each line."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            parts = [line.split() for line in file]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in parts if len(words) > 1 and words[1].isdigit()}


def _number(path: str) -> int | None:
    """None: there is no such file, or it says `max`."""
    try:
        with open(path, encoding="ascii") as file:
            said = file.read().strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None
