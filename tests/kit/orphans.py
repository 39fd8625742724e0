"""The watch for orphans: whatever a test starts carries its mark in the environment, children of children included."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "HOLDFAST_TEST_MARK"
"""The variable that carries it."""
GRACE_S = 1.0
"""What Holdfast promises: however its agent ends, a second later nothing is left."""


def marked(mark: str) -> list[int]:
    """Pids of the live processes whose environment carries `mark`. A process being torn down has none, nor has a zombie."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def left_behind(mark: str) -> dict[int, str]:
    """Pids and commands of those that carry `mark` a second from now; they are killed. None: as soon as none is left."""
    deadline = time.monotonic() + GRACE_S
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    named = {pid: _command_of(pid) for pid in left}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return named


def _command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "ended"
