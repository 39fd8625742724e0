"""The report shows where the time of a restart went, also of what only the ranks can know."""

from __future__ import annotations

import json
from typing import Any

import pytest

TORCH = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
path, life = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(2, 2)
if life:
    model.load_state_dict(torch.load(path))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward()
optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), path)
dist.barrier()
if not life and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


def phases(holdfast: Any) -> dict[str, float | None]:
    """Of the only restart there was, as the report has them."""
    (restart,) = json.loads(holdfast("report", "--json").stdout)["timeline"]["restarts"]
    assert restart["total_s"] == pytest.approx(sum(took or 0.0 for took in restart["phases"].values()))
    told: dict[str, float | None] = restart["phases"]
    return told


@pytest.mark.torch
def test_each_phase_of_a_restart_is_in_the_report(holdfast: Any, script: Any, tmp_path: Any) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(TORCH), tmp_path / "checkpoint.pt", timeout=120)
    assert done.returncode == 0, done.output
    told = phases(holdfast)
    assert [phase for phase, took in told.items() if took is None] == ["reclaim"]  # no GPU was looked at
    assert told["import"] and told["first collective"] and told["restore"] and told["first step"]
    text = holdfast("report").stdout
    assert "TO ROUND" in text and "FIRST COLLECTIVE" in text and "RECLAIM" not in text


def test_without_torch_what_the_ranks_do_not_tell_is_left_open(holdfast: Any, script: Any) -> None:
    source = "import os; from holdfast import client; client.progress(1); os._exit(int(os.environ['HOLDFAST_ROUND']) < 2)"
    assert holdfast("run", "--max-restarts", 1, script(source)).returncode == 0
    told = phases(holdfast)
    told.pop("stop")  # there is one only if the rank was seen dying before it was gone
    nobody_told = ["tell", "reclaim", "import", "first collective", "restore"]
    assert [phase for phase, took in told.items() if took is None] == nobody_told
    assert told["start"] is not None and told["first step"] is not None


def test_a_program_that_is_no_python_has_started_and_no_more(holdfast: Any) -> None:
    assert holdfast("run", "--max-restarts", 1, "--no-python", "sh", "-c", "exit $((2 - HOLDFAST_ROUND))").returncode == 0
    assert [phase for phase, took in phases(holdfast).items() if took is None] == [
        *("tell", "reclaim", "import", "first collective", "restore", "first step", "again"),
    ]


def test_steps_that_a_restart_has_made_again_are_counted_as_lost(holdfast: Any, script: Any, tmp_path: Any) -> None:
    source = """
import os, time
from holdfast import client
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(6 if life else 0, 12):
    time.sleep(0.05)
    client.progress(step)
    if step == 9 and not life:
        os.kill(os.getpid(), 9)
"""
    assert holdfast("run", "--max-restarts", 1, script(source)).returncode == 0
    drawn, traced = tmp_path / "where.svg", tmp_path / "where.json"
    found = json.loads(holdfast("report", "--goodput", "--json", "--svg", drawn, "--trace", traced).stdout)
    spent = found["worker_s"]
    # Of 16 steps 4 are lost, and the first of each life belongs to its start.
    assert spent["lost steps"] > 4 * 0.05 and spent["productive"] > 10 * 0.05 and spent["hang"] == spent["missing"] == 0
    assert found["goodput"] == pytest.approx(spent["productive"] / sum(spent.values()))
    assert "lost steps" in drawn.read_text() and json.loads(traced.read_text())["traceEvents"]
    assert "lost steps" in holdfast("report", "--goodput").stdout
    assert holdfast("report", "--png", tmp_path / "where.png").returncode == 0
    assert (tmp_path / "where.png").read_bytes().startswith(b"\x89PNG\r\n")
    refused = holdfast("report", "--svg", tmp_path / "nowhere" / "where.svg")
    assert refused.returncode == 2 and "cannot be written" in refused.stderr
