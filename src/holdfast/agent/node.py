"""How do one node's machines fit together? The group, and the coordinator: in this process, or at the end of a link.

      processes · signals                links                       links
            │                              │                           │
         ┌──▼────┐  Send   ┌───────────────▼──┐         ┌──────────────▼──────────┐
         │ Group ├────────▶│ Member           │   or    │ LinkRouter ─ Rendezvous │
         │       │◀────────┤ (link to a peer) │         │ (here, for all members) │
         └───────┘  Told   └──────────────────┘         └─────────────────────────┘

What one machine says to another is passed on at once; what is left over are actions for a World. So a node as a whole is
a machine again, and the simulator runs thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Exit, LeaseOver, Send, Told
from holdfast.agent.group.state import Phase
from holdfast.core.machine import Action, Observation, Tick
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp, Serving, Transmit
from holdfast.core.wire.messages import Message
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.clocks import ClockLead
from holdfast.rendezvous.link_router import TO_HOST, LinkRouter
from holdfast.rendezvous.member import Deliver, Member
from holdfast.rendezvous.rules import HostLeaves

Found = Callable[[float], tuple[LinkRouter, RestartOnFailure]]
"""Makes a coordinator that knows nothing yet, with its policy."""


class Node:
    """One node: a group, and either a `server` in this process or a `member`'s link to one."""

    def __init__(
        self, group: Group, *, server: LinkRouter | None = None, member: Member | None = None, found: Found | None = None
    ) -> None:
        """`found`: for a node whose coordinator is elsewhere, unless it turns out that this node serves the endpoint."""
        assert (server is None) != (member is None), "a node has its coordinator here or elsewhere"
        self.group = group
        self.server = server
        self.member = member
        self.found = found

    def begin(self, now: float) -> list[Action]:
        """Ask for the first round."""
        if self.server is not None:
            self.server.rendezvous.take_logs_at(self.group.join.logs_at)
        begun = [] if self.member is None else self._from_member(self.member.observe(Tick(), now), now)
        return begun + self._from_group(self.group.begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        match seen:
            case LinkUp() | LinkDown() | Arrived():
                return self._to_coordinator(seen, now)
            case Serving():
                return self._host_coordinator(now)
            case Tick():
                # The group first: what it has to say may be what the coordinator is waiting for.
                return self._show(seen, now) + self._to_coordinator(seen, now)
        return self._show(seen, now)

    def deadline(self) -> float:
        other = self.server or self.member
        assert other is not None
        return min(self.group.deadline(), other.deadline())

    def set_clock(self, ahead_unix: float) -> None:
        """What the wall clock shows now, less what the monotonic one does: compared with other nodes', and used for nothing."""
        if self.member is not None:
            self.member.clock.set(ahead_unix)
        if self.server is not None:
            self.server.rendezvous.set_clock(ahead_unix)

    @property
    def clock_lead(self) -> ClockLead | None:
        """How far the wall clock is ahead of the other nodes'. None: it is not known, or there are none."""
        if self.member is not None:
            return self.member.clock.lead
        return self.server.rendezvous.clocks.lead if self.server is not None else None

    @property
    def done(self) -> bool:
        """This agent may go: its group has ended, and so has every conversation it hosts."""
        if self.group.phase is not Phase.ENDED or self.server is None:
            return self.group.phase is Phase.ENDED
        return self.server.idle and not self.server.misses_some

    def will(self, now: float) -> list[Action]:
        """What is left to do for a node whose agent ends."""
        return []

    @property
    def lease_ends(self) -> float | None:
        """Until when workers may run here, unless the lease is renewed. None: none runs, or nobody else counts on it."""
        return self.member.lease_ends if self.member is not None and self.group.has_workers else None

    def _host_coordinator(self, now: float) -> list[Action]:
        """Nobody served the job's endpoint, and this node does now: what was to be said to the coordinator is said here."""
        assert self.member is not None and self.found is not None
        unsaid = self.member.outbox
        self.server, self.member = self.found(now)[0], None
        self.group.host(True)
        self.server.rendezvous.take_logs_at(self.group.join.logs_at)
        return self._from_group([Send(message=message) for message in unsaid], now)

    def _to_coordinator(self, seen: Observation, now: float) -> list[Action]:
        if self.server is not None:
            return self._from_server(self.server.observe(seen, now), now)
        assert self.member is not None
        return self._from_member(self.member.observe(seen, now), now)

    def _show(self, seen: Observation, now: float) -> list[Action]:
        """Show the group this; what is left to do."""
        return self._from_group(self.group.observe(seen, now), now)

    def _from_group(self, actions: Iterable[Action], now: float) -> list[Action]:
        """What a coordinator here answers reaches the group after all of `actions`, as another node's would: what the group
        does of it comes behind what it had decided before."""
        out: list[Action] = []
        answers: list[Message] = []
        for action in actions:
            if not isinstance(action, Send):
                out.append(action)
                if isinstance(action, Exit) and self.server is not None:
                    out += self._from_server(self.server.observe(HostLeaves(reason=host_leaves(action)), now), now)
            elif self.server is not None:
                sent, told = _parted(self.server.hear(action.message, TO_HOST, now))
                out += sent
                answers += told
            elif self.member is not None:
                out += self._from_member(self.member.say(action.message, now), now)
        return out + self._told(answers, now)

    def _from_server(self, actions: Iterable[Action], now: float) -> list[Action]:
        """Answers to the member in this process go to the group, after all others have been sent."""
        sent, told = _parted(actions)
        return sent + self._told(told, now)

    def _told(self, messages: Iterable[Message], now: float) -> list[Action]:
        return [action for message in messages for action in self._show(Told(message=message), now)]

    def _from_member(self, actions: Iterable[Action | Deliver], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            out += self._show(_delivered(action), now) if isinstance(action, Deliver) else [action]
        return out


def _parted(actions: Iterable[Action]) -> tuple[list[Action], list[Message]]:
    """What a server has for others and the World, and what it says to the member in its own process."""
    others: list[Action] = []
    told: list[Message] = []
    for action in actions:
        if isinstance(action, Transmit) and action.link == TO_HOST:
            told.append(action.message)
        else:
            others.append(action)
    return others, told


def _delivered(delivery: Deliver) -> Observation:
    if delivery.message is not None:
        return Told(message=delivery.message)
    return LeaseOver(reason=delivery.lease_over, until=delivery.until, patience_s=delivery.patience_s)


def host_leaves(end: Exit) -> str:
    """Why the job is without its coordinator from now on."""
    return f"the agent that hosts the coordinator ends: {end.complaint or 'stopped by a signal'}"
