"""Has something been written in a directory? Waits until the kernel says so (inotify), and never longer than asked to.

Where there is no inotify, or too many watches already, the wait is a plain one of a quarter second at most: then the
caller looks for itself.
"""

from __future__ import annotations

import ctypes
import os
import select

IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x8, 0x80, 0x100, 0x200
IN_NONBLOCK, IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC

BLIND_S = 0.25
"""Longest wait where the kernel does not tell."""


class Watch:
    """Watches the files directly in `folder`. A context."""

    def __init__(self, folder: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = int(libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC))
        wanted = IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE
        if self._fd >= 0 and libc.inotify_add_watch(self._fd, os.fsencode(folder), wanted) < 0:
            self.close()

    def wait(self, timeout_s: float) -> None:
        """Until something in the folder was written, closed after writing, made, renamed or removed, or for `timeout_s`."""
        news = select.poll()  # unlike select(), it takes descriptors beyond 1023
        if self._fd < 0:
            news.poll(1000 * min(timeout_s, BLIND_S))
            return
        news.register(self._fd, select.POLLIN)
        if news.poll(1000 * max(0.0, timeout_s)):
            os.read(self._fd, 65_536)

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
