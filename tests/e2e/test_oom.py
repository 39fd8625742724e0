"""A rank that SIGKILL ends: by the kernel, in a control group whose memory is short, or by somebody else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = [("sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("sys/fs/cgroup", "memory.max")]
"""Where a group is made, of version 1 or 2, and the file of its limit."""

TAKES = """
import mmap, os, sys
with open(sys.argv[1], "w") as group:
    group.write(str(os.getpid()))
area = mmap.mmap(-1, 1 << 30)
for at in range(0, len(area), 4096):
    area[at] = 1
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A control group with 64 MB."""
    for where, limit in MEMORY:
        group = Path("/") / where / f"holdfast-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(64 << 20))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield group
        group.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


@pytest.mark.root
def test_a_rank_that_the_kernel_kills_for_its_memory_is_said_to_be(holdfast, script, group: Path):
    done = holdfast.run("run", script(TAKES), group / "cgroup.procs")
    assert done.returncode == 1
    assert "was killed by the kernel" in done.stderr and "oom-host" in done.stderr, done.stderr
    assert "memory" in holdfast.run("diagnose", holdfast.jobs()[0].name).stdout


def test_a_rank_that_somebody_kills_is_no_want_of_memory(holdfast, script):
    done = holdfast.run("run", script(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"))
    assert "oom-host" not in done.stderr and "a scheduler, a script or a person" in done.stderr, done.stderr
