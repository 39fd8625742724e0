"""Finds the lines of a rank's log that mean progress, for programs that show nothing by themselves: JAX, a shell script.

Everything new is read, each byte once: a skipped line may be the only one that means progress, and the rank would count as
hung. So a look may take its time, and hang with its file system: a thread does it (`agent.workers.monitor_driver`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

from holdfast.core.page.signs import MOST

CHUNK = 256 * 1024  # Bytes that are read of a file at a time: some milliseconds' work, between which other threads run.

LONGEST_LINE = 2000  # Bytes of a line that are looked at, from its beginning: what a user's expression costs must be bounded.

STEP = "step"  # The expression's group that names the step, if it has one.


class LogProgress:
    """The logs of one rank: its stdout and stderr, as far as they are kept."""

    def __init__(self, paths: Iterable[str], pattern: str) -> None:
        self.pattern = re.compile(pattern.encode())
        self.files = [_File(path) for path in dict.fromkeys(paths)]
        self.lines = 0  # That matched, so far.
        self.step: int | None = None  # The last that was named.

    def look(self) -> None:
        """Read what is new."""
        for file in self.files:
            for line in file.lines():
                if found := self.pattern.search(line[:LONGEST_LINE]):
                    self.lines += 1
                    step = found.groupdict().get(STEP) or b""
                    self.step = min(int(step), MOST) if step.strip().isdigit() else self.step

    def close(self) -> None:
        for file in self.files:
            file.close()


class _File:
    def __init__(self, path: str) -> None:
        self.path, self.fd, self.offset, self.rest = path, -1, 0, b""

    def lines(self) -> Iterator[bytes]:
        """The lines that have come to their end since the last call; what a progress bar redraws (after \\r) is a line each."""
        with suppress(OSError):  # it comes later, or the disk is gone: other signs will do
            yield from self._lines()

    def _lines(self) -> Iterator[bytes]:
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(self.fd)
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_size < self.offset:  # somebody has truncated it
            self.offset, self.rest = 0, b""
        while self.offset < found.st_size and (piece := os.pread(self.fd, CHUNK, self.offset)):
            self.offset += len(piece)
            *lines, rest = (self.rest + piece).replace(b"\r", b"\n").split(b"\n")
            self.rest = rest[:LONGEST_LINE]
            yield from lines

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
