"""Trainers that are not plain loops say how they get on: Lightning's and Hugging Face's, each with the real library; and the
examples in `examples/`, as they stand there."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROBE = Path(__file__).parents[1] / "probes" / "what_it_said.py"
PATIENCE_S = 300.0
"""These libraries take their time to be imported, by every rank, on a machine that may do other things."""


def needs(library: str, distribution: str) -> Any:
    there = importlib.util.find_spec(library) is not None
    return pytest.mark.skipif(not there, reason=f"{distribution} is not installed: pip install 'holdfast[{distribution}]'")


Said = Callable[..., tuple[Any, dict[str, dict[str, Any]]]]


@pytest.fixture
def said(holdfast: Any) -> Said:
    """`said(flags, script, arguments)`: how the job ended, and what each rank had told its agent by then, by rank."""

    def run(flags: tuple[object, ...], *words: object, env: dict[str, str] | None = None) -> Any:
        ran = holdfast.run("run", *flags, PROBE, *words, env=env, timeout=PATIENCE_S)
        rows = (json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"booted_at"'))
        return ran, {row["rank"]: row for row in rows}

    return run


def counts(signs: dict[str, Any]) -> dict[str, int]:
    return {section["name"]: section["count"] for section in signs["sections"]}


def test_the_plain_loop_says_its_steps_and_sections(said):
    ran, ranks = said(("--nproc-per-node", 2), EXAMPLES / "watched.py")
    assert ran.returncode == 0 and "finished: 20 steps" in ran.stdout, ran.output
    for signs in ranks.values():
        assert signs["step"] == 20 and signs["beats"] == 20 * 101
        assert counts(signs) == {"load": 1, "checkpoint": 4}
        assert {section["name"]: section["limit_s"] for section in signs["sections"]} == {"load": 300.0, "checkpoint": None}


@pytest.mark.torch
@needs("transformers", "transformers")
def test_a_hugging_face_trainer_goes_on_from_its_checkpoint_and_says_all_of_it(said, tmp_path):
    words = EXAMPLES / "train_transformers.py", "--output", tmp_path / "output", "--save-every", 4
    ran, ranks = said(("--nproc-per-node", 2), *words, "--steps", 8)
    assert ran.returncode == 0 and "finished: step 8" in ran.stdout, ran.output
    assert set(ranks) == {"0", "1"}
    for signs in ranks.values():
        assert signs["step"] == 8
        assert counts(signs)["evaluation"] == 2 and counts(signs)["checkpoint"] >= 2
        assert not any(section["open_since"] for section in signs["sections"])
        assert signs["limits"]["beat_s"] == float("inf")  # after `train` it may be silent
    ran, ranks = said((), *words, "--steps", 12)
    assert ran.returncode == 0 and "finished: step 12" in ran.stdout, ran.output
    assert counts(ranks["0"])["evaluation"] == 1  # it began at step 8


@pytest.mark.torch
@needs("transformers", "transformers")
def test_without_an_agent_the_callback_does_nothing(script, tmp_path):
    import subprocess
    import sys

    words = (sys.executable, str(EXAMPLES / "train_transformers.py"), "--output", str(tmp_path / "output"), "--steps", "2")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0 and "finished: step 2" in ran.stdout, ran
