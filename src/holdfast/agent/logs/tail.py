"""What are the last lines of a log, as they stood on the screen?"""

from __future__ import annotations

import os
import stat

TAIL_BYTES = 64 * 1024  # How far from the end of a log the last lines are looked for.

TAIL_LINE = 2000  # Characters of one of the last lines that are kept: a report goes to every node.


def tail_of(path: str, n: int) -> tuple[str, ...]:
    """The last `n` lines of a file, read from its end; of a line redrawn with carriage returns, what was last on the screen."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return ()
        start = max(0, found.st_size - TAIL_BYTES)
        tail = os.pread(fd, TAIL_BYTES, start)
    except OSError:
        return ()
    finally:
        os.close(fd)
    lines = tail.split(b"\n")
    if start and len(lines) > 1:
        del lines[0]  # the middle of a line
    if not lines[-1]:
        del lines[-1]
    return tuple(last_drawn(line).decode("utf-8", "replace")[:TAIL_LINE] for line in lines[-n:])


def last_drawn(line: bytes) -> bytes:
    """What is left on the screen of a line (without line end) that was drawn again and again after carriage returns."""
    if b"\r" not in line:
        return line
    return next((piece for piece in reversed(line.split(b"\r")) if piece.strip()), b"")
