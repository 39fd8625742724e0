"""Does the main thread make progress? NVRx's names.

*Auto*: when it last ran Python. The interpreter is asked to post a semaphore from the main thread, between two steps of its.
*Manual*: when the function last said so itself (`ping`), once it has begun to. The monitor is told both, again and again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import threading
import time
from datetime import timedelta
from typing import Any

_NOT_YET: float | None = None
_SEMAPHORE_BYTES = 32
_kept: list[object] = []
"""Semaphores that the interpreter may still post: they are never freed."""


class RunsPython:
    """Whether the main thread has run Python since it was last asked."""

    def __init__(self) -> None:
        """Nothing of Python's is called there: an exception that is raised meanwhile would be lost in it."""
        self._libc, self._python = ctypes.CDLL(None), ctypes.PyDLL(None)
        self._semaphore = ctypes.create_string_buffer(_SEMAPHORE_BYTES)
        self._libc.sem_init(self._semaphore, 0, 0)
        _kept.append(self._semaphore)
        self._is_asked = False

    def has_run(self) -> bool:
        """Whether it has; then it is asked again. From any thread."""
        if self._is_asked and self._libc.sem_trywait(self._semaphore) != 0:
            return False
        was_asked, self._is_asked = self._is_asked, True
        self._python.Py_AddPendingCall(ctypes.cast(self._libc.sem_post, ctypes.c_void_p), self._semaphore)
        return was_asked


@dataclasses.dataclass
class Timestamp:
    """On the monotonic clock, in seconds."""

    auto: float | None = None
    manual: float | None = None


class ProgressWatchdog:
    """Tells `monitor_process.send_timestamp` each `interval`."""

    def __init__(self, rank: int, monitor_process: Any, interval: timedelta) -> None:
        self.monitor_process, self.interval_s = monitor_process, interval.total_seconds()
        self._auto, self._manual = time.monotonic(), _NOT_YET
        self._main_thread = RunsPython()
        self._changed = threading.Condition()
        self._is_paused = self._is_still = self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"inprocess-progress-{rank}", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def ping(self) -> None:
        """The function makes progress; from now on it has to say so again and again."""
        self._manual = time.monotonic()

    def reset(self) -> None:
        """Time begins anew: it need not `ping` yet."""
        self._auto, self._manual = time.monotonic(), _NOT_YET

    def pause_and_synchronize(self) -> None:
        """Tell nothing more, and return once that is so."""
        self._set(paused=True)
        with self._changed:
            self._changed.wait_for(lambda: self._is_still or not self._is_paused or not self._thread.is_alive())

    def resume(self) -> None:
        """Go on telling. RuntimeError: after `shutdown`."""
        if self._is_over:
            raise RuntimeError("this watchdog has been shut down: make another")
        self._set(paused=False)

    def shutdown(self) -> None:
        """Tell it once more, and end."""
        with self._changed:
            self._is_over, self._is_paused = True, False
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _set(self, *, paused: bool) -> None:
        with self._changed:
            self._is_paused, self._is_still = paused, False
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._is_paused, self.interval_s)
                while self._is_paused and not self._is_over:
                    self._is_still = True
                    self._changed.notify_all()
                    self._changed.wait()
                is_over = self._is_over
                self.monitor_process.send_timestamp(Timestamp(self._auto, self._manual))
            if is_over:
                return
            if self._main_thread.has_run():
                self._auto = time.monotonic()
