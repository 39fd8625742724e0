"""A node tells guardian, ranks and kernel until when it may act; if it sleeps through that, its ranks die before all else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.group.messages import LeaseOver
from holdfast.agent.own_lease import WAKE_S, OwnLease
from holdfast.runtime.process.guardian import STRIKE_S, Lease

LEASE_S = 2.75


class Stage:
    """A host whose clock stands where it is put, and a node whose lease ends when it is said."""

    def __init__(self) -> None:
        self.clock = 100.0
        self.did: list[Any] = []
        self.host: Any = SimpleNamespace(
            now=lambda: self.clock,
            show_lease=lambda until: self.did.append(until),
            strike=lambda: self.did.append("strike"),
            stop=lambda: self.did.append("stop"),
        )
        self.node: Any = SimpleNamespace(
            member=SimpleNamespace(lease_s=LEASE_S), group=SimpleNamespace(has_workers=True), lease_ends=None
        )
        self.shared = Lease()
        self.lease = OwnLease(self.host, self.node, self.shared)
        self.lease.timer = SimpleNamespace(at=lambda when: self.did.append(("wake", when)))  # type: ignore[assignment]

    def renewed(self, until: float) -> None:
        self.node.lease_ends = until
        self.lease.show()
        self.did.clear()

    def turn(self, at: float) -> None:
        self.clock = at
        self.lease.enforce()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_all_are_told_once_when_it_changes(stage: Stage) -> None:
    stage.node.lease_ends = 102.0
    for _ in range(2):
        stage.lease.show()
    assert stage.did == [102.0, ("wake", 102.0 + WAKE_S)] and stage.shared.until == 102.0
    stage.node.lease_ends = None
    stage.lease.show()
    assert stage.did[2:] == [None, ("wake", 0.0)] and stage.shared.until is None


def test_a_stopped_agent_wakes_after_its_guardian_would_have_ended_it_and_within_the_fence(stage: Stage) -> None:
    assert STRIKE_S < WAKE_S < 0.5


def test_an_agent_that_has_slept_for_a_lease_kills_its_ranks_and_says_why(stage: Stage) -> None:
    stage.renewed(102.0)
    stage.turn(101.0)
    stage.turn(101.0 + LEASE_S)
    assert stage.did == ["strike"]
    first, *rest = stage.lease.explained([])
    assert isinstance(first, LeaseOver) and first.until == stage.clock and not rest


def test_what_came_while_it_slept_may_have_renewed_a_lease(stage: Stage) -> None:
    stage.renewed(102.0)
    stage.turn(101.0)
    stage.turn(102.5)  # the answer to what was said at 101 would hold until 103.75
    assert not stage.did and not stage.shared.struck


def test_one_that_wakes_while_the_user_has_stopped_the_job_kills_and_sleeps_on(stage: Stage) -> None:
    stage.renewed(102.0)
    stage.turn(101.5)
    stage.shared.suspend(True)
    stage.turn(102.0 + WAKE_S)
    assert stage.did == ["strike", "stop"]


def test_a_long_wait_within_the_lease_or_without_one_is_no_matter(stage: Stage) -> None:
    stage.turn(90.0)
    stage.turn(200.0)
    stage.renewed(300.0)
    stage.turn(250.0)
    assert not stage.did
