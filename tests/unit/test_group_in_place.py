"""A node's group with workers that can begin another round in place: who is asked, who is late, who dies meanwhile."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.stages.group_stage import REPORT, Stage, assigned

from holdfast.agent.agent import Agent
from holdfast.agent.group.messages import (
    Exit,
    Hung,
    InMemory,
    KillWorkers,
    Lives,
    Looked,
    RegroupWorkers,
    SignalWorkers,
    Started,
    StartWorkers,
)
from holdfast.agent.group.state import Phase
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.workers import launch
from holdfast.agent.workers.uninterruptible import Sleepers
from holdfast.agent.workers.workers import Unstarted, Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import FailureSeen, RankHung, StateAgreed
from holdfast.core.job.failure import Cause, Position
from holdfast.core.machine import NEVER, Signalled, Tick
from holdfast.core.page import layout
from holdfast.core.value import replace
from holdfast.core.wire.messages import Finish, Join, Stop, Stopped
from holdfast.runtime.host import Child, Host
from holdfast.runtime.shm.pages import create_page

LIMIT_S = 3.0


@pytest.fixture
def stage() -> Stage:
    """Two workers that both can, in round 1."""
    return two()


def two(*, carries_on: bool = False) -> Stage:
    stage = Stage(regroup_s=LIMIT_S)
    stage.run(carries_on=carries_on)
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


@pytest.mark.parametrize("waits, carries_on", [(True, False), (None, False), (True, True)])
def test_who_only_waits_for_one_that_hangs_keeps_its_process(waits: bool | None, carries_on: bool) -> None:
    """Both have exceeded the same limit: that of the one that waits says nothing of it. But where a round may go on without
    them, nobody else would end that one."""
    stage = two(carries_on=carries_on)
    for i in range(2):
        stage.see(Hung(local_rank=i, pid=100 + i, reason="no step for 2 s", quiet_s=2.0, at_unix=1.0))
    shown = [Position(rank=4 + i, local_rank=i, pid=100 + i, waits=w) for i, w in enumerate((waits, False))]
    stage.see(Looked(positions=tuple(shown)))
    hanging = (1,) if waits and not carries_on else (0, 1)
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


def test_a_restart_that_was_asked_for_is_one_with_new_processes(stage: Stage) -> None:
    stage.told(Stop(round=1, reason="an operator asked for a restart", rejoin=True, anew=True))
    assert stage.only(SignalWorkers).local_ranks == (0, 1) and not stage.does(RegroupWorkers)
    for i in range(2):
        stage.end(i, -signal.SIGTERM)
    stage.told(assigned(2))
    assert stage.only(StartWorkers).kept == ()
    for i in range(2):  # and what fails after that is another matter
        stage.see(Started(local_rank=i, pid=200 + i, argv=("x",), log_dir=None))
        lives(stage, i)
    lose_the_first(stage)


def test_who_was_asked_to_go_on_in_place_ends_where_new_processes_were_asked_for(stage: Stage) -> None:
    lose_the_first(stage)
    stage.told(Stop(round=1, reason="an operator asked for a restart", rejoin=True, anew=True))
    assert stage.only(SignalWorkers).local_ranks == (1,)


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


def begin_the_second(stage: Stage) -> None:
    """Rank 5 goes on in place in round 2, and is not heard of yet."""
    lose_the_first(stage)
    restart(stage)
    lives(stage, 1, let_go=True)
    stage.told(assigned(2))
    stage.see(Started(local_rank=0, pid=200, argv=("x",), log_dir=None))
    lives(stage, 0)
    stage.see(Started(local_rank=1, pid=101, argv=("x",), log_dir=None, in_place=True, at_unix=50.0))


def test_one_that_does_not_begin_its_next_round_in_place_hangs_at_the_limit(stage: Stage) -> None:
    begin_the_second(stage)
    assert stage.group.deadline() == LIMIT_S
    stage.see(Tick(), LIMIT_S)
    [found] = [event for event in stage.recorded if isinstance(event, RankHung)]
    assert (found.local_rank, found.pid, found.quiet_s) == (1, 101, LIMIT_S) and "--regroup-timeout" in found.reason
    stage.see(Looked(positions=()))
    assert stage.only(SignalWorkers).local_ranks == (1,) and stage.only(RegroupWorkers).local_ranks == (0,)
    [failed] = [event.failure for event in stage.recorded if isinstance(event, FailureSeen)]
    assert (failed.local_rank, failed.cause, failed.at_unix) == (1, Cause.HUNG, 50.0 + LIMIT_S)


def test_one_that_has_begun_or_is_to_let_go_again_has_no_such_limit(stage: Stage) -> None:
    begin_the_second(stage)
    lives(stage, 1, let_go=True)  # told twice, of the round before
    assert stage.group.deadline() == LIMIT_S
    lives(stage, 1)
    assert stage.group.deadline() == NEVER


def test_what_a_worker_s_page_says_by_a_deadline_is_read_before_it_is_too_late(stage: Stage) -> None:
    """The thread that waits for such words may not have run by then, on a busy host."""
    begin_the_second(stage)
    host, page, agent = Host(print), create_page(), object.__new__(Agent)
    host.children[101] = Child(None, page)  # type: ignore[arg-type]
    page.words[layout.LIFE_STATE], page.words[layout.LIFE_COUNT] = layout.IN_PLACE, 1
    agent.host, agent.network, agent.tell_at, agent.settle_at = host, None, NEVER, NEVER
    agent.node, agent.components = SimpleNamespace(deadline=lambda: 0.0), SimpleNamespace(timed=())  # type: ignore[assignment]
    for seen in agent._due():
        stage.see(seen if isinstance(seen, Tick) else Lives(local_rank=1, pid=seen.pid, in_place=True, let_go=False), LIMIT_S)
    assert not any(isinstance(event, RankHung) for event in stage.recorded) and stage.group.deadline() == NEVER
    del host.children[101]
    page.close()
    host.close()


def test_one_that_is_to_let_go_before_it_has_begun_has_the_limit_of_that(stage: Stage) -> None:
    begin_the_second(stage)
    stage.end(0, 1, at=1.0)
    stage.see(Tick(), 1.0)
    assert not any(isinstance(event, RankHung) for event in stage.recorded) and not stage.does(KillWorkers)
    stage.see(Tick(), LIMIT_S)
    assert stage.only(KillWorkers).local_ranks == (1,)


def test_one_that_dies_while_it_waits_is_no_failure_and_is_started_anew(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    lives(stage, 1, let_go=True)
    for gone in (False, True):
        stage.end(1, -signal.SIGSEGV, gone=gone)
        assert not any(isinstance(event, FailureSeen) for event in stage.recorded) and not stage.said
    stage.told(assigned(2))
    assert stage.only(StartWorkers).kept == ()


def test_the_coordinator_hears_of_it_when_one_whose_state_is_counted_on_dies_while_it_waits(stage: Stage) -> None:
    holding = (1, 5, 6, 1, 9, 0, 0)
    lose_the_first(stage)
    restart(stage)
    stage.see(InMemory(in_memory=(holding,)))
    lives(stage, 1, let_go=True)
    assert [word.in_memory for word in stage.said if isinstance(word, Join)] == [(holding,)]
    gone = (*holding[:4], -1, *holding[5:])
    stage.see(InMemory(in_memory=(gone,)))
    stage.end(1, -signal.SIGSEGV)
    assert [word.in_memory for word in stage.said if isinstance(word, Join)] == [(gone,)]


def test_what_the_others_have_is_told_though_one_that_waits_for_a_disk_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, page, disk_answers = Host(print), create_page(), threading.Event()
    config = RunConfig(training_script="train.py", nproc_per_node=2, state_dir=str(tmp_path))
    workers, has_let_go, waits = Workers(config, host, LogPlan.of(config, str(tmp_path), "n1")), 1 << 23, (1 << 23) + 1
    page.words[layout.HELD_PART], page.words[layout.HELD_ROUND], page.words[layout.HELD_STEP] = 7, 1, 9
    page.words[layout.HELD] = layout.HELD_KEPT | layout.HELD_WHOLE
    host.children |= {has_let_go: Child(None, page), waits: Child(None, None)}  # type: ignore[arg-type]
    workers.local_ranks, workers.let_go = {has_let_go: 0, waits: 1}, {has_let_go}
    workers.to_start, workers.ending = Unstarted(assigned(), []), Sleepers(0.0)
    monkeypatch.setattr(host, "states", lambda: {waits: "D"})
    workers.files.disk.do(disk_answers.wait)
    workers.files.disk.io_thread.is_late = True
    told, stuck = workers._deaf(host.now())
    assert told == InMemory(in_memory=((0, 4, 6, 1, 9, 7, 0),)) and stuck.local_rank == 1
    disk_answers.set()
    host.children.clear()
    page.close()
    host.close()


def test_what_was_in_memory_before_a_round_is_not_said_after_it(stage: Stage) -> None:
    """One that could not be waited for has not told what it has: nobody knows it."""
    lose_the_first(stage)
    restart(stage)
    stage.see(InMemory(in_memory=((1, 5, 6, 1, 9, 0, 0),)))
    lives(stage, 1, let_go=True)
    stage.told(assigned(2))
    assert stage.group.join.in_memory
    stage.see(Started(local_rank=0, pid=200, argv=("x",), log_dir=None))
    assert stage.group.join.in_memory == ()


@pytest.mark.parametrize("state", [None, (1, 9)])
def test_a_worker_is_told_the_step_that_its_own_round_goes_on_from_or_none(state: tuple[int, int] | None) -> None:
    """An agent that a worker of another job has started has that job's in its environment."""
    config, given = RunConfig(training_script="train.py", state_dir="/nowhere"), replace(assigned(), state=state)
    env = launch.environment(config, {"HOLDFAST_STATE_STEP": "7"}, given, 0, error_file="", paged=True)
    assert env.get("HOLDFAST_STATE_STEP") == (None if state is None else "9")


def test_what_the_ranks_go_on_from_is_recorded_before_they_begin(stage: Stage) -> None:
    lose_the_first(stage)
    restart(stage)
    lives(stage, 1, let_go=True)
    stage.told(replace(assigned(2), state=(1, 9), state_from=("rank 5", "memory")))
    [agreed] = [event for event in stage.recorded if isinstance(event, StateAgreed)]
    assert (agreed.round, agreed.step, agreed.state_from) == (2, 9, ("rank 5", "memory"))


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
