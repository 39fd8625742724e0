"""Starts the supervisor's child processes (HTTP API, webhooks), and restarts those that end, later each time.

A child's end does not touch the supervisor; the child ends with the supervisor.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from holdfast.core.errors import HoldfastError
from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.host import Host
from holdfast.runtime.process import process

FIRST_S, LONGEST_S, WELL_S = 0.25, 60.0, 60.0
"""The first pause before a restart; the longest, after it has doubled each time; and the life after which it is the first
again."""


LISTENER = 3
"""A child's descriptor of the socket at which it is to serve, which the supervisor keeps: nobody else takes the port, and who
comes waits, while there is no child."""


class Child:
    """`holdfast` with these arguments, the command first; `what`: its name for people; `listener`: where it serves."""

    def __init__(
        self,
        host: Host,
        say: Callable[[str], None],
        what: str,
        arguments: Sequence[str],
        listener: socket.socket | None = None,
    ) -> None:
        self.host, self.say, self.what, self.listener = host, say, what, listener
        self.argv = [sys.executable, "-m", "holdfast", *arguments, "--parent", str(os.getpid())]
        self.argv += () if listener is None else ("--listener", str(LISTENER))
        self.pid = 0
        """0: none runs."""
        self.pause_s, self.started_at, self.start_at = FIRST_S, 0.0, NEVER

    def deadline(self) -> float:
        return self.start_at

    def due(self, now: float) -> None:
        if now >= self.start_at:
            self.start()

    def start(self) -> None:
        self.started_at, self.start_at = self.host.now(), NEVER
        try:
            fds = {} if self.listener is None else {LISTENER: self.listener.fileno()}
            self.pid = self.host.park(self.argv, os.environ, fds, self._gone)
        except HoldfastError as error:
            self._again(str(error))

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.listener is not None:
            self.listener.close()

    def _gone(self, exitcode: int) -> list[Observation]:
        self.pid = 0
        self._again(f"it ended with {exitcode}" if exitcode >= 0 else f"it was ended by {signal.Signals(-exitcode).name}")
        return []

    def _again(self, why: str) -> None:
        now = self.host.now()
        self.pause_s = FIRST_S if now - self.started_at >= WELL_S else self.pause_s
        self.say(f"{self.what} is gone ({why}): it is started again in {self.pause_s:g} s; nothing else is affected")
        self.start_at, self.pause_s = now + self.pause_s, min(LONGEST_S, 2 * self.pause_s)


def tied_to(parent: int) -> bool:
    """In a child: end when that process does. False: it has already."""
    process.die_with_parent()
    return os.getppid() == parent
