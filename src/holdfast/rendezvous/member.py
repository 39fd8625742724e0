"""How does a member stay in touch with a coordinator on another node? It keeps one link up and its lease renewed.

Everything said since the coordinator's last assignment is said again over a new link; it knows what it has heard.
A `Join` is never repeated after its answer: said late, it would call workers gone that are alive.
"""

from __future__ import annotations

from holdfast.core.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.machine import NEVER, Action, Observation
from holdfast.core.messages import Assigned, Finish, Join, Message, Refused, Renew, Renewed
from holdfast.core.value import Value

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0
"""Pause before the next attempt to connect; doubles. A refused connection on a LAN answers within a millisecond."""

GIVE_UP_S = 30.0
"""How long after its lease is over a member goes on looking for the coordinator. Long enough for a restart of a switch."""


class Deliver(Value):
    """What the member has for its agent: a message from the coordinator, or word that the lease is over."""

    message: Message | None = None
    lease_over: str = ""


class Member:
    """The machine. Actions for the network and deliveries for the agent come back in one list."""

    def __init__(self, node: str, *, endpoint: str, join_timeout_s: float, now: float) -> None:
        self.node = node
        self.endpoint = endpoint
        self.join_timeout_s = join_timeout_s
        self.lease_s = NEVER
        self.began_at = now
        self.round = 0
        self.link = 0
        self.up = False
        self.outbox: list[Message] = []
        self.heard_at: float | None = None  # None: never
        self.renew_at = NEVER
        self.connect_at = now
        self.retry_s = FIRST_RETRY_S
        self.lease_over = False
        self.closed = False
        self.trouble = ""

    def observe(self, seen: Observation, now: float) -> list[Action | Deliver]:
        """See `core.machine.Machine`."""
        out: list[Action | Deliver] = []
        match seen:
            case LinkUp(link=link, ours=True) if link == self.link:
                self.up, self.retry_s = True, FIRST_RETRY_S
                self.renew_at = now
                out += [Transmit(link=link, message=message) for message in self.outbox]
            case LinkDown(link=link, reason=reason, final=final) if link == self.link:
                self.up, self.trouble = False, reason
                self.connect_at, self.retry_s = now + self.retry_s, min(LONGEST_RETRY_S, 2 * self.retry_s)
                if final:
                    return [self._give_up(reason)]
            case Arrived(link=link, message=message) if link == self.link:
                out += self._arrived(message, now)
        return out + self._due(now)

    def say(self, message: Message, now: float) -> list[Action | Deliver]:
        """Say something to the coordinator, now or as soon as there is a link."""
        if isinstance(message, Join):
            self.outbox = []
        self.outbox.append(message)
        return [Transmit(link=self.link, message=message)] if self.up else []

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        if self.closed:
            return NEVER
        return min(self.renew_at if self.up else self.connect_at, self._patience_ends())

    def _patience_ends(self) -> float:
        if self.heard_at is None:
            return self.began_at + self.join_timeout_s
        return self.heard_at + self.lease_s + (GIVE_UP_S if self.lease_over else 0.0)

    def _arrived(self, message: Message, now: float) -> list[Action | Deliver]:
        self.heard_at, self.lease_over = now, False
        if isinstance(message, Assigned):
            self.round, self.outbox = message.round, []
        if isinstance(message, Renewed):
            self.lease_s = message.lease_s
            return []
        if isinstance(message, (Finish, Refused)):
            self.closed = True
            return [HangUp(link=self.link), Deliver(message=message)]
        return [Deliver(message=message)]

    def _due(self, now: float) -> list[Action | Deliver]:
        out: list[Action | Deliver] = []
        if self.closed:
            return out
        if now >= self._patience_ends():
            if self.heard_at is None or self.lease_over:
                return [self._give_up(f"no answer for {now - (self.heard_at or self.began_at):.0f} s ({self.trouble})")]
            self.lease_over = True
            silent_s = now - self.heard_at
            out.append(Deliver(lease_over=f"the coordinator at {self.endpoint} has not answered for {silent_s:.1f} s"))
        if self.up and now >= self.renew_at:
            # Three chances within a lease, as DHCP and etcd's keep-alive have it.
            self.renew_at = now + min(self.lease_s / 3, 1.0)
            out.append(Transmit(link=self.link, message=Renew(node=self.node, round=self.round)))
        if not self.up and now >= self.connect_at:
            self.link += 1
            self.connect_at = NEVER
            out.append(Connect(link=self.link))
        return out

    def _give_up(self, reason: str) -> Deliver:
        self.closed = True
        return Deliver(
            message=Refused(
                reason=f"the coordinator at {self.endpoint} is out of reach: {reason}",
                hint="is the first node's agent running, and is its port open to this node?",
            )
        )
