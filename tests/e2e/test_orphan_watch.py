"""Does the watch for orphans, which every test here relies on, see what it should?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.process import environments
from holdfast.runtime.process.last_watch import _SHELL

DETACH = """
import os, subprocess
os.setsid()
print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""


def test_a_detached_grandchild_is_seen_until_it_is_gone(alive, wait_until) -> None:
    assert alive() == []
    child = subprocess.run([sys.executable, "-c", DETACH], capture_output=True, text=True, check=True)
    grandchild = int(child.stdout)
    wait_until(lambda: alive() == [grandchild])
    subprocess.run(["kill", "-9", str(grandchild)], check=True)
    wait_until(lambda: alive() == [])


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    """A /proc of two processes, the first of which sleeps in the kernel: who reads its environment waits."""
    for pid in (7, 8):
        (tmp_path / f"{pid}").mkdir()
    os.mkfifo(tmp_path / "7/environ")
    (tmp_path / "8/environ").write_bytes(b"A=1\0HOLDFAST_GUARDED=/17\0")
    return tmp_path


def test_one_process_that_is_stuck_in_the_kernel_blocks_no_look_at_the_others(
    stuck: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "LATE_S", 0.01)
    assert list(environments.environments([7, 8, 9], root=str(stuck))) == [8]
    os.close(os.open(stuck / "7/environ", os.O_WRONLY))


@pytest.mark.root
def test_nor_does_it_keep_the_last_watch_from_killing_them(stuck: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as left:
        (stuck / "8").rename(stuck / f"{left.pid}")
        (stuck / f"{left.pid}/status").write_text(f"Name: sleep\nUid:\t{os.getuid()}\n")
        watch = _SHELL.replace("timeout 2", "timeout 0.2").replace("-lt 50", "-lt 1")
        at_proc = f"mount --bind {stuck} /proc && exec sh -c \"$1\" {os.getuid()} HOLDFAST_GUARDED"
        shell = ["unshare", "--mount", "--propagation", "private", "sh", "-c", at_proc, "sh", watch]
        subprocess.run(shell, input=b"17\n", timeout=30)
        assert left.wait() == -9
    os.close(os.open(stuck / "7/environ", os.O_RDWR | os.O_NONBLOCK))
