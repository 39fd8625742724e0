"""A round that carries on without some of its nodes: the conditions, and the rendezvous that keeps to them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.stages.round_stage import LEASE_S, Job, kinds

from holdfast.core.job.failure import Failure, Position
from holdfast.core.job.policy import Health
from holdfast.core.wire.messages import (
    Failed,
    HangFound,
    Leave,
    Positions,
    Reply,
    Request,
    RequestKind,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.recovery.policy import min_healthy
from holdfast.rendezvous.lease import FENCE_S

COUNT = st.integers(0, 6)


class Tolerant(Job):
    """A job that carries on."""

    def __init__(self, nodes: str, *, max_restarts: int = 3) -> None:
        super().__init__(nodes, max_restarts=max_restarts)
        self.policy.carries_on = True

    def leave(self, node: str) -> list[str]:
        return kinds(self.hear(Leave(node=node, round=self.machine.round, reason="received SIGTERM")))

    def succeed(self, *nodes: str) -> list[str]:
        return [kind for node in nodes for kind in kinds(self.hear(Succeeded(node=node, round=self.machine.round)))]

    @property
    def last(self) -> str:
        return self.decided[-1][0] if self.decided else ""


@pytest.fixture
def job() -> Tolerant:
    """Three nodes of three in round 1, of which two are enough."""
    job = Tolerant("2:3")
    job.join("a", "b", "c")
    return job


# --- the conditions ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 6), COUNT, COUNT, COUNT)
def test_a_verdict_follows_the_two_sums_and_has_a_reason(needed: int, healthy: int, done: int, others: int) -> None:
    said = min_healthy(Health(needed=needed, healthy=healthy, succeeded=done, size=healthy + done + others), "it happened")
    enough = healthy + done >= needed
    assert said.then == ("restart" if not enough else "carry-on" if healthy else "finish")
    assert said.reason and (said.reason.startswith("it happened; ") or not enough)


def test_a_verdict_in_words() -> None:
    health = Health(needed=2, healthy=2, succeeded=0, size=3)
    reason = min_healthy(health, "rank 3 died").reason
    assert reason == "rank 3 died; the others carry on: 2 of 3 nodes healthy (min-healthy: 2)"
    few = Health(needed=2, healthy=0, succeeded=1, size=3)
    assert min_healthy(few, "rank 3 died").reason == "only 1 of 3 nodes healthy, 1 of them done (min-healthy: 2)"


HAPPENINGS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(("fails", "succeeds", "leaves"))), max_size=12)


@given(st.integers(1, 4), HAPPENINGS)
def test_whatever_happens_the_round_ends_when_the_conditions_say_so_and_as_they_say(needed: int, happenings: Any) -> None:
    job = Tolerant(f"{needed}:4")
    job.join("a", "b", "c", "d")
    are = dict.fromkeys("abcd", "healthy")  # final states stick, and a node that has lost a rank does not recover
    spends = False
    for node, what in happenings:
        spends |= are[node] == "healthy" and what == "fails"
        if are[node] == "healthy":
            are[node] = {"fails": "failed", "succeeds": "succeeded", "leaves": "unknown"}[what]
        elif are[node] == "failed" and what == "leaves":
            are[node] = "unknown"
        {"fails": job.fail, "succeeds": job.succeed, "leaves": job.leave}[what](node)
        healthy, done = (list(are.values()).count(state) for state in ("healthy", "succeeded"))
        if not healthy and done >= needed:
            assert job.machine.outcome == "succeeded"
            return
        if healthy + done < needed:
            assert job.machine.phase == "gathering"
            assert job.last == ("restart" if spends else "rejoin")
            return
        assert job.machine.phase == "running"


# --- the rendezvous ---------------------------------------------------------------------------------------------------------


def test_its_nodes_are_told_to_leave_siblings_alone(job: Tolerant) -> None:
    assert all(seat.assigned is not None and seat.assigned.carries_on for seat in job.machine.seats.values())


def test_the_others_are_not_stopped_while_enough_nodes_are_healthy(job: Tolerant) -> None:
    number = job.machine.round
    assert job.fail("c") == [] and job.last == "carry-on"
    assert job.machine.phase == "running" and job.machine.round == number and job.policy.restarts_left(0.0) == 3
    assert job.decided[-1][1].endswith("the others carry on: 2 of 3 nodes healthy (min-healthy: 2)")


def test_more_failures_of_the_same_node_change_nothing(job: Tolerant) -> None:
    job.fail("c")
    decided = len(job.decided)
    assert job.fail("c") == [] and job.hear(Stopped(node="c", round=job.machine.round)) == []
    assert len(job.decided) == decided


def test_one_failure_too_many_restarts_all_once_and_the_first_is_blamed(job: Tolerant) -> None:
    job.fail("c")
    job.hear(Stopped(node="c", round=job.machine.round))  # its last worker has ended, and it waits
    assert kinds(job.fail("b")) == ["Stop", "Stop", "Stop"]
    assert job.decided[-1] == (
        "restart",
        "rank 4 (local 0) on c exited with code 1; restarting all ranks (2 of 3 restarts left); "
        "only 1 of 3 nodes healthy (min-healthy: 2)",
    )
    assert job.policy.restarts_left(0.0) == 2
    job.stopped_and_back("a", "b", "c")
    assert sorted(job.members()) == ["a", "b", "c"]


def test_of_several_failures_borne_with_the_first_is_blamed() -> None:
    job = Tolerant("2:4")
    job.join("a", "b", "c", "d")
    assert job.fail("d") == [] and job.fail("c") == []
    assert kinds(job.fail("b")) == ["Stop"] * 4
    assert job.decided[-1][0] == "restart" and job.decided[-1][1].startswith("rank 6 (local 0) on d exited with code 1; ")


def test_a_lost_node_is_like_one_that_failed(job: Tolerant) -> None:
    now = job.now + LEASE_S
    job.renew("a", "b", now=now - 1)
    assert job.tick(now) == [] and job.last == "carry-on"
    assert job.machine.phase == "running"
    assert job.join("c", round=job.machine.round) == [
        Waiting(round=job.machine.round, reason="nobody is restarted for a newcomer (min-healthy)")
    ]


def test_losses_alone_spend_no_restart_but_failures_borne_with_do(job: Tolerant) -> None:
    assert job.leave("c") == [] and job.last == "carry-on"
    assert job.leave("b") == ["Stop"] and job.last == "rejoin" and job.policy.restarts_left(0.0) == 3
    job.hear(Stopped(node="b", round=job.machine.round))
    job.hear(Stopped(node="c", round=job.machine.round))
    job.stopped_and_back("a")
    job.join("d")
    assert job.machine.phase == "running"
    again = Tolerant("2:3")
    again.join("a", "b", "c")
    again.fail("c")
    assert "Stop" in again.leave("b") and again.last == "restart" and again.policy.restarts_left(0.0) == 2


def test_without_a_restart_left_the_job_fails_where_it_could_not_carry_on() -> None:
    job = Tolerant("2:2", max_restarts=0)
    job.join("a", "b")
    job.fail("b")
    assert job.machine.phase == "ending" and job.machine.outcome == "failed"


def test_it_succeeds_when_enough_have_whatever_became_of_the_rest(job: Tolerant) -> None:
    job.fail("c")
    assert job.succeed("a") == []
    assert job.succeed("b") == ["Stop"]  # what is left of c
    assert job.machine.phase == "ending"
    job.hear(Stopped(node="c", round=job.machine.round))
    assert (job.report.outcome, job.report.exit_code) == ("succeeded", 0)
    assert job.report.reason == ("b is the last to have done its part; 2 nodes succeeded, and that is enough (min-healthy: 2)")


def test_a_success_counts_although_its_node_has_left(job: Tolerant) -> None:
    job.succeed("a")
    job.leave("a")
    job.fail("c")
    assert job.last == "carry-on"
    job.succeed("b")
    assert job.machine.outcome == "succeeded"


def test_an_excluded_node_is_stopped_alone(job: Tolerant) -> None:
    said = job.hear(Request(node="a", kind=RequestKind.EXCLUDE, target="c", ask=1, reason="its fan is broken"))
    assert kinds(said) == ["Stop", "Reply"] and isinstance(said[-1], Reply)
    assert said[-1].text == "c is excluded: the others carry on without it"
    number = job.machine.round
    job.hear(Stopped(node="c", round=number))
    assert job.join("c", round=number) == [Waiting(round=number, reason="excluded: its fan is broken")]
    assert job.machine.phase == "running" and job.machine.round == number


def test_a_spare_takes_its_place_only_when_the_others_cannot_carry_on() -> None:
    job = Tolerant("2:2")
    job.join("a", "b", "spare")
    assert kinds(job.hear(Request(node="a", kind=RequestKind.EXCLUDE, target="b", ask=1, reason="its fan is broken"))) == [
        "Stop",
        "Stop",
        "Reply",
    ]
    job.stopped_and_back("a", "b")
    assert [node for node, seat in job.machine.seats.items() if seat.state == "running"] == ["a", "spare"]


def test_a_node_that_stops_by_itself_is_left_behind(job: Tolerant) -> None:
    number = job.machine.round
    job.hear(Stopped(node="c", round=number))
    assert kinds(job.join("c", round=number)) == ["Waiting"] and job.last == "carry-on"


def test_the_next_round_waits_for_the_fence_of_a_node_lost_while_others_carried_on(job: Tolerant) -> None:
    now = job.now + LEASE_S
    job.renew("a", "b", now=now - 1)
    job.tick(now)
    job.fail("b", now=now)
    job.stopped_and_back("a", "b", now=now)
    assert job.machine.phase == "gathering"
    job.tick(now + FENCE_S)
    assert job.machine.phase == "running"


def test_of_ranks_that_hang_together_the_one_to_blame_is_named_once(job: Tolerant) -> None:
    number = job.machine.round
    job.hear(HangFound(node="b", round=number, rank=2, reason="no heartbeat for 12 s", within_s=1.0))
    for node, rank in (("b", 2), ("c", 4)):
        hung = Failure(node=node, rank=rank, local_rank=0, cause="hung", message="hung: no heartbeat", at_unix=0.0)
        assert job.hear(Failed(node=node, round=number, failure=hung)) == []
    assert job.decided == []  # until all have looked
    for node, rank in (("a", 0), ("b", 2), ("c", 4)):
        stopped = Position(rank=rank, local_rank=0, pid=rank, overdue="12 s", quiet_s=12.0, state="T" if node == "c" else "S")
        job.hear(Positions(node=node, round=number, positions=(stopped,)))
    ((decision, reason),) = job.decided
    assert decision == "restart" and reason.startswith("rank 4 (local 0) on c hung")
    assert reason.endswith("only 1 of 3 nodes healthy (min-healthy: 2)")
