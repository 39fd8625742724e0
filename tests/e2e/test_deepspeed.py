"""DeepSpeed's own launcher, engine and checkpoints under Holdfast, on CPUs."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT, SCRIPTS

APART = Path(sys.prefix) / "deepspeed"
"""Where `make frameworks` puts it: for this test only."""


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not APART.exists() and importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: make frameworks"
)
def test_a_job_of_deepspeed_s_launcher_that_loses_a_rank_goes_on_from_its_checkpoint(holdfast: Any, tmp_path: Path) -> None:
    env = {
        **{"PYTHONPATH": os.pathsep.join(filter(None, (str(APART), os.environ.get("PYTHONPATH", ""))))},
        **{"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
    }
    launch = sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", 2
    script = SCRIPTS / "deepspeed_on_cpu.py", ROOT / "examples/train_deepspeed.py", "--output", tmp_path, "--fail-at", 4
    ran = holdfast.run("wrap", "--max-restarts", 3, "--", *launch, *script, env=env, cwd=tmp_path, timeout=250)
    assert ran.returncode == 0 and "was killed by SIGKILL; restarting all ranks" in ran.output, ran.output
    assert "2 ranks: begins at step 0" in ran.stdout and "2 ranks: begins at step 3" in ran.stdout, ran.output
    assert "finished: 8 steps" in ran.stdout
