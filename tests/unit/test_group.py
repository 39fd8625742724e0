"""One node's workers through the rounds of a job, told step by step: what it sees, what it does, what it says."""

from __future__ import annotations

import signal

import pytest
from kit.stages.group_stage import JOIN, REPORT, Stage, assigned, running

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import (
    Ended,
    Ending,
    Exit,
    FromCoordinator,
    KillWorkers,
    PortHeld,
    Send,
    SignalWorkers,
    Started,
    StartFailed,
    StartWorkers,
    Sweep,
    TimerExpired,
    ToCoordinator,
)
from holdfast.agent.group.state import Phase, State
from holdfast.core.job.failure import Evidence, Failure
from holdfast.core.machine import NEVER, Record, Say, Signalled
from holdfast.core.value import replace
from holdfast.core.wire.messages import (
    Failed,
    Finish,
    Join,
    Message,
    Notice,
    Refused,
    Renew,
    Reply,
    Request,
    RequestKind,
    Stop,
    Stopped,
    Succeeded,
    Waiting,
)


@pytest.fixture
def stage() -> Stage:
    return running()


# --- joining and succeeding -------------------------------------------------------------------------------------------------


def test_it_joins_with_the_port_that_it_holds() -> None:
    group = Group(State(join=JOIN, grace_s=1.0, hosting=False))
    group.observe(PortHeld(master_port=4711), 0.0)
    (join,) = [action.message for action in group.begin(0.0) if isinstance(action, Send)]
    assert join == Join(node="n1-id", name="n1", addr="n1", master_port=4711, nproc=2, role="default", round=0)


def test_an_assignment_starts_the_workers(stage: Stage) -> None:
    fresh = Stage()
    fresh.told(assigned())
    assert fresh.only(StartWorkers).assigned == assigned() and stage.group.phase is Phase.RUNNING


def test_an_assignment_that_comes_twice_starts_them_once(stage: Stage) -> None:
    assert stage.told(assigned()) == []


def test_it_has_succeeded_when_the_last_worker_exited_with_0(stage: Stage) -> None:
    stage.end(0, 0)
    assert stage.said == []
    stage.end(1, 0)
    (said,) = stage.said
    assert isinstance(said, Succeeded) and [one.rank for one in said.exited] == [4, 5]


def test_a_worker_that_is_dying_well_is_not_gone_yet(stage: Stage) -> None:
    stage.end(0, 0)
    stage.end(1, 0, gone=False)
    assert stage.said == [] and stage.group.phase is Phase.RUNNING


# --- failing ----------------------------------------------------------------------------------------------------------------


def test_the_first_failure_stops_the_siblings_and_is_told_at_once(stage: Stage) -> None:
    stage.end(0, -9, gone=False, at=77.0)
    (failed,) = stage.said
    assert isinstance(failed, Failed)
    failure = failed.failure
    assert (failure.rank, failure.cause, failure.exitcode, failure.at_unix) == (4, "signal", -9, 77.0)
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(1,), signum=signal.SIGTERM)


def test_when_all_are_gone_it_reports_every_failure_and_waits_for_the_decision(stage: Stage) -> None:
    stage.end(0, 1)
    stage.end(1, -signal.SIGTERM)
    (stopped,) = stage.said
    assert isinstance(stopped, Stopped) and [failure.cause for failure in stopped.failures] == ["exit", "stopped"]
    assert stage.does(Sweep) and stage.group.phase is Phase.STOPPED
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    assert [type(message) for message in stage.said] == [Join]


def test_the_decision_may_come_before_the_workers_are_gone(stage: Stage) -> None:
    stage.end(0, 1)
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    stage.end(1, -signal.SIGTERM)
    assert [type(message) for message in stage.said] == [Stopped, Join]


def test_a_failure_seen_twice_is_one_failure_with_the_later_details(stage: Stage) -> None:
    stage.end(0, 1, gone=False, at=5.0)
    stage.end(0, 1, at=6.0, message="ValueError: bad")
    assert not any(isinstance(message, Failed) for message in stage.said)
    failure = stage.group.workers.failures[0]
    assert (failure.at_unix, failure.message, failure.cause) == (5.0, "ValueError: bad", "exit")


@pytest.mark.parametrize(
    ("exitcode", "cause", "written_at", "at"),
    [(1, "exception", 70.0, 70.0), (1, "exception", 78.0, 77.0), (1, "exception", None, 77.0), (-6, "exception", 70.0, 70.0)],
)
def test_an_error_record_says_what_it_died_of_and_when_unless_that_is_later_than_seen(
    stage: Stage, exitcode: int, cause: str, written_at: float | None, at: float
) -> None:
    evidence = Evidence(at_unix=written_at, message="ValueError: bad", traceback="Traceback", error_file="f", error_record={})
    pid = stage.group.workers[0].pid
    stage.see(Ended(local_rank=0, pid=pid, exitcode=exitcode, gone=False, at_unix=77.0, evidence=evidence))
    failure = stage.group.workers.failures[0]
    assert (failure.cause, failure.at_unix, failure.message, failure.error_file) == (cause, at, "ValueError: bad", "f")


