"""What a worker asks for by its page: its node left out, the job stopped, all ranks restarted. The answer comes at once."""

from __future__ import annotations

import signal

import pytest
from kit.stages.group_stage import GRACE_S, Stage
from kit.stages.round_stage import Job, kinds

from holdfast.agent.group.messages import ControlAsked, Reached, SignalWorkers
from holdfast.agent.group.state import Phase
from holdfast.agent.group.stopping import LAST_WORDS_S
from holdfast.core.errors import ProtocolError
from holdfast.core.job.events import ControlRequested, NodeExcluded
from holdfast.core.machine import NEVER, Tick
from holdfast.core.wire.messages import Join, Message, Reply, Request, RequestKind, Stop, Stopped, Waiting
from holdfast.runtime.net.codec import decode

WHO = "rank 3 on b asked to"


def asks(job: Job, kind: str, *, node: str = "b", number: int | None = None) -> list[Message]:
    number = job.machine.round if number is None else number
    return job.hear(Request(node=node, round=number, kind=RequestKind(kind), rank=3, reason="uncorrectable ECC error"))


@pytest.fixture
def job() -> Job:
    """Two nodes of two in round 1, and a spare."""
    job = Job()
    job.join("a", "b", "c")
    return job


# --- the coordinator --------------------------------------------------------------------------------------------------------


def test_an_excluded_node_is_stopped_at_once_and_a_spare_takes_its_place(job: Job) -> None:
    assert kinds(asks(job, "exclude")) == ["Stop", "Stop"]
    assert job.decided[-1] == ("rejoin", f"{WHO} exclude its node: uncorrectable ECC error")
    job.stopped_and_back("a", "b")
    assert job.members() == "ac" and job.policy.restarts_left(0.0) == 3
    assert ("b", Waiting(round=2, reason="excluded: uncorrectable ECC error")) in job.said
    assert [event.by for event in job.events if isinstance(event, NodeExcluded)] == ["script"]


def test_without_a_spare_the_job_shrinks() -> None:
    job = Job("1:2")
    job.join("a", "b")
    asks(job, "exclude")
    job.stopped_and_back("a", "b")
    assert job.members() == "a"


def test_a_node_that_is_needed_stays_and_the_reason_is_told() -> None:
    job = Job()
    job.join("a", "b")
    assert asks(job, "exclude") == [] and job.machine.phase == "running"
    decision, reason = job.decided[-1]
    assert decision == "carry-on" and "not done, since the job cannot go on without it: 1 of the 2 nodes needed" in reason


def test_what_could_not_be_done_is_done_when_another_launcher_comes() -> None:
    job = Job()
    job.join("a", "b")
    asks(job, "exclude")
    assert kinds(job.join("c", now=7.0)) == ["Stop", "Stop"], "it costs no restart"
    assert job.decided[-1] == ("rejoin", "b is excluded, as was asked for 7 s ago: uncorrectable ECC error")
    job.stopped_and_back("a", "b")
    assert job.members() == "ac" and job.policy.restarts_left(0.0) == 3


def test_it_is_done_as_the_next_round_forms_where_another_has_come_meanwhile() -> None:
    job = Job()
    job.join("a", "b")
    asks(job, "exclude")
    job.fail("b")
    assert job.join("c") == []
    job.stopped_and_back("a", "b")
    assert job.members() == "ac" and [event.name for event in job.events if isinstance(event, NodeExcluded)] == ["b"]


def test_it_is_remembered_by_the_next_coordinator_and_forgotten_once_the_node_is_readmitted() -> None:
    job = Job()
    job.join("a", "b")
    asks(job, "exclude")
    kept, heir = job.machine.excluded.kept(3.0), Job()
    assert [(one.name, one.wanted, one.age_s) for one in kept] == [("b", True, 3.0)]
    heir.machine.excluded.resume(kept, 0.0)
    heir.join("a", "b")
    assert not heir.machine.excluded.why("b") and kinds(heir.join("c")) == ["Stop", "Stop"]
    heir.machine.excluded.remove("b")
    assert not heir.machine.excluded.wanted


def test_it_is_left_out_too_when_its_worker_s_end_is_known_first(job: Job) -> None:
    job.fail("b")
    assert asks(job, "exclude") == []
    job.stopped_and_back("a", "b")
    assert job.members() == "ac"


def test_a_worker_that_asks_and_then_fails_costs_one_stop_and_no_restart(job: Job) -> None:
    asks(job, "exclude")
    assert job.fail("b") == [] and job.policy.restarts_left(0.0) == 3


def test_what_is_asked_twice_is_done_once(job: Job) -> None:
    asks(job, "exclude")
    assert asks(job, "exclude") == [] and len([e for e in job.events if isinstance(e, NodeExcluded)]) == 1


def test_a_stop_ends_the_job_on_every_node(job: Job) -> None:
    assert kinds(asks(job, "stop")) == ["Stop", "Stop"]
    assert kinds(job.hear(Stopped(node="a", round=1))) == []
    assert kinds(job.hear(Stopped(node="b", round=1))) == ["Finish"] * 3
    assert (job.report.outcome, job.report.exit_code) == ("stopped", 1)
    assert job.report.reason == f"{WHO} stop the job: uncorrectable ECC error"


