"""A node's group with workers that can begin another round in place: who is asked, who is late, who dies meanwhile."""

from __future__ import annotations

import signal

import pytest
from kit.stages.group_stage import REPORT, Stage, assigned

from holdfast.agent.group.messages import (
    Exit,
    Hung,
    KillWorkers,
    Lives,
    Looked,
    RegroupWorkers,
    SignalWorkers,
    Started,
    StartWorkers,
)
from holdfast.agent.group.state import Phase
from holdfast.core.job.events import FailureSeen
from holdfast.core.job.failure import Position
from holdfast.core.machine import Signalled, Tick
from holdfast.core.wire.messages import Finish, Join, Stop, Stopped

LIMIT_S = 3.0


@pytest.fixture
def stage() -> Stage:
    """Two workers that both can, in round 1."""
    stage = Stage(regroup_s=LIMIT_S)
    stage.run()
    for i in range(2):
        lives(stage, i)
    return stage


def lives(stage: Stage, local_rank: int, *, let_go: bool = False, in_place: bool = True) -> None:
    worker = stage.group.workers[local_rank]
    stage.see(Lives(local_rank=local_rank, pid=worker.pid, in_place=in_place, let_go=let_go))


def lose_the_first(stage: Stage) -> None:
    stage.end(0, -signal.SIGKILL)
    assert stage.only(RegroupWorkers).local_ranks == (1,) and not stage.does(SignalWorkers)


def restart(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="rank 4 was killed", rejoin=True))


@pytest.mark.parametrize("waits", [True, None])
def test_who_only_waits_for_one_that_hangs_keeps_its_process(stage: Stage, waits: bool | None) -> None:
    """Both have exceeded the same limit: that of the one that waits says nothing of it."""
    for i in range(2):
        stage.see(Hung(local_rank=i, pid=100 + i, reason="no step for 2 s", quiet_s=2.0, at_unix=1.0))
    shown = [Position(rank=4 + i, local_rank=i, pid=100 + i, waits=w) for i, w in enumerate((waits, False))]
    stage.see(Looked(positions=tuple(shown)))
    hanging = (1,) if waits else (0, 1)
    assert tuple(i for sent in stage.did if isinstance(sent, SignalWorkers) for i in sent.local_ranks) == hanging
    assert [event.failure.local_rank for event in stage.recorded if isinstance(event, FailureSeen)] == list(hanging)


def test_who_has_not_failed_is_asked_and_goes_on_in_the_next_round(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    assert stage.group.phase is Phase.STOPPING
    lives(stage, 1, let_go=True)
    assert [type(word) for word in stage.said] == [Stopped, Join]
    stage.told(assigned(2))
    assert stage.only(StartWorkers).kept == (1,) and stage.group.workers[1].pid == 101
    stage.see(Started(local_rank=1, pid=101, argv=("x",), log_dir=None, in_place=True))
    assert stage.group.workers[1].in_place and stage.group.workers.kept == ()


def test_nobody_is_of_the_new_round_before_it_has_let_go_of_the_old_one(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    assert not any(isinstance(word, (Stopped, Join)) for word in stage.said)
    lives(stage, 1)  # it can, but has not
    assert stage.group.phase is Phase.STOPPING


def test_who_is_late_is_killed_and_starts_like_any_other(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    assert stage.group.deadline() == LIMIT_S
    stage.see(Tick(), LIMIT_S)
    assert stage.only(KillWorkers).local_ranks == (1,)
    lives(stage, 1, let_go=True)  # it crossed the signal
    assert stage.group.phase is Phase.STOPPING
    stage.end(1, -signal.SIGKILL)
    stage.told(assigned(2))
    assert stage.only(StartWorkers).kept == ()


def test_one_that_dies_while_it_waits_is_no_failure_and_is_started_anew(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    lives(stage, 1, let_go=True)
    for gone in (False, True):
        stage.end(1, -signal.SIGSEGV, gone=gone)
        assert not any(isinstance(event, FailureSeen) for event in stage.recorded) and not stage.said
    stage.told(assigned(2))
    assert stage.only(StartWorkers).kept == ()


def test_a_job_that_ends_instead_asks_nobody_to_wait(stage: Stage) -> None:
    lose_the_first(stage)
    stage.told(Stop(round=1, reason="no restarts left", rejoin=False))
    sent = stage.only(SignalWorkers)
    assert (sent.local_ranks, sent.signum) == ((1,), signal.SIGTERM)


def test_who_waits_when_the_job_ends_is_killed(stage: Stage) -> None:
    lose_the_first(stage)
    lives(stage, 1, let_go=True)
    stage.told(Finish(report=REPORT))
    assert stage.only(KillWorkers).local_ranks == (1,) and stage.does(Exit)


def test_one_that_can_no_longer_is_asked_to_stop(stage: Stage) -> None:
    lose_the_first(stage)
    lives(stage, 1, in_place=False)
    assert stage.only(SignalWorkers).local_ranks == (1,)


def test_a_second_stop_finds_those_that_wait_and_loses_none(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    lives(stage, 1, let_go=True)
    stage.told(assigned(2))
    stage.see(Started(local_rank=0, pid=200, argv=("x",), log_dir=None))
    stage.see(Started(local_rank=1, pid=101, argv=("x",), log_dir=None, in_place=True))
    stage.end(0, 1)
    assert stage.only(RegroupWorkers).local_ranks == (1,)
    stage.told(Stop(round=2, reason="again", rejoin=True))
    lives(stage, 1, let_go=True)
    stage.told(assigned(3))
    assert stage.only(StartWorkers).kept == (1,)


def test_an_agent_that_is_told_to_go_asks_nobody_to_regroup(stage: Stage) -> None:
    stage.see(Signalled(signum=signal.SIGTERM))
    assert stage.only(SignalWorkers).local_ranks == (0, 1) and not stage.does(RegroupWorkers)
