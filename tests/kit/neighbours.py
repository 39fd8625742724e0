"""Others on this host: programs of another user, `nobody`, which needs root, who is then the user who is attacked; and those
that the kernel ends for want of memory.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NOBODY = 65534

_BECOMES = f"""
import os, resource, signal, socket, sys, time, urllib.request
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY}), os.umask(0o022)
"""


def _becomes(source: str) -> str:
    """It imports what `source` does before it is nobody: our Python may lie where nobody else may read."""
    imports = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Import | ast.ImportFrom)]
    return "\n".join(map(ast.unparse, imports)) + _BECOMES + source


def as_nobody(source: str, *args: object) -> str:
    """What a program of another user prints."""
    words = [sys.executable, "-c", _becomes(source), *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, cwd="/").stdout


@contextmanager
def beside(source: str, *args: object, is_ours: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A program of another user, or of ours, that has printed a line and runs on until the block ends."""
    words = [sys.executable, "-c", source if is_ours else _becomes(source), *map(str, args)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/") as running:
        assert running.stdout is not None and running.stdout.readline()
        try:
            yield running
        finally:
            running.kill()


MEMORY = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
"""Where a control group is made, of version 1 or 2, and the file of its limit."""

TAKES_MEMORY = """
import mmap, os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
area = mmap.mmap(-1, 1 << 30)
for at in range(0, len(area), 4096):
    area[at] = 1
"""
"""A program that takes more than `short_of_memory` has, whose `cgroup.procs` it is given."""


@contextmanager
def short_of_memory() -> Iterator[Path | None]:
    """A control group with 64 MB. None: none can be made here."""
    for where, limit in MEMORY:
        group = Path(where, f"holdfast-test-{os.getpid()}")
        try:
            group.mkdir()
            (group / limit).write_text(str(64 << 20))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        if (swap := group / "memory.swap.max").exists():
            swap.write_text("0")
        yield group
        group.rmdir()
        return
    yield None


def run_out_of_memory() -> bool:
    """Have the kernel kill another's process for want of memory. False: that cannot be had here."""
    with short_of_memory() as group:
        if group is None:
            return False
        done = subprocess.run([sys.executable, "-c", TAKES_MEMORY, str(group / "cgroup.procs")], timeout=60, check=False)
        return done.returncode == -signal.SIGKILL
