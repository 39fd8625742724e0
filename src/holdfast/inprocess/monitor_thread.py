"""How does the main thread learn that a life is cut short, wherever it is? NVRx's names.

A thread waits in the store for the word that some rank has failed. It ends what the main thread may wait for in C code (the
`abort` stage), and raises `RankShouldRestart` in it; a signal ends what it may wait for in Python. A rank that was not heard of
for too long is not sent the signal: what holds it is not to be trusted, and only Python that runs again is spared.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import sys
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from datetime import timedelta
from types import CodeType, FrameType
from typing import Any

from holdfast.client.in_place.channel import SIGNAL, send_signal
from holdfast.inprocess.attribution import Interruption, reasons
from holdfast.inprocess.exception import in_words

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""After so long a main thread that is not out is told again: code that catches everything may have swallowed it."""

OUT_S = 0.001
"""Between two looks whether a thread is out of a function."""

LOOK_S, MANY = 0.02, 200
"""Seconds between two looks whether the life is cut short. Of more ranks each looks less often: the store serves them all."""


_set_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.PyDLL(None))
)
"""Not `ctypes.pythonapi`'s: others say of that what it takes."""


class RankShouldRestart(BaseException):
    """This life is over: another follows. Not to be caught by the function."""


def async_raise(tid: int, exc_type: type[BaseException]) -> None:
    """Raise it in the thread `tid`, when that runs Python next. RuntimeError: there is no such thread."""
    if not sys.is_finalizing() and _set_async_exc(tid, exc_type) == 0:
        raise RuntimeError(f"there is no thread {tid} to raise {exc_type!r} in")


@contextlib.contextmanager
def reraise_if_unraisable(exc_type: type[BaseException]) -> Iterator[None]:
    """Where Python drops an exception of this type (in a finaliser), raise it again in the same thread. A decorator, too."""
    before = sys.unraisablehook

    def hook(dropped: Any) -> None:
        if isinstance(dropped.exc_value, exc_type) or (dropped.exc_type and issubclass(dropped.exc_type, exc_type)):
            start_new_thread(_raise_outside, (hook.__code__, threading.get_ident(), exc_type))
        else:
            before(dropped)

    vars(sys).update(unraisablehook=hook)
    try:
        yield
    finally:
        vars(sys).update(unraisablehook=before)


def _raise_outside(code: CodeType, tid: int, exc_type: type[BaseException]) -> None:
    """Once that thread is out of this function: what is raised in a hook, Python drops without a word to any hook."""
    out = threading.Event()
    while _is_in(code, sys._current_frames().get(tid)):
        out.wait(OUT_S)
    async_raise(tid, exc_type)


def _is_in(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


class MonitorThread:
    """One life's. To be ended by `shutdown`, in the thread that made it."""

    def __init__(
        self,
        *,
        state: Any,
        store: Any,
        abort: Any,
        interval: timedelta,
        progress_watchdog: Any,
        last_call_wait: timedelta,
        atomic_lock: Any,
    ) -> None:
        self.state, self.store, self.abort = state, store, abort
        self.look_s = min(interval.total_seconds(), LOOK_S * max(1.0, state.world_size / MANY))
        self.watchdog, self.last_call_s, self.atomic_lock = progress_watchdog, last_call_wait.total_seconds(), atomic_lock
        self.main = threading.get_ident()
        self.ends = threading.Event()  # The main thread wants it to.
        self.said = threading.Event()  # The life is cut short, and the main thread is told.
        self.thread = threading.Thread(target=self._run, name=f"inprocess-monitor-{state.rank}", daemon=True)

    def start(self) -> None:
        """From now on the main thread may be interrupted."""
        with contextlib.suppress(ValueError):  # not the main thread: what it waits for in Python goes on
            if signal.getsignal(SIGNAL) is signal.SIG_DFL:
                signal.signal(SIGNAL, _wake)
        self.thread.start()

    def shutdown(self) -> None:
        """From here on it is not, whatever was on its way."""
        while True:
            try:
                self.ends.set()
                self.thread.join()
                break
            except RankShouldRestart:
                continue
        if self.said.is_set():
            # What may be on its way is taken, by another of its kind. Called off, it is looked for by Python 3.11 ever after,
            # which then hangs in the first function that is profiled or traced.
            with contextlib.suppress(RankShouldRestart):
                async_raise(self.main, RankShouldRestart)
                while True:
                    continue

    def _run(self) -> None:
        while not self._is_interrupted():
            if self.ends.wait(self.look_s):
                return
        if self.ends.wait(self.last_call_s):  # others that have failed, too, say so meanwhile
            return
        records = self._records()
        log.debug("rank %s: life %s is cut short: %s", self.state.rank, self.state.iteration, reasons(records))
        self.watchdog.pause_and_synchronize()
        with self.atomic_lock:
            if self.abort is not None:
                try:
                    self.abort(self.state)
                except Exception as error:  # its frames are not kept in a log
                    log.error("rank %s: the abort stage failed: %s", self.state.rank, in_words(error))
            is_late = any(
                record.rank == self.state.rank and record.interruption is Interruption.SOFT_TIMEOUT for record in records
            )
            while not self.ends.is_set():
                async_raise(self.main, RankShouldRestart)
                if not is_late and signal.getsignal(SIGNAL) is _wake:
                    send_signal(self.main)
                self.said.set()
                self.ends.wait(AGAIN_S)

    def _is_interrupted(self) -> bool:
        """A store that is gone is an interruption too: of all ranks."""
        try:
            return bool(self.store.is_interrupted())
        except Exception as error:
            log.warning("rank %s: the store does not answer: %s", self.state.rank, in_words(error))
            return True

    def _records(self) -> list[Any]:
        try:
            self.store.lock_interruption_records()
            return list(self.store.get_interruption_records())
        except Exception:  # the store is gone: it has been said, and the life ends all the same
            return []


def _wake(signum: int, frame: object) -> None:
    """What is to be raised is raised in this call."""
