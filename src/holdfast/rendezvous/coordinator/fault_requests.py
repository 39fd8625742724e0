"""How does an operator's wish to have a fault played reach the node that it is meant for? The coordinator passes it on.

Nothing is decided by it: whether the node may be practised on is its own agent's to say.
"""

from __future__ import annotations

from holdfast.core.wire.messages import InjectHere, Noted
from holdfast.rendezvous.coordinator.pending_requests import Tickets
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.core.wire.messages import Inject, InjectionHeard
    from holdfast.rendezvous.coordinator.membership import Seats


class Injections:
    """Those that are under way."""

    def __init__(self, seats: Seats) -> None:
        self.seats, self.tickets = seats, Tickets()

    def asked(self, message: Inject) -> list[Action]:
        """Pass it on, or say that there is nobody."""
        there = next((node for node, seat in self.seats.items() if seat.name == message.name and seat.linked), None)
        if there is None:
            known = ", ".join(sorted(seat.name for seat in self.seats.values())[:16])
            text = f"the job has no node {message.name}, or does not hear it; it knows {known}"
            return [Tell(node=message.node, message=Noted(ask=message.ask, ok=False, text=text))]
        ticket = self.tickets.draw(message.node, message.ask)
        return [Tell(node=there, message=InjectHere(ask=ticket, injection=message.injection))]

    def answered(self, message: InjectionHeard) -> list[Action]:
        """The node has said what became of it."""
        asker = self.tickets.whose(message.ask)
        if asker is None:
            return []
        node, ask = asker
        return [Tell(node=node, message=Noted(ask=ask, ok=message.ok, text=message.text))]
