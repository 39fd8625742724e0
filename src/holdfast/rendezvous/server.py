"""Which link belongs to which member? Between links and the round machine; it decides nothing itself."""

from __future__ import annotations

from holdfast.core.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.machine import Action, Observation, Say
from holdfast.core.messages import Finish, Leave, Message, Refused
from holdfast.rendezvous.round import Heard, Rendezvous, Tell, Unlinked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

TO_HOST = -1
"""The link of the member that shares our process: no socket, never down."""


class Server:
    """A round machine with members on the other end of links."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.links: dict[str, int] = {}
        """node → link, the newest one"""
        self.guests: dict[int, str] = {}
        """Links that others opened to us → the node that speaks over it; empty: it has not spoken yet."""
        self.owed: set[str] = set()
        """Nodes that have not said yet that they know how the job ended. If their link broke, they will be back."""

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`. Links that are not ours to serve are ignored."""
        match seen:
            case LinkUp(link=link, ours=False):
                self.guests[link] = ""
                return []
            case LinkDown(link=link) if link in self.guests:
                del self.guests[link]
                gone = [node for node, used in self.links.items() if used == link]
                for node in gone:
                    del self.links[node]
                return self._sent(action for node in gone for action in self.rendezvous.observe(Unlinked(node=node), now))
            case Arrived(link=link, message=message) if link in self.guests:
                return self.hear(message, link, now)
            case LinkUp() | LinkDown() | Arrived():
                return []
        return self._sent(self.rendezvous.observe(seen, now))

    def hear(self, message: Message, link: int, now: float) -> list[Action]:
        """A member said something over `link`."""
        node = getattr(message, "node", "")
        if link != TO_HOST and (speaker := self.guests[link] or node) != node:
            # To know the job's token is no leave to speak for others. A node's new link says its id, which nobody else knows.
            said = f"a link of {speaker} said {type(message).__name__} for {node}: refused, and the link is closed"
            return [Say(text=said, level="warning"), HangUp(link=link)]
        if link != TO_HOST:
            self.guests[link] = node
        if isinstance(message, Leave):
            self.owed.discard(node)
        # The newest link is the live one, though an older one may still bring what was on its way and not know that it is dead.
        self.links[node] = max(link, self.links.get(node, link))
        return self._sent(self.rendezvous.observe(Heard(message=message, here=link == TO_HOST), now))

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return self.rendezvous.deadline()

    @property
    def idle(self) -> bool:
        """Nobody is left to talk to. A link that its node has replaced, or whose node is lost, may be silent for ever: it
        is not waited for."""
        seats = self.rendezvous.seats
        used = (not node or (node in seats and self.links.get(node) == link) for link, node in self.guests.items())
        return not self.owed and not any(used)

    def _sent(self, actions: Iterable[Action]) -> list[Action]:
        """`Tell` a member becomes `Transmit` over its link; to one without a link it is lost, as on any broken link."""
        out: list[Action] = []
        for action in actions:
            if not isinstance(action, Tell):
                out.append(action)
                continue
            link = self.links.get(action.node)
            if isinstance(action.message, Finish) and link != TO_HOST and action.node in self.rendezvous.seats:
                self.owed.add(action.node)
            if link is None:
                continue
            out.append(Transmit(link=link, message=action.message))
            if isinstance(action.message, Refused) and link != TO_HOST:
                out.append(HangUp(link=link))  # after Finish the other side does: it has something to say before
        return out
