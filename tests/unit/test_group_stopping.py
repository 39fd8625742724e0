"""How one node's workers are stopped: by an order, by the end of a lease, and those who do not obey."""

from __future__ import annotations

import signal

import pytest
from kit.stages.group_stage import GRACE_S, REPORT, Stage, running

from holdfast.agent.group.messages import Exit, KillWorkers, LeaseOver, SignalWorkers, Stuck
from holdfast.agent.group.state import Phase
from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.wire.messages import Finish, Join, Stop, Stopped


@pytest.fixture
def stage() -> Stage:
    return running()


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
    assert stage.only(Say).text.startswith("ranks 4, 5 did not stop")
    stage.see(Tick(), stage.group.deadline())
    assert "processes 100, 101 survived SIGKILL" in stage.only(Say).text
    assert [type(message) for message in stage.said] == [Stopped, Join]


def test_who_waits_for_a_disk_that_does_not_answer_is_killed_and_not_waited_for(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="rank 0 failed", rejoin=True))
    stage.end(0, -15)
    stage.see(Stuck(local_rank=1, pid=101, asleep_s=0.2, at_unix=0.0), 0.5)
    assert stage.only(KillWorkers).local_ranks == (1,) and "a disk that does not answer" in stage.only(Say).text
    assert [type(message) for message in stage.said] == [Stopped, Join]
    stage.end(1, -9)
    assert not stage.said, "it ends when that disk answers"


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
    assert stage.told(Stop(round=1, reason="restart", rejoin=True)) == [] and stage.group.phase is Phase.RUNNING


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
