"""Which reporter speaks over which link? Stands between the links and the fleet, which knows reporters by name.

One link speaks for one reporter, of one node and one job, and a reporter's newest link is the live one. All agents share one
token. So that none takes another's node, a node that is heard from one address is not accepted from another, and with `named` a
certificate must name it; and who speaks for a job must have its secret (`fleet.reporting.claims`).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.machine import Action, Observation
from holdfast.core.wire.fleet import FleetMessage, NotHeard, Standing, shortened
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Said, Tell, Unlinked
from holdfast.supervisor.fleet.reporting import claims

REASON_CHARS = 300  # Of what an agent is told.


class TurnedAway(Action):
    """Tell a person, and not again and again, what somebody at that address has said who may not."""

    peer: str
    text: str


class Connections:
    """The fleet, for a World with links."""

    def __init__(self, fleet: Fleet, *, named: bool = False) -> None:
        self.fleet, self.named = fleet, named
        self.came: dict[int, LinkUp] = {}
        """Where each link comes from."""
        self.nodes: dict[str, dict[int, str]] = {}
        """Node → the links that stand for it, with their addresses."""
        self.stands: dict[int, tuple[str, str]] = {}
        """Link → the node, and the job."""
        self.speakers: dict[int, str] = {}
        """Link → who speaks over it; empty: nobody has spoken yet."""
        self.links: dict[str, int] = {}
        """The other way round: the newest."""

    def begin(self, now: float) -> list[Action]:
        return self.sent(self.fleet.begin(now))

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case LinkUp(link=link):
                self.speakers[link], self.came[link] = "", seen
                return []
            case Arrived(link=link, message=message) if link in self.speakers and isinstance(message, FleetMessage):
                return self._hear(link, message, now)
            case Arrived():
                return []
            case LinkDown(link=link):
                reporter = self.speakers.pop(link, "")
                self._leave(link)
                self.came.pop(link, None)
                if self.links.get(reporter) != link:
                    return []
                del self.links[reporter]
                return self.sent(self.fleet.observe(Unlinked(node=reporter), now))
        return self.sent(self.fleet.observe(seen, now))

    def deadline(self) -> float:
        return self.fleet.deadline()

    def sent(self, actions: Iterable[Action]) -> list[Action]:
        """`Tell` becomes `Transmit` over the reporter's link; without a link it is lost, as on any broken link."""
        out: list[Action] = []
        for action in actions:
            if not isinstance(action, Tell):
                out.append(action)
            elif (link := self.links.get(action.node)) is not None:
                out.append(Transmit(link=link, message=action.message))
        return out

    def _hear(self, link: int, message: FleetMessage, now: float) -> list[Action]:
        reporter = str(getattr(message, "node", ""))
        if (speaker := self.speakers[link] or reporter) != reporter:
            return self._refused(link, f"a link of {speaker} said {type(message).__name__} for {reporter}")
        if isinstance(message, Standing) and (why := self._is_foreign(link, message, now)):
            return self._refused(link, why)
        self.speakers[link] = reporter
        before = self.links.get(reporter, -1)
        self.links[reporter] = max(link, before)
        unlinked: list[Action] = []
        if link > before >= 0:  # it does not know that its older link is dead, over which nothing was heard
            unlinked = self.fleet.observe(Unlinked(node=reporter), now)
        return self.sent([*unlinked, *self.fleet.observe(Said(message=shortened(message)), now)])

    def _refused(self, link: int, why: str) -> list[Action]:
        said = f"{why}: it is not heard, and its link is closed"
        told = Transmit(link=link, message=NotHeard(reason=why[:REASON_CHARS]))
        return [TurnedAway(peer=self.came[link].peer, text=said), told, HangUp(link=link)]

    def _is_foreign(self, link: int, standing: Standing, now: float) -> str:
        """Why the link must not speak for the node, or for the job. Empty: it may."""
        name, job = standing.name, standing.job
        if self.stands.get(link, (name, job)) != (name, job):
            before, its = self.stands[link]
            return f"a link of {before} in the job {its!r} speaks for {name} in the job {job!r}"
        if why := self._is_foreign_node(link, name) or claims.objection(self.fleet.state, standing, now):
            return why
        self.nodes.setdefault(name, {})[link], self.stands[link] = self.came[link].peer, (name, job)
        return ""

    def _is_foreign_node(self, link: int, name: str) -> str:
        came, there = self.came[link], self.nodes.get(name, {})
        if link in there:
            return ""
        if self.named and not any(one == name or one.startswith(f"{name}.") for one in came.names):
            return f"{came.peer} says that it is {name}, and has a certificate for {', '.join(came.names) or 'nobody'}"
        others = [peer for peer in there.values() if peer != came.peer]
        if others and self.fleet.state.is_heard(name):
            return f"{came.peer} says that it is {name}, which is heard from {others[0]}"
        return ""

    def _leave(self, link: int) -> None:
        name, _ = self.stands.pop(link, ("", ""))
        there = self.nodes.get(name, {})
        there.pop(link, None)
        if not there:
            self.nodes.pop(name, None)
