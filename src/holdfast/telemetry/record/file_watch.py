"""Has something been written, to a file or in a folder? The kernel tells (inotify).

Where there is no inotify, or are too many watches already, the caller looks for itself: `is_blind`.
"""

from __future__ import annotations

import ctypes
import os
import select

IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x8, 0x80, 0x100, 0x200
CHANGES = IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE
"""A file was written, closed after writing, made, renamed or removed."""

BLIND_S = 0.25  # Longest wait where the kernel does not tell.


class Watch:
    """Watches files, and what lies directly in folders. A context. `fileno` is readable when there is news; -1: never."""

    def __init__(self, *paths: str) -> None:
        self._libc = ctypes.CDLL(None)
        self._fd = int(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.is_blind = self._fd < 0
        """What happens to some of them is not told."""
        for path in paths:
            self.add(path)

    def add(self, path: str, changes: int = CHANGES) -> None:
        """Watch this one too."""
        if self._fd < 0 or self._libc.inotify_add_watch(self._fd, os.fsencode(path), changes) < 0:
            self.is_blind = True

    def fileno(self) -> int:
        return self._fd

    def wait(self, timeout_s: float) -> None:
        """Until there is news, or for `timeout_s`; `BLIND_S` at most where none is told."""
        news = select.poll()  # unlike select(), it takes descriptors beyond 1023
        if self._fd >= 0:
            news.register(self._fd, select.POLLIN)
        if news.poll(1000 * max(0.0, min(timeout_s, BLIND_S) if self.is_blind else timeout_s)):
            self.clear()

    def clear(self) -> None:
        """Forget the news so far. Before a look, so that what is written during it is not missed."""
        try:  # noqa: SIM105 (contextlib costs more to import than all of this)
            # One read is enough: an event that is left only makes the next look come at once.
            os.read(self._fd, 64 * 1024)
        except OSError:  # there is none, or nothing is told
            pass

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
