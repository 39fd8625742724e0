"""A script that says nothing to us hangs: what it does, prints or leaves undone is enough to find it. The real command."""

from __future__ import annotations

import re
from typing import Any

import pytest


def hung(holdfast: Any) -> dict[str, Any]:
    """The one rank whose limit ran out."""
    (event,) = holdfast.events("RankHung")
    return event


@pytest.mark.torch
def test_a_training_script_hangs_by_what_was_learned_from_its_steps(holdfast: Any, script: Any) -> None:
    """Rank 1's data never come, rank 0 waits for it in a collective: nobody works any more."""
    path = script("""
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.exit()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    if step == 200 and dist.get_rank() == 1:
        time.sleep(600)
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.03)
""")
    learned = "--least-limit", "8", "--most-limit", "none"
    done = holdfast("run", "--nproc-per-node", "2", "--max-restarts", "1", *learned, path, timeout=150)  # it imports torch
    assert done.returncode == 0, done.output
    assert "(learned limit " in hung(holdfast)["reason"] and "nothing on this node" in hung(holdfast)["reason"]
    assert [seen["decision"] for seen in holdfast.events("Decided")] == ["restart", "finish"]


def test_a_program_in_any_language_hangs_when_its_log_shows_no_more_progress(holdfast: Any, script: Any) -> None:
    path = script("for step in 1 2 3; do echo step $step; sleep 0.1; done\nexec sleep 600\n", "train.sh")
    regex = ("--progress-regex", r"step (?P<step>\d+)", "--ft-rank-heartbeat-timeout", "2")
    done = holdfast("run", "--no-python", *regex, "sh", path)
    assert done.returncode == 1 and "step 3" in done.stdout
    found = re.match(r"no heartbeat for (\S+) s \(limit 2 s\)", hung(holdfast)["reason"])
    assert found and float(found[1]) >= 2
    assert "--progress-regex" not in done.stderr, "it is watched: nobody is told otherwise"


def test_a_program_that_shows_nothing_is_told_so_and_hangs_once_nothing_moves(holdfast: Any) -> None:
    done = holdfast("run", "--no-python", "--still-limit", "3", "sleep", "600")
    assert done.returncode == 1, done.output
    assert "not watched, but once its processors and GPUs have stood still for 3 s it counts as hung (" in done.stderr
    assert [seen["still_s"] for seen in holdfast.events("Unwatched")] == [3.0]
    assert "nothing on this node has done anything" in hung(holdfast)["reason"]


def test_without_a_monitor_nobody_is_found(holdfast: Any) -> None:
    done = holdfast("run", "--no-python", "--monitor", "off", "--still-limit", "0.5", "sleep", "3")
    assert done.returncode == 0 and not holdfast.events("Unwatched")
