"""One node's succession, shown what others say. No clock runs and no socket is open."""

from __future__ import annotations

from typing import Any

from holdfast.core.machine import Action, Observation, Tick
from holdfast.core.wire.links import Arrived, Connect, Transmit
from holdfast.core.wire.messages import Electorate, Message, Past, Roster, Seek, Vote
from holdfast.rendezvous.election.leader_lease import promise_of
from holdfast.rendezvous.election.messages import MemberLink
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.election.succession_state import LeaseRenewed, Setup

LEASE_S = 3.0
PROMISE_S = promise_of(LEASE_S)
TURN_S = 5.0
"""The first turn down the line after that."""
ORIGIN = "a"
GUEST = 1 << 20


def roster(*line: str, version: int = 5, term: int = 0, witness: bool = False, older: int = 0, round: int = 4) -> Roster:
    """The nodes in line are the electorate; with `older`, one of that size has a say as well."""
    newest = Electorate(id=version, size=len(line), mine=True, witness=witness)
    before = (Electorate(id=version - 1, size=older, mine=True),) if older else ()
    past = Past(life="L", round=round, restarts=1, restart_ages_s=(10.0,), age_s=100.0)
    return Roster(version=version, term=term, promise_s=PROMISE_S, line=line, electorates=(newest, *before), past=past)


ABC = roster("a", "b", "c")


class Node:
    """One node's succession, and what it did."""

    def __init__(self, endpoint: str = "b", held: Roster | None = ABC, *, founder: bool = False, **options: Any) -> None:
        setup = Setup(endpoint=endpoint, origin=ORIGIN, lease_s=LEASE_S, began_at=0.0, **options)
        self.it = Succession(setup, founder=founder, fresh_life=f"life of {endpoint}")
        self.done: list[Action] = self.it.begin(0.0)
        if held is not None:
            self.it.observe(MemberLink(up=True), 0.0)
            self.it.observe(LeaseRenewed(roster=held), 0.0)
            self.it.observe(MemberLink(up=False), 0.0)

    def see(self, seen: Observation, now: float) -> list[Action]:
        did = self.it.observe(seen, now)
        self.done += did
        return did

    def hear(self, message: Message, now: float, link: int = GUEST) -> list[Action]:
        return self.see(Arrived(link=link, message=message), now)

    def wait(self, now: float) -> None:
        """Tick as a driver would, up to `now`; a machine that wants to be woken for nothing again and again fails."""
        for _ in range(1000):
            if (due := self.it.deadline()) > now:
                return
            self.see(Tick(), max(due, 0.0))
        raise AssertionError(f"woken again and again at {self.it.deadline()}")

    def called(self) -> list[str]:
        return [action.endpoint for action in self.done if isinstance(action, Connect)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]

    def told(self, kind: type[Any]) -> list[Any]:
        return [action.message for action in self.of(Transmit) if isinstance(action.message, kind)]


def seek(node: str, held: Roster | None = ABC, *, term: int = 0, free: bool = True) -> Seek:
    return Seek(node=node, term=term, roster=held, held_s=LEASE_S, free=free)


def elected() -> Node:
    """b, that leads with the vote of c."""
    node = Node("b")
    node.hear(seek("c"), PROMISE_S)
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S)
    return node
