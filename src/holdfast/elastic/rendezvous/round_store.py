"""Where do the agents and workers of one round exchange data? In stores of that round alone.

The agents' is kept by the coordinator, or in memory where there is one node: it needs no torch. The workers' is torch's. In a
program with torch every node opens one before it asks for a seat, and that of group rank 0 is used, at the address that
everybody is assigned; in one without, the rank-0 worker serves it there. So nothing of an earlier round can be read, and nobody
has to ask where a store is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.elastic.utils.distributed import get_free_port
from holdfast.rendezvous.kvstore.machine import LONGEST_WAIT_S, WAITING

from .attendance import Attendance, Finished, Stage
from .attendant import Attendant
from .store import Each, Store, StoreTimeout
from .stores import torch_distributed, torch_is_loaded

BACKLOG = 4096  # connections that may wait to be accepted: every worker of a large job comes at once
EXIT_BARRIER = "torchelastic/agent/terminal_state/num_members"
"""The key in which torch elastic's agents count who has reached the end: the first word of it that we get."""
FAREWELL_S = 5.0
"""How long after the loss of the store to wait for word that the job has ended well: its host may have been quicker."""


class RoundServer:
    """The workers' store that this node serves in a round, should it get group rank 0."""

    def __init__(self, addr: str, *, timeout_s: float) -> None:
        self.for_workers = torch_is_loaded()  # False: the worker of rank 0 serves one at `port`
        self._store: Any = None
        if not self.for_workers:
            self.port = get_free_port()
            return
        dist = torch_distributed("A store for workers")
        listener, reached_at = _listen(addr)
        self.port = int(listener.getsockname()[1])
        timeout = timedelta(seconds=timeout_s)
        # The descriptor is the store's from now on.
        self._store = dist.TCPStore(
            reached_at, self.port, None, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )


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
    raise OSError(f"cannot listen at {addr} or any other address")


class _Over(Exception):
    """The job has ended well, and with it what was waited for."""


class RoundStore(Store):
    """A round's store, as its agents see it: every wait of it can be interrupted by signals.

    It is also how we learn that an agent's workers have succeeded, and how an agent at the exit barrier learns that the job
    has ended: word of that may come after the store's host has gone.
    """

    def __init__(self, store: Store, attendant: Attendant, timeout_s: float) -> None:
        self._store = store
        self._attendant = attendant
        self._at_exit = False
        self.set_timeout(timedelta(seconds=timeout_s))

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        if ask.op in WAITING:
            return self._wait(ask, each)
        answer = self._store._perform(ask, each)
        if ask.op == "add" and EXIT_BARRIER in ask.keys:
            self._at_exit = True
            self._attendant.show(Finished())
        return answer

    def _wait(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        """Until all keys are there, or the job has ended well. RuntimeError: not in time, or they never will be."""

        def look() -> None:
            if self._at_exit and self._over():
                raise _Over
            if each is not None:
                each()

        try:
            look()
            return self._store._perform(ask, look)
        except _Over:
            pass
        except StoreTimeout:
            raise
        except RuntimeError:
            if not (self._at_exit and self._attendant.wait_for(_no_longer_at_exit, FAREWELL_S) and self._over()):
                raise
        return StoreAnswer(ask=0) if ask.op == "wait" else self._store._do(ask.op, ask.keys)

    def _over(self) -> bool:
        attendance = self._attendant.attendance
        if attendance.state is Stage.LEFT:
            raise RuntimeError(f"no more nodes will reach the exit barrier: {attendance.why}")
        return attendance.state is Stage.ENDED

    def wait_unless(self, given_up: Callable[[], bool], keys: list[str]) -> bool:
        """Until all `keys` are there (True), or `given_up` (False). RuntimeError: the store is out of reach."""

        def look() -> None:
            if given_up():
                raise _Over

        try:
            self._store._do("wait", keys, wait_s=LONGEST_WAIT_S, each=look)
        except _Over:
            return False
        return True


def _no_longer_at_exit(attendance: Attendance) -> bool:
    return attendance.state in (Stage.LEFT, Stage.ENDED)
