"""Where do the agents and workers of one round exchange what they must know of each other? In a store of that round alone.

Every node opens a store's server before it asks for a seat; that of group rank 0 is used, at the address that everybody was
assigned. So nothing of an earlier round can be read, and nobody has to ask where the store is.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from holdfast.elastic.utils.distributed import get_free_port

from .attendance import Attendance
from .attendant import Attendant
from .memory_store import MemoryStore, StoreTimeout
from .stores import FIRST_PAUSE_S, LONGEST_PAUSE_S, torch_distributed, torch_is_loaded, with_prefix

BACKLOG = 4096
"""Connections that may wait to be accepted: every worker of a large job comes at once."""
EXIT_BARRIER = "torchelastic/agent/terminal_state/num_members"
"""The key in which torch elastic's agents count who has reached the end: the first word of it that we get."""
FAREWELL_S = 5.0
"""How long after the loss of the store to wait for word that the job has ended well: its host may have been quicker."""


class RoundServer:
    """The store that this node serves in a round, should it get group rank 0."""

    def __init__(self, addr: str, *, alone: bool, timeout_s: float) -> None:
        self.store: Any = None
        if alone and not torch_is_loaded():
            self.store, self.port = MemoryStore(), get_free_port()
            return
        dist = torch_distributed("A rendezvous of several nodes")
        listener, reached_at = _listen(addr)
        self.port = int(listener.getsockname()[1])
        timeout = timedelta(seconds=timeout_s)
        # The descriptor is the store's from now on.
        self.store = dist.TCPStore(
            reached_at, self.port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    @property
    def for_workers(self) -> bool:
        """Whether workers can use it too. False: the worker of rank 0 is to serve one at `port`."""
        return not isinstance(self.store, MemoryStore)


def _listen(addr: str) -> tuple[socket.socket, str]:
    """A listener at `addr` alone, or everywhere if that is no address of an interface here (NAT); and how we reach it."""
    for family, where, reached_at in ((None, addr, addr), (socket.AF_INET, "", "127.0.0.1"), (socket.AF_INET6, "::", "::1")):
        with suppress(OSError):
            known = family or socket.getaddrinfo(addr, None, type=socket.SOCK_STREAM)[0][0]
            listener = socket.socket(known, socket.SOCK_STREAM)
            try:
                listener.bind((where, 0))
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                raise
            return listener, reached_at
    raise OSError(f"cannot listen at {addr}, nor anywhere else")


def reach(addr: str, port: int, timeout_s: float, given_up: Callable[[], bool]) -> Any | None:
    """A client of the store at `addr:port`. None: `given_up` became true first. OSError: nobody answers there."""
    deadline = time.monotonic() + timeout_s
    while not given_up():
        try:
            # A plain connection first: torch's client cannot be interrupted, and prints pages when nobody answers.
            socket.create_connection((addr, port), timeout=1.0).close()
            dist = torch_distributed("A rendezvous of several nodes")
            return dist.TCPStore(addr, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False)
        except (OSError, RuntimeError) as error:
            if time.monotonic() > deadline:
                raise OSError(f"the store of this round, at {addr}:{port}, is out of reach: {error}") from error
            time.sleep(LONGEST_PAUSE_S)
    return None


class RoundStore:
    """A round's store, as its agents see it: its keys are prefixed, and every wait of it can be interrupted by signals.

    It is also how we learn that an agent's workers have succeeded, and how an agent at the exit barrier learns that the job
    has ended: word of that may come after the store's host has gone.
    """

    def __init__(self, store: Any, prefix: str, attendant: Attendant, finished: Callable[[], None]) -> None:
        self._store = with_prefix(prefix, store)
        self._attendant = attendant
        self._finished = finished
        self._at_exit = False
        self.timeout: timedelta = store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """How long waits may last."""
        self.timeout = timeout

    def add(self, key: str, amount: int) -> int:
        """See torch's Store."""
        total = int(self._store.add(key, amount))
        if key == EXIT_BARRIER:
            self._at_exit = True
            self._finished()
        return total

    def get(self, key: str) -> bytes:
        """See torch's Store."""
        self.wait([key])
        return bytes(self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """See torch's Store."""
        self.wait(keys)
        return list(self._store.multi_get(keys))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Until all `keys` are there, or the job has ended well. RuntimeError: not in time, or they never will be."""
        limit_s = (timeout or self.timeout).total_seconds()
        try:
            self._wait(keys, limit_s)
        except StoreTimeout:
            raise
        except RuntimeError:
            if not (self._at_exit and self._attendant.wait_for(_no_longer_at_exit, FAREWELL_S) and self._over()):
                raise

    def _wait(self, keys: list[str], limit_s: float) -> None:
        deadline, pause_s = time.monotonic() + limit_s, FIRST_PAUSE_S
        while not (self._at_exit and self._over()) and not self._store.check(keys):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StoreTimeout(f"waited {limit_s:g} s for {', '.join(keys)}, which nobody has set")
            self._attendant.pause(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _over(self) -> bool:
        attendance = self._attendant.attendance
        if attendance.state == "left":
            raise RuntimeError(f"no further node will come to the exit barrier: {attendance.why}")
        return attendance.state == "ended"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _no_longer_at_exit(attendance: Attendance) -> bool:
    return attendance.state in ("left", "ended")
