"""Do the examples do what they promise? Their fast forms; `make demo` shows the long one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kit import ROOT
from tools.record_demo import lines_of

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.timeout(240)


def run_demo(*flags: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The demo, with its temporary files in the test's own folder."""
    command = [sys.executable, EXAMPLES / "demo.py", "--steps", "60", *flags]
    return subprocess.run(command, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=200)


def check(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for said in ("rank 1, on", "was killed by SIGKILL", "node2 has joined", "the final loss is the same", "holdfast report"):
        assert said in demo.stdout, demo.stdout


def test_the_demo_survives_a_rank_and_a_node_without_any_framework(tmp_path: Path) -> None:
    """And docs/demo.svg shows what it prints, whatever the times, ports and names."""
    demo = run_demo("--plain", "--step-s", "0.05", tmp_path=tmp_path)
    check(demo)
    assert not list(tmp_path.iterdir()), "it clears away what it made"
    shown, printed = lines_of((ROOT / "docs" / "demo.svg").read_text()), demo.stdout.splitlines()
    assert told(shown) == told(printed), "record it anew: make recording"
    always = {"# ranks, starting at step #", "step # loss #", "finished: final loss #"}
    assert always <= said_by_nodes(shown) & said_by_nodes(printed)  # the rest depends on who notices a death first


@pytest.mark.torch
def test_the_demo_survives_a_rank_and_a_node_with_pytorch(tmp_path: Path) -> None:
    demo = run_demo("--step-s", "0.05", tmp_path=tmp_path)
    check(demo)
    assert "is rank 0 before the failure and after it; the loss is the same" in demo.stdout, "and its process is kept"


def shape(line: str) -> str:
    line = re.sub(r"\S*holdfast-demo-\w+", "FOLDER", line).replace("train_plain.py", "train.py")
    return re.sub(r"\d+(?:\.\d+)?", "#", line).strip()


def told(lines: list[str]) -> list[str]:
    """What the demo itself says, without the report."""
    own = [shape(line) for line in lines if line.startswith("  ") and "│" not in line]
    report = own.index("#. What happened, from Holdfast's own record: holdfast report")
    return [line for line in (*own[: report + 1], own[-1]) if line]


def said_by_nodes(lines: list[str]) -> set[str]:
    return {shape(line.partition("│ ")[2]) for line in lines if "│" in line}


def test_the_smallest_example_names_every_rank(holdfast) -> None:
    done = holdfast("run", "--nproc-per-node", 3, EXAMPLES / "minimal.py")
    assert done.returncode == 0, done.output
    assert sorted(line.split(" (")[0] for line in done.stdout.splitlines()) == [f"rank {rank} of 3" for rank in range(3)]


def test_training_goes_on_from_its_checkpoint_and_ends_with_the_same_loss(holdfast, tmp_path: Path) -> None:
    def train(name: str, steps: int) -> str:
        flags = ("--checkpoint", tmp_path / name, "--steps", steps, "--save-every", 10)
        done = holdfast("run", "--nproc-per-node", 2, EXAMPLES / "train_plain.py", *flags)
        assert done.returncode == 0, done.output
        return done.stdout

    whole = train("whole", 30)
    train("parts", 20)
    rest = train("parts", 30)
    assert "starting at step 20" in rest
    assert whole.splitlines()[-1] == rest.splitlines()[-1]
    assert "final loss" in rest
