"""Which addresses does a name have? Asks in a thread: a name server that does not answer blocks its client for seconds, in
which an agent would lose its lease, and a coordinator everybody's.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from holdfast.core.machine import Observation
from holdfast.runtime.host import Host
from holdfast.runtime.net.addresses import askable, looked_up

Addresses = list[tuple[Any, ...]] | OSError  # As of `socket.getaddrinfo`; or why there is none.

Then = Callable[[Addresses], list[Observation]]


class Names:
    """Questions that have not been answered yet: one at a time for each name."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.asked: dict[tuple[str, int], list[Then]] = {}
        self.answers: list[tuple[tuple[str, int], Addresses]] = []
        self.alarm = -1
        self.lock = _thread.allocate_lock()  # Held to close or ring the alarm: its number may be reused.

    def ask(self, name: str, port: int, then: Then) -> list[Observation]:
        """Call `then` with the addresses: at once where `name` is one, else from the host's `wait`."""
        try:
            return then(socket.getaddrinfo(askable(name), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            pass  # it is a name
        waiting = self.asked.setdefault((name, port), [])
        waiting.append(then)
        if len(waiting) == 1:
            if self.alarm < 0:
                self.alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self.host.watch(self.alarm, select.EPOLLIN, self._answered)
            try:
                _thread.start_new_thread(self._look, (name, port))
            except RuntimeError as error:  # as many as are allowed are there; the caller tries again
                del self.asked[name, port]
                return then(OSError(errno.EAGAIN, str(error)))
        return []

    def _look(self, name: str, port: int) -> None:
        try:
            found: Addresses = looked_up(name, port)
        except OSError as error:
            found = error
        with self.lock:
            self.answers.append(((name, port), found))
            if self.alarm >= 0:
                os.eventfd_write(self.alarm, 1)

    def _answered(self, events: int) -> list[Observation]:
        os.eventfd_read(self.alarm)
        seen: list[Observation] = []
        while self.answers:
            asked, found = self.answers.pop(0)
            for then in self.asked.pop(asked, []):
                seen += then(found)
        return seen

    def close(self) -> None:
        """Nobody waits any more."""
        with self.lock:
            if self.alarm >= 0:
                self.host.unwatch(self.alarm)
                os.close(self.alarm)
            self.alarm = -1
