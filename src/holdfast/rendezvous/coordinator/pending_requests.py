"""How does a request reach the node that is to do it, and its reply the node that has asked? The coordinator passes both on.

Nothing is decided by it: whether a node does what is asked is its own agent's to say. Members know one another by name only:
the asker is a number to the others.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.machine import Action
from holdfast.core.value import replace
from holdfast.core.wire.demands import CHECK_CHARS, MOST_CHECKS, REASON_CHARS, Demands
from holdfast.core.wire.messages import EVERY_NODE, Checked, Reply, Request
from holdfast.rendezvous.coordinator.membership import Seats
from holdfast.rendezvous.rules import Tell

MOST = 16  # Requests whose replies still find the node that asked.

SHOWN = 16  # Names that a refusal gives.

ASKERS = 1024
"""Nodes whose demands are remembered; then the one that asked first is forgotten."""


class MembersDemands:
    """What each node has asked for lately (`core.wire.demands`)."""

    def __init__(self) -> None:
        self._of: dict[str, Demands] = {}
        self._refused: dict[str, str] = {}  # Node → what was last said of it.

    def admit(self, node: str, kind: str, now: float) -> bool:
        """Whether that node may ask for that once more."""
        if (after := self._of.get(node, Demands()).after(kind, now)) is None:
            return False
        self._of[node] = after
        self._refused.pop(node, None)
        _shorten(self._of)
        return True

    def is_news(self, node: str, why: str) -> bool:
        """It is refused, and not for the same reason as the last time."""
        is_news = self._refused.get(node) != why
        self._refused[node] = why
        _shorten(self._refused)
        return is_news


def _shorten(table: dict[str, Any]) -> None:
    while len(table) > ASKERS:
        del table[next(iter(table))]


class PendingRequests:
    """Those that are under way."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self._asked: dict[int, tuple[Request, frozenset[str]]] = {}
        """Number → the request, as it came, and the nodes that it was passed on to."""
        self._last = 0

    def pass_on(self, request: Request) -> list[Action]:
        """To the node that it names, or to every node: then the asker hears which nodes have been asked."""
        linked = {node: seat.name for node, seat in self.seats.items() if seat.linked}
        if request.target == EVERY_NODE:
            told = reply_to(request, text="\n".join(linked.values()))
        else:
            there = next((node for node, name in linked.items() if name == request.target), None)
            linked, told = ({} if there is None else {there: request.target}), []
        if not linked:
            known = ", ".join(sorted(seat.name for seat in self.seats.values())[:SHOWN])
            text = f"the job has no node {request.target}, or does not hear it; it knows {known}"
            return reply_to(request, ok=False, text=text)
        self._last += 1
        self._asked[self._last] = request, frozenset(linked)
        self._asked.pop(self._last - MOST, None)
        passed_on = replace(request, node="", ask=self._last)
        return [*told, *(Tell(node=node, message=passed_on) for node in linked)]

    def replied(self, reply: Reply) -> list[Action]:
        """A node has done what was asked, or says why not."""
        request, asked = self._asked.get(reply.ask, (None, frozenset[str]()))
        seat = self.seats.get(reply.node)
        if request is None or seat is None or reply.node not in asked:
            return []  # it is too long ago, or was never asked
        text, verdicts = reply.text[:REASON_CHARS], tuple(map(_short, reply.verdicts[:MOST_CHECKS]))
        return reply_to(request, ok=reply.ok, text=text, name=seat.name, verdicts=verdicts)


def _short(one: Checked) -> Checked:
    return replace(one, check=one.check[:CHECK_CHARS], reason=one.reason[:REASON_CHARS], advice=one.advice[:REASON_CHARS])


def reply_to(
    request: Request, *, ok: bool = True, text: str, name: str = "", verdicts: tuple[Checked, ...] = ()
) -> list[Action]:
    """What came of it, said to the node that asked, if it wants to know."""
    if request.ask is None:
        return []
    return [Tell(node=request.node, message=Reply(ask=request.ask, name=name, ok=ok, text=text, verdicts=verdicts))]
