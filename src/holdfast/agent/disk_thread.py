"""Does beside the agent's loop what touches a user's files, and brings the answers into it.

A disk that hangs holds up this thread and nothing else: the loop renews the lease. Who asks is told at once where the disk
answers within `TURN_S`, else in a later turn of the loop; how long to wait for that is his to say.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.host import Host
from holdfast.telemetry.record.io_thread import IoThread

V = TypeVar("V")

TURN_S = 0.02  # How long the loop waits for an answer, once: most come within a millisecond, and belong to this turn.


class DiskThread:
    """One thread's tasks and answers. Several may share an `IoThread`."""

    def __init__(self, host: Host, io_thread: IoThread | None = None) -> None:
        self.host, self.io_thread = host, io_thread or IoThread()
        self._answers: list[Callable[[], list[Observation]]] = []  # From the thread, in order.
        self._late_at = NEVER  # Since when it is, as far as anybody has asked.
        self._alarm = -1  # -1: so far all answers have come within their turn.

    @property
    def is_late(self) -> bool:
        """Something that was asked has not been answered in its turn, and still is not."""
        return self.io_thread.is_late and not self.io_thread.caught_up()

    def late_s(self) -> float:
        """For how long, as far as anybody has asked. 0: it is not late."""
        self._late_at = min(self._late_at, self.host.now()) if self.is_late else NEVER
        return max(0.0, self.host.now() - self._late_at)

    def ask(self, task: Callable[[], V], then: Callable[[V | Exception], list[Observation]]) -> list[Observation]:
        """Have `task` done. `then` makes observations of its value, or of the OSError or HoldfastError that it has raised: they
        are returned, or `Host.wait` returns them later."""

        def attempted() -> None:
            answer: V | Exception
            try:
                answer = task()
            except (OSError, HoldfastError) as error:
                answer = error
            self._answers.append(lambda: then(answer))
            if self._alarm >= 0:
                os.eventfd_write(self._alarm, 1)

        if not self.io_thread.do(attempted, TURN_S):
            return then(OSError(0, "too much waits for this disk"))
        self.late_s()  # it counts from now
        if self._alarm < 0 and self.io_thread.is_late:
            self._alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.host.watch(self._alarm, select.EPOLLIN, lambda events: self._heard())
        return self._answered()  # also what came before there was an alarm

    def do(self, task: Callable[[], None]) -> None:
        """Have `task` done, and wait for nothing. What it raises is not told."""

        def attempted() -> None:
            with suppress(OSError, HoldfastError):
                task()

        self.io_thread.do(attempted)

    def close(self) -> None:
        """No answer is heard any more."""
        if self._alarm >= 0:
            self.host.unwatch(self._alarm)
            # It stays open: a task that hangs may still write to it.

    def _heard(self) -> list[Observation]:
        os.eventfd_read(self._alarm)
        return self._answered()

    def _answered(self) -> list[Observation]:
        seen: list[Observation] = []
        while self._answers:
            seen += self._answers.pop(0)()
        return seen
