"""How are all nodes of a job asked how they are? An operator's question goes to every member, each answer back to who asked.

Nothing is decided by it. Members know one another by name only: whoever asked is a number to the others.
"""

from __future__ import annotations

from holdfast.core.wire.messages import CheckYourself, NodeHealth, Noted
from holdfast.rendezvous.coordinator.pending_requests import Tickets
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.core.wire.messages import Examine, Examined
    from holdfast.rendezvous.coordinator.membership import Seats


class Examinations:
    """Those that are under way."""

    def __init__(self, seats: Seats) -> None:
        self.seats, self.tickets = seats, Tickets()

    def asked(self, message: Examine) -> list[Action]:
        """Pass it on to all who can hear it, and say to whom."""
        ticket = self.tickets.draw(message.node, message.ask)
        here = {node: seat.name for node, seat in self.seats.items() if seat.linked}
        noted = Noted(ask=message.ask, ok=True, text="\n".join(here.values()))
        passed_on = CheckYourself(ask=ticket, checks=message.checks)
        return [Tell(node=message.node, message=noted), *(Tell(node=node, message=passed_on) for node in here)]

    def answered(self, message: Examined) -> list[Action]:
        """One has answered."""
        asker = self.tickets.whose(message.ask)
        seat = self.seats.get(message.node)
        if asker is None or seat is None:
            return []
        node, ask = asker
        shown = NodeHealth(ask=ask, name=seat.name, verdicts=message.verdicts, trouble=message.trouble)
        return [Tell(node=node, message=shown)]
