"""Nodes that must not take part: who says so, what becomes of the round, how long it is remembered, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.round_stage import LEASE_S, Job, kinds

from holdfast.core.job.events import NodeExcluded, NodeReadmitted
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import (
    Join,
    Leave,
    Message,
    Past,
    Reply,
    Request,
    RequestKind,
    Stop,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.rules import Heard


def asked(job: Job, name: str, *, readmit: bool = False, now: float | None = None) -> list[Message]:
    kind = RequestKind.READMIT if readmit else RequestKind.EXCLUDE
    return job.hear(Request(node="a", kind=kind, target=name, ask=7, reason="its fan is broken"), now)


def answer(said: list[Message]) -> Reply:
    return next(message for message in said if isinstance(message, Reply))


def join(job: Job, node: str, name: str, **rest: Any) -> list[Message]:
    return job.hear(Join(node=node, name=name, addr=name, master_port=9, nproc=2, role="default", **rest))


def about_nodes(job: Job) -> list[str]:
    return [f"{type(event).__name__} {event.name}" for event in job.events if isinstance(event, (NodeExcluded, NodeReadmitted))]


@pytest.fixture
def job() -> Job:
    """Two nodes of two in round 1, and a spare."""
    job = Job()
    job.join("a", "b", "c")
    return job


def test_a_spare_takes_the_place_of_an_excluded_member(job: Job) -> None:
    said = asked(job, "b")
    assert kinds(said) == ["Stop", "Stop", "Reply"] and answer(said).ok
    job.stopped_and_back("a", "b")
    assert job.members() == "ac"
    assert job.decided[-1] == ("rejoin", "b is excluded: its fan is broken")
    assert ("b", Waiting(round=2, reason="excluded: its fan is broken")) in job.said
    assert job.policy.restarts_left(0.0) == 3


def test_the_round_waits_until_the_excluded_nodes_workers_are_gone(job: Job) -> None:
    asked(job, "b")
    job.stopped_and_back("a")
    assert job.machine.phase == "gathering"


def test_a_node_that_is_needed_is_not_excluded() -> None:
    job = Job()
    job.join("a", "b")
    said = answer(asked(job, "b"))
    assert not said.ok and "cannot go on without it: 1 of the 2 nodes needed" in said.text
    assert job.machine.phase == "running" and about_nodes(job) == []


def test_an_excluded_spare_costs_nobody_anything(job: Job) -> None:
    assert kinds(asked(job, "c")) == ["Reply"]
    job.hear(Leave(node="b", round=1, reason="goes"))
    job.stopped_and_back("a")
    job.tick(FENCE_S)
    assert job.machine.phase == "gathering"  # c does not take b's place


def test_a_name_that_nobody_has_yet_is_remembered(job: Job) -> None:
    assert answer(asked(job, "late")).text == "no node late is here now; it is excluded if it comes"
    assert join(job, "late-1", "late") == [Waiting(round=1, reason="excluded: its fan is broken")]


def test_another_life_of_an_excluded_host_is_excluded_too(job: Job) -> None:
    asked(job, "b")
    job.stopped_and_back("a", "b")
    job.hear(Leave(node="b", round=1, reason="goes"))
    assert join(job, "b-2", "b") == [Waiting(round=2, reason="excluded: its fan is broken")]


def test_a_readmitted_node_takes_part_where_there_is_room() -> None:
    job = Job("1:2", last_call_s=0.0)
    job.join("a", "b")
    job.stopped_and_back("a")
    job.stopped_and_back("b")
    asked(job, "b")
    job.stopped_and_back("a", "b")
    assert job.members() == "a"
    assert answer(asked(job, "b", readmit=True)).ok
    job.stopped_and_back("a")
    assert job.members() == "ab"
    assert about_nodes(job) == ["NodeExcluded b", "NodeReadmitted b"]


def test_what_is_asked_twice_or_in_vain_is_answered(job: Job) -> None:
    asked(job, "b")
    assert answer(asked(job, "b")).text == "b is excluded already: its fan is broken"
    assert not answer(asked(job, "c", readmit=True)).ok


def test_whoever_has_finished_its_part_is_left_to_it(job: Job) -> None:
    job.hear(Succeeded(node="b", round=1))
    assert "takes part in no later round" in answer(asked(job, "b")).text
    job.hear(Succeeded(node="a", round=1))
    assert job.report.outcome == "succeeded"


def test_an_exclusion_is_over_after_its_time() -> None:
    job = Job(readmit_after_s=100.0, lease_s=1000.0)
    job.join("a", "b", "c")
    asked(job, "b", now=10.0)
    job.stopped_and_back("a", "b")
    assert job.machine.deadline() == 110.0
    job.tick(110.0)
    assert about_nodes(job) == ["NodeExcluded b", "NodeReadmitted b"] and job.machine.excluded.deadline() == NEVER


# --- what a node says of itself -----------------------------------------------------------------------------------------------


def test_a_node_that_says_it_is_unhealthy_is_a_spare_until_it_says_otherwise() -> None:
    job = Job()
    join(job, "a", "a")
    join(job, "b", "b", unhealthy="a GPU has fallen off the bus")
    assert job.machine.phase == "gathering"
    join(job, "c", "c")
    assert job.members() == "ac"
    join(job, "b", "b")
    assert about_nodes(job) == ["NodeExcluded b", "NodeReadmitted b"]


def test_its_own_word_is_remembered_with_its_reason_over_rounds_and_coordinators_until_it_takes_it_back(job: Job) -> None:
    why = "a GPU has fallen off the bus"
    job.fail("a", now=10.0)
    job.hear(Stopped(node="a", round=1))
    join(job, "a", "a", round=1)
    job.hear(Stopped(node="b", round=1))
    join(job, "b", "b", round=1, unhealthy=why)
    assert job.members() == "ac" and ("b", Waiting(round=2, reason=f"excluded: {why}")) in job.said
    job.hear(Leave(node="c", round=2, reason="drained"))
    job.hear(Stopped(node="c", round=2))
    job.stopped_and_back("a")
    assert job.machine.phase == "gathering" and job.machine.excluded.why("b") == why, "rather none than an unfit one"
    successor = Rendezvous(job.rules, job.policy, now=100.0, now_unix=0.0)
    successor.resume(Past(life="", round=2, restarts=0, excluded=job.machine.excluded.kept(15.0)), now=100.0)
    assert (successor.excluded.by("b"), successor.excluded.why("b")) == ("itself", why)
    assert join(job, "b-2", "b", unhealthy="") and job.members() == "ab", "another life of it, that is fit"


def test_a_member_that_finds_itself_unfit_between_rounds_has_a_spare_take_its_place(job: Job) -> None:
    join(job, "b", "b", round=1, unhealthy="ECC errors")
    job.stopped_and_back("a")
    assert job.members() == "ac" and job.policy.restarts_left(0.0) == 3


def test_what_an_operator_orders_outlasts_the_nodes_own_word_that_came_first(job: Job) -> None:
    """The supervisor and the node's own checks see the same trouble, in either order; the node's next check may see none."""
    join(job, "b", "b", round=1, unhealthy="Xid 119")
    assert answer(asked(job, "b")).text == "b is excluded already: Xid 119"
    join(job, "b", "b", round=1)
    job.stopped_and_back("a")
    assert job.members() == "ac" and job.machine.excluded.why("b") == "its fan is broken"
    assert answer(asked(job, "b", readmit=True)).ok and not job.machine.excluded.why("b")


def test_an_operator_may_take_a_node_that_calls_itself_unfit_until_it_says_so_again(job: Job) -> None:
    join(job, "d", "d", unhealthy="ECC errors")
    assert answer(asked(job, "d", readmit=True)).ok and not job.machine.excluded.why("d")
    join(job, "d", "d", unhealthy="ECC errors")
    assert job.machine.excluded.why("d") == "ECC errors"


def test_an_operators_word_stands_whatever_the_node_says_of_itself(job: Job) -> None:
    asked(job, "b")
    job.stopped_and_back("b")
    assert job.machine.excluded.by("b") == "operator"


# --- what the policy says -----------------------------------------------------------------------------------------------------


def fails_twice(job: Job) -> None:
    for _ in range(2):
        job.fail("b", now=job.now + 10.0)
        job.renew("a", "b", "c")
        job.stopped_and_back("a", "b")
        job.renew("a", "b", "c")


def test_a_node_that_fails_again_and_again_makes_room_for_a_spare() -> None:
    job = Job(exclude_after=2)
    job.join("a", "b", "c")
    fails_twice(job)
    assert job.members() == "ac"
    assert job.decided[-1][0] == "restart" and job.decided[-1][1].endswith("(1 of 3 restarts left), without b")
    assert job.machine.excluded.why("b") == "its workers were the first to fail 2 times"


def test_without_a_spare_a_node_may_fail_as_often_as_the_budget_allows() -> None:
    job = Job(exclude_after=2)
    job.join("a", "b")
    fails_twice(job)
    assert job.members() == "ab" and not job.machine.excluded


def test_a_node_that_failed_often_is_better_than_none() -> None:
    job = Job(exclude_after=2)
    job.join("a", "b", "c")
    fails_twice(job)
    now = job.now + LEASE_S
    job.renew("a", "b", now=now - 1.0)
    job.tick(now)  # c is lost
    job.stopped_and_back("a")
    job.renew("a", "b", now=now + 1.0)
    job.tick(now + FENCE_S)
    assert job.members() == "ab"
    assert about_nodes(job) == ["NodeExcluded b", "NodeReadmitted b"]


def test_an_operators_word_stands_even_when_nobody_else_is_left(job: Job) -> None:
    asked(job, "b")
    job.stopped_and_back("a", "b")
    job.hear(Leave(node="c", round=2, reason="goes"))
    job.stopped_and_back("a")
    job.tick(FENCE_S)
    assert job.machine.phase == "gathering"
    job.renew("a", "b", now=60.0)
    job.tick(61.0)
    assert "excluded: b (its fan is broken)" in job.report.reason


# --- groups and coordinators --------------------------------------------------------------------------------------------------


def test_a_group_with_an_excluded_node_is_replaced_as_a_whole() -> None:
    job = Job("2:2", last_call_s=0.0)
    for node, group in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")):
        join(job, node, node, group=group)
    assert job.members() == "ab"
    asked(job, "b")
    for node in "ab":
        job.hear(Stopped(node=node, round=1))
        join(job, node, node, group="x", round=1)
    assert job.members() == "cd"


def test_a_new_coordinator_knows_who_is_excluded(job: Job) -> None:
    asked(job, "b", now=5.0)
    successor = Rendezvous(job.rules, job.policy, now=100.0, now_unix=0.0)
    successor.resume(Past(life="", round=1, restarts=0, excluded=job.machine.excluded.kept(15.0)), now=100.0)
    assert successor.excluded.why("b") == "its fan is broken"
    assert successor.excluded.kept(101.0)[0].age_s == 11.0
    usual: dict[str, Any] = {"addr": "x", "master_port": 9, "nproc": 2, "role": "default", "round": 1}
    for node in "abc":
        successor.observe(Heard(message=Join(node=node, name=node, **usual)), 100.0)
    placed = [seat.name for seat in successor.seats.values() if seat.assigned is not None]
    assert placed == ["a", "c"]


def test_a_stop_that_got_lost_is_said_again_to_an_excluded_node(job: Job) -> None:
    asked(job, "b")
    assert [type(message) for message in job.renew("b")][-1] is Stop
