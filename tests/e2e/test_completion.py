"""The shell completes holdfast's commands and flags: a real bash asks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOLDFAST = Path(sys.executable).parent / "holdfast"
ASKS = (
    'source <("$0" completion "$1"); COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _holdfast; '
    'echo "${COMPREPLY[@]}"'
)


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    asked = ["bash", "-c", ASKS, str(HOLDFAST), "bash", *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_flags_and_files(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    assert completed("holdfast", "ru") == ["run"]
    assert {"status", "stop"} <= set(completed("holdfast", "st"))
    assert completed("holdfast", "run", "--max-res") == ["--max-restarts"]
    assert completed("holdfast", "ft_launcher", "--ft-rank-heart") == ["--ft-rank-heartbeat-timeout"]
    assert completed("holdfast", "why", "--js") == ["--json"]
    assert completed("holdfast", "run", "tr") == ["train.py"]


def test_bash_completes_modules_after_m(tmp_path, monkeypatch):
    for file in ("train.py", "mine/__init__.py", "mine/trainer.py", "mine/deep/run.py", "data/notes.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(HOLDFAST.parent), prepend=":")
    assert completed("holdfast", "run", "-m", "") == ["data.", "mine.", "train"]
    assert completed("holdfast", "run", "--nproc-per-node", "2", "--module", "mine.t") == ["mine.trainer"]
    assert completed("holdfast", "run", "-m", "mine.") == ["mine.deep.", "mine.trainer"]
    assert completed("holdfast", "run", "-m", "timei") == ["timeit"]
    assert completed("holdfast", "run", "-m", "no.such") == []
    assert completed("holdfast", "run", "mine.t") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_what_is_printed(shell, holdfast):
    said = holdfast.run("completion", shell)
    assert said.returncode == 0 and "max-restarts" in said.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: what is printed for it is not run")
    subprocess.run([shell, "-n"], input=said.stdout, text=True, check=True)
