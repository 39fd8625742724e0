"""How long a restart waits for the GPUs' memory, told step by step."""

from __future__ import annotations

import pytest
from kit.stages.made_up import assigned
from kit.stages.quick_disk import QuickGroup

from holdfast.agent.group.gpu_memory_wait import ANSWER_S, MemoryWait
from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import (
    Ended,
    GpuMemory,
    GpuUser,
    LeaseOver,
    LookAtMemory,
    MemorySeen,
    Send,
    SparesAwaited,
    Started,
    StartWorkers,
    Sweep,
    Told,
)
from holdfast.agent.group.state import Phase, State
from holdfast.core.job.events import GpuMemoryReclaimed, WorkersStopped
from holdfast.core.job.failure import Evidence
from holdfast.core.machine import NEVER, Action, Record, Say, Signalled, Tick
from holdfast.core.wire.messages import Join, Stop, Stopped


def taken(*used_mb: float, others: tuple[GpuUser, ...] = ()) -> MemorySeen:
    return MemorySeen(gpus=tuple(GpuMemory(index=i, used_mb=mb, others=others) for i, mb in enumerate(used_mb)))


def said(actions: list[object], level: str) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say) and action.level == level]


def event(actions: list[object]) -> GpuMemoryReclaimed:
    return next(action.event for action in actions if isinstance(action, Record))


class Waiting:
    """A wait, and what it is by now."""

    def __init__(self, wait: MemoryWait) -> None:
        self.wait = wait

    def begin(self, now: float) -> list[Action]:
        self.wait, did = self.wait.begin(now)
        return did

    def seen(self, seen: MemorySeen, now: float) -> list[Action]:
        self.wait, did = self.wait.seen(seen, now)
        return did

    def late(self, now: float) -> list[Action]:
        self.wait, did = self.wait.late(now)
        return did

    def deadline(self) -> float:
        return self.wait.deadline()

    @property
    def pending(self) -> bool:
        return self.wait.pending


@pytest.fixture
def memory() -> Waiting:
    waiting = Waiting(MemoryWait(timeout_s=50.0, tolerance_mb=512.0, poll_s=2.0))
    assert waiting.begin(100.0) == [LookAtMemory(above_mb=512.0)]
    return waiting


# --- alone ----------------------------------------------------------------------------------------------------------------


def test_free_memory_is_seen_at_the_first_look(memory):
    did = memory.seen(taken(3.0, 400.0), 100.1)
    assert not memory.pending and memory.deadline() == NEVER
    assert event(did).free and event(did).last_mb == (3.0, 400.0) and event(did).waited_s == pytest.approx(0.1)
    assert len(said(did, "info")) == 1 and not said(did, "error")


