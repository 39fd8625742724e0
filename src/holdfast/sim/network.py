"""The simulated network: links that delay, stall, break and come back, as TCP's do.

Within a link and a direction order is kept and nothing is lost, until it breaks; then what was on its way is lost, and
each side learns of it in its own time, or never (a host without power says no farewell). Several partitions, one for each
direction, are possible; what is sent meanwhile waits, as TCP's retransmissions do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.machine import Observation
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Serving, Transmit
from holdfast.core.wire.messages import Message
from holdfast.runtime.net.network import GUESTS_FROM, HANDSHAKE_S, Network
from holdfast.runtime.world import Links
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import SimHost

ENDPOINT = "endpoint:29400"  # What the job's endpoint is called.

LOOPBACK_S = 0.00002  # Delay of a packet that does not leave its host.

RETRY_S = 0.25  # How often a connection request is repeated while nobody answers.


class Side:
    """One end of a link, at one agent."""

    def __init__(self, links: SimLinks, link: int) -> None:
        self.links, self.link, self.ether = links, link, links.ether
        self.other: Side
        self.open = self.hung_up = False
        self.is_cut = False
        """The link is broken: what this end sends is lost, even before either end notices."""
        self._strays = False  # What it sends goes astray, for now.
        self._stalled: list[Callable[[], None]] = []  # What it sent into a partition, or astray.
        self._last_at = 0.0

    def face(self, other: Side) -> None:
        self.other = other

    @property
    def is_at_home(self) -> bool:
        """Whether the link does not leave its host."""
        return self.links.place == self.other.links.place

    @property
    def is_held_up(self) -> bool:
        """Whether what this end sends does not arrive for now."""
        return self._strays or self.ether.is_blocked(self.links.place, self.other.links.place)

    # --- its life -------------------------------------------------------------------------------------------------------

    def up(self, *, ours: bool) -> None:
        """The link is there."""
        self.open, self.links.sides[self.link] = True, self
        self.links.host.see(LinkUp(link=self.link, ours=ours, peer="" if ours else self.other.links.place))

    def down(self, reason: str) -> None:
        """This end notices that the link is gone."""
        if self.open:
            self.open = False
            self.links.sides.pop(self.link, None)
            self.links.host.see(LinkDown(link=self.link, reason=reason))

    def say(self, message: Message) -> None:
        """Send a message, unless this end has hung up."""
        if not self.hung_up:
            self.send(lambda: self._deliver(message))

    def hang_up(self) -> None:
        """Say no more."""
        if not self.hung_up:
            self.hung_up = True
            self._finish()

    def close(self) -> None:
        """This end's agent is gone; with it, sometimes, what it has sent, since it left something unread."""
        self.open = False
        if self.links.silent:
            return
        if self.ether.rng.random() < self.ether.reset_chance:
            self.cut(0.0, self.ether.delay())
        else:
            self._finish()

    def cut(self, lag_s: float, other_lag_s: float) -> None:
        """The link breaks: what is under way is lost, and each end notices after its lag."""
        other_knows = self.is_cut
        self.lose(lag_s)
        if not other_knows:
            self.other.lose(other_lag_s)

    def lose(self, lag_s: float) -> None:
        """The link is broken, which this end notices after its lag."""
        self.is_cut = True
        self.ether.timeline.after(lag_s, lambda: self.down("Connection reset by peer"))

    def stray(self, lag_s: float, late_s: float) -> None:
        """What this end sends goes astray from now on. After `lag_s` it gives the link up, and may make another, over which it
        says the same again; after `late_s` all that went astray arrives nevertheless, over its own link: said twice, and
        overtaken. A packet lives on in a network, and in the other side's kernel, when its sender is gone."""
        self._strays = True
        self.ether.timeline.after(lag_s, lambda: self.down("Connection timed out"))
        self.ether.timeline.after(max(lag_s, late_s), self._found)

    def _found(self) -> None:
        self._strays = False
        if self in self.ether.stalled:
            self.ether.stalled.remove(self)
            self._stalled.append(lambda: None if self.is_cut else self.other.down("Connection reset by peer"))
            self.catch_up(self.ether.timeline.now)

    # --- sending --------------------------------------------------------------------------------------------------------

    def send(self, at_other: Callable[[], None]) -> None:
        """Let something happen at the other end, after everything that was sent before it."""
        ether = self.ether
        self._last_at = max(self._last_at, ether.timeline.now + (LOOPBACK_S if self.is_at_home else ether.delay()))
        ether.timeline.at(self._last_at, lambda: self._arrive(at_other))

    def _arrive(self, at_other: Callable[[], None]) -> None:
        if not self._stalled and not self.is_held_up:
            at_other()
            return
        if not self._stalled:
            self.ether.stalled.append(self)
        self._stalled.append(at_other)

    def catch_up(self, at: float) -> None:
        """What was held up arrives from then on."""
        self._last_at = max(self._last_at, at)
        stalled, self._stalled = self._stalled, []
        for what in stalled:
            self.ether.timeline.at(self._last_at, what)

    def _deliver(self, message: Message) -> None:
        other = self.other
        if self.is_cut:
            return
        if other.open:
            other.links.host.see(Arrived(link=other.link, message=message))
        elif not other.links.silent:  # nobody listens there any more; the kernel says so
            self.ether.timeline.after(self.ether.delay(), lambda: self.down("Connection reset by peer"))

    def _finish(self) -> None:
        """This end closes: the other learns of it after everything that was sent."""
        self.send(self._finished)

    def _finished(self) -> None:
        if self.other.open and not self.is_cut:
            self.other.down("closed by the other side")
            self.other._finish()


