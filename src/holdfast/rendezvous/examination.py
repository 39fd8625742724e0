"""How are all nodes of a job asked how they are? An operator's question goes to every member, each answer back to who asked.

Nothing is decided by it. Members know one another by name only: whoever asked is a number to the others.
"""

from __future__ import annotations

from holdfast.core.messages import CheckYourself, NodeHealth, Noted
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.core.messages import Examine, Examined
    from holdfast.rendezvous.seats import Seats

MOST = 16
"""Questions whose answers still find who asked."""


class Examinations:
    """Those that are under way."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self._asked: dict[int, tuple[str, int]] = {}
        """Ticket → (node that asked, its number for the question)."""
        self._tickets = 0

    def asked(self, message: Examine) -> list[Action]:
        """Pass it on to all who can hear it, and say to whom."""
        self._tickets += 1
        self._asked[self._tickets] = message.node, message.ask
        self._asked.pop(self._tickets - MOST, None)
        here = {node: seat.name for node, seat in self.seats.items() if seat.linked}
        noted = Noted(ask=message.ask, ok=True, text="\n".join(here.values()))
        passed_on = CheckYourself(ask=self._tickets, checks=message.checks)
        return [Tell(node=message.node, message=noted), *(Tell(node=node, message=passed_on) for node in here)]

    def answered(self, message: Examined) -> list[Action]:
        """One has answered."""
        asker = self._asked.get(message.ask)
        seat = self.seats.get(message.node)
        if asker is None or seat is None:
            return []
        node, ask = asker
        shown = NodeHealth(ask=ask, name=seat.name, verdicts=message.verdicts, trouble=message.trouble)
        return [Tell(node=node, message=shown)]
