"""What are the last lines of a log, as they stood on the screen?"""

from __future__ import annotations

import os
import stat

TAIL_BYTES = 64 * 1024  # How far from the end of a log the last lines are looked for.

TAIL_LINE = 2000  # Characters of one of the last lines that are kept: a report goes to every node.


def end_of(path: str, most: int) -> bytes | None:
    """The last bytes of a file, whole lines. None: it is no file, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        start = max(0, found.st_size - most)
        tail = os.pread(fd, most, start)
    except OSError:
        return None
    finally:
        os.close(fd)
    return tail.partition(b"\n")[2] if start and b"\n" in tail else tail  # not from the middle of a line


def tail_of(path: str, n: int) -> tuple[str, ...]:
    """The last `n` lines of a file, read from its end; of a line redrawn with carriage returns, what was last on the screen."""
    lines = (end_of(path, TAIL_BYTES) or b"").split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return tuple(last_drawn(line).decode("utf-8", "replace")[:TAIL_LINE] for line in lines[-n:])


def last_drawn(line: bytes) -> bytes:
    """What is left on the screen of a line (without line end) that was drawn again and again after carriage returns."""
    if b"\r" not in line:
        return line
    return next((piece for piece in reversed(line.split(b"\r")) if piece.strip()), b"")
