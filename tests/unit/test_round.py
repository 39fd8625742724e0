"""Who takes part, told step by step: each test is a conversation with the rendezvous."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.events import Decided, NodeLeft, NodeLost
from holdfast.core.failure import Failure
from holdfast.core.machine import NEVER, Record, Say, Tick
from holdfast.core.messages import (
    Assigned,
    Failed,
    Finish,
    Join,
    Leave,
    Message,
    Refused,
    Renew,
    Renewed,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.core.report import JobReport
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.round import Rendezvous
from holdfast.rendezvous.rules import Heard, HostLeaves, Rules, Tell, Unlinked

LEASE_S = 3.0


class Job:
    """A rendezvous, and what it said to whom."""

    def __init__(self, nodes: str = "2:2", *, max_restarts: int = 3, exclude_after: int = 0, **rules: Any) -> None:
        least, most = (int(part) for part in nodes.split(":"))
        given = {"join_timeout_s": 60.0, "last_call_s": 5.0, "lease_s": LEASE_S, "max_restarts": max_restarts, **rules}
        self.rules = Rules(job="job", min_nodes=least, max_nodes=most, **given)
        self.policy = RestartOnFailure(max_restarts=max_restarts, exclude_after=exclude_after)
        self.machine = Rendezvous(self.rules, self.policy, now=0.0, now_unix=1000.0)
        self.now = 0.0
        self.said: list[tuple[str, Message]] = []
        self.events: list[Any] = []

    def see(self, seen: Any, now: float | None = None) -> list[Message]:
        """Show it something; what it says in answer."""
        self.now = self.now if now is None else now
        actions = self.machine.observe(seen, self.now)
        told = [(action.node, action.message) for action in actions if isinstance(action, Tell)]
        self.said += told
        self.events += [action.event for action in actions if isinstance(action, Record)]
        return [message for _, message in told]

    def hear(self, message: Message, now: float | None = None) -> list[Message]:
        return self.see(Heard(message=message), now)

    def join(self, *nodes: str, now: float | None = None, round: int = 0, rank: int | None = None) -> list[Message]:
        usual: dict[str, Any] = {"master_port": 9, "nproc": 2, "role": "default", "round": round, "wanted_rank": rank}
        return [answer for node in nodes for answer in self.hear(Join(node=node, name=node, addr=node, **usual), now)]

    def comes_back(self, node: str, *, round: int, group_rank: int) -> list[Message]:
        """It had that rank in that round, under another coordinator."""
        usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
        return self.hear(Join(node=node, round=round, group_rank=group_rank, **usual))

    def stopped_and_back(self, *nodes: str, now: float | None = None) -> None:
        """These have stopped their workers, and join again."""
        number = self.machine.round
        for node in nodes:
            self.hear(Stopped(node=node, round=number), now)
            self.join(node, round=number, rank=self.machine.seats[node].join.wanted_rank)

    def fail(self, node: str, *, now: float | None = None, exitcode: int = 1, number: int | None = None) -> list[Message]:
        failure = Failure(node=node, rank=0, local_rank=0, exitcode=exitcode, at_unix=0.0)
        return self.hear(Failed(node=node, round=self.machine.round if number is None else number, failure=failure), now)

    def renew(self, *nodes: str, now: float | None = None) -> list[Message]:
        return [answer for node in nodes for answer in self.hear(Renew(node=node, round=self.machine.round), now)]

    def tick(self, now: float) -> list[Message]:
        return self.see(Tick(), now)

    def members(self) -> str:
        """Who was told to take part in the newest round, by group rank."""
        newest = [(m.group_rank, node) for node, m in self.said if isinstance(m, Assigned) and m.round == self.machine.round]
        return "".join(node for _, node in sorted(newest))

    @property
    def decided(self) -> list[tuple[str, str]]:
        return [(event.decision, event.reason) for event in self.events if isinstance(event, Decided)]

    @property
    def report(self) -> JobReport:
        assert self.machine.report is not None
        return self.machine.report


@pytest.fixture
def job() -> Job:
    """Two nodes of two, in round 1."""
    job = Job()
    job.join("a", "b")
    return job


def kinds(answers: list[Message]) -> list[str]:
    return [type(answer).__name__ for answer in answers]


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
    said = [action.text for action in job.machine.observe(Tick(), 15.0) if isinstance(action, Say)]
    assert said == ["waiting for nodes: 1 of 2 are ready (a); still stopping: b; giving up in 55 s"]


def test_the_only_node_is_not_missing_while_it_stops_its_workers() -> None:
    job = Job("1:1", lease_s=NEVER)
    job.join("a")
    job.fail("a", now=10.0)
    said = [action.text for action in job.machine.observe(Tick(), 15.0) if isinstance(action, Say)]
    assert said == ["waiting for nodes: 0 of 1 are ready; still stopping: a; giving up in 55 s"]


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


# --- leases -----------------------------------------------------------------------------------------------------------------


def test_a_silent_member_is_lost_and_its_ranks_are_not_given_away_before_it_must_have_stopped() -> None:
    job = Job("1:2")
    job.join("a", "b")
    job.renew("a", now=2.0)
    assert job.machine.deadline() == LEASE_S
    job.tick(LEASE_S)
    assert [event.name for event in job.events if isinstance(event, NodeLost)] == ["b"]
    job.stopped_and_back("a", now=3.1)
    assert job.machine.phase == "gathering" and job.machine.deadline() == LEASE_S + FENCE_S
    job.tick(LEASE_S + FENCE_S)
    assert job.machine.round == 2 and job.members() == "a"


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
    assert job.hear(Renew(node="a", round=1, sent_at=123.5)) == [Renewed(lease_s=LEASE_S, sent_at=123.5)]


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
    assert kinds(job.hear(StopJob(node="stranger", reason="alice asked"))) == ["Stop", "Stop"]
    job.hear(Stopped(node="a", round=1))
    job.hear(Stopped(node="b", round=1))
    assert (job.report.outcome, job.report.reason, job.report.exit_code) == ("stopped", "alice asked", 1)


def test_when_its_host_goes_the_job_is_stopped(job: Job) -> None:
    assert kinds(job.see(HostLeaves(reason="a was refused"))) == ["Stop", "Stop"]


def test_the_end_waits_for_workers_that_may_live_and_for_no_longer(job: Job) -> None:
    job.hear(StopJob(node="a", reason="enough"), 1.0)
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
    assert [(failure.node, failure.rank) for failure in job.report.failures] == [("b", 0), ("b", 1), ("a", 2)]


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
        job.machine.resume(round=5, restarts=0, members=3, now=0.0)
    for node, rank in (("a", 2), ("c", 0), ("b", 1)):
        job.comes_back(node, round=5, group_rank=rank)
    job.renew("a", "b", "c", now=LEASE_S - 1.0)
    job.tick(LEASE_S + FENCE_S)
    assert job.members() == "cba" and job.machine.round == 6


def test_a_gap_is_filled_and_a_rank_of_an_older_round_is_nobodys() -> None:
    job = Job("3:3", lease_s=1000.0)
    job.machine.resume(round=5, restarts=0, now=0.0)
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
