"""A restart waits for the GPUs' memory: with a made-up driver, whose `nvidia-smi` says what the test wants it to say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import SCRIPTS

PROBE = SCRIPTS / "on_machine.py"
NVIDIA_SMI = """#!/bin/sh
echo "$1" >> {folder}/asked
case "$1" in
    --query-gpu=*) n=$(grep -c query-gpu {folder}/asked); [ -e {folder}/memory.$n ] || n=last; . {folder}/memory.$n;;
    --query-compute-apps=*) cat {folder}/users;;
esac
"""
NOBODY = 1 << 30
"""No process has this pid: Linux gives none above 4 million."""

FAILS_ONCE = """
import os, sys
sys.exit(3 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0" else 0)
"""


class Driver:
    """Two GPUs of a made-up host, and what `nvidia-smi` says about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for gpu in (0, 1):
            (folder / "machine/dev").mkdir(parents=True, exist_ok=True)
            (folder / f"machine/dev/nvidia{gpu}").touch()
        tool = folder / "bin/nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(NVIDIA_SMI.format(folder=folder))
        tool.chmod(0o755)
        (folder / "users").touch()
        self.says(3, 3)

    def says(self, *mb: int | str, at: int | str = "last") -> None:
        """MiB in use on each GPU; `at` which look, from 1."""
        lines = [f"echo '{gpu}, GPU-{gpu}000, {used}'" for gpu, used in enumerate(mb)]
        (self.folder / f"memory.{at}").write_text("\n".join(lines) + "\n")

    def does(self, command: str) -> None:
        (self.folder / "memory.last").write_text(f"{command}\n")

    @property
    def asked(self) -> list[str]:
        record = self.folder / "asked"
        return [line.split("=")[0] for line in record.read_text().splitlines()] if record.exists() else []


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.fixture
def run(holdfast, script, driver) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run("--flag", …)`: two workers on that host, of which one fails once."""

    def run(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        given = ("run", "--nproc-per-node", 2, "--max-restarts", 1, "--backoff", 0, "--verbose", *words, script(FAILS_ONCE))
        path = {"PATH": f"{driver.folder / 'bin'}:{os.environ['PATH']}", "HOLDFAST_STATE_DIR": str(holdfast.state_dir)}
        command = (sys.executable, str(PROBE), str(driver.folder / "machine"), *map(str, given))
        return subprocess.run(command, env=os.environ | path | (env or {}), capture_output=True, text=True, timeout=60)

    return run


def test_a_restart_waits_until_the_memory_is_free(holdfast, driver, run):
    driver.says(40000, 3, at=1)
    driver.says(20000, 3, at=2)
    ran = run()
    assert ran.returncode == 0, ran
    [seen] = holdfast.events("GpuMemoryReclaimed")
    assert (seen["free"], seen["looks"], seen["gpus"]) == (True, 3, [0, 1])
    assert (seen["first_mb"], seen["last_mb"]) == ([40000.0, 3.0], [3.0, 3.0])
    assert "GPU 0: 40000 → 3 MiB, GPU 1: 3 → 3 MiB" in ran.stderr
    order = [event["event"] for event in holdfast.events() if event["event"] in ("GpuMemoryReclaimed", "WorkerStarted")]
    assert order == ["WorkerStarted"] * 2 + ["GpuMemoryReclaimed"] + ["WorkerStarted"] * 2


def test_free_memory_is_looked_at_once_and_nobody_asks_who_has_it(driver, run):
    assert run().returncode == 0
    assert driver.asked == ["--query-gpu"]


def test_memory_that_never_comes_back_costs_the_limit_and_an_error(holdfast, driver, run):
    driver.says(4000, 3)
    ran = run("--ft-gpu-memory-reclaim-timeout", 2, "--ft-gpu-memory-poll-interval", 0.1)
    assert ran.returncode == 0, ran
    assert "GPU 0 did not free its memory within 2 s; starting anyway" in ran.stderr
    assert not holdfast.events("GpuMemoryReclaimed")[0]["free"]


def test_another_users_process_is_named_and_not_waited_for(holdfast, driver, run):
    driver.says(4000, 3)
    (driver.folder / "users").write_text(f"GPU-0000, {os.getpid()}, 3990, /usr/bin/jupyter\n")
    ran = run("--ft-gpu-memory-reclaim-timeout", 600)
    assert ran.returncode == 0, ran
    assert f"GPU 0: 3990 MiB of process {os.getpid()} (jupyter)" in ran.stderr
    assert holdfast.events("GpuMemoryReclaimed")[0]["free"]


def test_what_is_dying_is_waited_for_though_the_driver_still_lists_it(holdfast, driver, run):
    driver.says(4000, 3, at=1)
    (driver.folder / "users").write_text(f"GPU-0000, {NOBODY}, 3990, python\n")
    assert run().returncode == 0
    assert holdfast.events("GpuMemoryReclaimed")[0]["looks"] == 2


def test_only_gpus_that_are_ours_count(holdfast, driver, run):
    driver.says(40000, 3)
    ran = run("--ft-gpu-memory-reclaim-timeout", 600, env={"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert ran.returncode == 0, ran
    assert holdfast.events("GpuMemoryReclaimed")[0]["gpus"] == [1]


@pytest.mark.parametrize(
    ("tool", "limit_s", "said"),
    [
        ("exec sleep 600", 0.5, "no answer within 0.5 s"),
        ("exit 9", 600, "it ended with 9"),
        ("echo '0, GPU-0, [N/A]'", 600, "it does not report"),
    ],
)
def test_a_tool_that_fails_costs_a_line_and_not_the_job(holdfast, driver, run, tool, limit_s, said):
    driver.does(tool)
    ran = run("--ft-gpu-memory-reclaim-timeout", limit_s)
    assert ran.returncode == 0, ran
    assert f"restarts do not wait for the GPUs' memory: nvidia-smi: {said}" in ran.stderr


def test_a_limit_of_zero_asks_nobody(driver, run):
    assert run("--ft-gpu-memory-reclaim-timeout", 0).returncode == 0
    assert driver.asked == []


def test_without_a_gpu_nobody_is_asked(driver, run):
    for gpu in (0, 1):
        (driver.folder / f"machine/dev/nvidia{gpu}").unlink()
    assert run().returncode == 0
    assert driver.asked == []


def test_an_agent_that_waits_for_memory_still_hears_signals(holdfast, driver, script, wait_until):
    """The look hangs; the agent does not: told to end, it ends, and takes the look with it."""
    driver.does("exec sleep 600")
    path = f"{driver.folder / 'bin'}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "HOLDFAST_STATE_DIR": str(holdfast.state_dir)}
    words = ("run", "--nproc-per-node", "2", "--max-restarts", "1", "--backoff", "0", str(script(FAILS_ONCE)))
    agent = subprocess.Popen((sys.executable, str(PROBE), str(driver.folder / "machine"), *words), env=environ)
    wait_until(lambda: driver.asked)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 1