def test_pauses_grow_up_to_the_one_asked_for(memory):
    now, pauses = 100.0, []
    for _ in range(7):
        assert memory.seen(taken(40000.0), now) == []
        pauses.append(round(memory.deadline() - now, 3))
        now = memory.deadline()
        assert memory.late(now) == [LookAtMemory(above_mb=512.0)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    did = memory.seen(taken(2.0), now + 0.1)
    assert event(did).first_mb == (40000.0,) and event(did).last_mb == (2.0,) and event(did).looks == 8
    assert "GPU 0: 40000 → 2 MiB" in said(did, "info")[0]


def test_after_the_limit_the_restart_goes_on_and_says_so(memory):
    now = 100.0
    while memory.pending:
        did = memory.seen(taken(3.0, 4000.0), now)
        if memory.pending:
            now = memory.deadline()
            memory.late(now)
    assert now == 150.0 and not event(did).free
    assert said(did, "error")[0].startswith("GPU 1 did not free its memory within 50 s; starting anyway")


def test_what_stays_is_waited_for_once(memory):
    memory.seen(taken(4000.0), 151.0)
    memory.begin(300.0)
    assert event(memory.seen(taken(4000.0), 300.1)).free
    memory.begin(400.0)
    memory.seen(taken(5000.0), 400.1)
    assert memory.pending


def test_other_peoples_processes_are_named_and_not_waited_for(memory):
    stranger = GpuUser(pid=77, name="jupyter", mb=30000.0)
    did = memory.seen(taken(30100.0, others=(stranger,)), 100.1)
    assert not memory.pending and event(did).free
    assert "GPU 0: 30000 MiB of process 77 (jupyter)" in said(did, "warning")[0]
    memory.begin(200.0)
    assert said(memory.seen(taken(30100.0, others=(stranger,)), 200.1), "warning") == []


def test_beside_other_peoples_memory_our_own_is_waited_for(memory):
    memory.seen(taken(40000.0, others=(GpuUser(pid=77, name="jupyter", mb=30000.0),)), 100.1)
    assert memory.pending


def test_one_who_does_not_say_how_much_may_have_all(memory):
    did = memory.seen(taken(40000.0, others=(GpuUser(pid=77, name="x", mb=None),)), 100.1)
    assert event(did).free and "GPU 0: process 77 (x)" in said(did, "warning")[0]


def test_a_node_without_gpus_is_never_asked_again(memory):
    assert memory.seen(MemorySeen(), 100.0) == [] and not memory.pending
    assert memory.begin(200.0) == []


def test_a_tool_that_fails_twice_is_not_asked_again(memory):
    assert memory.seen(MemorySeen(trouble="it ended with 9"), 100.1) == []
    memory.late(memory.deadline())
    did = memory.seen(MemorySeen(trouble="it ended with 9"), 100.3)
    assert "nvidia-smi: it ended with 9" in said(did, "warning")[0]
    assert not memory.pending and memory.begin(200.0) == []


def test_a_tool_that_hangs_costs_one_wait(memory):
    assert memory.deadline() == 100.0 + ANSWER_S
    did = memory.late(100.0 + ANSWER_S)
    assert Sweep() in did and "no answer within 15 s" in said(did, "warning")[0]
    assert memory.seen(taken(3.0), 120.0) == [] and memory.begin(200.0) == []


def test_a_limit_of_zero_waits_for_nothing():
    assert Waiting(MemoryWait(timeout_s=0.0)).begin(1.0) == []


# --- in the group ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Group:
    """One whose worker has failed in round 1, and which has joined again."""
    join = Join(node="n-id", name="n", addr="n", master_port=0, nproc=1, role="default")
    group = QuickGroup(State(join=join, grace_s=10.0, hosting=False, memory=MemoryWait(timeout_s=50.0)))
    group.begin(0.0)
    assert StartWorkers(assigned=assigned(1)) in group.observe(Told(message=assigned(1)), 1.0)
    group.observe(Started(local_rank=0, pid=7, argv=(), log_dir=None), 1.0)
    group.observe(Ended(local_rank=0, pid=7, exitcode=1, gone=True, at_unix=0.0, evidence=Evidence()), 2.0)
    did = group.observe(Told(message=Stop(round=1, rejoin=True, reason="r")), 2.0)
    assert did[-1] == LookAtMemory(above_mb=512.0)
    return group


def starts(actions: list[object]) -> bool:
    return any(isinstance(action, StartWorkers) for action in actions)


def test_workers_start_when_the_round_is_agreed_and_the_memory_free(group):
    assert not starts(group.observe(Told(message=assigned(2)), 2.1))
    assert group.has_workers  # the lease is watched: these ranks are ours
    assert not starts(group.observe(taken(40000.0), 2.2))
    group.observe(Tick(), group.deadline())
    assert starts(group.observe(taken(3.0), 2.5)) and group.deadline() == NEVER


def test_memory_that_is_free_before_the_round_is_agreed_holds_nobody_up(group):
    assert not starts(group.observe(taken(3.0), 2.05))
    assert starts(group.observe(Told(message=assigned(2)), 2.1))


def test_a_tool_that_hangs_does_not_hold_the_start_for_ever(group):
    group.observe(Told(message=assigned(2)), 2.1)
    did = group.observe(Tick(), 2.0 + ANSWER_S)
    assert starts(did)


@pytest.mark.parametrize(
    "news", [Told(message=Stop(round=2, rejoin=True, reason="b failed")), LeaseOver(reason="silence", until=9.0)]
)
def test_a_round_that_is_over_before_its_workers_start_is_left_at_once(group, news):
    group.observe(Told(message=assigned(2)), 2.1)
    did = group.observe(news, 3.0)
    assert any(isinstance(action, Send) and isinstance(action.message, Stopped) for action in did)
    assert any(isinstance(action, Record) and isinstance(action.event, WorkersStopped) for action in did)
    assert group.phase is Phase.JOINING and not starts(did)
    assert not starts(group.observe(taken(3.0), 3.1))  # nobody waits for it any more


def test_workers_wait_for_spares_that_are_about_to_be_ready_and_no_longer(group):
    group.observe(taken(3.0), 2.05)
    group.observe(SparesAwaited(until=4.0), 2.06)
    assert not starts(group.observe(Told(message=assigned(2)), 2.1))
    assert group.has_workers and group.deadline() == 4.0
    assert starts(group.observe(Tick(), 4.0)) and group.deadline() == NEVER


def test_when_the_last_spare_is_ready_the_workers_start_unless_memory_is_awaited(group):
    group.observe(SparesAwaited(until=4.0), 2.06)
    group.observe(Told(message=assigned(2)), 2.1)
    assert not starts(group.observe(SparesAwaited(until=-NEVER), 2.2))
    assert starts(group.observe(taken(3.0), 2.5))


def test_a_signal_ends_a_node_that_waits_for_memory(group):
    group.observe(Told(message=assigned(2)), 2.1)
    group.observe(Signalled(signum=15), 3.0)
    assert group.phase is Phase.ENDED and group.deadline() == NEVER
