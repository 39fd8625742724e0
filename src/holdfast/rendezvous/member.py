"""How does a member stay in touch with a coordinator on another node? It keeps one link up and its lease renewed.

Everything said since the coordinator's last assignment is said again over a new link; it knows what it has heard.
A `Join` is never repeated after its answer: said late, it would call workers gone that are alive. And an assignment is
passed on only within a lease: one that comes later may be about a round that others have left. After a lease the link is
always made anew, so the `Join` is said again and its answer with it.
"""

from __future__ import annotations

from holdfast.core.machine import NEVER, Action, Observation, Say
from holdfast.core.value import Value
from holdfast.core.wire import messages as wire
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.rendezvous.clocks import Compared
from holdfast.rendezvous.lease import KILL_S, MANY, renew_every_s

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 1.0
"""Average pause before the next attempt to connect; doubles. A refused connection on a LAN answers within a millisecond."""

ARRIVALS_PER_S, LONGEST_SPREAD_S = 4096, 1.0
"""Nodes per second that reconnect when `MANY` lose their links at the same moment, because a coordinator would be slow for
all of them at once. All are back well within a lease."""

NOTICE_S = 5.0  # Seconds that a node tries silently before it says that it is trying.

TAKEN = "another program has that port: `ss -ltnp` on its host shows which; end it, or choose another port"

LED_BY_NONE = "an agent of the job is there, and leads nobody: what it has said last tells what it waits for"

LIKELY = "most likely the job ended while this node, a spare, was cut off; how it ended is not known here"
ASK_THERE = "`holdfast report` on that host tells how it ended"

SOONEST_S = 0.02  # Shortest time between two Renews, however short the lease.

TURNED_S = 15.0
"""How long to try again where an agent at the endpoint turns this node away. It may be of another run or job that has ended,
and goes some seconds later (`FAREWELL_S`). If it stays, our id, token or version is wrong."""

GIVE_UP_S = 30.0
"""Seconds after the end of its lease for which a member looks for the coordinator. Long enough for a restart of a switch."""

ABANDONED_S = 10.0
"""The same for a spare, from the first refusal by the endpoint's host: its network works, so the coordinator's agent is gone.
Long enough for an agent that restarts at once. A node that had ranks waits longer: a job that comes back needs it more."""


class Deliver(Value):
    """What the member has for its agent: a message from the coordinator, or word that the lease is over."""

    message: wire.Message | None = None
    lease_over: str = ""
    until: float = NEVER  # With `lease_over`: the last moment at which workers may live.
    patience_s: float = 0.0  # With `lease_over`: how long the member goes on looking for the coordinator.


