"""Who is left of a worker: children in its session, and those that left it, or outlived their parent?

A worker's processes are known by its session, or by a mark in the environment that all of them inherit.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterable

from holdfast.elastic.utils.process_state import read_proc_state
from holdfast.runtime.process import pidfd_open

__all__ = ["MARK", "Strays", "living"]

MARK = "HOLDFAST_WORKER_GROUP"
"""Variable in every worker's environment; its value is unique to one start of a group."""


def living(sessions: Collection[int], mark: str) -> list[int]:
    """Pids of the live processes of these sessions, and of those whose environment carries `mark`."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_one(pid, sessions, wanted)]


def _is_one(pid: int, sessions: Collection[int], wanted: bytes) -> bool:
    try:
        if os.getsid(pid) not in sessions:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted not in file.read().split(b"\0"):
                    return False
    except OSError:  # it has ended, or is somebody else's
        return False
    return read_proc_state(pid) not in (None, "Z", "X")


class Strays:
    """Processes that are not children of ours, held by pidfd so that a reused pid is never hit. Where the kernel gives no
    pidfds there are none."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds = [fd for fd in map(pidfd_open, pids) if fd is not None]

    def __enter__(self) -> Strays:
        return self

    def __exit__(self, *error: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def signal(self, signum: int) -> None:
        """Signal those that live."""
        for fd in self._fds:
            try:
                signal.pidfd_send_signal(fd, signum)
            except OSError:  # ended, or not ours to signal
                continue

    def end(self, deadline: float) -> None:
        """Wait until all have ended; kill those that have not at `deadline` (monotonic)."""
        poll = select.poll()
        left = set(self._fds)
        for fd in left:
            poll.register(fd, select.POLLIN)
        while left:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self.signal(signal.SIGKILL)
                return
            for fd, _ in poll.poll(remaining * 1000):
                poll.unregister(fd)
                left.discard(fd)
