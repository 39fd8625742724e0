"""How are torch's process groups ended when a round is left, so that no thread waits in one and nothing of it reaches the next?

NCCL's abort ends its collectives. Gloo's (torch 2.13) does not end one that waits for a rank that lives: its connections have
to be shut. They are not marked as gloo's, so all TCP connections go that this process has opened since the life began.

The script's torch, if it has any: this imports none.
"""

from __future__ import annotations

import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType


def sockets() -> frozenset[str]:
    """Those that this process has open, as the kernel names them."""
    return frozenset(name for name in _open_files().values() if name.startswith("socket:"))


def interrupt(before: Collection[str]) -> None:
    """End what the main thread may wait for in C code: collectives, and the store where the ranks meet. From another thread.
    `before`: the sockets that were open when the life began."""
    if (c10d := _c10d()) is not None:
        _abort_all(c10d, before)


def tear_down(before: Collection[str]) -> None:
    """The main thread is out: abort all process groups, and forget them."""
    if (c10d := _c10d()) is None:
        return
    _abort_all(c10d, before)
    try:
        if c10d.is_initialized():
            c10d.destroy_process_group()
    except Exception as error:
        sys.stderr.write(f"holdfast: a process group of the round that was left could not be destroyed: {error}\n")


def _c10d() -> ModuleType | None:
    """torch.distributed, if the script has it."""
    return sys.modules.get("torch.distributed.distributed_c10d")


def _abort_all(c10d: ModuleType, before: Collection[str]) -> None:
    for group in list(c10d._world.pg_map):
        try:
            group.abort()
        except Exception:  # an older torch, or a backend that cannot
            continue
    for fd, name in _open_files().items():
        if name.startswith("socket:") and name not in before:
            _shut(fd)


def _open_files() -> dict[int, str]:
    """What each descriptor is, in the kernel's words."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # it was the folder's own
            continue
    return found


def _shut(fd: int) -> None:
    """Shut a TCP connection: who waits at either end is told that it is gone."""
    try:
        copy = os.dup(fd)
    except OSError:
        return
    with socket.socket(fileno=copy) as one:
        try:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername():
                one.shutdown(socket.SHUT_RDWR)
        except OSError:  # it listens, or is gone
            return
