"""Does what a job costs grow with its nodes, and no faster? Counted, not timed: calls of functions, and what each is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
from kit.stages.round_stage import Job

from holdfast.core.machine import Tick
from holdfast.core.wire.fleet import RankSaid, Standing
from holdfast.core.wire.messages import Assigned, Finish, Message, Stop, Succeeded
from holdfast.runtime.net.codec import encode
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Said, Tell
from holdfast.supervisor.fleet.policies import policy
from holdfast.telemetry.report.report_text import report_text

FEW, MANY = 100, 400


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls, generators' steps included."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def whole_life(nodes: int, **rules: Any) -> Job:
    """All join, renew, fail, come back, renew and succeed, and after each message somebody asks for the next deadline."""
    job = Job(f"{nodes}:{nodes}", max_restarts=3, **rules)
    names = [f"n{number}" for number in range(nodes)]
    given = "ranks_given" in rules
    for number, name in enumerate(names):
        job.join(name, rank=number if given else None)
        job.machine.deadline()
    job.fail(names[0], now=1.0)
    for name in names:
        job.renew(name)
        job.machine.deadline()
        job.stopped_and_back(name)
        job.machine.deadline()
    for name in names:
        job.renew(name, now=2.0)
        job.machine.deadline()
    job.tick(2.5)
    for name in names:
        job.hear(Succeeded(node=name, round=2))
        job.machine.deadline()
    assert job.report.outcome == "succeeded"
    return job


@pytest.mark.parametrize("rules", [{}, {"ranks_given": True}], ids=["any ranks", "given ranks"])
def test_what_a_job_s_life_takes_grows_with_its_nodes_and_no_faster(rules: dict[str, Any]) -> None:
    few, many = (calls(lambda count=count: whole_life(count, **rules)) for count in (FEW, MANY))  # type: ignore[misc]
    assert many / few < 1.1 * MANY / FEW


@pytest.mark.parametrize("kind", [Assigned, Stop, Finish])
def test_what_each_node_is_told_does_not_grow_with_their_number(kind: type[Message]) -> None:
    few, many = (
        median(len(encode(said)) for _, said in whole_life(count).said if isinstance(said, kind)) for count in (FEW, MANY)
    )
    assert many < few + 20  # longer numbers


def test_the_report_of_a_large_job_names_some_and_counts_the_rest() -> None:
    report = whole_life(MANY).report
    assert (len(report.nodes), report.nodes_left_out) == (64, MANY - 64)
    assert f"on {MANY} nodes" in report_text(report)


def test_what_a_supervisor_does_about_a_lost_node_does_not_grow_with_the_others() -> None:
    def taken_out(nodes: int) -> int:
        """Calls from the end of a node's lease to the order that its job is to exclude it."""
        fleet = Fleet(policy("default"), generation=1, lease_s=5.0, now=0.0, now_unix=0.0)
        names = [f"n{number}" for number in range(nodes)]
        for name in reversed(names):  # the last is lost: the first's coordinator does not hear it either
            how = {"node": f"{name}-1", "number": 1, "name": name, "job": "train", "life": "1", "state": "running", "round": 1}
            members, ranks = tuple(names[:-1]), (RankSaid(rank=0, local_rank=0, state="running"),)
            said = Standing(**how, ranks=ranks, members=members if name == names[0] else None)
            fleet.observe(Said(message=said), 0.0 if name == names[-1] else 4.0)
        told: list[Any] = []
        count = calls(lambda: told.extend(fleet.observe(Tick(), 5.0)))
        (order,) = [action for action in told if isinstance(action, Tell)]
        assert (order.node, order.message.target) == ("n0-1", names[-1])
        return count

    assert taken_out(MANY) < taken_out(FEW) + 10
