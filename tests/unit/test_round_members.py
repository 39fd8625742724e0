"""Members of a round that fall silent, leave or come: what becomes of it, and of their places."""

from __future__ import annotations

import pytest
from kit.stages.round_stage import LEASE_S, Job, kinds

from holdfast.core.job.events import NodeLeft, NodeLost
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import (
    Finish,
    Join,
    Leave,
    Renew,
    Renewed,
    Request,
    RequestKind,
    Saving,
    Stop,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.rendezvous.coordinator.gathering import SETTLE_S
from holdfast.rendezvous.lease import FENCE_S, KILL_S, fence_after_loss_s, granted
from holdfast.rendezvous.rules import Heard, Unlinked
from holdfast.runtime.process.guardian import STRIKE_S


@pytest.fixture
def job() -> Job:
    """Two nodes of two, in round 1."""
    job = Job()
    job.join("a", "b")
    return job


# --- leases -----------------------------------------------------------------------------------------------------------------


def test_a_silent_member_is_lost_and_its_ranks_are_not_given_away_before_it_must_have_stopped() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.renew("a", now=2.0)
    assert job.machine.deadline() == LEASE_S
    job.tick(LEASE_S)
    assert [event.name for event in job.events if isinstance(event, NodeLost)] == ["b"]
    job.stopped_and_back("a", now=3.1)
    assert job.machine.phase == "gathering" and job.machine.deadline() == LEASE_S + fence_after_loss_s(LEASE_S)
    job.tick(LEASE_S + fence_after_loss_s(LEASE_S))
    assert job.machine.round == 2 and job.members() == "a"


@pytest.mark.parametrize("lease_s", [0.1, 0.5, 1.0, 3.0, 60.0])
def test_a_member_s_workers_are_dead_before_it_may_be_replaced_however_long_its_lease(lease_s: float) -> None:
    killed_at, replaced_at = granted(lease_s) + KILL_S, lease_s + fence_after_loss_s(lease_s)
    struck_at = granted(lease_s) + STRIKE_S  # by the guardian, where the agent did not
    assert max(killed_at, struck_at) <= replaced_at - 0.19, "time to die, and for clocks that drift"


def test_a_lost_spare_fences_nothing() -> None:
    job = Job("1:1")
    job.join("a", "b")
    job.renew("a", now=2.5)
    job.tick(LEASE_S)
    job.fail("a", now=3.0)
    job.stopped_and_back("a")
    assert job.machine.round == 2


def test_a_broken_link_alone_costs_nothing(job: Job) -> None:
    assert job.see(Unlinked(node="b"), 1.0) == [] and job.machine.phase == "running"


def test_only_a_tick_ends_a_lease_so_that_what_has_come_meanwhile_is_heard_first(job: Job) -> None:
    """The process was stopped for 10 s; everybody's Renew lies in its sockets."""
    assert kinds(job.renew("a", "b", now=10.0)) == ["Renewed", "Renewed"]
    assert job.tick(10.0) == [] and job.machine.phase == "running"


def test_the_member_in_our_own_process_needs_no_lease() -> None:
    job = Job("1:1")
    job.see(Heard(message=Join(node="a", name="a", addr="a", master_port=1, nproc=1, role="r"), here=True))
    assert job.machine.deadline() == NEVER


def test_a_renewal_is_answered_with_the_time_at_which_it_was_sent(job: Job) -> None:
    assert job.hear(Renew(node="a", round=1, sent_at=123.5)) == [
        Renewed(lease_s=granted(LEASE_S), sent_at=123.5, at_unix=1000.0)
    ]


def test_a_stop_that_may_have_been_lost_is_said_with_every_renewal(job: Job) -> None:
    job.fail("a", now=50.0)
    assert kinds(job.renew("b")) == ["Renewed", "Stop"]
    job.hear(Stopped(node="b", round=1))
    assert kinds(job.renew("b")) == ["Renewed", "Stop"]
    job.join("b", round=1)
    assert kinds(job.renew("b")) == ["Renewed"]


def test_an_assignment_that_may_have_been_lost_is_said_again_to_a_repeated_join(job: Job) -> None:
    assert kinds(job.join("b", round=0)) == ["Assigned"]
    job.fail("a", now=50.0)
    assert kinds(job.join("b", round=0)) == ["Assigned", "Stop"]


def test_a_node_that_was_given_up_is_told_to_stop_and_to_come_back() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.renew("a", now=2.0)
    job.tick(LEASE_S)
    (answer,) = job.hear(Renew(node="b", round=1), 3.5)
    assert isinstance(answer, Stop) and answer.rejoin and answer.round == 1


def test_a_spare_that_was_given_up_is_asked_to_join_again_not_refused(job: Job) -> None:
    (answer,) = job.hear(Renew(node="spare", round=0))
    assert isinstance(answer, Stop) and answer.rejoin and answer.round == 0


def test_a_member_that_has_done_its_part_may_fall_silent() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.hear(Succeeded(node="b", round=1), 1.0)
    job.renew("a", now=2.0)
    assert job.tick(4.0) == [] and job.machine.phase == "running"
    assert kinds(job.hear(Succeeded(node="a", round=1), 4.5)) == ["Finish", "Finish"]


def test_a_member_that_stopped_by_itself_makes_the_others_regroup(job: Job) -> None:
    assert "Stop" in kinds(job.hear(Stopped(node="b", round=1))), "whoever has no workers left cannot be waited for"
    assert job.decided == [("rejoin", "b stopped its workers by itself")]
    assert kinds(job.join("b", round=1)) == [] and len(job.decided) == 1, "its word that it is ready is no second reason"


def test_a_member_that_is_ready_again_without_a_word_makes_the_others_regroup(job: Job) -> None:
    assert kinds(job.join("b", round=1)) == ["Stop"]
    assert job.decided == [("rejoin", "b stopped its workers by itself")]


# --- leaving ----------------------------------------------------------------------------------------------------------------


def test_a_leaving_node_is_waited_for_only_until_its_workers_are_gone() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.hear(Leave(node="b", round=1, reason="received SIGTERM"))
    job.stopped_and_back("a")
    job.see(Unlinked(node="b"))
    assert job.machine.phase == "gathering", "its link is gone, but its workers may not be"
    job.hear(Stopped(node="b", round=1))
    assert job.members() == "a" and job.machine.round == 2


def test_a_node_that_crashes_while_leaving_is_waited_for_until_its_lease_and_fence_are_over() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.hear(Leave(node="b", round=1, reason="received SIGTERM"))
    job.stopped_and_back("a", now=2.9)
    job.tick(LEASE_S)
    assert [event.name for event in job.events if isinstance(event, NodeLeft)] == ["b"]
    job.tick(LEASE_S + FENCE_S)
    assert job.machine.round == 2


def test_a_waiting_node_that_leaves_disturbs_nobody(job: Job) -> None:
    job.join("spare")
    assert job.hear(Leave(node="spare", round=0, reason="received SIGTERM")) == []
    assert job.machine.phase == "running"


def test_a_node_that_has_done_its_part_may_leave(job: Job) -> None:
    job.hear(Succeeded(node="b", round=1))
    assert job.hear(Leave(node="b", round=1, reason="received SIGTERM")) == []
    assert kinds(job.hear(Succeeded(node="a", round=1))) == ["Finish"] and job.report.outcome == "succeeded"


# --- newcomers --------------------------------------------------------------------------------------------------------------


def test_a_newcomer_below_the_maximum_makes_the_job_grow() -> None:
    job = Job("1:2", last_call_s=0.0)
    job.join("a")
    assert kinds(job.join("b")) == ["Stop"]
    job.stopped_and_back("a")
    assert job.members() == "ab" and job.decided == [("rejoin", "b joined")]


HAPPENS = {
    "a node joins": lambda job: job.join("c"),
    "a rank fails": lambda job: job.fail("b"),
    "a member stops its ranks by itself": lambda job: job.hear(Stopped(node="b", round=1)),
    "a member is lost": lambda job: [*job.renew("a", now=2.0), *job.tick(LEASE_S)],
}


@pytest.mark.parametrize("what", HAPPENS)
def test_only_a_stop_for_a_newcomer_says_that_nothing_has_failed(what: str) -> None:
    job = Job("2:3", last_call_s=0.0, grow="at-once")
    job.join("a", "b")
    stops = [answer for answer in HAPPENS[what](job) if isinstance(answer, Stop)]
    assert {stop.regrouped for stop in stops} == {what == "a node joins"}


def test_a_newcomer_above_the_maximum_waits(job: Job) -> None:
    assert job.join("c") == [Waiting(round=1, reason="the job has its 2 nodes")] and job.machine.phase == "running"


@pytest.mark.parametrize(("grow", "then"), [("at-once", "abc"), ("next-failure", "ab"), ("never", "ab")])
def test_a_newcomer_restarts_the_others_only_where_the_job_grows_at_once(grow: str, then: str) -> None:
    job = Job("2:3", last_call_s=0.0, grow=grow)
    job.join("a", "b", "c")
    if grow == "at-once":
        job.stopped_and_back("a", "b")
    assert (job.members(), job.machine.phase) == (then, "running")


@pytest.mark.parametrize(("grow", "then"), [("next-failure", "abc"), ("never", "ab")])
def test_at_the_next_failure_a_waiting_newcomer_is_taken_in_or_not(grow: str, then: str) -> None:
    job = Job("2:3", last_call_s=0.0, grow=grow)
    job.join("a", "b", "c")
    job.fail("b")
    job.stopped_and_back("a", "b")
    assert job.members() == then


@pytest.mark.parametrize("grow", ["next-failure", "never"])
def test_a_newcomer_takes_a_lost_nodes_place_whether_the_job_may_grow_or_not(grow: str) -> None:
    job = Job("1:3", last_call_s=0.0, grow=grow)
    job.join("a")
    job.join("b")
    job.fail("a")
    job.stopped_and_back("a")
    job.hear(Leave(node="a", round=job.machine.round, reason="goes"))
    job.hear(Stopped(node="a", round=job.machine.round))
    assert job.members()[-1] == "b"


def saving(*nodes: str, open: bool) -> list[Saving]:
    return [Saving(node=node, round=1, open=open) for node in nodes]


@pytest.fixture
def growing() -> Job:
    """A job of a and b that grows after a checkpoint, 10 s after whatever came last; c comes when it has run for 5 s."""
    job = Job("2:4", last_call_s=0.0, lease_s=1000.0, grow="at-checkpoint", grow_after_s=10.0)
    job.join("a", "b")
    said = job.join("c", now=5.0)
    assert said == [Waiting(round=1, reason="the job takes it in after a checkpoint, 10 s from now at the earliest")]
    return job


def test_a_newcomer_is_taken_in_when_a_checkpoint_has_been_written(growing: Job) -> None:
    for saved in saving("a", "b", open=True) + saving("a", "b", open=False):
        assert growing.hear(saved, now=20.0) == []
    assert growing.machine.deadline() == 20.0 + SETTLE_S and growing.tick(20.2) == []
    assert kinds(growing.tick(20.0 + SETTLE_S)) == ["Stop", "Stop"]
    growing.stopped_and_back("a", "b")
    assert growing.members() == "abc"
    assert growing.decided == [("rejoin", "c joined, and a checkpoint has been written")]


def test_a_job_does_not_grow_while_anybody_writes(growing: Job) -> None:
    for saved in saving("a", "b", open=True) + saving("a", open=False):
        growing.hear(saved, now=20.0)
    assert growing.tick(30.0) == []
    growing.hear(Saving(node="b", round=1, open=False), now=31.0)
    growing.hear(Saving(node="a", round=1, open=True), now=31.2)  # a second file
    assert growing.tick(33.0) == [] and growing.machine.phase == "running"


@pytest.mark.parametrize("at", [12.0, 14.4])
def test_before_the_hold_off_is_over_a_checkpoint_is_passed_by(growing: Job, at: float) -> None:
    growing.hear(Saving(node="a", round=1, open=False), now=at)
    assert growing.tick(at + SETTLE_S) == [] and growing.machine.deadline() >= 1000.0
    growing.hear(Saving(node="a", round=1, open=False), now=14.6)
    assert kinds(growing.tick(14.6 + SETTLE_S)) == ["Stop", "Stop"]


def test_a_job_that_ends_waits_for_no_checkpoint(growing: Job) -> None:
    growing.hear(Saving(node="a", round=1, open=False), now=20.0)
    growing.hear(Request(node="a", kind=RequestKind.STOP, reason="enough"))
    assert growing.machine.deadline() > 20.0 + SETTLE_S


def test_what_was_written_in_another_round_or_by_a_spare_counts_for_nothing(growing: Job) -> None:
    for saved in (Saving(node="a", round=2, open=False), Saving(node="c", round=1, open=False)):
        growing.hear(saved, now=50.0)
    assert growing.tick(60.0) == [] and growing.machine.phase == "running"


def test_nobody_restarts_after_a_checkpoint_for_a_node_that_is_excluded(growing: Job) -> None:
    growing.hear(Request(node="a", kind=RequestKind.EXCLUDE, target="c", ask=1, reason="sick"))
    growing.hear(Saving(node="a", round=1, open=False), now=20.0)
    assert growing.tick(25.0) == [] and growing.machine.phase == "running"


def test_a_job_that_grows_after_checkpoints_takes_a_newcomer_with_it_when_it_restarts_anyway(growing: Job) -> None:
    growing.fail("b")
    growing.stopped_and_back("a", "b")
    assert growing.members() == "abc"


def test_a_job_that_never_grows_comes_back_to_its_size_at_the_next_restart() -> None:
    job = Job("1:4", grow="never", last_call_s=1.0, lease_s=1000.0)
    job.join("a", "b", "c")
    job.tick(1.0)
    job.hear(Leave(node="c", round=1, reason="goes"))
    job.hear(Stopped(node="c", round=1))
    job.stopped_and_back("a", "b")
    assert job.members() == "ab"
    job.join("d", "e")
    assert job.machine.phase == "running"
    job.fail("a")
    job.stopped_and_back("a", "b")
    assert job.members() == "abd"


def test_nobody_is_made_to_start_again_once_somebody_has_finished() -> None:
    job = Job("2:3", last_call_s=0.0)
    job.join("a", "b")
    job.hear(Succeeded(node="a", round=1))
    assert kinds(job.join("c")) == ["Waiting"] and job.machine.phase == "running"


def test_whoever_comes_late_is_told_how_the_job_ended(job: Job) -> None:
    job.hear(Succeeded(node="a", round=1))
    job.hear(Succeeded(node="b", round=1))
    assert job.join("late", round=1) == [Finish(report=job.report)]
    assert job.join("new") == [], "of the job's next run, as far as anybody knows"
    assert job.renew("a") == [Finish(report=job.report)]
    assert job.hear(Leave(node="a", round=1, reason="the job is over")) == []


def test_a_coordinator_in_a_new_life_numbers_its_rounds_on_and_waits_for_leases_of_the_old_one() -> None:
    job = Job("1:2", last_call_s=0.0)
    job.join("a", round=7)
    assert job.machine.phase == "gathering" and job.machine.deadline() == LEASE_S
    job.renew("a", now=2.0)
    job.tick(LEASE_S + FENCE_S)
    assert job.machine.round == 8
