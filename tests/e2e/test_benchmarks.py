"""Do the benchmarks still run? Once each, and nothing is asserted about times."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from kit import ROOT

ROWS = {
    **{"start": 2, "whole_run": 1, "restart": 2, "warm": 5, "soak": 5, "fat_worker": 3, "hang": 2, "stop": 2, "footprint": 3},
    **{"monitor": 3, "in_rank": 5, "training": 2, "stash": 7, "nvrx": 4, "in_place": 5},
    **{"host_reports": 3, "diagnosis": 16, "join": 1, "thousands": 4, "hostile": 2, "lost_node": 2},
    **{"supervisor": 11, "dashboard": 5},
}
"""Of each benchmark: one that measures less than it did is seen."""


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", ROWS)
def test_every_benchmark_gives_its_rows(tmp_path: Path, name: str) -> None:
    command = [sys.executable, ROOT / "benchmarks/run.py", name, "--quick", "--no-torchrun", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert len(results["rows"]) == ROWS[name], "if you have added a row, change ROWS"
    assert all(math.isfinite(row["medians"]["holdfast"]) for row in results["rows"])  # a difference may be less than nothing


def test_each_of_them_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import run

    assert set(ROWS) == set(run.ALL), "if you have added a benchmark, add it to ROWS"


def test_nobody_is_waited_for_once_every_launcher_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import harness

    with harness.launch() as job:
        job.start([sys.executable, "-c", "pass"])
        with pytest.raises(RuntimeError, match="1 of 1 workers have not noted 'first' before the last launcher ended"):
            job.wait_for("first", 1)
        assert job.wait_for_end() and job.processes[0].returncode == 0
