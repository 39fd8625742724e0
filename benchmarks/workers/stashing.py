"""Saves and restores a state of so many MB, by torch and by the stash in turn. Prints the seconds of each, as JSON."""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable

import torch

import holdfast.client.stash as stash

size_mb, rounds, disk = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
PARTS = 50
libc = ctypes.CDLL(None)
state = {f"part {part}": torch.rand(size_mb * 1_000_000 // 4 // PARTS) for part in range(PARTS)}
path = os.path.join(disk, "checkpoint.pt")
seen: dict[str, list[float]] = {}


def timed(what: str, do: Callable[[], object]) -> None:
    begun = time.perf_counter()
    do()
    seen.setdefault(what, []).append(time.perf_counter() - begun)


def next_life() -> None:
    """From here on the memory is mapped as by a process that has just started, and none is left of what was freed."""
    libc.malloc_trim(0)
    stash._stash = None
    ours = stash._open()
    assert ours is not None
    newest = ours._whole()[-1]
    ours.round, ours.agreed = newest.round + 1, (newest.round, newest.step)


timed("first", lambda: stash.save(0, state))
stash.wait()
stash.save(1, state)  # both generations have their memory now
for step in range(2, 2 + rounds):
    timed("torch_save", lambda: torch.save(state, path))
    os.sync()  # what the disk still has to write is nobody's time but its own
    timed("save", lambda: stash.save(step, state))  # noqa: B023
torch.load(path)  # from here on the file is in the page cache, as what is stashed is in memory
for _ in range(rounds):
    found: list[dict[str, torch.Tensor]] = []
    next_life()
    timed("torch_load", lambda: found.append(torch.load(path)))  # noqa: B023
    timed("torch_load_changed", lambda: [part.add_(1) for part in found.pop().values()])  # noqa: B023
    next_life()
    timed("into", lambda: stash.latest(into=state))
    next_life()
    timed("latest", lambda: found.append((stash.latest() or (0, {}))[1]))  # noqa: B023
    timed("changed", lambda: [part.add_(1) for part in found.pop().values()])  # noqa: B023
print(json.dumps(seen))
