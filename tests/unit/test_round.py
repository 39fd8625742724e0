"""Who takes part, told step by step: each test is a conversation with the rendezvous."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.round_stage import LEASE_S, Job, kinds

from holdfast.core.job.failure import Failure
from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.wire.messages import (
    Assigned,
    Join,
    Leave,
    Notice,
    Past,
    Refused,
    Request,
    RequestKind,
    Stop,
    Stopped,
    Succeeded,
)
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.rules import Heard, HostLeaves, Unlinked


@pytest.fixture
def job() -> Job:
    """Two nodes of two, in round 1."""
    job = Job()
    job.join("a", "b")
    return job


# --- the first round --------------------------------------------------------------------------------------------------------


def test_a_round_forms_as_soon_as_everybody_who_may_come_is_there() -> None:
    job = Job("2:2")
    assert job.join("a") == []
    assert kinds(job.join("b")) == ["Assigned", "Assigned"]
    assert job.members() == "ab"


def test_above_the_minimum_a_last_call_is_waited_for() -> None:
    job = Job("2:3")
    job.join("a", "b", now=1.0)
    assert job.machine.deadline() == 1.0 + LEASE_S
    job.renew("a", "b", now=3.5)
    assert kinds(job.tick(6.0)) == ["Assigned", "Assigned"]


def test_the_master_is_the_node_of_group_rank_0_with_the_port_that_it_holds(job: Job) -> None:
    assert {(m.master_addr, m.master_port) for _, m in job.said if isinstance(m, Assigned)} == {("a", 9)}


def test_a_master_that_the_user_named_is_everybodys_master() -> None:
    job = Job(master_addr="head", master_port=29500)
    job.join("a", "b")
    assert {(m.master_addr, m.master_port) for _, m in job.said if isinstance(m, Assigned)} == {("head", 29500)}


def test_too_few_nodes_in_time_end_the_job_and_are_named() -> None:
    job = Job("3:4", lease_s=NEVER)
    job.join("a", "b")
    assert job.machine.deadline() == 5.0, "to say for whom everybody waits"
    assert kinds(job.tick(60.0)) == ["Finish", "Finish"]
    assert job.report.reason == (
        "round 1 had 2 of 3 nodes (a, b) after 60 s. Start the missing nodes, or allow fewer: --nnodes 2:4"
    )
    assert (job.report.outcome, job.report.exit_code) == ("failed", 1)


def test_nodes_that_were_lost_are_named_when_too_few_are_left() -> None:
    job = Job("2:2")
    job.join("a", "b")
    job.see(Heard(message=Join(node="a", name="a", addr="a", master_port=1, nproc=2, role="r", round=1), here=True))
    job.machine.seats["a"].here = True
    job.tick(LEASE_S)
    job.tick(63.0)
    assert "(a) after" in job.report.reason and "; lost before: b." in job.report.reason


def test_whoever_waits_is_told_for_whom() -> None:
    job = Job("2:2")
    job.join("a", "b")
    job.fail("b", now=10.0)
    job.stopped_and_back("a", now=11.0)
    job.renew("a", "b", now=14.0)
    job.tick(15.0)
    waits_for = "round 2 waits for the workers of b, which have not ended yet"
    assert job.said[-1] == ("a", Notice(text=f"{waits_for}; giving up in 55 s", waits_for=waits_for))


def test_the_only_node_is_not_missing_while_it_stops_its_workers() -> None:
    job = Job("1:1", lease_s=NEVER)
    job.join("a")
    job.fail("a", now=10.0)
    said = [action.text for action in job.machine.observe(Tick(), 15.0) if isinstance(action, Say)]
    assert said == ["round 2 waits for the workers of a, which have not ended yet; giving up in 55 s"]


def test_who_waits_for_more_than_enough_is_told_when_it_begins() -> None:
    job = Job("2:4", lease_s=60.0, last_call_s=30.0)
    job.join("a", "b", now=1.0)
    assert job.machine.deadline() == 5.0
    job.tick(5.0)
    waits_for = "round 1 has 2 nodes (a, b), and begins at once when there are 4"
    said = Notice(text=f"{waits_for}; else in 26 s", waits_for=waits_for)
    assert job.said[-2:] == [("a", said), ("b", said)]
    assert job.machine.deadline() == 31.0 and kinds(job.tick(31.0)) == ["Assigned", "Assigned"]


def test_nodes_that_were_not_started_alike_hear_of_it_by_name_and_value() -> None:
    job = Job("3:3")
    usual: dict[str, Any] = {"addr": "x", "master_port": 9, "nproc": 2, "role": "default"}
    for node, nodes in (("a", "3"), ("b", "3"), ("c", "2")):
        job.hear(Join(node=node, name=node, terms={"--nnodes": nodes, "the script": "train.py"}, **usual))
    text = "nodes were not started alike: --nnodes is 2 on c, 3 on a, b"
    assert [(node, said) for node, said in job.said if isinstance(said, Notice)] == [(one, Notice(text=text)) for one in "cab"]


# --- restarts ---------------------------------------------------------------------------------------------------------------


def test_a_failure_stops_everybody_and_the_next_round_waits_for_all(job: Job) -> None:
    assert kinds(job.fail("b", now=50.0)) == ["Stop", "Stop"]
    job.stopped_and_back("b")
    assert job.machine.round == 1
    job.stopped_and_back("a")
    assert job.machine.round == 2 and job.members() == "ab"


def test_a_second_failure_of_the_same_round_spends_nothing(job: Job) -> None:
    job.fail("b", now=50.0)
    assert job.fail("a") == []
    assert job.policy.restarts_left(50.0) == 2 and [decision for decision, _ in job.decided] == ["restart"]


def test_a_failure_right_after_a_peers_link_broke_is_taken_for_its_consequence(job: Job) -> None:
    job.see(Unlinked(node="b"))
    job.fail("a")
    decision, reason = job.decided[-1]
    assert decision == "rejoin" and "the link to b broke" in reason
    assert job.machine.policy.restarts_left(0.0) == 3


def test_a_failure_of_an_older_round_is_late_news(job: Job) -> None:
    job.fail("b", now=50.0)
    job.stopped_and_back("a", "b")
    assert job.fail("b", number=1) == [] and job.machine.phase == "running"


def test_a_thousand_restarts_are_not_kept_in_memory() -> None:
    job = Job("1:1", max_restarts=1000)
    job.join("a")
    for _ in range(1000):
        job.fail("a", now=job.now + 60.0)
        job.stopped_and_back("a")
    job.fail("a", number=7)  # late news, of a round long over
    failures = job.machine.failures
    assert len(failures) == 0 and failures.borne is None
    job.fail("a")
    job.hear(Stopped(node="a", round=job.machine.round))
    assert [failure.exitcode for failure in job.report.failures] == [1]


def test_a_restart_that_is_put_off_waits(job: Job) -> None:
    job.fail("a", now=1.0)
    job.stopped_and_back("a", "b")
    job.fail("a", now=2.0)  # the second instant crash in a row: half a second of pause
    job.stopped_and_back("a", "b")
    assert job.machine.phase == "gathering" and job.machine.deadline() == 2.5
    job.tick(2.5)
    assert job.machine.round == 3


def test_when_no_restart_is_left_everybody_stops_for_good_and_hears_the_report() -> None:
    job = Job(max_restarts=0)
    job.join("a", "b")
    stops = job.fail("a", now=50.0)
    assert [(stop.rejoin if isinstance(stop, Stop) else None) for stop in stops] == [False, False]
    assert job.hear(Stopped(node="a", round=1)) == []
    assert kinds(job.hear(Stopped(node="b", round=1))) == ["Finish", "Finish"]
    assert job.report.reason.endswith("no restarts allowed (--max-restarts 0)")


def test_all_succeeding_ends_the_job_well(job: Job) -> None:
    assert job.hear(Succeeded(node="a", round=1)) == []
    assert kinds(job.hear(Succeeded(node="b", round=1))) == ["Finish", "Finish"]
    assert (job.report.outcome, job.report.exit_code, job.report.failures) == ("succeeded", 0, ())


def test_a_node_that_succeeded_is_stopped_and_runs_again_with_the_others(job: Job) -> None:
    job.hear(Succeeded(node="a", round=1))
    assert kinds(job.fail("b", now=50.0)) == ["Stop", "Stop"]
    job.stopped_and_back("a", "b")
    assert job.members() == "ab" and job.machine.round == 2


def test_a_membership_change_spends_no_restart() -> None:
    job = Job("1:3", max_restarts=0)
    job.join("a", "b", "c")
    job.hear(Leave(node="c", round=1, reason="maintenance"))
    job.hear(Stopped(node="c", round=1))
    job.stopped_and_back("a", "b")
    assert job.members() == "ab" and job.decided == [("rejoin", "c left: maintenance")]


# --- ranks given by the user ------------------------------------------------------------------------------------------------


def test_a_given_rank_that_is_taken_or_impossible_is_refused() -> None:
    job = Job(ranks_given=True)
    job.join("a", rank=0)
    for rank, why in ((0, "already taken by a"), (2, "not within 0 to 1"), (None, "not within 0 to 1")):
        (answer,) = job.join("b", rank=rank)
        assert isinstance(answer, Refused) and why in answer.reason and answer.hint


def test_a_given_rank_passes_from_a_dead_agent_to_its_successor() -> None:
    job = Job(ranks_given=True)
    job.join("a", rank=0)
    job.join("b", rank=1)
    job.see(Unlinked(node="b"), 1.0)
    assert kinds(job.join("b2", rank=1)) == ["Waiting"]
    job.renew("a", "b2", now=2.5)
    job.tick(LEASE_S)
    job.stopped_and_back("a")
    job.tick(LEASE_S + FENCE_S)
    assert job.members() == "ab2"


def test_two_with_the_same_given_rank_do_not_stand_in_for_a_missing_one() -> None:
    job = Job(ranks_given=True)
    job.join("a", rank=0)
    job.see(Unlinked(node="a"))
    job.join("a2", rank=0)
    job.renew("a")
    assert job.machine.phase == "gathering" and job.machine.round == 0


# --- the end ----------------------------------------------------------------------------------------------------------------


def test_an_operator_stops_the_job_through_any_node_even_one_without_a_seat(job: Job) -> None:
    assert kinds(job.hear(Request(node="stranger", kind=RequestKind.STOP, reason="alice asked"))) == ["Stop", "Stop"]
    job.hear(Stopped(node="a", round=1))
    job.hear(Stopped(node="b", round=1))
    assert (job.report.outcome, job.report.reason, job.report.exit_code) == ("stopped", "alice asked", 1)


def test_when_its_host_goes_the_job_is_stopped(job: Job) -> None:
    assert kinds(job.see(HostLeaves(reason="a was refused"))) == ["Stop", "Stop"]


def test_the_end_waits_for_workers_that_may_live_and_for_no_longer(job: Job) -> None:
    job.hear(Request(node="a", kind=RequestKind.STOP, reason="enough"), 1.0)
    job.hear(Stopped(node="a", round=1))
    assert job.machine.phase == "ending" and job.machine.deadline() == LEASE_S
    job.renew("a", now=2.0)
    job.tick(LEASE_S)
    assert job.machine.phase == "ended" and job.machine.deadline() == NEVER


def test_the_report_has_the_first_failure_first_and_the_innocent_last() -> None:
    job = Job(max_restarts=0)
    job.join("a", "b")
    job.fail("b", now=50.0)
    stopped = Failure(node="a", rank=2, local_rank=0, exitcode=-15, at_unix=-1e9, cause="stopped")
    own = Failure(node="b", rank=1, local_rank=1, exitcode=1, at_unix=-1e9)
    job.hear(Stopped(node="a", round=1, failures=(stopped,)), 50.1)
    job.hear(Stopped(node="b", round=1, failures=(own,)), 50.2)
    assert [(failure.node, failure.rank) for failure in job.report.failures] == [("b", 2), ("b", 3), ("a", 0)]


def test_a_node_that_fell_silent_before_a_rank_failed_is_named_before_it() -> None:
    job = Job("2:3", max_restarts=0, last_call_s=0.0)
    job.join("a", "b")
    job.renew("a", "b", now=10.0)
    job.renew("a", now=11.0)
    job.fail("a", now=11.5)
    job.hear(Stopped(node="a", round=1))
    job.tick(10.0 + LEASE_S)
    assert [(failure.node, failure.cause) for failure in job.report.failures] == [("b", "node_lost"), ("a", "exit")]


@pytest.mark.parametrize("nodes", ["1:1", "2:2", "1:3", "3:3"])
def test_a_deadline_that_was_served_is_never_asked_for_again(nodes: str) -> None:
    job = Job(nodes)
    job.join("a", "b", now=0.1)
    for _ in range(20):
        deadline = job.machine.deadline()
        if deadline == NEVER:
            return
        assert deadline > job.now
        job.tick(deadline)
    pytest.fail("it never came to an end")


# --- another coordinator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knows", [True, False])
def test_nodes_keep_their_ranks_under_another_coordinator(knows: bool) -> None:
    """Whether it knows the job's past, from a store, or is only told by those who come."""
    job = Job("3:3")
    if knows:
        job.machine.resume(Past(life="", round=5, restarts=0, members=3), now=0.0)
    for node, rank in (("a", 2), ("c", 0), ("b", 1)):
        job.comes_back(node, round=5, group_rank=rank)
    job.renew("a", "b", "c", now=LEASE_S - 1.0)
    job.tick(LEASE_S + FENCE_S)
    assert job.members() == "cba" and job.machine.round == 6


def test_a_gap_is_filled_and_a_rank_of_an_older_round_is_nobodys() -> None:
    job = Job("3:3", lease_s=1000.0)
    job.machine.resume(Past(life="", round=5, restarts=0), now=0.0)
    job.comes_back("c", round=5, group_rank=0)
    job.comes_back("b", round=5, group_rank=2)
    job.comes_back("a", round=3, group_rank=0)
    job.tick(2000.0)
    assert job.members() == "cab"


def test_a_spare_that_knows_of_a_round_warns_a_coordinator_that_does_not() -> None:
    """Those who run that round may come later than the spares, and their workers live until their leases are over."""
    job = Job("2:2")
    usual: dict[str, Any] = {"addr": "x", "master_port": 9, "nproc": 2, "role": "default", "known_round": 4}
    for node in "ab":
        job.hear(Join(node=node, name=node, **usual))
    assert job.members() == ""
    job.renew("a", "b", now=LEASE_S - 1.0)
    job.tick(LEASE_S + FENCE_S)
    assert (job.members(), job.machine.round) == ("ab", 5)
