"""Runs the tee in a thread, so that a disk that hangs does not block the agent.

`agent.logs.tee` follows them. The agent's loop waits a moment for each turn of the thread. After one that does not end it asks
for nothing more until it ends; what is not shown meanwhile stays in the files, and is shown in order when they can be read.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from holdfast.agent.logs.tee import BLOCKED_S, STALL_S, Tee
from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.host import Host
from holdfast.telemetry.record.io_thread import IoThread

TURN_S = 0.02  # How long a turn is waited for that does not come to its end: it is one of many.

AGAIN_S = 0.1  # Between two looks whether a disk that hung answers.

HURRY_S = 1.0  # Between two rounds, a console that is slow is waited for so long at most; a disk, `AGAIN_S`.


class TeeThread:
    """Those of one round's workers. `io_thread`: the same for all rounds, so that none's lines come before an earlier one's."""

    def __init__(self, host: Host, io_thread: IoThread, follow: Callable[[], Tee | None]) -> None:
        """`follow` opens the files."""
        self.host, self.io_thread = host, io_thread
        self.look_at = NEVER  # When to call `due`.
        self._tees: list[Tee] = []
        """The one there is, once it has been opened. The thread's, as is the next, unless it has caught up."""
        self._trouble = ""  # Why the files cannot be read. Empty: they can, or do not answer.
        self._listens_to = -1  # The descriptor that the loop waits for; -1: none.
        self._has_told = False
        self._late_since = NEVER  # When the thread was found late, as the end was waited for. NEVER: it was not.

        def open_them() -> None:
            if (tee := follow()) is not None:
                self._tees.append(tee)

        self._do(open_them)
        self._rest()

    def due(self) -> None:
        """Show what is new, where nothing tells when something is; see whether a disk that hung answers."""
        if self.host.now() >= self.look_at:
            self._turn()

    def finish(self, *, patient: bool, cut: Callable[[], bool]) -> None:
        """The workers are gone: show the rest. `patient`: however slow the console is. Either way not for long where nothing is
        taken, or read; nor any longer once `cut`."""
        self._listen(-1)
        stall_s, limit_s = (STALL_S, NEVER) if patient else (HURRY_S / 2, HURRY_S)
        self._wait(STALL_S if patient else AGAIN_S, cut)
        if self.io_thread.caught_up():
            is_over = lambda: bool(self._trouble) or cut() or (not patient and self._hangs())
            for tee in self._tees:
                tee.drain(stall_s, limit_s, do=self._has_done, cut=is_over)
        if not self.io_thread.caught_up():
            self._tell("their disk does not answer")
            self._do(self._drain)  # should it answer once more
        elif self._trouble:
            self._tell(self._trouble)
        self._do(self._close)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if self.io_thread.caught_up():
            self._do(self._pump)
        self._rest()

    def _rest(self) -> None:
        """Until there is something to show; until the thread has caught up, where it hangs."""
        self.look_at = NEVER
        if not self.io_thread.caught_up():
            self._listen(-1)
            self.look_at = self.host.now() + AGAIN_S
        elif self._trouble:
            self._listen(-1)
            self._tell(self._trouble)
        elif self._tees:
            (tee,) = self._tees
            self._listen(tee.fileno())
            self.look_at = tee.look_at

    def _listen(self, fd: int) -> None:
        if fd != self._listens_to:
            if self._listens_to >= 0:
                self.host.unwatch(self._listens_to)
            if fd >= 0:
                self.host.watch(fd, select.EPOLLIN, self._readable)
            self._listens_to = fd

    def _readable(self, events: int) -> list[Observation]:
        self._turn()
        return []

    def _tell(self, trouble: str) -> None:
        if not self._has_told:
            self._has_told = True
            self.host.complain(f"not all of the ranks' output is shown; it is in their log files: {trouble}")

    # --- in the thread ----------------------------------------------------------------------------------------------------

    def _do(self, task: Callable[[], object]) -> None:
        def attempted() -> None:
            try:
                task()
            except OSError as error:
                self._trouble = error.strerror or str(error)

        self.io_thread.do(attempted, TURN_S)

    def _hangs(self) -> bool:
        """Whether a task has been waited for during `AGAIN_S`."""
        now, is_late = self.host.now(), not self.io_thread.caught_up()
        self._late_since = min(self._late_since, now) if is_late else NEVER
        return now - self._late_since > AGAIN_S

    def _has_done(self, task: Callable[[], object]) -> bool:
        """Have it done, once what hangs is over; whether it is."""
        if self.io_thread.caught_up(BLOCKED_S):
            self._do(task)
        return self.io_thread.caught_up()

    def _wait(self, patience_s: float, cut: Callable[[], bool]) -> None:
        until = self.host.now() + patience_s
        while not self.io_thread.caught_up(BLOCKED_S) and self.host.now() < until and not cut():
            pass

    def _pump(self) -> None:
        for tee in self._tees:
            tee.pump()

    def _drain(self) -> None:
        for tee in self._tees:
            tee.drain()

    def _close(self) -> None:
        for tee in self._tees:
            tee.close()
