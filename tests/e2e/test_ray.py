"""Holdfast's agents on the nodes of a Ray cluster, started by examples/ray_agents.py: a real Ray, all on this host."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import ROOT, SCRIPTS

APART = Path(sys.prefix) / "ray"
"""Where `make frameworks` puts it."""
pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not APART.exists() and importlib.util.find_spec("ray") is None, reason="Ray is not installed: make frameworks"
    ),
]
PATIENCE_S = 120.0
EXAMPLES = ROOT / "examples"


@pytest.fixture
def lose(holdfast: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """`lose(ID)` ends this node of a cluster of three, which `ray.init` finds."""
    own = {"PYTHONPATH": APART, "HOLDFAST_STATE_DIR": holdfast.state_dir, "HOLDFAST_ALLOW_INJECT": 1}
    for name, value in (own | {"RAY_DEDUP_LOGS": 0, "RAY_USAGE_STATS_ENABLED": 0}).items():
        monkeypatch.setenv(name, str(value))
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # its sockets' paths have to be short
        monkeypatch.setenv("RAY_TMPDIR", folder)
        command = (sys.executable, str(SCRIPTS / "ray_cluster.py"), "3", folder)
        cluster = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert cluster.stdin is not None and cluster.stdout is not None

        def wait_for(wanted: str) -> str:
            said = []
            for line in cluster.stdout or ():
                if found := re.fullmatch(wanted, line.strip()):
                    return found[0]
                said.append(line)
            pytest.fail(f"the cluster ended without saying {wanted}:\n{''.join(said)}")

        def lose(node: str) -> None:
            assert cluster.stdin is not None
            cluster.stdin.write(f"{node}\n")
            cluster.stdin.flush()
            wait_for("lost")

        monkeypatch.setenv("RAY_ADDRESS", wait_for(r"[0-9.]+:\d+"))
        yield lose
        cluster.communicate()


class Driver:
    """What runs `ray_agents.py`, and what it has said."""

    def __init__(self, folder: Path, *words: object) -> None:
        self._said = folder / "driver"
        with self._said.open("wb") as out:
            command = (sys.executable, str(EXAMPLES / "ray_agents.py"), *map(str, words))
            self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def sees(self, pattern: str) -> Callable[[], re.Match[str] | None]:
        """Whether it has been said yet; fails where it cannot be any more."""

        def seen() -> re.Match[str] | None:
            over = self.process.poll()
            found = re.search(pattern, self.said)
            assert found or over is None, f"ended with {over} without saying {pattern}\n{self.said}"
            return found

        return seen


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def start(*words: object) -> Driver:
        started.append(Driver(tmp_path, *words))
        return started[-1]

    yield start
    for one in started:
        one.process.terminate()
        one.process.wait()


def place(holdfast: Any, rank: int) -> str:
    """The name of the node where this rank runs."""
    workers = json.loads(holdfast("status", "--json", "agents").stdout)["workers"]
    return next(worker["node"] for worker in workers if worker["rank"] == rank)


def test_a_rank_is_killed_and_a_node_of_ray_s_lost_and_training_ends_from_its_checkpoints(
    holdfast, lose, driver, free_port, tmp_path, wait_until
):
    agents = ("--nodes", 2, "--spares", 1, "--port", free_port, "--max-restarts", 3, "--rdzv-id", "agents")
    train = (EXAMPLES / "train.py", "--checkpoint", tmp_path / "checkpoint.pt", "--save-every", 5, "--step-s", 0.1)
    job = driver(*agents, *train, "--steps", 100)
    wait_until(job.sees("step 10 "), PATIENCE_S)
    played = holdfast("inject", "kill", place(holdfast, 1), "--rank", 1)
    assert played.returncode == 0, played.output
    wait_until(job.sees(r"rank 1 .* was killed by SIGKILL; .*restarting all ranks \(2 of 3"), PATIENCE_S)
    wait_until(job.sees(r"(?s)restarting all ranks.*2 ranks, starting at step [1-9].*step \d+ loss"), PATIENCE_S)
    lost = place(holdfast, 1)
    lose(lost.rpartition("-")[2])
    wait_until(job.sees("finished: final loss"), PATIENCE_S)
    assert job.process.wait(PATIENCE_S) == 0, job.said
    assert "succeeded after 1 restart in 3 rounds" in job.said, job.said
    begun = [int(step) for step in re.findall(r"2 ranks, starting at step (\d+)", job.said)]
    assert begun == sorted(set(begun)) and len(begun) == 3 and begun[0] == 0, job.said
    assert lost not in holdfast("status", "--nodes", "agents").stdout


def test_an_agent_ends_with_the_process_of_ray_s_that_started_it_and_the_next_goes_on_from_the_checkpoint(
    lose, driver, free_port, tmp_path, wait_until, alive
):
    train = (EXAMPLES / "train.py", "--checkpoint", tmp_path / "checkpoint.pt", "--save-every", 2, "--step-s", 0.1)
    job = driver("--nodes", 1, "--port", free_port, "--rdzv-id", "agents", *train, "--steps", 10_000)
    wait_until(job.sees("step 2 "), PATIENCE_S)
    agents = {pid for pid in alive() if b"--node-name" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in agents}
    (worker,) = parents - agents
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not agents & set(alive()), PATIENCE_S)
    wait_until(job.sees("1 ranks, starting at step [2-9]"), PATIENCE_S)


FAILS = """
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop(config):
    import torch.distributed
    rank = ray.train.get_context().get_world_rank()
    torch.distributed.barrier()
    print(f"trains as {rank}", flush=True)
    {"inputs": 1}["label" if rank == 1 else "inputs"]
    torch.distributed.barrier()

ray.init(num_cpus=3, object_store_memory=80 * 2**20, include_dashboard=False, _temp_dir=TEMP)
TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=STORE)).fit()
"""


def test_what_ray_train_has_written_names_the_rank_and_the_cause(holdfast, script, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (APART, APART.parent / "torchtitan"))))  # which has pyarrow
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        fails = script(FAILS.replace("TEMP", repr(folder)).replace("STORE", repr(str(tmp_path / "store"))))
        ran = subprocess.run((sys.executable, str(fails)), capture_output=True, text=True, timeout=2 * PATIENCE_S)
    if "No module named 'pyarrow'" in ran.stderr:
        pytest.skip("pyarrow is not installed, which Ray Train needs: make frameworks")
    (tmp_path / "driver.log").write_text(ran.stdout + ran.stderr)
    told = holdfast("diagnose", tmp_path / "driver.log")
    assert "rank 1: the script looks for a key that is not there (label)" in told.stdout, ran.stdout + ran.stderr + told.output
