"""A signal, an operator or the loss of the guardian: how a node and the whole job go, and with which exit code."""

from __future__ import annotations

import signal

import pytest
from kit.stages.group_stage import GRACE_S, REPORT, Stage, running

from holdfast.agent.group.messages import Exit, KillWorkers, SignalWorkers, StopAsked, Unguarded
from holdfast.agent.group.shutdown import ECHO_S
from holdfast.agent.group.signal_forwarding import HELD_S
from holdfast.agent.group.state import Phase
from holdfast.core.job.events import GuardianLost, JobEnded, SignalReceived
from holdfast.core.machine import NEVER, Say, Signalled, Tick
from holdfast.core.value import replace
from holdfast.core.wire.messages import Finish, Leave, Request, RequestKind, Stop, Stopped


@pytest.fixture
def stage() -> Stage:
    return running()


# --- signals ----------------------------------------------------------------------------------------------------------------


def test_a_stop_signal_reaches_the_workers_and_the_coordinator(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGINT))
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(0, 1), signum=signal.SIGINT)
    assert stage.said == [Leave(node="n1-id", round=1, reason="received SIGINT")]
    stage.end(0, -signal.SIGINT)
    stage.end(1, -signal.SIGINT)
    assert stage.only(Exit).code == 1 and stage.only(Exit).complaint == "stopped: it received SIGINT"


def test_a_hosting_agent_stops_the_whole_job_and_stays_to_the_end() -> None:
    stage = Stage(hosting=True)
    stage.run()
    stage.see(Signalled(signum=signal.SIGTERM))
    assert stage.said == [Request(node="n1-id", kind=RequestKind.STOP, reason="n1 received SIGTERM")]
    stage.end(0, -15)
    stage.end(1, -15)
    assert not stage.does(Exit)


def test_a_signal_may_have_a_grace_period_of_its_own_unless_an_operator_named_one() -> None:
    for asked, deadline in ((None, 60.0), (3.0, 3.0)):
        stage = Stage(term_grace_s=60.0)
        stage.run()
        assert stage.group.state.grace_s == GRACE_S
        stage.see(StopAsked(reason="alice asked", grace_s=asked))
        stage.see(Signalled(signum=signal.SIGTERM))
        assert stage.group.deadline() == deadline


@pytest.mark.parametrize(("exitcodes", "code"), [((0, 0), 0), ((0, 3), 1), ((0, -15), 1)])
def test_where_it_counts_as_success_a_stop_that_every_worker_obeyed_with_0_is_one(
    exitcodes: tuple[int, int], code: int
) -> None:
    stage = Stage(clean_stop_is_success=True)
    stage.run()
    stage.see(Signalled(signum=signal.SIGTERM))
    for local_rank, exitcode in enumerate(exitcodes):
        stage.end(local_rank, exitcode)
    assert stage.only(Exit).code == code


@pytest.mark.parametrize(("exitcodes", "code"), [((0, 0), 0), ((0, 3), 1)])
def test_the_report_of_such_a_stop_shows_the_exit_code_that_the_agent_ends_with(exitcodes: tuple[int, int], code: int) -> None:
    stage = Stage(hosting=True, clean_stop_is_success=True)
    stage.run()
    stage.see(Signalled(signum=signal.SIGTERM))
    for local_rank, exitcode in enumerate(exitcodes):
        stage.end(local_rank, exitcode)
    stage.told(Finish(report=REPORT))
    end = stage.only(Exit)
    assert end.report is not None and (end.code, end.report.exit_code) == (code, code)
    assert replace(end.report, exit_code=REPORT.exit_code) == REPORT


def test_a_failure_that_no_signal_caused_is_none_however_its_workers_end() -> None:
    stage = Stage(clean_stop_is_success=True)
    stage.run()
    stage.told(Stop(round=1, reason="rank 0 failed", rejoin=False))
    stage.end(0, 0)
    stage.end(1, 0)
    stage.told(Finish(report=REPORT))
    assert stage.only(Exit).code == 1


def test_a_second_signal_kills_at_once(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGTERM))
    stage.see(Signalled(signum=signal.SIGTERM), ECHO_S)
    assert stage.only(KillWorkers).local_ranks == (0, 1)
    assert stage.only(Say).text == "sent SIGKILL to ranks 4, 5 before the end of the grace period"
    assert stage.see(Signalled(signum=signal.SIGTERM), ECHO_S + 1) and not stage.does(KillWorkers)