class Member:
    """The machine. Actions for the network and deliveries for the agent come back in one list."""

    def __init__(
        self,
        node: str,
        *,
        endpoint: str,
        join_timeout_s: float,
        may_serve: bool = False,
        is_told_where: bool = False,
        give_up_s: float = GIVE_UP_S,
        had_ranks: bool = False,
        hint: str = "is the first node's agent running, and is its port open to this node?",
        now: float,
    ) -> None:
        """`may_serve`: the endpoint may turn out to be on this host, and nobody's. `is_told_where`: nobody is called before
        `redirect` says where the coordinator is. `had_ranks`: in an earlier life; it does not give up as a spare does. `hint`:
        tells a person what to do where it is not found."""
        self.node = node
        self.endpoint = self.origin = endpoint
        self.may_serve = may_serve
        self.moved_to = ""  # Where the coordinator has moved to. Empty: it is where it was.
        self.give_up_s = give_up_s
        self.abandoned_s = NEVER if had_ranks else ABANDONED_S
        """How long a spare is refused at the endpoint until it gives up. NEVER: another may become the coordinator, or the job
        that comes back cannot do without this node."""
        self.is_spare = False  # The last that it heard was that it waits for a place.
        self.refused_since = NEVER
        """Since when every attempt to reach the coordinator was refused, by a host that is there."""
        self.hint = hint
        self.join_by = now + join_timeout_s
        self.has_met = False  # An agent of the job has been there, coordinator or not.
        self.is_foreign = False  # What answered last was no agent.
        self.turned_since = NEVER  # Since when an agent there has turned us away.
        self.lease_s = NEVER
        self.began_at = now
        self.round = 0
        self.nodes = 0  # In the last round.
        self.link = 0
        self.up = False
        self.outbox: list[wire.Message] = []
        self.notice_at = now + NOTICE_S
        self.mark = 0.0  # That of the last `Renewed` over this link.
        self.roster = 0  # Version of the roster that this node holds.
        self.clock = Compared()  # How the wall clock here compares with the others'.
        self.leased_until = -NEVER
        self.leased_at: float | None = None  # when the last Renew that was answered was sent; None: never
        self.held: wire.Assigned | None = None  # an assignment that came over a new link before its lease
        self.renew_at = NEVER
        self.connect_at = NEVER if is_told_where else now
        self.retry_s = FIRST_RETRY_S
        self.lease_over = False
        self.closed = False
        self.trouble = ""

    def observe(self, seen: Observation, now: float) -> list[Action | Deliver]:
        out: list[Action | Deliver] = []
        match seen:
            case LinkUp(link=link, ours=True) if link == self.link:
                self.up, self.refused_since = True, NEVER
                self.has_met = True
                self.renew_at, self.held, self.mark = now, None, 0.0
                out += [Transmit(link=link, message=message, more=True) for message in self.outbox]  # a Renew follows
            case LinkDown(link=link, reason=reason, final=final, foreign=foreign, refused=refused) if link == self.link:
                self.up, self.trouble = False, reason
                self.refused_since = min(self.refused_since, now) if refused else NEVER
                out += self._met_another() if foreign or final else []
                self.is_foreign = foreign
                self.turned_since = min(self.turned_since, now) if final else NEVER
                pause_s = self.retry_s * (0.5 + luck(self.node)) + self._spread_s()
                self.connect_at, self.retry_s = now + pause_s, min(LONGEST_RETRY_S, 2 * self.retry_s)
                if now >= self.turned_since + TURNED_S:
                    return [self._give_up(f"the coordinator at {self.endpoint} refused this node: {reason}")]
            case Arrived(link=link, message=message) if link == self.link:
                out += self._arrived(message, now)
        return out + self._due(now)

    def say(self, message: wire.Message, now: float) -> list[Action | Deliver]:
        """Say something to the coordinator, now or as soon as there is a link."""
        if isinstance(message, wire.Join):
            self.outbox, self.held = [], None
        if not isinstance(message, (wire.Pace, wire.Saving)):  # it is said again soon, and newer then
            self.outbox.append(message)
        if not self.up:
            return []
        if isinstance(message, wire.Join) and self.lease_ends is None:
            self.renew_at = now  # what was asked before the Join, a coordinator that knew of no such node has not answered
            return [Transmit(link=self.link, message=message, more=True), *self._due(now)]
        return [Transmit(link=self.link, message=message)]

    def redirect(self, endpoint: str, now: float) -> list[Action | Deliver]:
        """The coordinator is there now. What it has not answered is said again to it."""
        if self.closed:
            return []
        hang_up: list[Action | Deliver] = [HangUp(link=self.link)] if self.link else []
        self.endpoint = self.moved_to = endpoint
        self.up, self.refused_since = False, NEVER
        self.link += 1  # what an older link still brings is not from there
        self.connect_at, self.retry_s = now + self._spread_s(), FIRST_RETRY_S
        return hang_up + self._due(now)

    def close(self) -> None:
        """Say nothing more, and look for nobody."""
        self.closed = True

    def troubled(self, reason: str) -> None:
        """Why the coordinator is out of reach, as somebody else knows."""
        self.trouble = reason

    def holds_roster(self, version: int) -> None:
        """The roster that this node holds now; 0: none."""
        self.roster = version

    def bring_back(self, mark: float) -> None:
        """The mark that the next `Renew` carries: that of the last `Renewed` over this link."""
        self.mark = mark

    def wait_for_successor(self, patience_s: float) -> None:
        """Others may choose another coordinator: look for it so long after the lease, whether refused or not."""
        self.give_up_s, self.abandoned_s = patience_s, NEVER

    def advise(self, hint: str) -> None:
        """What to tell a person where the coordinator is not found."""
        self.hint = hint

    def renew_soon(self, now: float) -> None:
        """Without waiting for the lease: the answer, or what the Renew says, is wanted."""
        self.renew_at = min(self.renew_at, now + self._spread_s())

    def deadline(self) -> float:
        if self.closed:
            return NEVER
        notice_at = self.notice_at if self.leased_at is None else NEVER
        return min(self.renew_at if self.up else self.connect_at, notice_at, self._patience_ends())

    @property
    def lease_ends(self) -> float | None:
        """Until when workers may run here. None: there is no lease yet."""
        return None if self.leased_at is None else self.leased_until

    def _patience_ends(self) -> float:
        if self.lease_ends is None:
            return self.join_by
        if not self.lease_over:
            return self.lease_ends
        return min(self.lease_ends + self.give_up_s, self._abandoned_at)

    @property
    def _abandoned_at(self) -> float:
        return self.refused_since + self.abandoned_s if self.is_spare else NEVER

    def _spread_s(self) -> float:
        """How much later than the first of a large job this one connects."""
        return 0.0 if self.nodes < MANY else luck(self.node) * min(LONGEST_SPREAD_S, self.nodes / ARRIVALS_PER_S)

    def _arrived(self, message: wire.Message, now: float) -> list[Action | Deliver]:
        match message:
            case wire.Renewed(lease_s=lease_s, sent_at=sent_at, at_unix=at_unix, middle_s=middle_s):
                self.clock.heard(sent_at, at_unix, middle_s, now)
                return self._renewed(lease_s, sent_at, now)
            case wire.Assigned():
                if not self.lease_over and self.lease_ends is not None and now >= self.lease_ends:
                    return []  # it is over at this moment: `_due` makes the link anew, and this may be a stale answer
                self.held = message
                return self._release(now)
            case wire.Reply(ask=ask):
                self.outbox = [said for said in self.outbox if not (isinstance(said, wire.Request) and said.ask == ask)]
            case wire.Waiting():
                self.is_spare = True
            case wire.Finish():
                self.closed = True
                heard = wire.Leave(node=self.node, round=self.round, reason="the job is over")
                return [Transmit(link=self.link, message=heard), HangUp(link=self.link), Deliver(message=message)]
            case wire.Refused():
                self.closed = True
                return [HangUp(link=self.link), Deliver(message=message)]
        return [Deliver(message=message)]

    def _renewed(self, lease_s: float, sent_at: float, now: float) -> list[Action | Deliver]:
        sent_at = min(sent_at, now)  # our own word, as the coordinator gives it back
        self.lease_s, self.leased_at = lease_s, max(sent_at, self.leased_at or sent_at)
        self.retry_s = FIRST_RETRY_S  # not when the link comes up: who leads no longer takes it up and closes it at once
        # A coordinator that is about to lose its mandate gives short leases; a longer one that it gave before holds.
        self.leased_until = max(self.leased_until, sent_at + lease_s)
        self.renew_at = min(self.renew_at, max(sent_at + renew_every_s(lease_s, self.nodes), now + SOONEST_S))
        if now < self.leased_until:
            self.lease_over = False
        return self._release(now)

    def _release(self, now: float) -> list[Action | Deliver]:
        if self.held is None or self.lease_ends is None or now >= self.lease_ends:
            return []
        assigned, self.held, self.is_spare = self.held, None, False
        self.round, self.nodes, self.outbox = assigned.round, assigned.group_world_size, []
        # The answer brings the round's roster: until then this node cannot tell who comes after the coordinator.
        self.renew_soon(now)
        return [Deliver(message=assigned)]

    def _due(self, now: float) -> list[Action | Deliver]:
        if self.closed:
            return []
        if now >= self._patience_ends() and (self.lease_ends is None or self.lease_over):
            return [self._give_up_at(now)]
        return [*self._notice(now), *self._lease_ends_at(now), *self._renew(now), *self._connect(now)]

    def _notice(self, now: float) -> list[Action | Deliver]:
        """Say that there is no first answer yet, once."""
        if self.leased_at is not None or now < self.notice_at:
            return []
        self.notice_at = NEVER
        trying = f"no answer yet from the coordinator at {self.endpoint} ({self.trouble or 'connecting'})"
        return [Say(text=f"{trying}; trying for up to {self.join_by - self.began_at:g} s", level="warning")]

    def _met_another(self) -> list[Action | Deliver]:
        """Say at once, once, who is there instead of a coordinator: whoever started it may be wrong, and can end it."""
        if self.notice_at == NEVER:
            return []
        self.notice_at = NEVER
        return [Say(text=f"no coordinator at {self.endpoint} yet: {self.trouble}; trying again", level="warning")]

    def _lease_ends_at(self, now: float) -> list[Action | Deliver]:
        """Where the lease has just ended, the agent is told, and the link made anew."""
        if self.lease_ends is None or now < self._patience_ends():
            return []
        self.lease_over = True
        silence = f"the coordinator at {self.endpoint} has not answered for {self._silent_s(now):.1f} s"
        over = Deliver(lease_over=silence, until=self.lease_ends + KILL_S, patience_s=self.give_up_s)
        if not self.up:
            return [over]
        # It may be up in name only: a firewall that forgot it, a host that lost its power.
        self.up, self.connect_at = False, now
        return [over, HangUp(link=self.link)]

    def _renew(self, now: float) -> list[Action | Deliver]:
        if not self.up or now < self.renew_at:
            return []
        self.renew_at = now + max(SOONEST_S, renew_every_s(self.lease_s, self.nodes))
        ahead_s = self.clock.ahead_s
        renew = wire.Renew(node=self.node, round=self.round, sent_at=now, mark=self.mark, roster=self.roster, ahead_s=ahead_s)
        return [Transmit(link=self.link, message=renew)]

    def _connect(self, now: float) -> list[Action | Deliver]:
        if self.up or now < self.connect_at:
            return []
        self.link += 1
        self.connect_at = NEVER
        is_nobodys = self.leased_at is None and not self.has_met and self.endpoint == self.origin
        return [Connect(link=self.link, endpoint=self.moved_to, may_serve=self.may_serve and is_nobodys)]

    def _silent_s(self, now: float) -> float:
        """Seconds without an answer."""
        return now - (self.began_at if self.leased_at is None else self.leased_at)

    def _give_up_at(self, now: float) -> Deliver:
        """The coordinator has been looked for long enough."""
        if self.lease_over and now >= self._abandoned_at:
            gone = f"nobody serves {self.endpoint} any more, though its host answers: {LIKELY}"
            return self._give_up(gone, hint=ASK_THERE)
        trouble = f" ({self.trouble})" if self.trouble else ""
        lost = f"the coordinator at {self.endpoint} is out of reach: no answer for {self._silent_s(now):.0f} s{trouble}"
        if self.lease_over:
            unknown = "whether the job goes on without this node, or has ended, is not known here"
            return self._give_up(f"{lost}; {unknown}", self.hint)
        if self.has_met:
            return self._give_up(lost, LED_BY_NONE)
        return self._give_up(lost, TAKEN if self.is_foreign else self.hint)

    def _give_up(self, reason: str, hint: str = "") -> Deliver:
        self.closed = True
        return Deliver(message=wire.Refused(reason=reason, hint=hint))


def luck(node: str) -> float:
    """From 0 to 1, for each node its own: a machine has no dice, and the same node always gets the same."""
    drawn = 0
    for byte in node.encode(errors="replace"):
        drawn = (drawn ^ byte) * 0x01000193 & 0xFFFFFFFF  # FNV-1a
    return drawn / 0x100000000
