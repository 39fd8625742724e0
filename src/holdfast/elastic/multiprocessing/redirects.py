"""Send this process's stdout or stderr to a file for the length of a block: Python's, C's and that of its children."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """`std` (`stdout` or `stderr`) goes to `to_file`, which is emptied first, and then back to where it went before.

    What Python and C code print is buffered apart, so in the file it may not stand in the order of time.
    """
    if std not in ("stdout", "stderr"):
        raise ValueError(f"unknown standard stream <{std}>, must be one of stdout, stderr")
    stream = getattr(sys, std)
    fd = stream.fileno()
    # Opened to append: a child that shares the file, or a log rotation, must not write over what is there.
    target = os.open(to_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
    before = os.dup(fd)
    try:
        _switch(std, fd, target)
        try:
            yield
        finally:
            _switch(std, fd, before)
    finally:
        os.close(before)
        os.close(target)


redirect_stdout = partial(redirect, "stdout")
redirect_stderr = partial(redirect, "stderr")


def _switch(std: str, fd: int, to: int) -> None:
    getattr(sys, std).flush()
    ctypes.CDLL(None).fflush(None)  # every stream of the C library's: what it holds belongs to the old file
    os.dup2(to, fd)
