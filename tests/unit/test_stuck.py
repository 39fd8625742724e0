"""When does a worker's sleep in the kernel count as stuck?"""

from __future__ import annotations

import pytest

from holdfast.agent.workers.uninterruptible import Sleepers
from holdfast.core.job.failure import Failure
from holdfast.recovery.policy import RestartOnFailure

WORKER, OTHER = 11, 12


@pytest.fixture
def sleepers() -> Sleepers:
    return Sleepers(limit_s=10.0)


def test_a_sleep_as_long_as_the_limit_is_told_once(sleepers):
    assert [sleepers.look({WORKER: "D", OTHER: "S"}, now) for now in (0.0, 5.0, 9.9)] == [[], [], []]
    assert sleepers.look({WORKER: "D", OTHER: "S"}, 10.0) == [(WORKER, 10.0)]
    assert sleepers.look({WORKER: "D", OTHER: "S"}, 11.0) == []


@pytest.mark.parametrize("between", ["R", "S", "Z"])
def test_one_look_that_finds_it_otherwise_begins_anew(sleepers, between):
    for now, state in ((0.0, "D"), (9.0, between), (9.5, "D")):
        assert sleepers.look({WORKER: state}, now) == []
    assert sleepers.look({WORKER: "D"}, 19.0) == []
    assert sleepers.look({WORKER: "D"}, 19.5) == [(WORKER, 10.0)]


def test_a_worker_that_has_gone_is_forgotten_and_a_new_one_with_its_pid_is_new(sleepers):
    sleepers.look({WORKER: "D"}, 0.0)
    assert sleepers.look({}, 9.0) == []
    assert sleepers.look({WORKER: "D"}, 10.0) == []


@pytest.mark.parametrize(("limit_s", "interval_s"), [(0.5, 0.05), (5.0, 0.5), (600.0, 1.0), (0.001, 0.02)])
def test_it_looks_often_enough_and_no_more(limit_s, interval_s):
    sleepers = Sleepers(limit_s)
    assert sleepers.look_at == 0.0
    sleepers.look({}, 100.0)
    assert sleepers.look_at == pytest.approx(100.0 + interval_s)


def test_a_stuck_worker_is_not_started_again():
    stuck = Failure(node="n1", rank=3, at_unix=0.0, cause="stuck", message="is stuck in the kernel")
    decision = RestartOnFailure(max_restarts=3).consider(stuck, uptime_s=100.0, now=100.0)
    assert decision.then == "stop"
    assert "rank 3" in decision.reason and "is stuck in the kernel" in decision.reason
