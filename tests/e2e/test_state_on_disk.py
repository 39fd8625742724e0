"""State on disk with real processes: agents that are killed, or start together, and what importing our part costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.telemetry.record import state_dir


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path / "home")


def test_an_agent_killed_outright_no_longer_runs(home: str) -> None:
    probe = (
        "import os, sys; from holdfast.telemetry.record.state_dir import open_job, is_running\n"
        "agent = open_job(sys.argv[1], 'train', 'n1'); print(is_running(agent.path), flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", probe, home], capture_output=True, text=True, timeout=60)
    assert done.returncode == -9 and done.stdout.strip() == "True"
    assert not state_dir.is_running(f"{home}/jobs/train")


def test_agents_that_start_together_agree(home: str) -> None:
    probe = (
        "import sys; from holdfast.telemetry.record.state_dir import open_job\n"
        "sys.stdin.readline(); agent = open_job(sys.argv[1], 'train', 'n'); print(agent.name, agent.node, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", probe, home]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    for process in started:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.stdout.readline().split() for process in started if process.stdout]
    for process in started:
        process.communicate()
    assert {name for name, _ in said} == {"train"}
    assert sorted(node for _, node in said) == ["n", "n-2", "n-3", "n-4", "n-5"]


def test_importing_it_and_the_state_directory_loads_nothing_heavy() -> None:
    probe = (
        "import sys; before = set(sys.modules)\n"
        "import holdfast.telemetry.record.recorder, holdfast.telemetry.record.state_dir\n"
        "heavy = {'dataclasses', 'pathlib', 'tempfile', 'shutil', 'subprocess', 'logging', 'hashlib'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
