"""Has a worker ended, and which of its processes still run: in its session, outside it, or without their parent?

A worker's processes are known by its session, or by a mark in the environment that all of them inherit.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import NamedTuple

from holdfast.elastic.multiprocessing.signal_exception import signals_held
from holdfast.elastic.utils.process_state import is_alive
from holdfast.runtime.process.environments import environments
from holdfast.runtime.process.process import pidfd_open

logger = logging.getLogger(__name__)

MARK = "HOLDFAST_WORKER_GROUP"
"""Variable in every worker's environment: a word for its own start of a group, after those of the groups around it."""

LOOK_S = 0.02  # seconds between two looks where the kernel gives no pidfds
DEATH_S = 5.0  # How long who has been killed is waited for, at least: the kernel puts away what it had.
SLICE_S = 0.5  # longest sleep: Python hears of a signal that comes just before a sleep only at its end


@contextmanager
def added(variables: Mapping[str, str]) -> Iterator[None]:
    """With `variables` in our own environment meanwhile."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def living(sessions: Collection[int], mark: str) -> list[int]:
    """Pids of the live processes of these sessions, and of those whose environment carries `mark`."""
    pids = list(map(int, filter(str.isdigit, os.listdir("/proc"))))
    inside = {pid for pid in pids if _session(pid) in sessions}
    wanted = mark.encode()
    for pid, environ in environments(pid for pid in pids if pid not in inside).items():
        marks = (one for one in environ.split(b"\0") if one.startswith(f"{MARK}=".encode()))
        if any(wanted in one for one in marks):
            inside.add(pid)
    return [pid for pid in pids if pid in inside and is_alive(pid)]


def _session(pid: int) -> int | None:
    """None: it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


class Running(NamedTuple):
    """A process that we have started: its pid, how to signal it, and what tells whether it has ended, and then buries it."""

    pid: int
    send: Callable[[signal.Signals], object]
    has_ended: Callable[[], bool]

    def ends_within(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for its end."""
        deadline, pidfd = time.monotonic() + timeout, pidfd_open(self.pid)
        try:
            while True:
                with signals_held():
                    if self.has_ended():
                        return True
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                if pidfd is None:
                    time.sleep(min(LOOK_S, left_s))
                elif wait([pidfd], min(SLICE_S, left_s)):
                    time.sleep(LOOK_S / 10)  # a fork server buries it a moment later
        finally:
            if pidfd is not None:
                os.close(pidfd)


def end(running: list[Running], death_sig: signal.Signals, deadline: float, timeout: float) -> None:
    """Signal these workers; kill those that still run at `deadline` (monotonic). Waits `timeout` or DEATH_S for the killed."""
    for worker in running:
        logger.warning("Sending process %s closing signal %s", worker.pid, death_sig.name)
        worker.send(death_sig)
    for worker in running:
        worker.ends_within(max(0, deadline - time.monotonic()))
    for worker in running:
        if not worker.ends_within(0):
            message = "Unable to shutdown process %s via %s, forcefully exiting via %s"
            logger.warning(message, worker.pid, death_sig, signal.SIGKILL)
            worker.send(signal.SIGKILL)
    timeout = max(timeout, DEATH_S)
    for worker in running:
        if not worker.ends_within(timeout):
            why = "it sleeps in the kernel (a hung GPU, network card or file system), where no signal reaches it"
            message = "process %s is still there %s s after SIGKILL: %s; going on without it. This host may need a reboot."
            logger.error(message, worker.pid, timeout, why)


class Strays:
    """Processes that are not children of ours, held by pidfd, where the kernel gives any, so that a reused pid is never hit."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._held = {pid: pidfd_open(pid) for pid in pids}

    def __enter__(self) -> Strays:
        return self

    def __exit__(self, *error: object) -> None:
        for fd in self._held.values():
            if fd is not None:
                os.close(fd)

    def signal(self, signum: int) -> None:
        """Signal those that live."""
        for pid, fd in self._held.items():
            try:
                if fd is None:
                    os.kill(pid, signum)
                else:
                    signal.pidfd_send_signal(fd, signum)
            except OSError:  # ended, or not ours to signal
                continue

    def end(self, deadline: float) -> None:
        """Wait until all have ended; kill those that have not at `deadline` (monotonic), and wait DEATH_S for them."""
        killed = False
        while left := [pid for pid in self._held if is_alive(pid)]:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                if killed:
                    return
                self.signal(signal.SIGKILL)
                killed, deadline = True, time.monotonic() + DEATH_S
                continue
            fds = [fd for pid in left if (fd := self._held[pid]) is not None]
            wait(fds, min(remaining, SLICE_S if len(fds) == len(left) else LOOK_S))
