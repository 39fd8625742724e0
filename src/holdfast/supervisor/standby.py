"""What does a supervisor do that does not lead? It listens to no agent, tells people who leads, and waits for its turn.

The kernel refuses agents at its port, and they go to the next address that they know.
"""

from __future__ import annotations

import _thread
import os
import select
from collections.abc import Callable

from holdfast.agent.control.control_socket import ControlSocket
from holdfast.core.machine import NEVER, Observation, Signalled
from holdfast.runtime.host import Host
from holdfast.supervisor.feed import SOCKET
from holdfast.supervisor.store import Store


class Standby:
    """One wait for the lead."""

    def __init__(self, store: Store, folder: str, say: Callable[[str], None], signals: int) -> None:
        self.store, self.say = store, say
        self.host = Host(say)
        self.host.hear(signals)
        self.control = ControlSocket(os.path.join(folder, SOCKET))
        self.host.watch(self.control.fileno(), select.EPOLLIN, lambda events: self._asked())
        self.why_not, self.said = "nobody knows yet who leads", ""
        self.is_over = False
        self.failed: Exception | None = None
        self.alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.host.watch(self.alarm, select.EPOLLIN, lambda events: self._told())

    def run(self) -> bool:
        _thread.start_new_thread(self._seek, ())
        try:
            while not self.is_over:
                if any(isinstance(seen, Signalled) for seen in self.host.wait(NEVER)):
                    return False
            if self.failed is not None:
                raise self.failed
        finally:
            self.control.close()
            self.host.close()
        return True

    def _seek(self) -> None:
        """In a thread: a store that is away may take its time."""
        try:
            while why_not := self.store.seek():
                self.why_not = why_not
                os.eventfd_write(self.alarm, 1)
        except Exception as error:  # a defect of ours too: it must end `run`, not this thread alone
            self.failed = error
        self.is_over = True
        os.eventfd_write(self.alarm, 1)

    def _told(self) -> list[Observation]:
        os.eventfd_read(self.alarm)
        if self.said != self.why_not:
            self.said = self.why_not
            self.say(f"standing by: {self.said}")
        return []

    def _asked(self) -> list[Observation]:
        for request in self.control.requests():
            request.refuse(f"this supervisor stands by: {self.why_not}; ask there")
        return []


def lead(store: Store, folder: str, say: Callable[[str], None], signals: int) -> bool:
    """Wait until this supervisor leads. False: it was told to end, by one of the `signals`. HoldfastError: it never can."""
    return store.left_s() > 0 or Standby(store, folder, say, signals).run()
