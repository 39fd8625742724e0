"""Which nodes are fit for any job, and what is done about one that is not? The supervisor's machine, over all nodes and jobs.

What it knows is one value (`state`); what may be observed is the table in `_step`, each line of which calls a function of that
state. Whatever must outlive the supervisor is a `Keep`, performed in order with the other actions: with what was stored, and
the next generation number, another life of it goes on. docs/reference/fleet.md draws the states, from a walk of this machine.
"""

from __future__ import annotations

from holdfast.core.machine import Action, Observation, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Alive, Bye, Did, FleetMessage, Standing, Trouble, Verb
from holdfast.supervisor.fleet import deeds, operator_actions, repairs, swap_steps
from holdfast.supervisor.fleet.messages import Asked, Called, Keep, Said, Tell, Unlinked
from holdfast.supervisor.fleet.node import FleetNode
from holdfast.supervisor.fleet.policies.case import Policy
from holdfast.supervisor.fleet.reporting import reporters, silence
from holdfast.supervisor.fleet.state import FleetRules, FleetState, Gives, Kept, RepairRules


class Fleet:
    """See the module's text."""

    def __init__(
        self, policy: Policy, *, generation: int, lease_s: float, now: float, now_unix: float, kept: Kept | None = None,
        repair: RepairRules | None = None, gives: Gives | None = None
    ) -> None:
        """`repair` None: nothing is repaired."""
        rules = FleetRules(policy=policy, generation=generation, lease_s=lease_s, ahead_unix=now_unix - now)
        rules = replace(rules, repair=repair or RepairRules(), gives=gives or Gives())
        self.state = FleetState(rules, kept or Kept(), now)

    def begin(self, now: float) -> list[Action]:
        """Go on with what an earlier life had begun."""
        fleet, actions = self.state, list[Action]()
        for deed in list(fleet.action_log.deeds.values()):
            if not deed.outcome and deed.id not in fleet.open_swaps and repairs.node_of(fleet, deed.id) is None:
                actions += fleet.close(deed.id, "not known: the supervisor was restarted meanwhile", now)
        actions += repairs.begin(fleet, now)
        for id in list(fleet.open_swaps):
            actions += swap_steps.advance(fleet, id, now)
        return self._marked(deeds.next_choices(fleet, actions, now))

    def observe(self, seen: Observation, now: float) -> list[Action]:
        if silence.excused(self.state, now) and isinstance(seen, Tick):
            return []
        return self._marked(deeds.next_choices(self.state, self._step(seen, now), now))

    def deadline(self) -> float:
        return self.state.deadline()

    def _step(self, seen: Observation, now: float) -> list[Action]:
        """The table of what may be observed."""
        fleet = self.state
        match seen:
            case Said(message=message):
                return self._said(message, now)
            case Unlinked(node=reporter):
                return reporters.unlinked(fleet, reporter, now)
            case Called(task=task, ok=ok, text=text):
                return _task_answered(fleet, task, ok, text, now)
            case Asked():
                return operator_actions.asked(fleet, seen, now)
            case Tick():
                return self._late(now)
        raise AssertionError(f"a fleet is never shown {seen!r}")

    def _said(self, message: FleetMessage, now: float) -> list[Action]:
        """The table of what a reporter may say, by its node. None: the reporter is not known, or another has succeeded it."""
        fleet = self.state
        match fleet.reporter_node(str(getattr(message, "node", ""))), message:
            case _, Standing():
                return reporters.stands(fleet, message, now)
            case None, Alive(node=reporter):
                return [fleet.heed(reporter)]  # told this, it says anew how it stands
            case FleetNode() as node, Alive(node=reporter):
                return reporters.alive(fleet, node, reporter, now)
            case FleetNode() as node, Trouble(node=reporter):
                return reporters.alive(fleet, node, reporter, now) + deeds.reported(fleet, node, message, now)
            case FleetNode() as node, Did(node=reporter):
                return reporters.alive(fleet, node, reporter, now) + _order_answered(fleet, message, now)
            case FleetNode() as node, Bye(node=reporter):
                return reporters.alive(fleet, node, reporter, now) + reporters.bye(fleet, node, message, now)
            case _:
                return []  # from an unknown reporter; or a supervisor's word, which no reporter may say

    def _late(self, now: float) -> list[Action]:
        """Time has passed, for everything that waits for it."""
        fleet, actions = self.state, list[Action]()
        for trouble in fleet.take_early() if fleet.is_settled(now) else []:
            if (node := fleet.reporter_node(trouble.node)) is not None:
                actions += deeds.reported(fleet, node, trouble, now)
        for trouble, case in fleet.take_left() if fleet.is_settled(now) else []:
            actions += deeds.left(fleet, trouble, case, now)
        for due in (silence.due, _unanswered, swap_steps.due, repairs.due, deeds.due, silence.unjudged):
            actions += due(fleet, now)
        return actions + fleet.count(now)

    def _marked(self, actions: list[Action]) -> list[Action]:
        """`actions`; what they store has a new version for those who are shown the fleet."""
        for action in actions:
            if isinstance(action, Keep):
                gone = action.value is None and action.table in ("deeds", "hours")
                (self.state.changes.forget if gone else self.state.changes.mark)(action.table, action.key)
        return actions


def _order_answered(fleet: FleetState, message: Did, now: float) -> list[Action]:
    """A reporter answers an order that it, or another agent of its job, was given. It may not answer calls."""
    told = fleet.queues.asked(message.order)
    if not isinstance(told, Tell):
        return []
    if told.node != message.node and not fleet.job_of(told.node) == fleet.job_of(message.node) != "":
        return []
    return _task_answered(fleet, message.order, message.ok, message.text, now)


def _task_answered(fleet: FleetState, task: str, ok: bool, text: str, now: float) -> list[Action]:
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
    if (node := repairs.node_of(fleet, id)) is not None:
        return begun + repairs.answered(fleet, node, verb, ok, text, now)
    return begun + deeds.answered(fleet, id, verb, ok, text, now)


def _unanswered(fleet: FleetState, now: float) -> list[Action]:
    """Tasks were not answered in time."""
    late, actions = fleet.queues.expire(now)
    for task in late:
        id, _, verb = task.rstrip("0123456789").rpartition(".")
        if id in fleet.open_swaps:
            actions += swap_steps.unanswered(fleet, id, verb, now)
        elif id in fleet.open_deeds:
            actions += deeds.unanswered(fleet, id, verb, now)
        elif verb == Verb.INJECT:
            actions += operator_actions.injected(fleet, id, False, "its agent has not answered", now)
    return actions
