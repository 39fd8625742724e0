"""Passes the answer to an order or call, or its timeout, to the swap or action that waits for it, which its task names."""

from __future__ import annotations

from holdfast.core.machine import Action
from holdfast.core.wire.fleet import Did, Verb
from holdfast.supervisor.fleet import deeds, operator_actions, swap_steps
from holdfast.supervisor.fleet.messages import Tell
from holdfast.supervisor.fleet.state import FleetState


def did(fleet: FleetState, message: Did, now: float) -> list[Action]:
    """A reporter answers an order that it, or another agent of its job, was given. It may not answer calls."""
    told = fleet.queues.asked(message.order)
    if not isinstance(told, Tell):
        return []
    if told.node != message.node and not fleet.job_of(told.node) == fleet.job_of(message.node) != "":
        return []
    return answered(fleet, message.order, message.ok, message.text, now)


def answered(fleet: FleetState, task: str, ok: bool, text: str, now: float) -> list[Action]:
    """A task was answered."""
    awaited, begun = fleet.queues.done(task, now)
    if not awaited:
        return begun
    id, _, verb = task.rpartition(".")
    verb = verb.rstrip("0123456789")  # an order that was refused has another id when it is given again
    if id in fleet.open_swaps:
        return begun + swap_steps.answered(fleet, id, verb, ok, text, now)
    if verb == Verb.INJECT:
        return begun + operator_actions.injected(fleet, id, ok, text, now)
    return begun + deeds.answered(fleet, id, verb, ok, text, now)


def due(fleet: FleetState, now: float) -> list[Action]:
    """Tasks were not answered in time."""
    late, actions = fleet.queues.expire(now)
    for task in late:
        id, _, verb = task.rstrip("0123456789").rpartition(".")
        if id in fleet.open_swaps:
            actions += swap_steps.unanswered(fleet, id, verb, now)
        elif id in fleet.open_deeds:
            actions += deeds.failed(fleet, id, "it was not answered in time", now)
        elif verb == Verb.INJECT:
            actions += operator_actions.injected(fleet, id, False, "its agent has not answered", now)
    return actions
