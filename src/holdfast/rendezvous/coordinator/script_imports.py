"""What does the job's script import? The node of group rank 0 says so once it trains; nodes that wait are told, for their warm
spares.

The latest word counts, as long as it says more. A node that is told that it waits joins again (`Join.known_round`), and so does
one whose link was broken: then it is told, or told again.
"""

from __future__ import annotations

from holdfast.core.machine import Action
from holdfast.core.wire.messages import IMPORTS_CHARS, Imports, ToImport
from holdfast.rendezvous.coordinator.membership import Seat, Seats, SeatState
from holdfast.rendezvous.rules import Tell


class KnownImports:
    """What is known of it."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.latest: ToImport | None = None

    def heard(self, said: Imports) -> list[Action]:
        """A node that trains has told."""
        known = self.latest.modules if self.latest is not None and self.latest.python == said.python else ()
        if len(said.modules) <= len(known) or sum(map(len, said.modules)) > IMPORTS_CHARS:
            return []
        self.latest = ToImport(python=said.python, modules=said.modules)
        return [action for seat in self.seats.values() if seat.state is SeatState.READY for action in self.tell(seat)]

    def tell(self, seat: Seat) -> list[Action]:
        """To a node that waits, if it can use it."""
        if self.latest is None or seat.join.warm != self.latest.python:
            return []
        return [Tell(node=seat.join.node, message=self.latest)]
