"""Ways in which a rank stops getting on. Each has a function of its own, whose name its stacks must show."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import time


def stopped() -> None:
    """By somebody's SIGSTOP."""
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def deadlocked() -> None:
    """In a collective that the others do not take part in, so that they wait in another one for ever."""
    import torch

    torch.distributed.recv(torch.zeros(1), src=0)


def dead_loop() -> None:
    """In C, with the GIL held: no other thread runs, and no signal handler of Python's."""
    collections.deque(itertools.repeat(None), maxlen=0)


def loading() -> None:
    """In the data loader."""
    time.sleep(1000)


def blocked() -> None:
    """In a system call, until somebody writes."""
    os.open(_pipe(), os.O_RDONLY)


def asleep() -> None:
    """In the kernel, uninterruptibly: so sleeps posix_spawn until its child calls exec, and this child waits for a writer."""
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 5, _pipe(), os.O_RDONLY, 0)])


def _pipe() -> str:
    path = f"pipe-{os.getpid()}"  # in the test's own folder
    os.mkfifo(path)
    return path
