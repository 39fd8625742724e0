"""How much memory of this node's GPUs is in use, and which processes use it? `nvidia-smi` runs in children, and the agent's
loop hears of their ends: on broken hardware it hangs, and the loop must not.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from typing import TypeAlias

from holdfast.agent.group.messages import GpuMemory, GpuUser, MemorySeen
from holdfast.core.errors import StartError
from holdfast.core.machine import Observation
from holdfast.runtime.hardware import gpus as accelerators
from holdfast.runtime.hardware.nvidia import MOST
from holdfast.runtime.host import Host
from holdfast.runtime.process import process

Then: TypeAlias = Callable[[list[list[str]]], list[Observation]]  # Takes the table that `nvidia-smi` has printed.

MEMORY = "--query-gpu=index,uuid,memory.used"
USERS = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"


class GpuLook:
    """One look after the other."""

    def __init__(self, host: Host, environ: Mapping[str, str], nproc: int, root: str = "/") -> None:
        self.host, self.environ = host, environ
        self.wanted = accelerators.visible(accelerators.nvidia(root), environ.get("CUDA_VISIBLE_DEVICES"))[:nproc]
        """Indices or UUIDs of the GPUs that workers here use."""
        self.above_mb = 0.0

    def begin(self, above_mb: float) -> list[Observation]:
        """Look; who has the memory is found out where more than `above_mb` MiB are in use. Told at once: there is no GPU."""
        if not self.wanted:
            return [MemorySeen()]
        self.above_mb = above_mb
        return self._ask(MEMORY, self._memory_told)

    def _memory_told(self, rows: list[list[str]]) -> list[Observation]:
        taken = {(row[0], row[1]): float(row[2]) for row in rows if len(row) == 3 and _is_number(row[2])}
        mine = {key: used for key, used in taken.items() if any(_names(entry, *key) for entry in self.wanted)}
        if not mine:
            return [MemorySeen(trouble="it does not report GPU memory here")]
        if max(mine.values()) <= self.above_mb:
            return [_seen(mine, {})]
        return self._ask(USERS, lambda users: [_seen(mine, _strangers(users))])

    def _ask(self, query: str, then: Then) -> list[Observation]:
        try:
            out = os.memfd_create("nvidia-smi", os.MFD_CLOEXEC)
        except OSError as error:
            return [MemorySeen(trouble=f"it could not be asked: {error.strerror}")]
        try:
            child = process.spawn(("nvidia-smi", query, "--format=csv,noheader,nounits"), self.environ, stdout=out)
        except StartError as error:
            os.close(out)
            return [MemorySeen(trouble=error.what)]
        if child.pidfd is None:
            os.close(out)
            return [MemorySeen(trouble="its end could not be waited for: this kernel has no pidfd")]
        self.host.watch(child.pidfd, select.EPOLLIN, lambda events: self._ended(child, out, then))
        return []

    def _ended(self, child: process.Process, out: int, then: Then) -> list[Observation]:
        try:
            code = process.reap(child.pid)
        except ChildProcessError:
            code = -9  # swept away with what workers had left behind
        if code is None:
            return []
        assert child.pidfd is not None
        self.host.unwatch(child.pidfd)
        child.close()
        text = os.pread(out, MOST, 0).decode(errors="replace")
        os.close(out)
        if code:
            return [MemorySeen(trouble=f"it ended with {code}")]
        return then([[cell.strip() for cell in line.split(",")] for line in text.splitlines()])


def _names(entry: str, index: str, uuid: str) -> bool:
    return entry == index or (not entry.isdigit() and uuid.startswith(entry))


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _seen(taken: dict[tuple[str, str], float], users: dict[str, list[GpuUser]]) -> MemorySeen:
    gpus = [GpuMemory(index=int(index), used_mb=mb, others=tuple(users.get(uuid, ()))) for (index, uuid), mb in taken.items()]
    return MemorySeen(gpus=tuple(gpus))


def _strangers(rows: list[list[str]]) -> dict[str, list[GpuUser]]:
    """UUID of a GPU → who has memory there and lives, but does not descend from us. What is dying will let go of it."""
    ours = {os.getpid(), *process.descendants(os.getpid())}
    found: dict[str, list[GpuUser]] = {}
    for uuid, pid, used, *name in (row for row in rows if len(row) >= 4):
        if pid.isdigit() and int(pid) not in ours and process.state(int(pid)) not in (None, "Z", "X"):
            mb = float(used) if _is_number(used) else None
            found.setdefault(uuid, []).append(GpuUser(pid=int(pid), name=os.path.basename(",".join(name)), mb=mb))
    return found
