"""Tools that call torchrun run their jobs under Holdfast, with their own command lines, when `holdfast wrap` starts them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS_ITS_PLACE = (
    "import os, sys; from os import environ as env; "
    "told = 'rank', env['RANK'], 'of', env['WORLD_SIZE'], *sys.argv[1:], env.get('PYTHONPATH'), 'HOLDFAST_WRAP' in env; "
    "os.write(1, (' '.join(map(str, told)) + '\\n').encode())"  # at once: two ranks share the pipe
)
FAILS_ONCE = "import os; assert os.environ['TORCHELASTIC_RESTART_COUNT'] == '1'"


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "place.py").write_text(SAYS_ITS_PLACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def tool(folder: Path, *lines: str) -> Path:
    """A shell script, as many a framework starts its training with, that finds this Python first."""
    script = folder / "tool.sh"
    script.write_text("\n".join(["#!/bin/sh", f"PATH='{Path(sys.executable).parent}':$PATH", *lines]))
    script.chmod(0o755)
    return script


def test_a_shell_script_that_calls_torchrun_runs_holdfast(holdfast, place):
    script = tool(place, "torchrun --standalone --nproc_per_node=2 place.py a", "python -m torch.distributed.run place.py b")
    if not (Path(sys.executable).parent / "torchrun").exists():
        pytest.skip("torchrun is not installed beside this Python: it comes with torch")
    ran = holdfast.run("wrap", script)
    assert ran.returncode == 0, ran.output
    said = sorted(line for line in ran.stdout.splitlines() if line.startswith("rank"))
    assert said == ["rank 0 of 1 b None False", "rank 0 of 2 a None False", "rank 1 of 2 a None False"], ran.output


def test_flags_of_holdfast_are_in_force_and_the_exit_code_is_the_jobs(holdfast, place):
    (place / "once.py").write_text(FAILS_ONCE)
    script = tool(place, "exec python -m torch.distributed.run once.py")
    ran = holdfast.run("wrap", "--max-restarts", 1, "--", script)
    assert ran.returncode == 0 and "succeeded after 1 restart" in ran.output, ran.output
    assert holdfast.run("wrap", script).returncode == 1


def test_a_python_path_and_a_sitecustomize_of_the_users_work_as_ever(holdfast, place, monkeypatch):
    (place / "sitecustomize.py").write_text("print('mine', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(place))
    ran = holdfast.run("wrap", sys.executable, "place.py")
    assert ran.returncode == 1 and "KeyError" in ran.output  # a script that is no launcher
    assert ran.stdout.count("mine") == 2, ran.output  # `holdfast wrap`, and the script
    ran = holdfast.run("wrap", tool(place, "exec python -m torch.distributed.run place.py"))
    assert f"rank 0 of 1 {place} False" in ran.stdout, ran.output


@pytest.mark.torch
def test_a_tool_that_calls_torchruns_functions_becomes_holdfast(holdfast, place):
    code = "import torch.distributed.run as t; t.run(t.get_args_parser().parse_args(['--nproc-per-node=2', 'place.py', 'c']))"
    ran = holdfast.run("wrap", "--max-restarts", 1, "--", sys.executable, "-c", code)
    said = sorted(line for line in ran.stdout.splitlines() if line.startswith("rank"))
    assert said == ["rank 0 of 2 c None False", "rank 1 of 2 c None False"], ran.output


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed: pip install 'holdfast[transformers]'"
)
def test_a_job_of_accelerate_launch_that_loses_a_rank_goes_on_from_its_checkpoint(holdfast, tmp_path):
    words = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, "--mixed_precision", "bf16")
    script = (EXAMPLES / "train_accelerate.py", "--output", tmp_path, "--fail-at", 4)
    ran = holdfast.run("wrap", "--max-restarts", 1, "--", sys.executable, "-m", *words, *script, timeout=250)
    assert ran.returncode == 0 and "was killed by SIGKILL; restarting all ranks" in ran.output, ran.output
    assert "2 ranks, bf16: begins at step 0" in ran.stdout and "2 ranks, bf16: begins at step 3" in ran.stdout, ran.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "there is no command to run"),
        (("--max-restarts", 3, "true"), "where does the command begin?"),
        (("--max-restart", "--", "true"), "--max-restarts needs a value"),
        (("--no-such-flag", "--", "true"), "there is no flag --no-such-flag"),
        (("--max-restarts", 3, "train.py", "--", "true"), "train.py is no flag of `holdfast run`"),
        (("no-such-program",), "there is no program no-such-program in PATH"),
    ],
)
def test_what_is_wrong_is_told_before_the_tool_starts(holdfast, words, said):
    ran = holdfast.run("wrap", *words)
    assert ran.returncode == 2 and said in ran.stderr, ran.output
