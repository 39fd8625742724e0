"""When should somebody who follows files look at them again?

`Wake.fileno()` becomes readable when one of the watched files was written to (inotify), or when the time given to `rest`
has passed (a timerfd), whichever is first: an epoll of the two, to be put into the caller's own epoll. After a look that
found something it is silent for a moment, so that a thousand small writes cost one look and not a thousand.

Where the kernel refuses inotify (a container's limit on instances, mostly), looks come every `POLL_S` seconds. Where it refuses
the timer as well there is no descriptor, and the caller is told to look every `interval_s`.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct

POLL_S = 0.1
"""Seconds between looks without inotify. torchrun's tee: 0.1."""

BATCH_S = 0.02
"""Seconds between looks while the files grow: below what an eye sees, and 50 looks a second cost nothing."""

IDLE_S = 1.0
"""Seconds between looks though inotify is silent: a write through mmap and some network file systems make no event."""

_IN_MODIFY = 0x2
_CLOCK_MONOTONIC = 1


class Wake:
    """A descriptor that is readable when it is time to look."""

    def __init__(self) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._libc = ctypes.CDLL(None)
        self._timer: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        self._inotify: int = self._libc.inotify_init1(flags) if self._timer >= 0 else -1
        self._epoll: select.epoll | None = None
        self._blind = self._inotify < 0
        """True: some file cannot be watched, so all are polled."""
        self._listening = False
        if self._timer >= 0:
            self._epoll = select.epoll()
            self._epoll.register(self._timer, select.EPOLLIN)
            if self._inotify >= 0:
                self._epoll.register(self._inotify, 0)

    def fileno(self) -> int:
        """The descriptor to wait on; -1 where the kernel gives none (see `interval_s`)."""
        return self._epoll.fileno() if self._epoll else -1

    @property
    def interval_s(self) -> float | None:
        """None: wait for the descriptor. Else: there is none; look every so many seconds."""
        return None if self._epoll else POLL_S

    def watch(self, path: str) -> None:
        """Wake up when this file is written to."""
        if self._inotify < 0 or self._libc.inotify_add_watch(self._inotify, os.fsencode(path), _IN_MODIFY) < 0:
            self._blind = True

    def clear(self) -> None:
        """Forget what was seen so far. To be called before the look, so that what is written during it is not missed."""
        for fd in (self._inotify, self._timer):
            if fd >= 0:
                try:  # noqa: SIM105 (contextlib costs more to import than all of this)
                    # One read is enough: an event that is left only makes the next look come at once.
                    os.read(fd, 64 * 1024)
                except BlockingIOError:
                    pass

    def rest(self, seconds: float | None, *, listen: bool) -> None:
        """Be readable in `seconds` at the latest (None: when it is time to be sure), or at a write if `listen`."""
        if self._epoll is None:
            return
        if listen and self._blind:
            listen, seconds = False, POLL_S if seconds is None else min(seconds, POLL_S)
        if listen != self._listening:
            self._epoll.modify(self._inotify, select.EPOLLIN if listen else 0)
            self._listening = listen
        whole, part = divmod(IDLE_S if seconds is None else max(seconds, 1e-6), 1)
        once = struct.pack("@4l", 0, 0, int(whole), int(part * 1e9))
        self._libc.timerfd_settime(self._timer, 0, once, None)

    def close(self) -> None:
        """Give everything back."""
        if self._epoll:
            self._epoll.close()
        for fd in (self._inotify, self._timer):
            if fd >= 0:
                os.close(fd)
        self._epoll, self._inotify, self._timer = None, -1, -1
