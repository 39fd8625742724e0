"""Who wakes an agent that is stopped together with its guardian, when its lease is over? A timer of the kernel's.

SIGSTOP to all processes of a node (a scheduler that suspends, a Ctrl-Z) leaves nobody who could end the workers, and whoever is
continued first goes on first. But a POSIX timer runs while its process is stopped, and SIGCONT is a signal that it can send:
so the agent wakes when its lease is over, ends its workers in their sleep, and nothing that continues them later finds them.
To an agent that runs SIGCONT means nothing.
"""

from __future__ import annotations

import os
import time

from holdfast.core.signals import signal

_SIGEV_SIGNAL, _TIMER_ABSTIME = 0, 1
_SIGEVENT_BYTES = 64


class WakeUp:
    """One timer, which sends this process SIGCONT. OSError: it cannot be had."""

    def __init__(self) -> None:
        try:
            import ctypes  # a Python without it has no timer, and only an agent with a lease needs one
        except ImportError as error:
            raise OSError("no ctypes") from error

        class Event(ctypes.Structure):
            _fields_ = [
                ("value", ctypes.c_void_p),
                ("signo", ctypes.c_int),
                ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * (_SIGEVENT_BYTES - 16)),
            ]

        class Times(ctypes.Structure):
            _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "first_s", "first_ns")]

        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timer_create"):
            libc = ctypes.CDLL("librt.so.1", use_errno=True)  # glibc before 2.34
        self._times, self._byref, self._errno = Times, ctypes.byref, ctypes.get_errno
        self._set = libc.timer_settime
        self._timer = ctypes.c_void_p()
        event = Event(signo=signal.SIGCONT, notify=_SIGEV_SIGNAL)
        self._check(libc.timer_create(time.CLOCK_MONOTONIC, self._byref(event), self._byref(self._timer)))

    def at(self, when: float) -> None:
        """Wake at `when` (monotonic seconds), and at no time that was said before. 0: not at all."""
        seconds = int(when)
        times = self._times(first_s=seconds, first_ns=int((when - seconds) * 1e9))
        self._check(self._set(self._timer, _TIMER_ABSTIME, self._byref(times), None))

    def _check(self, failed: int) -> None:
        if failed:
            raise OSError(self._errno(), os.strerror(self._errno()))