def test_a_sibling_that_dies_of_our_signal_is_innocent_and_of_its_own_error_is_not(stage: Stage) -> None:
    stage.end(0, 1)
    stage.end(1, 1, message="RuntimeError: connection closed by peer")
    assert [stage.group.workers.failures[i].cause for i in (0, 1)] == ["exit", "exception"]


@pytest.mark.parametrize(
    ("begins", "asked", "cause"),
    [
        (False, "here", "stopped"),
        (False, "elsewhere", "stopped"),
        (True, "here", "exit"),
        (False, "a failure elsewhere", "exit"),
        (False, "a failure", "exit"),
    ],
)
def test_a_code_is_the_answer_to_our_signal_where_somebody_asked_and_its_end_had_not_begun(
    stage: Stage, begins: bool, asked: str, cause: str
) -> None:
    if begins:
        stage.see(Ending(local_rank=1, pid=101, at_unix=3.0))
    match asked:
        case "here":
            stage.see(Signalled(signum=signal.SIGINT))
        case "a failure":
            stage.end(0, -9)
        case _:
            stage.told(Stop(round=1, reason="it ends", rejoin=False, on_request=asked == "elsewhere"))
    stage.end(1, 1)
    assert stage.group.workers.failures[1].cause == cause


def test_who_cannot_be_started_takes_those_after_it_along() -> None:
    stage = Stage()
    stage.told(assigned())
    stage.see(StartFailed(local_rank=0, message="no such file", at_unix=1.0))
    kinds = [type(message) for message in stage.said]
    assert kinds == [Failed, Stopped] and stage.group.deadline() == NEVER


def test_a_start_is_recorded_at_the_moment_it_began() -> None:
    stage = Stage()
    stage.told(assigned())
    stage.see(Started(local_rank=0, pid=1, argv=(), log_dir=None, at_unix=12.5))
    assert stage.only(Record).at_unix == 12.5


def test_who_cannot_be_started_stops_those_before_it() -> None:
    stage = Stage()
    stage.told(assigned())
    stage.see(Started(local_rank=0, pid=1, argv=(), log_dir=None))
    stage.see(StartFailed(local_rank=1, message="no such file", at_unix=1.0))
    assert stage.only(SignalWorkers).local_ranks == (0,)
    stage.end(0, -15)
    assert [type(message) for message in stage.said] == [Stopped]


# --- the watchdog -----------------------------------------------------------------------------------------------------------


def test_an_expired_timer_is_that_workers_failure_and_names_the_scope(stage: Stage) -> None:
    stage.see(TimerExpired(pid=101, scope="step", signum=signal.SIGKILL, late_s=2.0))
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(1,), signum=signal.SIGKILL)
    stage.end(1, -9)
    (failed,) = [message for message in stage.said if isinstance(message, Failed)]
    assert failed.failure.cause == "watchdog" and "scope step" in failed.failure.message


def test_a_timer_of_a_stranger_harms_nobody(stage: Stage) -> None:
    stage.see(TimerExpired(pid=999, scope="step", signum=signal.SIGKILL, late_s=2.0))
    assert not stage.does(SignalWorkers)


# --- the end ----------------------------------------------------------------------------------------------------------------


def test_the_end_of_the_job_leaves_no_worker_alive(stage: Stage) -> None:
    stage.told(Finish(report=REPORT))
    assert stage.only(KillWorkers).local_ranks == (0, 1) and stage.does(Sweep)
    assert stage.only(Exit).code == 1 and stage.group.deadline() == NEVER


