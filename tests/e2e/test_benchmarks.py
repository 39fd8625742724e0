"""Do the benchmarks still run? Once each, and nothing is asserted about times."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(420)
def test_every_benchmark_gives_its_rows(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/run.py", "--quick", "--no-torchrun", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert len(results["rows"]) == 79
    assert all(math.isfinite(row["medians"]["holdfast"]) for row in results["rows"])  # a difference may be less than nothing
