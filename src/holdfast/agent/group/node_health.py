"""What does this node make of its own health? Before each round, where that is checked; and whenever it has changed.

    begin ──CheckNode──▶ (checks run) ──NodeChecked──▶ Join, with the reason if it is unfit
    running ──NodeChecked: unfit──▶ Exclude, of itself; again each time that it is found, since a spare may have come

Until the checks have answered nothing is asked for, whatever the coordinator says meanwhile. Loaded only by then.
"""

from __future__ import annotations

from holdfast.agent.group.messages import CheckNode, Send
from holdfast.core.job.report import Outcome
from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import OWN_ASK, Exclude

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.machine import Group
    from holdfast.agent.group.messages import NodeChecked

LONGEST_WHY = 500
"""Characters of a reason that a coordinator takes."""


class Fitness:
    """Of `group`'s node."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.answer = ""
        """What the coordinator has said to that last."""

    def check(self) -> Action:
        """In place of a `Join`."""
        self.group.checking = True
        return CheckNode(after_failure=bool(self.group.workers.failures))

    def checked(self, seen: NodeChecked) -> list[Action]:
        """The coordinator hears it with the `Join`; while workers run, it is asked to go on without this node."""
        group, unfit = self.group, seen.unfit[:LONGEST_WHY]
        news, group.join = unfit != group.join.unhealthy, replace(group.join, unhealthy=unfit)
        if group.checking and seen.asked:
            group.checking = False
            if unfit and group.backend == "memory" and group.state == "joining":
                return group.exit(1, outcome=Outcome.FAILED, complaint=f"this node is unfit, and the job has no other: {unfit}")
            return [Send(message=group.join)] if group.state == "joining" else []
        if group.checking:
            return []
        if group.state == "joining":
            return [Send(message=group.join)] if news else []
        if group.state == "running" and unfit:
            return [Send(message=Exclude(node=group.join.node, ask=OWN_ASK, name=group.join.name, reason=unfit, by="itself"))]
        return []

    def noted(self, text: str) -> list[Action]:
        """What the coordinator says to that. The same again is silence."""
        if text == self.answer:
            return []
        self.answer = text
        return [Say(text=f"health: {text}", level="warning")]
