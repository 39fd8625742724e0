"""torchtitan's own trainer, checkpoints and command line under Holdfast, on CPUs (tests/kit/scripts/titan_on_cpu.py)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import SCRIPTS

APART = Path(sys.prefix) / "torchtitan"
"""Where `make frameworks` puts it: the versions that it needs are not those that others do."""
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not APART.exists() and importlib.util.find_spec("torchtitan") is None,
        reason="torchtitan is not installed: make frameworks",
    ),
]
PATIENCE_S = 250.0
RUN_TRAIN = """#!/usr/bin/bash
set -e
PATH={bin}:$PATH
torchrun --nproc_per_node=$NGPU --rdzv_backend c10d --rdzv_endpoint="localhost:0" \\
    --local-ranks-filter 0 --role rank --tee 3 -m titan_on_cpu --module titan_on_cpu --config tiny "$@"
"""
"""The line of torchtitan's run_train.sh, for CPUs."""
STEPS = ("--training.steps", 6, "--checkpoint.enable", "--checkpoint.interval", 2)


@pytest.fixture
def titan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Flags for what it reads, which is made here: a tokenizer of three words, and a data set."""
    words = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "a"}
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model})
    )
    (tmp_path / "assets" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text((json.dumps({"text": "a b c " * 50}) + "\n") * 50)
    own = {"HF_HOME": tmp_path / "hf", "HF_HUB_OFFLINE": 1, "TORCH_COMPILE_DISABLE": 1, "OMP_NUM_THREADS": 1, "NGPU": 2}
    for name, value in own.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (SCRIPTS, APART))))
    return ("--hf-assets-path", tmp_path / "assets", "--dataloader.dataset-path", tmp_path / "data", *STEPS)


def test_the_lines_of_its_script_go_on_from_its_newest_checkpoint_when_a_rank_is_lost(holdfast, titan, tmp_path, monkeypatch):
    if not (Path(sys.executable).parent / "torchrun").exists():
        pytest.skip("torchrun is not installed beside this Python: it comes with torch")
    script = tmp_path / "run_train.sh"
    script.write_text(RUN_TRAIN.format(bin=Path(sys.executable).parent))
    script.chmod(0o755)
    monkeypatch.setenv("KILL_AT", "5")
    ran = holdfast.run("wrap", "--max-restarts", 3, "--rdzv-id", "titan", "--", script, *titan, timeout=PATIENCE_S)
    assert ran.returncode == 0 and "job titan succeeded after 1 restart" in ran.output, ran.output
    assert re.search(r"rank 1 .* was killed by SIGKILL; restarting all ranks \(2 of 3 restarts left\)", ran.output), ran.output
    starts = [line.rpartition(" ")[2] for line in ran.stdout.splitlines() if "Training starts at step" in line]
    assert starts == ["1", "5"], ran.output  # rank 0's lines alone, as the filter says; step 4 is the newest that is saved
    assert "[rank0]:" in ran.stdout and "Training completed" in ran.stdout


def test_its_steps_and_checkpoints_are_known_without_a_change(holdfast, titan: tuple[Any, ...]):
    words = (SCRIPTS / "what_it_said.py", SCRIPTS / "titan_on_cpu.py", "--module", "titan_on_cpu", "--config", "tiny")
    ran = holdfast.run("run", "--nproc-per-node", 2, *words, *titan, timeout=PATIENCE_S)
    told = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"booted_at"')]
    assert sorted(signs["rank"] for signs in told) == ["0", "1"], ran.output
    assert {signs["step"] for signs in told} == {6}
    assert {(section["name"], section["count"]) for signs in told for section in signs["sections"]} == {("checkpoint", 3)}
