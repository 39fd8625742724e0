"""One node's workers through the rounds of a job, told step by step: what it sees, what it does, what it says."""

from __future__ import annotations

import signal
from typing import Any

import made_up
import pytest

from holdfast.agent.group import Group
from holdfast.agent.leaving import ECHO_S
from holdfast.agent.signals import HELD_S
from holdfast.agent.words import (
    Answer,
    Ended,
    ExclusionAsked,
    Exit,
    KillWorkers,
    LeaseOver,
    PortHeld,
    Send,
    SignalWorkers,
    Started,
    StartFailed,
    StartWorkers,
    StopAsked,
    Sweep,
    TimerExpired,
    Told,
    Unguarded,
)
from holdfast.core.events import Event, GuardianLost, JobEnded, SignalReceived
from holdfast.core.failure import Evidence, Failure
from holdfast.core.machine import NEVER, Record, Say, Signalled, Tick
from holdfast.core.messages import (
    Assigned,
    Exclude,
    Failed,
    Finish,
    Join,
    Leave,
    Message,
    Noted,
    Readmit,
    Refused,
    Renew,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.core.value import replace

GRACE_S = 10.0
JOIN = Join(node="n1-id", name="n1", addr="n1", master_port=0, nproc=2, role="default")
REPORT = made_up.report("failed", "rank 5 failed")


def assigned(number: int = 1) -> Assigned:
    return made_up.assigned(number, group_rank=1, of=2, base_rank=4, world_size=6)


class Stage:
    """A group, and what it did last."""

    def __init__(
        self,
        *,
        hosting: bool = False,
        stop_signals: tuple[int, ...] = (),
        join: Join = JOIN,
        echoing: bool = False,
        **more: Any,
    ) -> None:
        how = {"stop_signals": stop_signals, "echoing": echoing, **more}
        self.group = Group(join, grace_s=GRACE_S, hosting=hosting, endpoint="head:29400", **how)
        self.now = 0.0
        self.did = self.group.begin(0.0)

    def see(self, seen: Any, now: float | None = None) -> list[Any]:
        self.now = self.now if now is None else now
        self.did = self.group.observe(seen, self.now)
        return self.did

    def told(self, message: Message, now: float | None = None) -> list[Any]:
        return self.see(Told(message=message), now)

    def run(self, number: int = 1) -> None:
        """Get a round and start both workers."""
        self.told(assigned(number))
        for i in range(2):
            self.see(Started(local_rank=i, pid=100 * number + i, argv=("x",), log_dir=None))

    def end(self, local_rank: int, exitcode: int, *, gone: bool = True, at: float = 0.0, message: str = "") -> list[Any]:
        evidence = Evidence(message=message, traceback="Traceback" if message else None)
        return self.see(Ended(local_rank=local_rank, exitcode=exitcode, gone=gone, at_unix=at, evidence=evidence))

    @property
    def said(self) -> list[Message]:
        return [action.message for action in self.did if isinstance(action, Send)]

    def only(self, kind: type) -> Any:
        found = [action for action in self.did if isinstance(action, kind)]
        assert len(found) == 1, self.did
        return found[0]

    @property
    def recorded(self) -> list[Event]:
        return [action.event for action in self.did if isinstance(action, Record)]

    def does(self, kind: type) -> bool:
        return any(isinstance(action, kind) for action in self.did)


@pytest.fixture
def stage() -> Stage:
    """Both workers, global ranks 4 and 5, run in round 1."""
    stage = Stage()
    stage.run()
    return stage


# --- joining and succeeding -------------------------------------------------------------------------------------------------


def test_it_joins_with_the_port_that_it_holds() -> None:
    group = Group(JOIN, grace_s=1.0, hosting=False)
    group.observe(PortHeld(port=4711), 0.0)
    (join,) = [action.message for action in group.begin(0.0) if isinstance(action, Send)]
    assert join == Join(node="n1-id", name="n1", addr="n1", master_port=4711, nproc=2, role="default", round=0)


def test_an_assignment_starts_the_workers(stage: Stage) -> None:
    fresh = Stage()
    fresh.told(assigned())
    assert fresh.only(StartWorkers).assigned == assigned() and stage.group.state == "running"


def test_an_assignment_that_comes_twice_starts_them_once(stage: Stage) -> None:
    assert stage.told(assigned()) == []


def test_it_has_succeeded_when_the_last_worker_exited_with_0(stage: Stage) -> None:
    stage.end(0, 0)
    assert stage.said == []
    stage.end(1, 0)
    assert stage.said == [Succeeded(node="n1-id", round=1)]


def test_a_worker_that_is_dying_well_is_not_gone_yet(stage: Stage) -> None:
    stage.end(0, 0)
    stage.end(1, 0, gone=False)
    assert stage.said == [] and stage.group.state == "running"


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
    assert stage.does(Sweep) and stage.group.state == "stopped"
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
    stage.see(Ended(local_rank=0, exitcode=exitcode, gone=False, at_unix=77.0, evidence=evidence))
    failure = stage.group.workers.failures[0]
    assert (failure.cause, failure.at_unix, failure.message, failure.error_file) == (cause, at, "ValueError: bad", "f")


def test_a_sibling_that_dies_of_our_signal_is_innocent_and_of_its_own_error_is_not(stage: Stage) -> None:
    stage.end(0, 1)
    stage.end(1, 1, message="RuntimeError: connection closed by peer")
    assert [stage.group.workers.failures[i].cause for i in (0, 1)] == ["exit", "exception"]


def test_who_cannot_be_started_takes_those_after_it_along() -> None:
    stage = Stage()
    stage.told(assigned())
    stage.see(StartFailed(local_rank=0, message="no such file", at_unix=1.0))
    kinds = [type(message) for message in stage.said]
    assert kinds == [Failed, Stopped] and stage.group.deadline() == NEVER


def test_who_cannot_be_started_stops_those_before_it() -> None:
    stage = Stage()
    stage.told(assigned())
    stage.see(Started(local_rank=0, pid=1, argv=(), log_dir=None))
    stage.see(StartFailed(local_rank=1, message="no such file", at_unix=1.0))
    assert stage.only(SignalWorkers).local_ranks == (0,)
    stage.end(0, -15)
    assert [type(message) for message in stage.said] == [Stopped]


# --- stopping ---------------------------------------------------------------------------------------------------------------


def test_who_outlives_its_grace_is_killed_and_named(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="n2 joined", rejoin=True), now=100.0)
    assert stage.group.deadline() == 100.0 + GRACE_S
    stage.end(0, -15)
    stage.see(Tick(), 100.0 + GRACE_S)
    assert stage.only(KillWorkers).local_ranks == (1,)
    assert stage.only(Say).text == "rank 5 did not stop within 10.0 s; sent SIGKILL"


