"""The simulated network: links that delay, stall, break and come back, as TCP's do.

Within a link and a direction order is kept and nothing is lost, until it breaks; then whatever was on its way is lost, and
each side learns of it in its own time, or never (a host without power says no farewell). Several partitions, one for each
direction, are possible; what is sent meanwhile waits, as TCP's retransmissions do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.machine import Observation
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Message
from holdfast.runtime.net.net import GUESTS_FROM, HANDSHAKE_S
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import SimHost

if TYPE_CHECKING:
    from holdfast.runtime.world import Links

ENDPOINT = "endpoint:29400"
"""What the job's endpoint is called."""

LOOPBACK_S = 0.00002
"""Delay of a packet that does not leave its host."""

RETRY_S = 0.25
"""How often a connection request is repeated while nobody answers."""


class Side:
    """One end of a wire, at one agent."""

    def __init__(self, links: SimLinks, link: int) -> None:
        self.links = links
        self.link = link
        self.open = False
        self.hung_up = False
        self.last_at = 0.0
        self.stalled: list[Callable[[], None]] = []
        """What it sent into a partition."""
        self.void = False
        """It is where the packets of a broken link go."""
        self.strays = False
        """What it sends goes astray, for now."""
        self.other: Side

    def down(self, reason: str) -> None:
        """This end notices that the link is gone."""
        if self.open:
            self.open = False
            self.links.sides.pop(self.link, None)
            self.links.host.see(LinkDown(link=self.link, reason=reason))


class Ether:
    """All links of all agents."""

    def __init__(self, timeline: Timeline, rng: random.Random, delay_s: tuple[float, float] = (0.0002, 0.001)) -> None:
        self.timeline = timeline
        self.rng = rng
        self.delay_s = delay_s
        self.serving: dict[str, SimLinks] = {}
        """Endpoint → who listens there, or did last."""
        self.next_guest = GUESTS_FROM
        self.blocked: dict[str, tuple[bool, bool]] = {}
        """place → (nothing gets out, nothing gets in)"""
        self.stalled: list[Side] = []
        self.reset_chance = 0.0
        """How often an agent's exit resets its links (unread data), so that its last words are lost."""

    def partition(self, place: str, *, out: bool = True, into: bool = True) -> None:
        """From now on nothing passes between `place` and the others."""
        self.blocked[place] = out, into

    def heal(self, place: str) -> None:
        """What has waited comes through a while later (retransmission backs off)."""
        self.blocked.pop(place, None)
        sides, self.stalled = self.stalled, []
        for side in sides:
            if side.strays or self.is_blocked(side.links.place, side.other.links.place):
                self.stalled.append(side)
                continue
            side.last_at = max(side.last_at, self.timeline.now + self.rng.uniform(0.05, 1.0))
            self._catch_up(side)

    def _catch_up(self, side: Side) -> None:
        stalled, side.stalled = side.stalled, []
        for what in stalled:
            self.timeline.at(side.last_at, what)

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing passes from `source` to `target`."""
        none = (False, False)
        return source != target and (self.blocked.get(source, none)[0] or self.blocked.get(target, none)[1])

    def delay(self) -> float:
        """Of one packet."""
        return self.rng.uniform(*self.delay_s)

    # --- connecting -----------------------------------------------------------------------------------------------------

    def connect(self, links: SimLinks, link: int, endpoint: str, until: float) -> None:
        """A connection request, repeated until it is answered or `until`."""
        if links.closed:
            return
        target = self.serving.get(endpoint)
        if self.timeline.now >= until:
            links.host.see(LinkDown(link=link, reason="timed out"))
        elif target is None:
            self.timeline.after(2 * self.delay(), lambda: links.host.see(_refused(link)))
        elif (
            target.silent
            or target.paused()
            or self.is_blocked(links.place, target.place)
            or self.is_blocked(target.place, links.place)
        ):
            self.timeline.after(RETRY_S, lambda: self.connect(links, link, endpoint, until))
        elif target.closed:
            self.timeline.after(2 * self.delay(), lambda: links.host.see(_refused(link)))
        else:
            self._shake(Side(links, link), Side(target, self.next_guest))
            self.next_guest += 1

    def _shake(self, member: Side, guest: Side) -> None:
        member.other, guest.other = guest, member

        def at_server() -> None:
            if guest.links.closed:
                self.timeline.after(self.delay(), lambda: member.links.host.see(LinkDown(link=member.link, reason="broken")))
                return
            guest.open, guest.links.sides[guest.link] = True, guest
            guest.links.host.see(LinkUp(link=guest.link, ours=False))
            self.send(guest, at_member)

        def at_member() -> None:
            if not member.links.closed:
                member.open, member.links.sides[member.link] = True, member
                member.links.host.see(LinkUp(link=member.link, ours=True))
                if member.link in member.links.abandoned:
                    member.links.hang_up(member.link)

        self.timeline.after(LOOPBACK_S if _at_home(member) else 3 * self.delay(), at_server)

    # --- sending --------------------------------------------------------------------------------------------------------

    def send(self, side: Side, at_other: Callable[[], None]) -> None:
        """Let something happen at the other end, after everything that was sent before it."""
        side.last_at = max(side.last_at, self.timeline.now + (LOOPBACK_S if _at_home(side) else self.delay()))

        def arrive() -> None:
            if side.strays or side.stalled or self.is_blocked(side.links.place, side.other.links.place):
                if not side.stalled:
                    self.stalled.append(side)
                side.stalled.append(at_other)
            else:
                at_other()

        self.timeline.at(side.last_at, arrive)

    def deliver(self, side: Side, message: Message) -> None:
        """`message` has come to the other end of `side`."""
        other = side.other
        if other.open:
            other.links.host.see(Arrived(link=other.link, message=message))
        elif not other.void and not other.links.silent:
            # Nobody listens there any more; the kernel says so.
            self.timeline.after(self.delay(), lambda: side.down("Connection reset by peer"))

    def finish(self, side: Side) -> None:
        """This end closes: the other learns of it after everything that was sent."""

        def at_other() -> None:
            other = side.other
            if other.open:
                other.down("closed by the other side")
                self.finish(other)

        self.send(side, at_other)

    def cut(self, side: Side, lag_s: float, other_lag_s: float) -> None:
        """A link breaks: what is under way is lost, and each end notices after its lag."""
        # Neither end hears the other any more, even before it notices.
        ghost, other_ghost = Side(side.links, -1), Side(side.other.links, -1)
        ghost.void = other_ghost.void = True
        one, two = side, side.other
        one.other, two.other = other_ghost, ghost
        other_ghost.other, ghost.other = one, two
        self.timeline.after(lag_s, lambda: one.down("Connection reset by peer"))
        self.timeline.after(other_lag_s, lambda: two.down("Connection reset by peer"))


    def stray(self, side: Side, lag_s: float, late_s: float) -> None:
        """What this end sends goes astray from now on. After `lag_s` it gives the link up, and may make another, over which it
        says the same again; after `late_s` all that went astray arrives nevertheless, over its own link: said twice, and
        overtaken. A packet lives on in a network, and in the other side's kernel, when its sender is gone."""

        def arrive() -> None:
            side.strays = False
            if side in self.stalled:
                self.stalled.remove(side)
                side.last_at = max(side.last_at, self.timeline.now)
                side.stalled.append(lambda: side.other.down("Connection reset by peer"))
                self._catch_up(side)

        side.strays = True
        self.timeline.after(lag_s, lambda: side.down("Connection timed out"))
        self.timeline.after(max(lag_s, late_s), arrive)


