"""Passes messages between links and machines: which link belongs to which member, which to the round's store.

It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER, Action, Observation, Tick
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Finish, Join, Leave, Message, Refused, Renew, StoreAsk
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.coordinator.membership import Seat
from holdfast.rendezvous.rules import Heard, Tell, Unlinked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.rendezvous.kvstore.machine import KeyValues

TO_HOST = -1  # The link of the member that shares our process: no socket, never down.


SOUGHT_S = 60.0
"""A node that was cut off longer before the end is not waited for: by then most have given up, or are without power."""


class LinkRouter:
    """A round machine with members on the other end of links."""

    def __init__(self, rendezvous: Rendezvous, *, ended: Mapping[str, JobReport] | None = None) -> None:
        self.rendezvous = rendezvous
        self.ended = ended or {}
        """How earlier runs of the job have ended, by their lives, as far as this host knows."""
        self.links: dict[str, int] = {}  # node → link, the newest one
        self.guests: dict[int, str] = {}
        """Links that others opened to us → the node that speaks over it; empty: it has not spoken yet."""
        self.owed: set[str] = set()
        """Nodes that have not said yet that they know how the job ended. If their link broke, they will be back."""
        self.store: KeyValues | None = None
        """What the rounds' agents tell one another; None: nobody has asked for it, as in every job of `holdfast run`."""
        self.askers: set[int] = set()  # Links that ask the store. They say nothing else.
        self.peers: dict[int, str] = {}  # Links that others opened to us → the address that each comes from.

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`. Links that are not ours to serve are ignored."""
        if isinstance(seen, Arrived) and self.guests.get(seen.link):
            return self.hear(seen.message, seen.link, now)
        match seen:
            case LinkUp(link=link, ours=False, peer=peer):
                self.guests[link], self.peers[link] = "", peer
                return []
            case Arrived(link=link, message=StoreAsk()) if link in self.askers or self.guests.get(link) == "":
                store = self._open_store()
                if self.guests.pop(link, None) is not None:
                    self.askers.add(link)
                    store.observe(LinkUp(link=link, ours=False, peer=self.peers[link]), now)
                return store.observe(seen, now)
            case LinkDown(link=link) if link in self.askers:
                self.askers.discard(link)
                del self.peers[link]
                return self._open_store().observe(seen, now)
            case LinkDown(link=link) if link in self.guests:
                node = self.guests.pop(link)
                del self.peers[link]
                if self.links.get(node) != link:
                    return []
                del self.links[node]
                return self._sent(self.rendezvous.observe(Unlinked(node=node), now))
            case Arrived(link=link, message=message) if link in self.guests:
                return self.hear(message, link, now)
            case LinkUp() | LinkDown() | Arrived():
                return []
        kept = self.store.observe(seen, now) if self.store is not None and isinstance(seen, Tick) else []
        return kept + self._sent(self.rendezvous.observe(seen, now))

    def take_guests(self, peers: Mapping[int, str]) -> None:
        """Links that others opened to us before this server was made, and the addresses that they come from."""
        self.guests |= dict.fromkeys(peers, "")
        self.peers |= peers

    def hear(self, message: Message, link: int, now: float) -> list[Action]:
        """A member said something over `link`."""
        node = getattr(message, "node", "")
        if link != TO_HOST and (speaker := self.guests[link] or node) != node:
            # To know the job's token is no leave to speak for others. A node's new link says its id, which nobody else knows.
            return [HangUp(link=link, why=f"a link of {speaker} said {type(message).__name__} for {node}")]
        if link != TO_HOST:
            self.guests[link] = node
        if isinstance(message, Leave):
            self.owed.discard(node)
            self.rendezvous.seats.found(node)
        if isinstance(message, Join) and message.life in self.ended and message.life != self.rendezvous.life:
            # Cut off when that run ended, and back only now. It is no node of this one.
            return [Transmit(link=link, message=Finish(report=self.ended[message.life]))]
        # The newest link is the live one, though an older one may still bring what was on its way and not know that it is dead.
        self.links[node] = max(link, self.links.get(node, link))
        return self._sent(self.rendezvous.observe(Heard(message=message, here=link == TO_HOST), now))

    def renewing(self, renew: Renew, link: int) -> Seat | None:
        """The seat of a member whose `Renew` leads to nothing but an answer: thousands say so each second.
        None: that is not so, or not known, and `observe` is to be asked."""
        node, job = renew.node, self.rendezvous
        is_calm = job.phase is Phase.RUNNING and not job.gathering.unsure
        if not is_calm or self.guests.get(link) != node or self.links.get(node) != link:
            return None
        seat = job.seats.get(node)
        return seat if seat is not None and seat.stop is None else None

    def deadline(self) -> float:
        return min(self.rendezvous.deadline(), NEVER if self.store is None else self.store.deadline())

    @property
    def idle(self) -> bool:
        """Nobody is left to talk to. A link that its node has replaced, or whose node is lost, may be silent for ever: it
        is not waited for."""
        seats = self.rendezvous.seats
        used = (not node or (node in seats and self.links.get(node) == link) for link, node in self.guests.items())
        return not self.owed and not any(used)

    @property
    def misses_some(self) -> bool:
        """A node that was cut off shortly before the end, and has not been told it, may still look for us."""
        job = self.rendezvous
        return job.report is not None and any(at > job.ended_at - SOUGHT_S for at in job.seats.cut_off.values())

    def _open_store(self) -> KeyValues:
        if self.store is None:
            from holdfast.rendezvous.kvstore.machine import KeyValues  # a package that `holdfast run` never needs

            self.store = KeyValues()
            self.store.begin_round(self.rendezvous.round)
        return self.store

    def _sent(self, actions: Iterable[Action]) -> list[Action]:
        """`Tell` a member becomes `Transmit` over its link; to one without a link it is lost, as on any broken link."""
        out: list[Action] = []
        for action in actions:
            if not isinstance(action, Tell):
                out.append(action)
                continue
            node, message = action.node, action.message
            link = self.links.get(node)
            if link != TO_HOST and isinstance(message, Finish) and node in self.rendezvous.seats:
                self.owed.add(node)
            if link is None:
                continue
            out.append(Transmit(link=link, message=message))
            if link != TO_HOST and isinstance(message, Refused):
                out.append(HangUp(link=link))  # after Finish the other side does: it has something to say before
        if self.store is not None and self.rendezvous.round > self.store.round:
            out += self.store.begin_round(self.rendezvous.round)
        return out