class Ether:
    """All links of all agents."""

    def __init__(
        self, timeline: Timeline, rng: random.Random, delay_s: tuple[float, float] = (0.0002, 0.001), reset_chance: float = 0.0
    ) -> None:
        """`reset_chance`: how often an agent's exit resets its links (unread data), so that its last words are lost."""
        self.timeline, self.rng, self.delay_s, self.reset_chance = timeline, rng, delay_s, reset_chance
        self.serving: dict[str, SimLinks] = {}  # Endpoint → who listens there, or did last.
        self.next_guest = GUESTS_FROM
        self.blocked: dict[str, tuple[bool, bool]] = {}  # place → (nothing gets out, nothing gets in)
        self.stalled: list[Side] = []

    def slow(self, delay_s: tuple[float, float]) -> None:
        """From now on a packet takes from so long to so long."""
        self.delay_s = delay_s

    def partition(self, place: str, *, out: bool = True, into: bool = True) -> None:
        """From now on nothing passes between `place` and the others."""
        self.blocked[place] = out, into

    def heal(self, place: str) -> None:
        """What has waited comes through a while later (retransmission backs off)."""
        self.blocked.pop(place, None)
        sides, self.stalled = self.stalled, []
        for side in sides:
            if side.is_held_up:
                self.stalled.append(side)
            else:
                side.catch_up(self.timeline.now + self.rng.uniform(0.05, 1.0))

    def is_blocked(self, source: str, target: str) -> bool:
        none = (False, False)
        return source != target and (self.blocked.get(source, none)[0] or self.blocked.get(target, none)[1])

    def are_apart(self, one: str, other: str) -> bool:
        """Whether nothing passes between two places in one direction, or in both."""
        return self.is_blocked(one, other) or self.is_blocked(other, one)

    def delay(self) -> float:
        """Of one packet."""
        return self.rng.uniform(*self.delay_s)

    def connect(self, links: SimLinks, link: int, endpoint: str, until: float) -> None:
        """A connection request, repeated until it is answered or `until`."""
        if links.closed:
            return
        target = self.serving.get(endpoint)
        if self.timeline.now >= until:
            links.host.see(LinkDown(link=link, reason="timed out"))
        elif target is not None and (target.silent or target.paused() or self.are_apart(links.place, target.place)):
            self.timeline.after(RETRY_S, lambda: self.connect(links, link, endpoint, until))
        elif target is None or target.closed:  # a live kernel's answer where nobody listens
            refused = LinkDown(link=link, reason="Connection refused", refused=True)
            self.timeline.after(2 * self.delay(), lambda: links.host.see(refused))
        else:
            self._shake_hands(Side(links, link), Side(target, self.next_guest))
            self.next_guest += 1

    def _shake_hands(self, member: Side, guest: Side) -> None:
        member.face(guest)
        guest.face(member)

        def at_server() -> None:
            if guest.links.closed:
                broken = LinkDown(link=member.link, reason="broken")
                self.timeline.after(self.delay(), lambda: member.links.host.see(broken))
                return
            guest.up(ours=False)
            guest.send(at_member)

        def at_member() -> None:
            if not member.links.closed:
                member.up(ours=True)
                if member.is_cut:  # while this was under way
                    member.down("Connection reset by peer")
                if member.link in member.links.abandoned:
                    member.hang_up()

        self.timeline.after(LOOPBACK_S if member.is_at_home else 3 * self.delay(), at_server)


class SimLinks:
    """The links of one life of an agent; the face of `runtime.net.network.Network` (`runtime.world.Links`)."""

    def __init__(self, ether: Ether, host: SimHost, place: str, paused: Callable[[], bool]) -> None:
        self.ether, self.host, self.place, self.paused = ether, host, place, paused
        self.sides: dict[int, Side] = {}
        self.abandoned: set[int] = set()  # Links that were hung up before they were up.
        self.closed = False
        self.silent = False  # The host has no power: not even its kernel answers.

    def listen(self, endpoint: str = ENDPOINT) -> bool:
        before = self.ether.serving.get(endpoint)
        if before is not None and not before.closed:
            return False
        self.ether.serving[endpoint] = self
        return True

    def perform(self, action: Connect | Transmit | HangUp) -> list[Observation]:
        """As `runtime.net.network.Network.perform`."""
        match action:
            case Connect(link=link, endpoint=endpoint, may_serve=may_serve):
                if may_serve and self.listen(endpoint or ENDPOINT):
                    return [Serving()]
                return self.connect(link, endpoint)
            case Transmit(link=link, message=message):
                self.transmit(link, message)
            case HangUp(link=link):
                self.hang_up(link)
        return []

    def connect(self, link: int, endpoint: str = "") -> list[Observation]:
        self.ether.connect(self, link, endpoint or ENDPOINT, self.ether.timeline.now + HANDSHAKE_S)
        return []

    def transmit(self, link: int, message: Message) -> list[Observation]:
        if (side := self.sides.get(link)) is not None:
            side.say(message)
        return []

    def hang_up(self, link: int) -> None:
        if (side := self.sides.get(link)) is None:
            self.abandoned.add(link)
        else:
            side.hang_up()

    def close(self) -> None:
        self.closed = True
        for side in list(self.sides.values()):
            side.close()
        self.sides = {}

    def lose_power(self) -> None:
        """The host's kernel answers nobody."""
        self.silent = True

    def regain_power(self) -> None:
        """The host's kernel answers, if only that there is nobody."""
        self.silent = False


if TYPE_CHECKING:
    _LINKS: tuple[type[Links], ...] = (Network, SimLinks)
