"""Where no descriptor is left, a hand that cannot do its work says so, and the agent goes on."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.stages.made_up import assigned

from holdfast.agent.group.messages import MemorySeen, Started, StartFailed
from holdfast.agent.leader.tie_breaker import Witness
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.workers.gpu_memory import GpuLook
from holdfast.agent.workers.workers import Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import NEVER
from holdfast.rendezvous.election.witness_claims import Claim, Claimed
from holdfast.runtime.host import Host

WAITS = """
import os, sys, time
open(f"{sys.argv[1]}/{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}.pid", "w").write(str(os.getpid()))
while not os.path.exists(sys.argv[1] + "/finish"):
    time.sleep(0.01)
"""

CLAIM = Claim(life="l", id=1, endpoint="10.0.0.2:4000")


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_witness_that_cannot_be_asked_is_told_of_and_asked_again(tmp_path: Path) -> None:
    host = Host(lambda what: None)
    witness = Witness(str(tmp_path), host)
    with no_descriptor_left():
        said = witness.perform(CLAIM)
    reason = f"{tmp_path}: it could not be asked: Too many open files"
    assert said == [Claimed(id=1, granted=False, reason=reason)] and not witness.asked
    assert witness.perform(CLAIM) == []
    assert host.wait(NEVER) == [Claimed(id=1, granted=True)]
    host.close()


def test_a_scheduler_that_cannot_be_asked_at_the_start_is_complained_of() -> None:
    complaints: list[str] = []
    host = Host(complaints.append)
    witness = Witness("slurm", host)
    with no_descriptor_left():
        witness.rehearse(CLAIM.endpoint)
    assert complaints == ["the witness cannot help: slurm: it could not be asked: Too many open files"]
    host.close()


def test_gpus_that_cannot_be_asked_for_their_memory_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    host = Host(lambda what: None)
    look = GpuLook(host, {"CUDA_VISIBLE_DEVICES": "0"}, 1, root=str(tmp_path))
    with no_descriptor_left():
        assert look.begin(0.0) == [MemorySeen(trouble="it could not be asked: Too many open files")]
    host.close()


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_an_agent_that_may_open_nothing_more_spends_one_restart_for_one_failure(holdfast, script, tmp_path, wait_until, hard):
    job = holdfast.start("run", "--nproc-per-node", 2, "--max-restarts", 3, script(WAITS), tmp_path)
    pid_of = lambda rank, life: wait_until(lambda: (file := tmp_path / f"{rank}.{life}.pid").exists() and file.read_text())
    before, _ = (int(pid_of(rank, 0)) for rank in range(2))
    (agent,) = [event["pid"] for event in wait_until(lambda: holdfast.events("AgentStarted"))]
    is_open, (_, most) = len(os.listdir(f"/proc/{agent}/fd")), resource.prlimit(agent, resource.RLIMIT_NOFILE)
    resource.prlimit(agent, resource.RLIMIT_NOFILE, (is_open, is_open if hard else most))
    os.kill(before, signal.SIGKILL)
    assert all(pid_of(rank, 1) for rank in range(2))
    (tmp_path / "finish").touch()
    assert job.wait().returncode == 0, job.stderr
    assert [event["decision"] for event in holdfast.events("Decided")] == ["restart", "finish"]
    assert "somebody has lowered this agent's limit of open files" in job.stderr


def test_a_start_that_is_short_of_something_is_tried_again_and_not_a_failure(tmp_path: Path) -> None:
    complaints: list[str] = []
    host = Host(complaints.append)
    config = RunConfig(state_dir=str(tmp_path), training_script="/bin/true", no_python=True, log_dir=os.devnull)
    workers = Workers(config, host, LogPlan.of(config, str(tmp_path), "n"))
    workers.hold_port()
    with no_descriptor_left():
        assert not [seen for seen in workers.start(assigned()) if isinstance(seen, (Started, StartFailed))]
    assert "Too many open files" in complaints[0] and workers.due_at < NEVER
    seen = []
    while not any(isinstance(one, Started) for one in seen):
        host.wait(workers.due_at)
        seen += workers.due()
    assert not any(isinstance(one, StartFailed) for one in seen)
    workers.close()
    host.close()
