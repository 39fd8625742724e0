"""Where no descriptor is left, a hand that cannot do its work says so, and the agent goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.agent.group.messages import MemorySeen
from holdfast.agent.leader.tie_breaker import Witness
from holdfast.agent.workers.gpu_memory import GpuLook
from holdfast.core.machine import NEVER
from holdfast.rendezvous.election.witness_claims import Claim, Claimed
from holdfast.runtime.host import Host

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