def test_the_echo_of_a_signal_is_no_second_one_but_another_signal_is(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGTERM))
    stage.see(Signalled(signum=signal.SIGTERM), ECHO_S / 2)
    assert not stage.does(KillWorkers)
    stage.see(Signalled(signum=signal.SIGINT), ECHO_S / 2)
    assert stage.does(KillWorkers)


def test_without_its_guardian_it_gives_no_grace(stage: Stage) -> None:
    stage.see(Unguarded())
    assert [type(action) for action in stage.did if isinstance(action, (SignalWorkers, KillWorkers))] == [
        SignalWorkers,
        KillWorkers,
    ]


@pytest.mark.parametrize("hosting", [False, True])
def test_the_loss_of_its_guardian_is_recorded_and_told_as_that_and_not_as_a_signal(hosting: bool) -> None:
    stage = Stage(hosting=hosting)
    stage.run()
    stage.see(Unguarded())
    assert stage.recorded[0] == GuardianLost() and not [e for e in stage.recorded if isinstance(e, SignalReceived)]
    (told,) = stage.said
    assert "lost its guardian: the process that was started was killed" in told.reason
    assert not [action for action in stage.did if isinstance(action, Say) and "SIGTERM" in action.text]


def test_the_loss_of_its_guardian_before_the_first_round_is_its_end() -> None:
    stage = Stage()
    stage.see(Unguarded())
    (ended,) = [event for event in stage.recorded if isinstance(event, JobEnded)]
    assert stage.only(Exit).code == -signal.SIGTERM and "lost its guardian" in ended.reason


def test_a_signal_before_the_first_round_is_died_of_and_nobody_waits_for_us() -> None:
    stage = Stage()
    stage.see(Signalled(signum=signal.SIGTERM))
    assert [type(message) for message in stage.said] == [Leave, Stopped] and stage.only(Exit).code == -signal.SIGTERM


def test_a_node_that_leaves_between_two_rounds_says_that_it_has_no_workers(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    stage.end(0, -15)
    stage.end(1, -15)
    stage.see(Signalled(signum=signal.SIGTERM))
    assert [type(message) for message in stage.said] == [Leave, Stopped] and stage.only(Exit).code == 1


def test_after_the_end_a_signal_changes_nothing(stage: Stage) -> None:
    stage.told(Finish(report=REPORT))
    for _ in range(2):
        stage.see(Signalled(signum=signal.SIGTERM))
        assert not stage.does(Exit) and not stage.said


@pytest.mark.parametrize(
    ("before", "signum", "hurries"),
    [((), signal.SIGTERM, True), ((), signal.SIGUSR1, False), ((signal.SIGTERM,), signal.SIGTERM, False)],
    ids=["by the first signal", "not by one that is the script's", "not by the echo of what has ended it"],
)
def test_after_the_end_the_last_lines_are_hurried(stage: Stage, before: tuple[int, ...], signum: int, hurries: bool) -> None:
    for each in before:
        stage.see(Signalled(signum=each))
    stage.told(Finish(report=REPORT))
    stage.see(Signalled(signum=signum), ECHO_S / 2)
    assert stage.group.state.in_a_hurry == hurries


def test_user_signals_are_passed_on_unless_the_user_made_them_stop_signals(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGUSR1))
    assert stage.only(SignalWorkers).signum == signal.SIGUSR1 and stage.group.phase is Phase.RUNNING
    other = Stage(stop_signals=(signal.SIGUSR1,))
    other.run()
    other.see(Signalled(signum=signal.SIGUSR1))
    assert other.group.phase is Phase.STOPPING


def test_where_a_whole_step_is_signalled_workers_are_not_told_again() -> None:
    stage = Stage(echoing=True)
    stage.run()
    for _ in range(2):  # once directly, once through our guardian: whoever signals both signals the workers too
        stage.see(Signalled(signum=signal.SIGUSR1), now=5.0)
        assert not stage.does(SignalWorkers)
    assert stage.group.deadline() == NEVER
    stage.see(Signalled(signum=signal.SIGUSR1), now=6.0)  # for this agent alone
    assert not stage.does(SignalWorkers) and stage.group.deadline() == 6.0 + HELD_S
    stage.see(Tick(), now=6.0 + HELD_S)
    assert stage.only(SignalWorkers).signum == signal.SIGUSR1 and stage.group.deadline() == NEVER


def test_an_operators_stop_is_passed_to_the_coordinator(stage: Stage) -> None:
    stage.see(StopAsked(reason="alice asked"))
    assert stage.said == [Request(node="n1-id", kind=RequestKind.STOP, reason="alice asked")]
