"""A rank hangs: what one node does, in which order, and what it says of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from kit.stages.group_stage import GRACE_S, JOIN, Stage, assigned
from kit.stages.quick_disk import QuickGroup

from holdfast.agent.group.hang_response import LOOK_S
from holdfast.agent.group.messages import (
    Ended,
    Ending,
    Hung,
    KeepStacks,
    LeaseOver,
    LookAtWorkers,
    Looked,
    Send,
    SignalWorkers,
    Started,
    Stuck,
    Told,
)
from holdfast.agent.group.state import Phase, State, WorkerState
from holdfast.core.job.events import RankHung
from holdfast.core.job.failure import Evidence, Failure, Position
from holdfast.core.machine import NEVER, Record, Signalled, Tick
from holdfast.core.wire.messages import Failed, HangFound, LookAround, Positions, Stop, Stopped

STALE = "no heartbeat for 12.3 s (limit 12 s)"
REST = Stop(round=1, reason="rank 9 failed", rejoin=True)


def stale(local_rank: int, pid: int | None = None) -> Hung:
    return Hung(local_rank=local_rank, pid=pid or 100 + local_rank, reason=STALE, at_unix=50.0, quiet_s=12.3)


def looked(*local_ranks: int, **what: Any) -> Looked:
    there = {"step": 41, "where": "load (data.py:88)", "stacks_path": "/incidents/x.txt", **what}
    return Looked(positions=tuple(Position(rank=4 + i, local_rank=i, pid=100 + i, **there) for i in local_ranks))


@pytest.fixture
def stage() -> Stage:
    """Global ranks 4 and 5 run in round 1; a hung one is to get SIGABRT."""
    stage = Stage()
    stage.group = QuickGroup(State(join=JOIN, grace_s=GRACE_S, hosting=False, hang_signal=signal.SIGABRT))
    stage.group.begin(0.0)
    stage.run()
    return stage


def kinds(stage: Stage) -> list[str]:
    return [type(action.message if isinstance(action, Send) else action).__name__ for action in stage.did]


def failure(stage: Stage) -> Failure:
    return next(message.failure for message in stage.said if isinstance(message, Failed))


def test_it_is_recorded_told_and_looked_at_before_anybody_is_killed(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    assert kinds(stage) == ["Record", "HangFound", "LookAtWorkers"]
    assert stage.recorded == [RankHung(rank=5, local_rank=1, pid=101, reason=STALE, quiet_s=12.3)]
    assert stage.only(LookAtWorkers) == LookAtWorkers(round=1, base_rank=4, within_s=LOOK_S)


def test_then_it_gets_its_signal_and_the_others_are_stopped(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    stage.see(looked(0, 1), 20.01)
    signalled = [action for action in stage.did if isinstance(action, SignalWorkers)]
    assert signalled == [
        SignalWorkers(local_ranks=(1,), signum=signal.SIGABRT),
        SignalWorkers(local_ranks=(0,), signum=signal.SIGTERM),
    ]
    told = failure(stage)
    assert (told.cause, told.rank, told.at_unix, told.stacks_path) == ("hung", 5, 50.0, "/incidents/x.txt")
    assert told.message == f"hung: {STALE}; at step 41, in load (data.py:88)"
    positions = next(message for message in stage.said if isinstance(message, Positions)).positions
    assert [(one.rank, one.overdue) for one in positions] == [(4, ""), (5, STALE)]
    assert stage.only(KeepStacks).reason == f"rank 5 on n1 hung: {STALE}"


def test_the_coordinator_hears_of_it_before_it_ends_and_others_die_of_that(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    stage.see(looked(0, 1), 20.01)
    assert kinds(stage)[:3] == ["Failed", "Positions", "SignalWorkers"]


def test_its_end_does_not_change_what_it_died_of(stage: Stage) -> None:
    stage.see(stale(1))
    stage.see(looked(0, 1))
    stage.end(0, -signal.SIGTERM)
    stage.end(1, -signal.SIGABRT)
    ended = next(message for message in stage.said if isinstance(message, Stopped)).failures
    assert {(one.rank, one.cause, one.exitcode) for one in ended} == {(5, "hung", -6), (4, "stopped", -15)}


def test_what_cannot_be_looked_at_is_killed_when_its_time_is_over(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    assert stage.group.deadline() == 20.0 + LOOK_S
    stage.see(Tick(), 20.0 + LOOK_S)
    assert SignalWorkers(local_ranks=(1,), signum=signal.SIGABRT) in stage.did
    assert failure(stage).message == f"hung: {STALE}"
    stage.see(looked(0, 1), 20.0 + LOOK_S + 0.1)
    assert stage.did == [], "too late"


def test_all_that_hang_by_then_get_the_signal_and_one_is_told_of(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    stage.see(stale(0), 20.001)
    assert kinds(stage) == ["Record"]
    stage.see(looked(0, 1), 20.01)
    assert [action for action in stage.did if isinstance(action, SignalWorkers)] == [
        SignalWorkers(local_ranks=(0,), signum=signal.SIGABRT),
        SignalWorkers(local_ranks=(1,), signum=signal.SIGABRT),
    ]
    assert len([message for message in stage.said if isinstance(message, Failed)]) == 1
    assert set(stage.group.workers.failures) == {0, 1}


def test_where_another_node_s_rank_hangs_ours_are_looked_at_and_left_alone(stage: Stage) -> None:
    stage.told(LookAround(round=1, reason="rank 9 on n3 hung: x"), 20.0)
    assert kinds(stage) == ["LookAtWorkers"]
    stage.told(LookAround(round=1, reason="rank 9 on n3 hung: x"), 20.0)
    assert stage.did == []
    stage.see(looked(0, 1), 20.01)
    assert kinds(stage) == ["Positions", "KeepStacks"] and stage.group.phase is Phase.RUNNING
    assert stage.group.deadline() == NEVER


def test_a_stop_waits_until_they_have_been_looked_at(stage: Stage) -> None:
    stage.told(LookAround(round=1, reason="rank 9 on n3 hung: x"), 20.0)
    stage.told(REST, 20.005)
    assert not stage.does(SignalWorkers)
    stage.see(looked(0, 1), 20.01)
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(0, 1), signum=signal.SIGTERM)
    stage.end(0, -15)
    stage.end(1, -15)
    assert stage.group.phase is Phase.JOINING


def test_so_does_that_for_a_rank_here_that_dies_meanwhile(stage: Stage) -> None:
    """Of the end of a rank that hung elsewhere, say. The failure itself is told at once."""
    stage.told(LookAround(round=1, reason="rank 9 on n3 hung: x"), 20.0)
    stage.end(0, 1)
    assert failure(stage).rank == 4 and not stage.does(SignalWorkers)
    stage.see(looked(1), 20.01)
    assert stage.only(SignalWorkers) == SignalWorkers(local_ranks=(1,), signum=signal.SIGTERM)


def test_a_stop_that_waited_is_kept_though_all_have_succeeded_meanwhile(stage: Stage) -> None:
    stage.told(LookAround(round=1, reason="rank 9 on n3 hung: x"), 20.0)
    stage.told(REST, 20.005)
    stage.end(0, 0)
    stage.end(1, 0)
    stage.see(looked(), 20.01)
    assert stage.group.phase is Phase.JOINING


@pytest.mark.parametrize("urgent", [Signalled(signum=signal.SIGTERM), LeaseOver(reason="silence", until=30.0)])
def test_what_is_urgent_waits_for_no_look(stage: Stage, urgent: Any) -> None:
    stage.see(stale(1), 20.0)
    stage.see(urgent, 20.001)
    assert any(isinstance(action, SignalWorkers) and 0 in action.local_ranks for action in stage.did)
    stage.see(looked(0, 1), 20.01)
    assert SignalWorkers(local_ranks=(1,), signum=signal.SIGABRT) in stage.did, "it would not heed the other signal"


def test_whom_the_coordinator_finds_to_be_the_culprit_gets_the_signal_of_one_that_hangs(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="rank 5 (local 1) on n1 hung: x", rejoin=True, hung=1), 20.0)
    signalled = [action for action in stage.did if isinstance(action, SignalWorkers)]
    assert signalled == [
        SignalWorkers(local_ranks=(1,), signum=signal.SIGABRT),
        SignalWorkers(local_ranks=(0,), signum=signal.SIGTERM),
    ]
    stage.end(1, -6)
    assert stage.group.workers.failures[1].cause == "hung"


def test_of_the_culprit_is_said_where_it_was_also_if_its_own_limit_has_not_run_out(stage: Stage) -> None:
    stage.told(LookAround(round=1, reason="rank 9 on n4 hung: x"), 20.0)
    stage.see(looked(0, 1), 20.01)
    stage.told(Stop(round=1, reason="rank 5 (local 1) on n1 hung: x", rejoin=True, hung=1), 20.02)
    stage.end(1, -6)
    failure = stage.group.workers.failures[1]
    assert failure.message.startswith("hung: others waited for it; at step 41, in ") and failure.stacks_path


def test_a_rank_that_is_being_stopped_or_is_dead_hangs_no_more(stage: Stage) -> None:
    stage.end(0, 1)
    assert stage.see(stale(1)) == [] and stage.see(stale(0)) == []


def test_whoever_has_no_workers_left_says_so_at_once(stage: Stage) -> None:
    stage.told(REST)
    stage.told(LookAround(round=1, reason="x"))
    assert stage.said == [Positions(node="n1-id", round=1, positions=())]
    stage.told(LookAround(round=7, reason="x"))
    assert stage.did == [], "late news, or news of a round that is not ours"


def test_a_new_round_knows_nothing_of_the_hang_before(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    stage.see(looked(0, 1), 20.01)
    stage.told(Stop(round=1, reason="x", rejoin=True))
    stage.end(0, -15)
    stage.end(1, -6)
    stage.see(Told(message=assigned(2)))
    stage.see(Started(local_rank=1, pid=201, argv=("x",), log_dir=None))
    stage.see(stale(1, pid=201), 40.0)
    assert [action.event.pid for action in stage.did if isinstance(action, Record)] == [201]
    assert any(isinstance(message, HangFound) and message.round == 2 for message in stage.said)


def test_what_a_look_had_put_off_does_not_stop_the_next_round(stage: Stage) -> None:
    stage.see(stale(1), 20.0)
    stage.end(0, 1)  # the others are stopped once they have been looked at; but they end by themselves
    stage.end(1, 1)
    stage.told(Stop(round=1, reason="x", rejoin=True))
    stage.see(Told(message=assigned(2)))
    for i in range(2):
        stage.see(Started(local_rank=i, pid=200 + i, argv=("x",), log_dir=None))
    stage.told(LookAround(round=2, reason="rank 9 on n3 hung: x"), 40.0)
    stage.see(Looked(positions=()), 40.01)
    assert not stage.does(SignalWorkers) and stage.group.phase is Phase.RUNNING


DEAD = {"exitcode": 1, "gone": False, "evidence": Evidence()}


@pytest.mark.parametrize("late", [Hung, Stuck, Ending, Ended])
def test_what_was_seen_of_the_life_before_does_nothing_to_this_one(stage: Stage, late: type[Any]):
    stage.told(REST)
    for local_rank in (0, 1):
        stage.end(local_rank, -15, at=51.0)
    stage.run(2)
    stage.did.clear()
    what = {Hung: {"reason": STALE}, Stuck: {"asleep_s": 9.0}, Ending: {}, Ended: DEAD}[late]
    stage.see(late(local_rank=1, pid=101, at_unix=50.0, **what))
    assert stage.did == [] and stage.group.state.phase is Phase.RUNNING


def test_an_end_that_is_told_when_the_next_worker_is_about_to_start_is_not_its(stage: Stage):
    stage.told(REST)
    for local_rank in (0, 1):
        stage.end(local_rank, -15)
    stage.told(assigned(2))
    stage.see(Ended(local_rank=1, pid=101, at_unix=50.0, **DEAD))
    assert stage.did == [] and stage.group.workers[1].state is WorkerState.STARTING