def test_who_outlives_sigkill_is_left_behind(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="n2 joined", rejoin=True))
    stage.see(Tick(), GRACE_S)
    stage.see(Tick(), stage.group.deadline())
    assert "process 100, 101 does not die even of SIGKILL" in stage.only(Say).text
    assert [type(message) for message in stage.said] == [Stopped, Join]


def test_a_node_that_succeeded_stops_at_once(stage: Stage) -> None:
    stage.end(0, 0)
    stage.end(1, 0)
    stage.told(Stop(round=1, reason="rank 0 failed", rejoin=True))
    assert [type(message) for message in stage.said] == [Stopped, Join] and not stage.does(SignalWorkers)


def test_an_order_about_an_older_round_is_late_news(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    stage.end(0, -15)
    stage.end(1, -15)
    stage.run(2)
    assert stage.told(Stop(round=1, reason="restart", rejoin=True)) == [] and stage.group.state == "running"


def test_an_order_that_comes_twice_is_obeyed_once(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    assert stage.told(Stop(round=1, reason="restart", rejoin=True)) == []


def test_asked_to_rejoin_while_joining_it_says_join_again(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="restart", rejoin=True))
    stage.end(0, -15)
    stage.end(1, -15)
    stage.told(Stop(round=1, reason="unknown here", rejoin=True))
    (again,) = stage.said
    assert isinstance(again, Join) and again.round == 1


def test_a_node_told_to_stop_for_good_waits_for_the_report(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="enough", rejoin=False))
    stage.end(0, -15)
    stage.end(1, -15)
    assert [type(message) for message in stage.said] == [Stopped] and not stage.does(Exit)
    stage.told(Finish(report=REPORT))
    assert stage.only(Exit) == Exit(code=1, report=REPORT)


# --- leases -----------------------------------------------------------------------------------------------------------------


def test_at_the_end_of_its_lease_the_workers_get_no_grace(stage: Stage) -> None:
    stage.see(LeaseOver(reason="no answer", until=50.5), 50.0)
    assert stage.only(SignalWorkers).signum == signal.SIGTERM and stage.group.deadline() == 50.5
    stage.see(Tick(), 50.5)
    assert stage.does(KillWorkers)


