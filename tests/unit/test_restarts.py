"""Where the time of a restart went, by what was recorded of it."""

from __future__ import annotations

from typing import Any

import pytest
from test_timeline import Story

from holdfast.core.job.events import Decided, GpuMemoryReclaimed, NodeLost, RanksBegun, StopSent, WorkersStopped
from holdfast.telemetry.report.restarts import PHASES, Restart


def begun(**fields: Any) -> RanksBegun:
    usual = {"booted_s": 0.5, "joining_s": 3.5, "joined_s": 4.0, "restored_s": 6.0, "restore_s": 1.5, "stepped_s": 9.0}
    return RanksBegun(**(usual | fields))


def story(*ends: RanksBegun, reclaimed: bool = False) -> Restart:
    """Rank 1 killed at 7 and seen then, the last told to stop at 8, the last gone at 10, a round at 12, started at 13, 14."""
    told = Story()
    told.agents("a", "b")
    told.life(1, 0, "a", "b")
    told.failure("b", 1, after_s=3.0)
    for node, after_s in (("b", 0.25), ("a", 0.75)):
        told.then(node, StopSent(signal="SIGTERM", grace_s=30.0, reason="", ranks=(0,)), after_s)
    told.then("a", Decided(decision="restart", reason="rank 1 was killed"), 0.0)
    for node in ("b", "a"):
        told.then(node, WorkersStopped(took_s=1.0, killed=()))
    told.now = 12.0
    if reclaimed:
        told.round = 2
    told.life(2, 1, "a", "b")
    if reclaimed:
        freed = GpuMemoryReclaimed(waited_s=3.0, looks=2, gpus=(0,), first_mb=(9.0,), last_mb=(0.0,), free=True)
        told.then("b", freed, -1.5)
    for node, event in zip(("a", "b"), ends):
        told.then(node, event)
    (found,) = told.told("a", "b").restarts
    return found


def test_each_phase_lasts_until_the_last_node_has_done_with_it() -> None:
    found = story(begun(stepped_s=2.0), begun())
    assert found.phases == {
        "detect": 0.0, "tell": 1.0, "stop": 2.0, "rendezvous": 2.0, "reclaim": None, "start": 2.5, "import": 3.0,
        "first collective": 0.5, "restore": 1.5, "first step": 3.5, "again": None,
    }  # fmt: skip
    assert (found.from_round, found.round, found.disturbed_at, found.total_s) == (1, 2, 7.0, 16.0)
    assert sum(took or 0.0 for took in found.phases.values()) == found.total_s and tuple(found.phases) == PHASES


def test_the_wait_for_the_gpus_memory_is_apart() -> None:
    found = story(begun(), begun(), reclaimed=True)
    assert (found.phases["reclaim"], found.phases["start"]) == (0.5, 2.0)


def test_what_nobody_told_is_none_and_its_time_is_in_the_next_one() -> None:
    found = story(begun(), begun(joining_s=None, joined_s=None, restored_s=None, restore_s=0.0))
    assert found.phases["import"] is not None  # the other node told
    found = story(*[begun(joining_s=None, joined_s=None, restored_s=None, restore_s=0.0)] * 2)
    assert [found.phases[phase] for phase in ("import", "first collective", "restore", "first step")] == [None, None, None, 8.5]


def test_a_state_that_was_loaded_before_the_ranks_met_is_not_counted_twice() -> None:
    found = story(*[begun(restored_s=2.0, restore_s=1.0)] * 2)
    assert (found.phases["import"], found.phases["restore"]) == (2.0, 1.0)
    assert sum(took or 0.0 for took in found.phases.values()) == found.total_s


def test_a_life_that_has_made_no_step_yet_is_told_as_far_as_it_got() -> None:
    found = story(*[begun(stepped_s=None)] * 2)
    assert (found.phases["restore"], found.phases["first step"], found.total_s) == (1.5, None, 13.0)
    assert story().phases["start"] == 2.0  # its processes have been started, and that is all that is known


def test_a_node_that_fell_silent_is_detected_when_its_lease_was_over() -> None:
    told = Story()
    told.agents("a", "b")
    told.life(1, 0, "a", "b")
    told.then("a", NodeLost(name="b", reason="not heard from", silent_s=3.0), 10.0)
    told.life(2, 0, "a")
    (found,) = told.told("a").restarts
    assert found.phases["detect"] == pytest.approx(3.0)
