"""A rank that SIGKILL ends: by the kernel, in a control group whose memory is short, or by somebody else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.neighbours import TAKES_MEMORY, short_of_memory


@pytest.fixture
def group() -> Iterator[Path]:
    with short_of_memory() as found:
        if found is None:
            pytest.skip("no control group with a limit of memory can be made here")
        yield found


@pytest.mark.root
def test_a_rank_that_the_kernel_kills_for_its_memory_is_said_to_be(holdfast, script, group: Path):
    done = holdfast.run("run", script(TAKES_MEMORY), group / "cgroup.procs")
    assert done.returncode == 1
    assert "was killed by the kernel" in done.stderr and "oom-host" in done.stderr, done.stderr
    assert "memory" in holdfast.run("diagnose", holdfast.jobs()[0].name).stdout


def test_a_rank_that_somebody_kills_is_no_want_of_memory(holdfast, script):
    done = holdfast.run("run", script(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"))
    assert "oom-host" not in done.stderr and "a scheduler, a script or a person" in done.stderr, done.stderr
