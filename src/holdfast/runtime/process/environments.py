"""What were processes started with? /proc/<pid>/environ is in the memory of a process, whose map it may hold locked while it
sleeps in the kernel: on a mount that does not answer, in a driver. Who reads it then waits for as long.

So threads read, and one process that is stuck costs `STUCK_S`, once; it counts as none of those that are looked for.
"""

from __future__ import annotations

import _thread
import os
from _queue import Empty, SimpleQueue
from collections.abc import Iterable

from holdfast.runtime.process.process import state

STUCK_S, LATE_S = 0.2, 2.0
"""How long one process is waited for: if a thread of it sleeps in the kernel, and if not. A busy host may be late itself."""

_waited_for: set[int] = set()  # Pids that a thread of ours still waits for.


def environments(pids: Iterable[int], file: str = "environ", root: str = "/proc") -> dict[int, bytes]:
    """By pid, as the kernel shows them: variables with a zero byte after each. Those that have ended, are another user's or are
    stuck are left out. `file`: `cmdline` shows their command lines instead."""
    found: dict[int, bytes] = {}
    left = [pid for pid in pids if pid not in _waited_for]
    while left:
        answers: SimpleQueue[bytes | None] = SimpleQueue()
        _thread.start_new_thread(_read_all, (list(left), f"{root}/{{}}/{file}", answers))
        try:
            while left:
                if said := _answer(answers, left[0]):
                    found[left[0]] = said
                del left[0]
        except Empty:
            del left[0]  # its thread stays with it
    return found


def _answer(answers: SimpleQueue[bytes | None], pid: int) -> bytes | None:
    try:
        return answers.get(timeout=STUCK_S)
    except Empty:
        return answers.get(timeout=0.001 if _sleeps_in_kernel(pid) else LATE_S)


def _sleeps_in_kernel(pid: int) -> bool:
    try:
        return any(state(int(tid)) == "D" for tid in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def _read_all(pids: list[int], path: str, answers: SimpleQueue[bytes | None]) -> None:
    for pid in pids:
        _waited_for.add(pid)
        try:
            with open(path.format(pid), "rb") as file:
                answers.put(file.read())
        except OSError:
            answers.put(None)
        finally:
            _waited_for.discard(pid)
