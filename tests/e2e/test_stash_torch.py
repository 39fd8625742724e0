"""A script that uses torch.distributed.checkpoint leaves its state in memory, and finds it again in its next life."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _numpy() -> None:
    pytest.importorskip("numpy", reason="torch.distributed.checkpoint needs numpy, which is not installed")


SHARDED = """
import os
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from holdfast.integrations.torch_checkpoint import StashReader, StashWriter, latest_step

dist.init_process_group("gloo")
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(24.0).reshape(6, 4)


def state(step):
    return {
        "sharded": distribute_tensor(whole + step, mesh, [Shard(0)]),
        "replicated": distribute_tensor(whole - step, mesh, [Replicate()]),
        "plain": {"weight": torch.full((3,), float(step)), "words": ["text", step]},
        "step": step,
    }


done = -1
if latest_step() is not None:
    found = state(0)
    dcp.load(found, storage_reader=StashReader())
    done, expected = found["step"], state(latest_step())
    assert done == latest_step() and found["plain"]["words"] == ["text", done], found
    assert torch.equal(found["plain"]["weight"], expected["plain"]["weight"])
    for name in ("sharded", "replicated"):
        assert torch.equal(found[name].to_local(), expected[name].to_local()), name
os.write(1, f"life {life} goes on after {done}\\n".encode())
dist.barrier()
for step in range(done + 1, 12):
    writer = StashWriter(step)
    dcp.save(state(step), storage_writer=writer)
    assert writer.kept
    if step == 5 and rank == 1 and not life:
        os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


def test_shards_and_what_all_ranks_have_alike_come_back(holdfast: Any, script: Any) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(SHARDED), timeout=120)
    assert done.returncode == 0, done.output
    said = sorted(done.stdout.splitlines())
    assert said[:2] == ["life 0 goes on after -1"] * 2
    assert said[2:] in (["life 1 goes on after 5"] * 2, ["life 1 goes on after 4"] * 2)


def test_a_reader_of_nothing_says_what_to_do(holdfast: Any, script: Any) -> None:
    source = """
import torch
import torch.distributed.checkpoint as dcp
from holdfast.integrations.torch_checkpoint import StashReader, latest_step
assert latest_step() is None
dcp.load({"a": torch.ones(1)}, storage_reader=StashReader())
"""
    done = holdfast("run", script(source), timeout=120)
    assert done.returncode == 1 and "no stashed state that all ranks can load" in done.output
