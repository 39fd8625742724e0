"""Segments, units and domains in a conversation with the rendezvous: who waits, what is said, and nobody restarted in vain."""

from __future__ import annotations

from kit.stages.round_stage import Job

from holdfast.core.wire.messages import Join
from holdfast.rendezvous.rules import Heard


def arrive(job: Job, nodes: str, *, domain: str, now: float | None = None) -> list[str]:
    answers = []
    for node in nodes:
        join = Join(node=node, name=node, addr=node, master_port=9, nproc=2, role="default", domain=domain)
        answers += job.see(Heard(message=join), now)
    return [type(answer).__name__ for answer in answers]


def test_a_round_forms_as_soon_as_its_segments_are_complete() -> None:
    job = Job("4:4", segment=2)
    assert arrive(job, "abc", domain="x") == []
    assert arrive(job, "d", domain="y") == []  # four nodes, but c and d make no segment
    assert "domain x has 3 nodes, 1 short of 4" in job.machine.gathering.unplaced_why
    assert arrive(job, "e", domain="y") == ["Assigned"] * 4 + ["Waiting"]
    assert job.members() == "abde"


def test_a_job_that_cannot_be_placed_ends_in_time_and_says_why() -> None:
    job = Job("4:4", segment=2, lease_s=1000.0)
    arrive(job, "abc", domain="x")
    arrive(job, "d", domain="y")
    assert job.machine.deadline() <= 60.0
    job.tick(60.0)
    assert job.report.outcome == "failed"
    assert "segment 2: domain y has 1 of 2 nodes" in job.report.reason


def test_a_newcomer_that_completes_nothing_restarts_nobody() -> None:
    job = Job("2:4", node_unit=2, last_call_s=0.0)
    assert job.join("a", "b") and job.machine.phase == "running"
    assert [type(answer).__name__ for answer in job.join("c")] == ["Waiting"]
    assert job.machine.phase == "running"
    assert [type(answer).__name__ for answer in job.join("d")] == ["Stop", "Stop"]  # with it there are four
