"""Each host has a queue of its own, in which one thing is done at a time, and for so long only."""

from __future__ import annotations

from holdfast.supervisor.fleet.messages import Call, CallVerb, Need
from holdfast.supervisor.fleet.queues import TASK_S, Queues, Task


def task(id: str, host: str) -> Task:
    return Task(id=id, host=host, action=Call(task=id, verb=CallVerb.DRAIN, target=host, need=Need(reason="")))


def begun(actions: list[object]) -> list[str]:
    return [action.task for action in actions]


def test_one_host_s_tasks_wait_for_each_other_and_no_other_s_for_them():
    queues = Queues()
    assert begun(queues.push(task("1", "a"), 0.0)) == ["1"]
    assert begun(queues.push(task("2", "a"), 0.0)) == []
    assert begun(queues.push(task("3", "b"), 0.0)) == ["3"]
    assert queues.done("2", 1.0) == (False, []), "it has not been begun"
    awaited, then = queues.done("1", 1.0)
    assert awaited and begun(then) == ["2"]


def test_a_task_that_is_there_is_not_added_again():
    queues = Queues()
    queues.push(task("1", "a"), 0.0)
    assert queues.push(task("1", "a"), 0.0) == [] and queues.push(task("1", "b"), 0.0) == []
    assert begun(queues.again("a")) == ["1"] and queues.again("b") == []


def test_what_is_late_makes_room_and_is_answered_to_nobody():
    queues = Queues()
    queues.push(task("1", "a"), 0.0)
    queues.push(task("2", "a"), 0.0)
    assert queues.deadline() == TASK_S
    late, then = queues.expire(TASK_S)
    assert late == ["1"] and begun(then) == ["2"] and queues.deadline() == 2 * TASK_S
    assert queues.done("1", TASK_S) == (False, [])
    assert queues.expire(2 * TASK_S) == (["2"], []) and queues.by_host == {} and "2" not in queues