def _refused(link: int) -> LinkDown:
    """A live kernel's answer where nobody listens."""
    return LinkDown(link=link, reason="Connection refused", refused=True)


def _at_home(side: Side) -> bool:
    """Whether a link does not leave its host."""
    return side.links.place == side.other.links.place


class SimLinks:
    """The links of one life of an agent; the face of `runtime.net.net.Network` (`runtime.world.Links`)."""

    def __init__(self, ether: Ether, host: SimHost, place: str, paused: Callable[[], bool], endpoint: str = "") -> None:
        self.ether = ether
        self.host = host
        self.place = place
        self.paused = paused
        self.endpoint = endpoint
        """Where it would listen. Empty: at the job's endpoint."""
        self.sides: dict[int, Side] = {}
        self.abandoned: set[int] = set()
        """Links that were hung up before they were up."""
        self.closed = False
        self.silent = False
        """The host has no power: not even its kernel answers."""

    def listen(self) -> bool:
        """See `runtime.world.Links`."""
        before = self.ether.serving.get(self.endpoint)
        if before is not None and not before.closed:
            return False
        self.ether.serving[self.endpoint] = self
        return True

    def connect(self, link: int, endpoint: str = "") -> list[Observation]:
        """See `runtime.world.Links`."""
        where = "" if endpoint == ENDPOINT else endpoint
        self.ether.connect(self, link, where, self.ether.timeline.now + HANDSHAKE_S)
        return []

    def transmit(self, link: int, message: Message) -> None:
        """See `runtime.world.Links`."""
        side = self.sides.get(link)
        if side is not None and not side.hung_up:
            self.ether.send(side, lambda: self.ether.deliver(side, message))

    def hang_up(self, link: int) -> None:
        """See `runtime.world.Links`."""
        side = self.sides.get(link)
        if side is None:
            self.abandoned.add(link)
        elif not side.hung_up:
            side.hung_up = True
            self.ether.finish(side)

    def close(self) -> None:
        """See `runtime.world.Links`."""
        self.closed = True
        for side in list(self.sides.values()):
            side.open = False
            if not self.silent and self.ether.rng.random() < self.ether.reset_chance:
                self.ether.cut(side, 0.0, self.ether.delay())
            elif not self.silent:
                self.ether.finish(side)
        self.sides = {}


if TYPE_CHECKING:
    from holdfast.runtime.net.net import Network

    _LINKS: tuple[type[Links], ...] = (Network, SimLinks)