def test_a_refused_node_kills_its_workers_and_says_why(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    stage.told(Refused(reason="no answer for 33 s", hint="is it running?"))
    assert stage.does(KillWorkers) and stage.group.deadline() == NEVER
    end = stage.only(Exit)
    assert end.code == 1 and "no answer for 33 s" in end.complaint and "hint: is it running?" in end.complaint


@pytest.mark.parametrize(
    "message",
    [
        Finish(report=REPORT),
        Refused(reason="late"),
        Stop(round=1, reason="late", rejoin=True),
        assigned(2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_nothing_happens_after_the_end(stage: Stage, message: Message) -> None:
    stage.told(Finish(report=REPORT))
    assert stage.told(message) == []
    assert not [action for action in stage.end(0, -9) if isinstance(action, (Exit, Send))]


def test_what_a_group_is_never_shown_is_a_bug_of_ours(stage: Stage) -> None:
    with pytest.raises(AssertionError, match="never shown"):
        stage.see(Renew(node="n", round=1))


def test_a_failure_knows_its_node_round_and_attempt(stage: Stage) -> None:
    stage.end(1, 3)
    (failed,) = stage.said
    assert isinstance(failed, Failed)
    wanted = Failure(
        node="n1", rank=5, local_rank=1, pid=101, exitcode=3, at_unix=0.0, cause="exit", round=1, attempt=0, role="default"
    )
    assert failed.failure == wanted


# --- spares and operators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RequestKind.EXCLUDE, RequestKind.READMIT])
def test_an_operators_request_about_a_node_goes_to_the_coordinator_and_its_answer_back(stage, kind) -> None:
    wanted = Request(node="n1-id", kind=kind, target="n2", ask=3, reason="its fan is broken")
    stage.see(ToCoordinator(message=wanted))
    assert stage.said == [wanted]
    answer = Reply(ask=3, ok=True, text="so be it")
    assert stage.told(answer) == [FromCoordinator(message=answer)]


def test_a_spare_knows_why_until_it_has_a_place() -> None:
    stage = Stage()
    stage.told(Waiting(round=1, reason="the job has its 2 nodes"))
    assert stage.only(Say).text == "this node waits as a spare: the job has its 2 nodes"
    assert stage.group.state.spare_because == "the job has its 2 nodes"
    assert [join.known_round for join in stage.said] == [1], "whoever hears it again shall know of that round"
    stage.run()
    assert stage.group.state.spare_because == ""


def test_a_node_without_a_round_knows_what_it_waits_for() -> None:
    stage = Stage()
    stage.told(Notice(text="1 of 2 are ready (a); giving up in 9 s", waits_for="1 of 2 are ready (a)"))
    stage.told(Notice(text="nodes were not started alike"))
    assert stage.group.state.waits_for == "1 of 2 are ready (a)"
    stage.run()
    stage.end(0, 1)
    stage.end(1, 1)
    stage.told(Stop(round=1, reason="rank 4 failed", rejoin=True))
    assert stage.group.phase is Phase.JOINING and stage.group.state.waits_for == ""


def test_a_node_says_of_which_run_it_is_once_it_has_been_taken_in() -> None:
    stage = Stage()
    stage.told(Waiting(round=3, reason="the job has its 2 nodes", life="L"))
    assert [(join.life, join.known_round) for join in stage.said] == [("L", 3)]
    stage.told(Waiting(round=1, reason="late", life="L"))
    assert stage.group.state.spare_because == "the job has its 2 nodes"
    stage.told(Waiting(round=1, reason="of another run", life="M"))
    assert (stage.said[-1].life, stage.said[-1].known_round) == ("M", 3) and stage.group.state.spare_because == "of another run"


def test_whoever_runs_workers_is_no_spare_whatever_comes_late(stage) -> None:
    stage.told(Waiting(round=1, reason="the job has its 2 nodes"))
    assert stage.group.state.spare_because == ""


# --- a round that may carry on without some ---------------------------------------------------------------------------------


@pytest.fixture
def tolerant() -> Stage:
    """Both workers run in round 1, which may carry on without some."""
    stage = Stage()
    stage.told(replace(assigned(), carries_on=True))
    for i in range(2):
        stage.see(Started(local_rank=i, pid=100 + i, argv=("x",), log_dir=None))
    return stage


def test_there_the_sibling_of_a_failed_worker_is_left_alone(tolerant: Stage) -> None:
    tolerant.end(0, 1)
    assert not tolerant.does(SignalWorkers) and tolerant.group.phase is Phase.RUNNING
    assert [type(message) for message in tolerant.said] == [Failed]


def test_when_its_last_worker_has_ended_it_says_so_and_waits(tolerant: Stage) -> None:
    tolerant.end(0, 1)
    tolerant.end(1, 0)
    (stopped,) = tolerant.said
    assert isinstance(stopped, Stopped) and [failure.local_rank for failure in stopped.failures] == [0]
    assert tolerant.does(Sweep) and tolerant.group.phase is Phase.STOPPED and not tolerant.group.has_workers
    tolerant.told(Stop(round=1, reason="too few are left", rejoin=True))
    assert [type(message) for message in tolerant.said] == [Join]


def test_it_has_succeeded_only_if_none_of_its_workers_failed(tolerant: Stage) -> None:
    tolerant.end(0, 0)
    tolerant.end(1, 1)
    assert not any(isinstance(message, Succeeded) for message in tolerant.said)


def test_what_is_left_of_it_is_stopped_when_the_coordinator_says_so(tolerant: Stage) -> None:
    tolerant.end(0, 1)
    tolerant.told(Stop(round=1, reason="too few are left", rejoin=True))
    assert tolerant.only(SignalWorkers) == SignalWorkers(local_ranks=(1,), signum=signal.SIGTERM)