def test_a_restart_spends_one_and_many_who_ask_for_it_get_one(job: Job) -> None:
    assert kinds(asks(job, "restart")) == ["Stop", "Stop"]
    assert asks(job, "restart", node="a") == []
    assert job.policy.restarts_left(0.0) == 2 and job.decided[-1][0] == "restart"
    assert job.decided[-1][1] == (
        "rank 3 on b asked for a restart: uncorrectable ECC error; restarting all ranks (2 of 3 restarts left)"
    )
    job.stopped_and_back("a", "b")
    assert asks(job, "restart", number=1) == [] and job.machine.phase == "running"  # it was about the round before


def test_without_a_restart_left_a_wish_for_one_ends_the_job() -> None:
    job = Job(max_restarts=0)
    job.join("a", "b")
    asks(job, "restart")
    assert job.machine.outcome == "failed" and "no restarts allowed" in job.decided[-1][1]


@pytest.mark.parametrize("budget", [0, 1])
def test_an_operator_is_told_that_no_restart_is_left_and_the_job_goes_on(budget: int) -> None:
    job = Job(max_restarts=budget)
    job.join("a", "b")
    wish = Request(node="a", round=1, kind=RequestKind.RESTART, ask=7, reason="a new config")
    said = [message for message in job.hear(wish) if isinstance(message, Reply)]
    assert [reply.ok for reply in said] == [budget > 0] and said[0].ask == 7
    if budget:
        assert "an operator of a asked for a restart: a new config; restarting all ranks (0 of 1" in said[0].text
        assert not next(one for one in job.hear(wish) if isinstance(one, Reply)).ok, "its round is over"
    else:
        assert "no restarts allowed (--max-restarts 0): the job would end" in said[0].text
        assert job.machine.phase == "running"


def test_an_operator_s_restarts_are_no_crashes_at_once() -> None:
    job = Job(max_restarts=5)
    job.join("a", "b")
    for number in range(1, 5):
        job.hear(Request(node="a", round=number, kind=RequestKind.RESTART, ask=number, reason="once more"))
        job.stopped_and_back("a", "b")
    assert job.machine.round == 5 and not any("at once" in reason for _, reason in job.decided)


def test_a_kind_that_nobody_knows_is_no_message() -> None:
    assert decode(b'{"is":"Request","node":"a","kind":"stop"}') == Request(node="a", kind=RequestKind.STOP)
    with pytest.raises(ProtocolError, match="dance"):
        decode(b'{"is":"Request","node":"a","kind":"dance"}')


# --- a node -----------------------------------------------------------------------------------------------------------------


def asked(stage: Stage, kind: str) -> list[Message]:
    stage.see(ControlAsked(local_rank=1, kind=kind, reason="uncorrectable ECC error"))
    return stage.said


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.run()
    return stage


def test_a_wish_is_passed_on_and_recorded(stage: Stage) -> None:
    assert asked(stage, "exclude") == [
        Request(node="n1-id", round=1, kind=RequestKind.EXCLUDE, rank=5, reason="uncorrectable ECC error")
    ]
    assert stage.recorded == [ControlRequested(rank=5, local_rank=1, kind="exclude", reason="uncorrectable ECC error")]
    assert stage.group.phase is Phase.RUNNING


def test_one_to_continue_is_recorded_only(stage: Stage) -> None:
    assert asked(stage, "continue") == [] and len(stage.recorded) == 1


def test_a_wish_of_a_worker_that_has_failed_is_passed_on_too(stage: Stage) -> None:
    stage.end(1, 1)
    assert [message.kind for message in asked(stage, "stop") if isinstance(message, Request)] == ["stop"]


def test_whoever_has_asked_may_end_by_itself_for_a_second_and_is_asked_to_stop_then(stage: Stage) -> None:
    asked(stage, "stop")
    stage.told(Stop(round=1, reason="rank 5 asked", rejoin=False), now=0.5)
    assert stage.only(SignalWorkers).local_ranks == (0,)
    assert stage.group.deadline() == 0.5 + LAST_WORDS_S
    stage.see(Tick(), now=0.5 + LAST_WORDS_S)
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(1,), signum=signal.SIGTERM)
    assert stage.group.deadline() == 0.5 + GRACE_S


def test_what_it_says_at_its_end_is_kept_with_its_failure(stage: Stage) -> None:
    asked(stage, "stop")
    stage.told(Stop(round=1, reason="rank 5 asked", rejoin=False))
    stage.end(1, 1, message="BadLoss: loss is nan")
    stage.end(0, -signal.SIGTERM)
    (stopped,) = stage.said
    assert isinstance(stopped, Stopped)
    assert {failure.local_rank: failure.cause for failure in stopped.failures} == {1: "exception", 0: "stopped"}
    assert stage.group.deadline() == NEVER


# --- how far the job is -----------------------------------------------------------------------------------------------------


def test_a_node_says_how_far_the_job_has_come_when_it_joins() -> None:
    stage = Stage()
    stage.see(Reached(reached=1200))
    (join,) = [action.message for action in stage.group.begin(1.0) if hasattr(action, "message")]
    assert isinstance(join, Join) and join.reached == 1200
