"""Were all nodes started alike? Where they were not, each of them says so: by name and value, once.

Some may differ and train all the same, so nothing is refused: who has started them knows whether it was meant.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.machine import Action
from holdfast.core.wire.messages import Join, Notice
from holdfast.rendezvous.coordinator.gathering import named
from holdfast.rendezvous.coordinator.membership import Seat
from holdfast.rendezvous.rules import Tell

MOST_TERMS, CHARS = 16, 200  # Of one node: how many are compared, and how much of each is shown.


def of_newcomer(join: Join, seats: Iterable[Seat]) -> list[Action]:
    """A node has come to these. Where it was not started as they were, all hear of it."""
    others = [seat for seat in seats if seat.join.node != join.node]
    texts = [text for name, value in list(join.terms.items())[:MOST_TERMS] if (text := _unlike(name, value, join, others))]
    if not texts:
        return []
    said = Notice(text="nodes were not started alike: " + "; ".join(texts))
    return [Tell(node=node, message=said) for node in (join.node, *(seat.join.node for seat in others if seat.linked))]


def _unlike(name: str, value: str, join: Join, others: Iterable[Seat]) -> str:
    """In words; empty: all that tell it have the same."""
    values: dict[str, list[str]] = {}
    for seat in others:
        if (theirs := seat.join.terms.get(name)) is not None and theirs != value:
            values.setdefault(theirs, []).append(seat.name)
    if not values:
        return ""
    shown = ", ".join(f"{theirs[:CHARS]} on {named(nodes)}" for theirs, nodes in values.items())
    return f"{name[:CHARS]} is {value[:CHARS]} on {join.name}, {shown}"
