"""What does a signal to this process do while it has workers? It raises `SignalException`, wherever the main thread is."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class SignalException(Exception):
    """This process got the signal `sigval`, which ends it and the workers."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval


_holders: list[int] = []
"""This process, by its pid, once for each `signals_held` that it is in. A child that it forks meanwhile is in none."""
_held: list[int] = []  # signals that have come meanwhile


@contextmanager
def signals_held() -> Iterator[None]:
    """A signal that would raise `SignalException` in here does so at its end.

    For what an exception in its middle would spoil: a worker that runs is lost before its pid is known, and so is the exit code
    of one that has just been waited for; and `subprocess` would keep its lock.
    """
    if threading.current_thread() is not threading.main_thread():  # where none is ever raised
        yield
        return
    if not _holders:
        _held.clear()
    _holders.append(os.getpid())
    try:
        yield
    finally:
        _holders.pop()
        if _held and not _holders:
            _terminate_process_handler(_held[0], None)


def _terminate_process_handler(signum: int, frame: FrameType | None) -> None:
    if os.getpid() in _holders:
        _held.append(signum)
        return
    sigval = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
