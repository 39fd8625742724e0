"""Trainers that are not plain loops say how they get on: Lightning's and Hugging Face's, each with the real library; and the
examples in `examples/`, as they stand there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit import SCRIPTS

EXAMPLES = Path(__file__).parents[2] / "examples"
PROBE = SCRIPTS / "what_it_said.py"
pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 250.0
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
def test_without_an_agent_the_callback_does_nothing(tmp_path):
    words = (sys.executable, str(EXAMPLES / "train_transformers.py"), "--output", str(tmp_path / "output"), "--steps", "2")
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0 and "finished: step 2" in ran.stdout, ran


# --- Lightning ------------------------------------------------------------------------------------------------------------

LIGHTNING = EXAMPLES / "train_lightning.py"
SECTIONS = (
    "--ft-rank-section-timeouts", "setup:600,step:300,checkpointing:300",
    "--ft-rank-out-of-section-timeout", 300,
)  # fmt: skip


def kept(folder: Path, file: str) -> dict[str, Any]:
    limits: dict[str, Any] = json.loads((folder / file).read_text())["current_timeouts"]
    return limits


@pytest.mark.torch
@needs("lightning", "lightning")
def test_lightning_heartbeats_limits_and_the_flag_of_a_training_that_is_complete(said, tmp_path):
    flag, words = tmp_path / "finished", (LIGHTNING, "--output", tmp_path / "output")
    ran, ranks = said(("--nproc-per-node", 2), *words, "--steps", 20, env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)})
    assert ran.returncode == 0 and "finished: step 20" in ran.stdout, ran.output
    assert flag.exists()
    assert not (tmp_path / "output/_ft_state.json").exists()  # no checkpoint was loaded yet, which takes long
    assert ranks["0"]["beats"] == ranks["1"]["beats"] > 20
    ran, ranks = said(("--nproc-per-node", 2), *words, "--steps", 60)
    assert ran.returncode == 0 and "finished: step 60" in ran.stdout, ran.output
    limits = kept(tmp_path / "output", "_ft_state.json")["heartbeat"]
    assert limits["were_calculated"] and limits["initial"] > 0 and limits["subsequent"] > 0
    ran, _ = said((), *words, "--steps", 60)  # nothing is left to train; the limits are loaded
    assert f"HeartbeatTimeouts(initial={limits['initial']:.2f}" in ran.output, ran.output


@pytest.mark.torch
@needs("lightning", "lightning")
def test_lightning_sections_and_their_limits(said, tmp_path):
    words = LIGHTNING, "--sections", "--output", tmp_path / "output"
    ran, ranks = said((*SECTIONS, "--nproc-per-node", 2), *words, "--steps", 40)
    assert ran.returncode == 0 and "finished: step 40" in ran.stdout, ran.output
    for signs in ranks.values():
        seen = counts(signs)
        assert seen["setup"] == 1 and seen["step"] > 40 and seen["checkpointing"] >= 4
        assert not any(section["open_since"] for section in signs["sections"])
    spent = kept(tmp_path / "output", "_ft_state_.json")["section"]
    assert set(spent["calculated_sections"]) == {"step", "checkpointing"} and not spent["is_out_of_section_calculated"]
    ran, _ = said((*SECTIONS, "--nproc-per-node", 2), *words, "--steps", 80)  # one that has loaded a checkpoint
    assert ran.returncode == 0, ran.output
    spent = kept(tmp_path / "output", "_ft_state_.json")["section"]
    assert set(spent["calculated_sections"]) == {"setup", "step", "checkpointing"} and spent["is_out_of_section_calculated"]


@pytest.mark.torch
@needs("lightning", "lightning")
def test_lightning_sections_that_are_not_configured_are_an_error_that_says_how(said, tmp_path):
    ran, _ = said((), LIGHTNING, "--sections", "--output", tmp_path / "output", "--steps", 4)
    assert ran.returncode == 1 and "ValueError: rank_section_timeouts has [], not setup, step, checkpointing" in ran.output


FAILING = """
import os, runpy, sys
from holdfast.integrations import lightning_sections

class Wrong(lightning_sections.FaultToleranceSectionsCallback):
    def on_train_batch_end(self, trainer, *rest):
        super().on_train_batch_end(trainer, *rest)
        if trainer.global_step == 12:
            raise ArithmeticError("the loss is not a number")

import holdfast.ptl_resiliency
holdfast.ptl_resiliency.FaultToleranceSectionsCallback = Wrong
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.torch
@needs("lightning", "lightning")
def test_an_exception_can_end_the_job_without_a_restart(holdfast, script, tmp_path):
    flag = tmp_path / "finished"
    words = script(FAILING), LIGHTNING, "--sections", "--output", tmp_path / "output"
    env = {"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    ran = holdfast.run("run", *SECTIONS, "--max-restarts", 3, *words, env=env, timeout=PATIENCE_S)
    assert ran.returncode == 1, ran.output
    assert flag.exists()
    assert "ArithmeticError: the loss is not a number" in ran.output
    assert len(holdfast.events("RoundFormed")) == 1  # no restart


@pytest.mark.torch
@needs("lightning", "lightning")
def test_a_lightning_rank_that_hangs_is_found_by_its_silence_and_all_go_on_from_the_checkpoint(holdfast, tmp_path):
    limits = "--ft-initial-rank-heartbeat-timeout", 200, "--ft-rank-heartbeat-timeout", 10
    words = "--output", tmp_path / "output", "--steps", 400_000, "--save-every", 100, "--fault", "rank_hung", "--fault-after", 4
    command = "run", "--nproc-per-node", 2, "--max-restarts", 1, *limits, LIGHTNING, *words
    job = holdfast.start(*command)
    job.wait_for_output("Restored all states from the checkpoint", PATIENCE_S)
    hung = holdfast.events("RankHung")  # perhaps of both: the other waits for it in a collective
    assert hung and all("no heartbeat for" in event["reason"] for event in hung)
    job.kill(15)
    job.wait(PATIENCE_S)
