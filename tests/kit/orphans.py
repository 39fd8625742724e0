"""The watch for orphans: whatever a test starts carries its mark in the environment, children of children included."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from holdfast.runtime.process.environments import environments

MARK = "HOLDFAST_TEST_MARK"
"""The variable that carries it."""
GRACE_S = 10.0
"""However its agent ends, a second later nothing is left, Holdfast promises; ten, where many tests share few processors."""


def marked(mark: str) -> list[int]:
    """Pids of the live processes whose environment carries `mark`. A process being torn down has none, nor has a zombie; one
    that is stuck in the kernel cannot be asked, and is not waited for."""
    wanted, pids = f"{MARK}={mark}".encode(), map(int, filter(str.isdigit, os.listdir("/proc")))
    found = environments(pid for pid in pids if pid != os.getpid())
    return [pid for pid, environ in found.items() if wanted in environ.split(b"\0")]


def left_behind(mark: str) -> dict[int, str]:
    """Pids and commands of those that carry `mark` GRACE_S from now; they are killed. None: as soon as none is left."""
    deadline = time.monotonic() + GRACE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    commands = environments(left, "cmdline")
    named = {pid: commands.get(pid, b"ended").replace(b"\0", b" ").decode(errors="replace").strip() for pid in left}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return named

