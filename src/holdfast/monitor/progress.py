"""Does a rank's log grow by lines that mean progress? For programs that show nothing by themselves: JAX, a shell script.

Reads what is new and no more than a bounded piece of it: of a log that has grown by more, the newest. Nothing is read twice.
"""

from __future__ import annotations

import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK = 256 * 1024
"""Bytes that are read of a file at one look."""

LONGEST_LINE = 2000
"""Bytes of a line that are looked at: what a user's expression costs must be bounded."""

STEP = "step"
"""The expression's group that names the step, if it has one."""


class LogProgress:
    """The logs of one rank: its stdout and stderr, as far as they are kept."""

    def __init__(self, paths: Iterable[str], pattern: str) -> None:
        self.pattern = re.compile(pattern.encode())
        self.files = [_File(path) for path in dict.fromkeys(paths)]
        self.lines = 0
        """That matched, so far."""
        self.step: int | None = None
        """The last that was named."""

    def look(self) -> bool:
        """Read what is new; whether a line of it matched."""
        before = self.lines
        for file in self.files:
            for line in file.lines():
                if found := self.pattern.search(line[:LONGEST_LINE]):
                    self.lines += 1
                    self._note_step(found)
        return self.lines > before

    def _note_step(self, found: re.Match[bytes]) -> None:
        if STEP in self.pattern.groupindex and (named := found[STEP]) and named.strip().isdigit():
            self.step = int(named)

    def close(self) -> None:
        """Give the files back."""
        for file in self.files:
            file.close()


class _File:
    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.offset = 0
        self.rest = b""

    def lines(self) -> list[bytes]:
        """The lines that have come to their end since the last call; what a progress bar redraws (after \\r) is a line each."""
        try:
            return self._lines()
        except OSError:  # it comes later, or the disk is gone: other signs will do
            return []

    def _lines(self) -> list[bytes]:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size == self.offset:
            return []
        if found.st_size < self.offset:  # somebody has truncated it
            self.offset, self.rest = 0, b""
        if found.st_size - self.offset > CHUNK:
            self.offset, self.rest = found.st_size - CHUNK, b""
        piece = os.pread(self.fd, CHUNK, self.offset)
        self.offset += len(piece)
        *lines, rest = (self.rest + piece).replace(b"\r", b"\n").split(b"\n")
        self.rest = rest[-LONGEST_LINE:]
        return lines

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
