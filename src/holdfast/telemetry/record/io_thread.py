"""Runs blocking I/O in a thread: a file server that hangs does not hang the caller.

`IoThread.do` waits for the thread, so that what was recorded is on disk when the agent is killed a microsecond later; but for
`PATIENCE_S` only. From then on it does not wait at all until the thread has caught up: an agent that waited for its disk
would not renew its lease, and one that hosts the coordinator would cost every node its workers.
"""

from __future__ import annotations

import _thread
import sys
from _queue import Empty, SimpleQueue  # what `queue` has, without its imports
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

V = TypeVar("V")

PATIENCE_S = 0.1
"""How long a task that does not come to its end is waited for, once. A busy disk takes some 10 ms; a lease lasts a second."""

CLOSE_S = 2.0
"""How long `close` waits for what is still to be done: the job's end, where nobody counts on the agent any more."""

LIMIT = 10_000  # Tasks that may wait. An event is about 1 kB of memory.


class IoThread:
    """One thread, and the tasks that wait for it, in order. What a task raises is shown on stderr, and the next one done."""

    def __init__(self, patience_s: float = PATIENCE_S, close_s: float = CLOSE_S, limit: int = LIMIT) -> None:
        self.patience_s, self.close_s, self.limit = patience_s, close_s, limit
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._open = 0  # Tasks that have not come to their end, as far as we have looked.
        self._has_thread = False
        self.is_late = False  # A task hangs, or others wait behind one that did.

    def do(self, task: Callable[[], None], patience_s: float | None = None) -> bool:
        """Have `task` done. False: too many wait already, and it will not be done. `patience_s` None: as for every task."""
        self.caught_up()
        if self._open >= self.limit:
            return False
        if not self._has_thread and not self._begin():
            _attempt(task)
            return True
        self._tasks.put(task)
        self._open += 1
        if not self.is_late:
            self.is_late = not self.caught_up(self.patience_s if patience_s is None else patience_s)
        return True

    def attempt(self, task: Callable[[], None]) -> str:
        """As `do`, for a task that may raise OSError. Returns what that said; empty: nothing, or nothing yet."""
        failed: list[str] = []

        def attempted() -> None:
            try:
                task()
            except OSError as error:
                failed.append(error.strerror or str(error))

        self.do(attempted)
        return failed[0] if failed else ""

    def value(self, task: Callable[[], V], patience_s: float | None = None) -> V | None:
        """What `task` returns. None: that, or it has raised OSError, or has not come to its end in time."""
        found: list[V] = []

        def attempted() -> None:
            with suppress(OSError):
                found.append(task())

        self.do(attempted, patience_s)
        return found[0] if found else None

    def close(self) -> bool:
        """End the thread once all is done; False: it is not, and the thread is left alone."""
        if self._has_thread and self.caught_up(self.close_s):
            self._tasks.put(None)
            self._has_thread = False
        return not self._open

    def caught_up(self, patience_s: float = 0.0) -> bool:
        """Whether all is done, after `patience_s` without any end at the latest."""
        try:
            while self._open:
                self._done.get(patience_s > 0, patience_s)
                self._open -= 1
        except Empty:
            return False
        self.is_late = False
        return True

    def _begin(self) -> bool:
        try:
            _thread.start_new_thread(_work, (self._tasks, self._done))
        except RuntimeError:  # no more threads here: then it is done by us
            return False
        self._has_thread = True
        return True


def _work(tasks: SimpleQueue[Callable[[], None] | None], done: SimpleQueue[None]) -> None:
    while (task := tasks.get()) is not None:
        _attempt(task)
        done.put(None)


def _attempt(task: Callable[[], None]) -> None:
    try:
        task()
    except Exception:  # a defect of ours must not cost the record of all that comes after
        sys.excepthook(*sys.exc_info())  # as `traceback` shows it, without loading that