def test_a_lease_that_ended_long_ago_leaves_no_time_at_all(stage: Stage) -> None:
    stage.see(LeaseOver(reason="no answer", until=50.5), 70.0)
    assert stage.only(SignalWorkers).signum == signal.SIGKILL, "SIGTERM would also continue a rank that was stopped"
    assert stage.group.deadline() < 70.0
    stage.see(Tick(), 70.0)
    assert stage.does(KillWorkers)


def test_workers_that_are_stopping_with_grace_lose_it_with_the_lease(stage: Stage) -> None:
    stage.end(0, 1)
    stage.see(LeaseOver(reason="no answer", until=5.0), 4.5)
    assert stage.group.deadline() == 5.0


def test_after_the_lease_it_joins_again_by_itself(stage: Stage) -> None:
    stage.see(LeaseOver(reason="no answer", until=1.0))
    stage.end(0, -15)
    stage.end(1, -15)
    assert [type(message) for message in stage.said] == [Stopped, Join]


def test_a_lease_that_ends_without_workers_is_only_mentioned() -> None:
    stage = Stage()
    (said,) = stage.see(LeaseOver(reason="no answer", until=1.0, patience_s=600.0))
    assert isinstance(said, Say) and "still trying, for up to 600 s" in said.text
    assert "whether the job goes on without this node, or has ended, is not known here" in said.text
    assert stage.group.deadline() == NEVER


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
    assert stage.said == [StopJob(node="n1-id", reason="n1 received SIGTERM")]
    stage.end(0, -15)
    stage.end(1, -15)
    assert not stage.does(Exit)


def test_a_signal_may_have_a_grace_period_of_its_own_unless_an_operator_named_one() -> None:
    for asked, deadline in ((None, 60.0), (3.0, 3.0)):
        stage = Stage(term_grace_s=60.0)
        stage.run()
        assert stage.group.grace_s == GRACE_S
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


def test_user_signals_are_passed_on_unless_the_user_made_them_stop_signals(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGUSR1))
    assert stage.only(SignalWorkers).signum == signal.SIGUSR1 and stage.group.state == "running"
    other = Stage(stop_signals=(signal.SIGUSR1,))
    other.run()
    other.see(Signalled(signum=signal.SIGUSR1))
    assert other.group.state == "stopping"


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
    assert stage.said == [StopJob(node="n1-id", reason="alice asked")]


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


@pytest.mark.parametrize(("readmit", "kind"), [(False, Exclude), (True, Readmit)])
def test_an_operators_request_about_a_node_goes_to_the_coordinator_and_its_answer_back(stage, readmit, kind) -> None:
    stage.see(ExclusionAsked(ask=3, name="n2", reason="its fan is broken", readmit=readmit))
    assert stage.said == [kind(node="n1-id", ask=3, name="n2", reason="its fan is broken")]
    assert stage.told(Noted(ask=3, ok=True, text="so be it")) == [Answer(ask=3, ok=True, text="so be it")]


def test_a_spare_knows_why_until_it_has_a_place() -> None:
    stage = Stage()
    stage.told(Waiting(round=1, reason="the job has its 2 nodes"))
    assert stage.group.spare_because == "the job has its 2 nodes"
    assert [join.known_round for join in stage.said] == [1], "whoever hears it again shall know of that round"
    stage.run()
    assert stage.group.spare_because == ""


def test_a_node_says_of_which_run_it_is_once_it_has_been_taken_in() -> None:
    stage = Stage()
    stage.told(Waiting(round=3, reason="the job has its 2 nodes", life="L"))
    assert [(join.life, join.known_round) for join in stage.said] == [("L", 3)]
    stage.told(Waiting(round=1, reason="late", life="L"))
    assert stage.group.spare_because == "the job has its 2 nodes"
    stage.told(Waiting(round=1, reason="of another run", life="M"))
    assert (stage.said[-1].life, stage.said[-1].known_round) == ("M", 3) and stage.group.spare_because == "of another run"


def test_whoever_runs_workers_is_no_spare_whatever_comes_late(stage) -> None:
    stage.told(Waiting(round=1, reason="the job has its 2 nodes"))
    assert stage.group.spare_because == ""


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
    assert not tolerant.does(SignalWorkers) and tolerant.group.state == "running"
    assert [type(message) for message in tolerant.said] == [Failed]


def test_when_its_last_worker_has_ended_it_says_so_and_waits(tolerant: Stage) -> None:
    tolerant.end(0, 1)
    tolerant.end(1, 0)
    (stopped,) = tolerant.said
    assert isinstance(stopped, Stopped) and [failure.local_rank for failure in stopped.failures] == [0]
    assert tolerant.does(Sweep) and tolerant.group.state == "stopped" and not tolerant.group.has_workers
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
