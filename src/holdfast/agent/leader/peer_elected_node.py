"""Composes one node's machines where the nodes elect the coordinator's successor by vote.

The same parts as in `agent.leader.elected_node`, with `rendezvous.election.succession` in the election's place and the other
nodes in the store's:

         ┌───────┐ Send  ┌────────┐   link to the leader, which may be ourselves
         │ Group ├──────▶│ Member │◀──────────────────────────────────┐
         │       │◀──────┤        │                                   ▼
         └───────┘ Told  └───▲────┘                        ┌─────────────────────────┐
                             │ Follow             Lead     │ LinkRouter ─ Rendezvous │  only while we lead
                         ┌───┴────────┐ ─────────────────▶ │     └── Mandate         │
                         │ Succession │                    └─────────────────────────┘
                         └─▲────────┬─┘
              Seek · Vote  │        │  Propose · Leads
                           └─ links ┘  (between nodes that seek a leader)

What a leader says goes through its mandate on the way out: each `Renewed` gets a mark, the roster if it is news, and no longer
lease than the mandate lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from signal import SIGTERM

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Exit, FromCoordinator, MadeWay, Unguarded
from holdfast.agent.leader.elected_node import ElectedNode
from holdfast.agent.node import Found, host_leaves
from holdfast.core.job.events import Decided, ExcludedBy
from holdfast.core.job.policy import Verdict
from holdfast.core.machine import NEVER, Action, Observation, Record, Signalled, Tick
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp, Serving, Transmit
from holdfast.core.wire.messages import Join, Leads, Leave, Message, Past, Renew, Renewed, Reply, Seek, Stopped, Vote
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.coordinator.member_messages import renewed
from holdfast.rendezvous.coordinator.membership import Seat
from holdfast.rendezvous.election.elector_memory import Remembered
from holdfast.rendezvous.election.leader_lease import LOOK_S, SMALL
from holdfast.rendezvous.election.leading import YIELD_S, elder_s, voters
from holdfast.rendezvous.election.messages import ForceAnswered, ForceAsked
from holdfast.rendezvous.election.roster import elector_of
from holdfast.rendezvous.election.seeking import OF_HALF, seeks
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.election.succession_state import (
    AgentLeaves,
    JobEnded,
    Knocked,
    LeaderNamed,
    LeaderSeeks,
    LeaseRenewed,
    Role,
    Seated,
    ServesOrigin,
    SpareOrNot,
    TakenIn,
)
from holdfast.rendezvous.election.witness_claims import Claimed
from holdfast.rendezvous.member import Deliver, Member
from holdfast.rendezvous.rules import Heard, HostLeaves

TICK = Tick()

SLEPT_S = 1.5
"""An agent that sees nothing for so long was stopped, or its host: it renews its own lease twice in this time."""


class PeerElectedNode(ElectedNode):
    """One node: a group, a member, a possible successor, and a server while it leads."""

    election: Succession

    def __init__(self, group: Group, member: Member, succession: Succession, found: Found, *, patience_s: float) -> None:
        super().__init__(group, member, succession, found)
        self.patience_s = patience_s  # How long after its lease a node waits where an election can still be won.
        self.guests: dict[int, str] = {}  # Links that others opened to us, and the address that each comes from.
        self.came_from: dict[str, str] = {}  # Node → address, of those that have joined while we lead.
        self.since_round = 0  # The last round of our predecessor.
        self.keep_at = -NEVER
        self.line: tuple[str, ...] = ()  # Who comes after whom, as the mandate has been told last.
        self.told: tuple[int, float] = (0, 0.0)
        self.of_late = self.kept  # What members are told of the job; of that roster's version, and worked out then.
        self.looked_at = NEVER  # When this node was last shown anything.
        self.founds_alone_at = succession.state.setup.began_at + YIELD_S  # Until then a few do not begin a job anew.
        group.reached_at(succession.endpoint)

    def begin(self, now: float) -> list[Action]:
        return self._from_election(self.election.begin(now), now) + self._from_group(self.group.begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        if isinstance(seen, Arrived) and isinstance(seen.message, Renew):
            answer = self._answer(seen.link, seen.message, now)
            if answer is not None:
                return [answer]
        # The succession first: a leader that slept through the end of its mandate must not say another word as one.
        out = self._elect(TICK, now)
        self._hold_rounds(now)
        match seen:
            case Signalled() if self._goes_alone(seen):
                why = "its node is excluded, and the agent was told to go; the others choose another coordinator"
                return out + self._elect(AgentLeaves(reason=why), now) + self.group.observe(MadeWay(reason=why), now)
            case Unguarded() if self._others_can_go_on and not self.group.state.leaving:
                why = "its guardian was killed; the others choose another coordinator"
                out += self._elect(AgentLeaves(reason=why), now)
            case Arrived() | LinkUp() | LinkDown():
                return out + self._over_a_link(seen, now)
            case Claimed() | ForceAsked():
                return out + self._elect(seen, now)
            case Serving():
                self.group.reached_at(self.election.state.setup.origin)
                return out + self._elect(ServesOrigin(), now)
            case Remembered():
                out += self._elect(seen, now)
                self._heed_the_roster(now)
                return out
            case Tick():
                return out + self._show(seen, now) + self._over_a_link(seen, now)
        return out + self._show(seen, now)

    def _answer(self, link: int, renew: Renew, now: float) -> Transmit | None:
        """To a member's `Renew`, while all is well and nothing is due: what the long way would say too. None: go that way."""
        server, mandate = self.server, self.election.mandate
        if server is None or mandate is None or not self.election.at_ease(now):
            return None
        if (seat := server.renewing(renew, link)) is None:
            return None
        self._renewed(seat, renew, now)
        rendezvous = server.rendezvous
        terms = mandate.terms(rendezvous.granted_s, _known_as(seat), self._past_of_late, now)
        if terms is None:
            return None
        answer = renewed(rendezvous, seat, renew, now, lease_s=terms[0], mark=now, roster=terms[1])
        self._keep(now)
        return Transmit(link=link, message=answer)

    def _goes_alone(self, seen: Signalled) -> bool:
        """Our agent is told to go, and the round that it coordinates does without our node, which is excluded: what ends it
        (an eviction) means the node and not the job, and the others can choose another coordinator."""
        rendezvous = self._rendezvous
        if rendezvous is None or seen.signum != SIGTERM or self.group.has_workers or not self._others_can_go_on:
            return False
        return rendezvous.phase is Phase.RUNNING and bool(rendezvous.excluded.why(self.group.join.name))

    @property
    def _others_can_go_on(self) -> bool:
        """The coordinator is here, its job has not ended, and the others could choose another without this node."""
        rendezvous = self._rendezvous
        return rendezvous is not None and rendezvous.phase in (Phase.RUNNING, Phase.GATHERING) and self._is_succeeded

    @property
    def _is_succeeded(self) -> bool:
        """Nodes that lose the coordinator could choose another, as far as it is known here."""
        roster = self.election.roster
        return roster is not None and (roster.largest.size > 2 or roster.largest.witness or self.election.state.setup.goes_on)

    def _hold_rounds(self, now: float) -> None:
        """No round forms whose leases the mandate does not cover: those who are lost may be about to choose another
        coordinator, and its rounds go on from the same number. Nor does a first round form while a successor may be about to
        knock: soon after this agent was stopped, or with too few nodes to have outvoted the others."""
        mandate, server = self.election.mandate, self.server
        slept_s, self.looked_at = now - self.looked_at, now
        if mandate is None or server is None or server.rendezvous.phase is not Phase.GATHERING:
            return
        if self.election.state.role is Role.FOUNDING:
            if slept_s > SLEPT_S:
                server.rendezvous.gathering.wait_until(now + elder_s(self.election.state))
                self.founds_alone_at = now + YIELD_S
            if now < self.founds_alone_at and len(server.rendezvous.seats) < voters(self.election.state):
                server.rendezvous.gathering.wait_until(min(now + LOOK_S, self.founds_alone_at))
        covered = now + self.election.state.setup.lease_s
        if mandate.ends(now, at_least=covered) < covered:
            server.rendezvous.gathering.wait_until(now + LOOK_S)

    # --- links ----------------------------------------------------------------------------------------------------------

    def _over_a_link(self, seen: Observation, now: float) -> list[Action]:
        if isinstance(seen, Arrived):
            own = self._for_the_succession(seen.link, seen.message, now)
            return super()._over_a_link(seen, now) if own is None else own
        match seen:
            case LinkUp(link=link, ours=False, peer=peer):
                self.guests[link] = peer
            case LinkDown(link=link):
                self.guests.pop(link, None)
        out = [] if isinstance(seen, Tick) else self._elect(seen, now)
        return out + super()._over_a_link(seen, now)

    def _for_the_succession(self, link: int, message: Message, now: float) -> list[Action] | None:
        """What is said between those who seek a coordinator; and what is said to us as to one. None: it goes its usual way."""
        if link == self.member.link:
            return self._from_the_leader(message, now)
        if link not in self.guests or isinstance(message, (Seek, Vote)):
            out: list[Action] = self._elect(Arrived(link=link, message=message), now)
            self._heed_the_roster(now)
            return out
        out = []
        if self.election.state.role is Role.FOUNDING and isinstance(message, (Join, Renew)):
            life = message.life if isinstance(message, Join) else ""
            out = self._elect(Knocked(roster=message.roster, life=life), now)
        if self.server is None:
            return [*self._says_what_it_knows(link, message, now), *out, HangUp(link=link)]  # `out` may hang up, too
        self._counted(message, self.guests[link], now)
        return None

    def _says_what_it_knows(self, link: int, message: Message, now: float) -> list[Action]:
        """To one that came to us as to the coordinator: who that is; or that we seek it too, and what we hold: one of us may be
        an elector whose agent was started again."""
        state = self.election.state
        if (leads := state.says_who_leads(link)) or not isinstance(message, (Join, Renew)):
            return leads
        return [Transmit(link=link, message=seeks(state, now, free=False))]

    def _from_the_leader(self, message: Message, now: float) -> list[Action] | None:
        match message:
            case Leads():
                return self._elect(LeaderNamed(leads=message), now)
            case Seek(roster=roster, held_s=held_s):  # which leads no longer
                out = self._elect(LeaderSeeks(roster=roster, held_s=held_s), now)
                self._heed_the_roster(now)
                return out
            case Renewed(mark=mark, roster=roster):
                out = self._elect(LeaseRenewed(roster=roster), now)
                if self.election.state.gives_loyalty(now):
                    self.member.bring_back(mark)
                self._heed_the_roster(now)
                over = Arrived(link=self.member.link, message=message)
                return out + super()._over_a_link(over, now)
        return None

    def _heed_the_roster(self, now: float) -> None:
        """A node without a leader waits as long as others can still choose one; where nobody can, not for long."""
        roster = self.election.roster
        told_of = self.election.state.keeping.told_of(roster)
        if told_of != self.member.roster and roster is not None and len(roster.electorates) > 1:
            self.member.renew_soon(now)  # the older electorate has a say until half of it have told that they hold this
        self.member.holds_roster(told_of)
        if self._is_succeeded:
            self.member.wait_for_successor(self.patience_s)
        elif roster is not None and roster.largest.size:
            self.member.advise(OF_HALF)

    def _from_group(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            out += super()._from_group([action], now)
            if isinstance(action, Exit) and self.server is not None and self.server.rendezvous.report is None:
                out += self._host_leaves(action, now)
        return out

    def _from_member(self, actions: Iterable[Action | Deliver], now: float) -> list[Action]:
        life = self.group.join.life
        out = [self._stamped(action) for action in super()._from_member(actions, now)]
        if self.member.is_spare != self.election.state.is_spare:
            out += self._elect(SpareOrNot(is_spare=self.member.is_spare), now)
        if self.group.join.life != life:
            out += self._elect(TakenIn(life=self.group.join.life), now)
            self._heed_the_roster(now)
        return out

    def _stamped(self, action: Action) -> Action:
        """A `Join` says which roster is held now: it may be said again long after it was said first, to another coordinator."""
        roster = self.election.roster
        if not isinstance(action, Transmit) or not isinstance(action.message, Join):
            return action
        join = replace(action.message, endpoint=self.election.endpoint)  # it may serve the job's since
        if roster is None:
            return replace(action, message=join)
        life = roster.past.life
        if join.life not in ("", life):
            return replace(action, message=join)  # our coordinator is another run's by now
        held = self.election.state.keeping.told_of(roster)
        return replace(action, message=replace(join, roster=held, elector_of=elector_of(roster), life=life))

    def _host_leaves(self, end: Exit, now: float) -> list[Action]:
        """Our agent goes, with the coordinator in it; its workers are gone already."""
        assert self.server is not None
        node, number = self.group.join.node, self.group.round
        reason = host_leaves(end)
        self.member.close()
        out: list[Action] = [HangUp(link=self.member.link)]
        for said in (Leave(node=node, round=number, reason=reason), Stopped(node=node, round=number)):
            out += self._from_server(self.server.observe(Heard(message=said), now), now)
        return out + self._from_server(self.server.observe(HostLeaves(reason=reason), now), now)

    # --- leading ----------------------------------------------------------------------------------------------------------

    def _counted(self, message: Message, address: str, now: float) -> None:
        """What a member says tells also how loyal it is."""
        mandate = self.election.mandate
        assert self.server is not None and mandate is not None
        if isinstance(message, Renew):
            if (seat := self.server.rendezvous.seats.get(message.node)) is not None:
                self._renewed(seat, message, now)
        elif isinstance(message, Join):
            ours = message.life in ("", self.election.life)  # else both count something else
            self.came_from[message.node] = address
            endpoint = self.server.rendezvous.seats.endpoint_of(message)
            mandate.joined(endpoint, message.roster * ours, message.elector_of if ours else ())

    def _renewed(self, seat: Seat, renew: Renew, now: float) -> None:
        assert self.election.mandate is not None
        ours = seat.assigned is not None or seat.join.life in ("", self.election.life)
        self.election.mandate.renewed(_known_as(seat), renew.mark, renew.roster * ours, now)

    def _from_server(self, actions: Iterable[Action], now: float) -> list[Action]:
        assert self.server is not None and self.election.mandate is not None
        out: list[Action] = []
        for action in actions:
            if isinstance(action, Transmit) and isinstance(action.message, Renewed):
                seat = self.server.rendezvous.seats.get(self.server.guests.get(action.link, ""))
                known_as = "" if seat is None else _known_as(seat)
                said = self.election.mandate.answer(action.message, known_as, self._past_of_late, now)
                out += [] if said is None else [Transmit(link=action.link, message=said)]
            else:
                out.append(action)
        self._keep(now)
        return out

    def _keep(self, now: float) -> None:
        """Tell the succession when somebody comes or goes, or a round has formed."""
        assert self.server is not None and self.election.mandate is not None
        rendezvous = self.server.rendezvous
        # Else after a pause we would blame ourselves first; our workers are under a lease all the same.
        rendezvous.seats.share_process(self.group.join.node)
        if rendezvous.report is not None:
            self.election.observe(JobEnded(), now)
            return
        seats = rendezvous.seats
        counts = seats.arrivals, len(seats), seats.link_changes
        noted = rendezvous.round, rendezvous.restarts, rendezvous.excluded.changes, *counts
        fresh = noted[:1] != self.noted[:1]  # nodes that hear of their round ask for the roster at once
        if noted != self.noted and rendezvous.round > self.since_round and (fresh or now >= self.keep_at):
            line, only_links = self._line(), noted[:-1] == self.noted[:-1]
            self.noted, self.keep_at = noted, now + LOOK_S  # thousands may come back at once
            if line != self.line or not only_links:
                self.line = line
                self.election.observe(Seated(line=line), now)

    def _past_of_late(self, now: float) -> Past:
        """Worked out once for all who are told the same; it is some milliseconds old for the last."""
        assert self.election.mandate is not None
        if self.told != (self.election.mandate.version, now // LOOK_S):
            self.told = self.election.mandate.version, now // LOOK_S
            self.of_late = replace(self._past(now), names=self._names())
        return self.of_late

    def _names(self) -> dict[str, str]:
        """Of those who have a say, and have had one until now."""
        assert self.server is not None and self.election.mandate is not None
        seats = self.server.rendezvous.seats
        if len(seats) > SMALL:
            return {}
        known = {**self.of_late.names, **{seat.join.endpoint: seat.name for seat in seats.values() if seat.join.endpoint}}
        electors = {self.election.endpoint, *(one for body in self.election.mandate.bodies for one in body.members)}
        return {endpoint: known[endpoint] for endpoint in sorted(electors) if endpoint in known}

    def _line(self) -> tuple[str, ...]:
        """Who comes after whom: ourselves, then by group rank, then nodes that wait, by arrival."""
        assert self.server is not None
        linked = {self.election.endpoint: True}
        seats = self.server.rendezvous.seats.in_order
        may_vote = self._one_for_each_address([seat for seat in seats if seat.join.endpoint and self._may_vote(seat)])
        for endpoint, is_linked in ((seat.join.endpoint, seat.linked) for seat in may_vote):
            linked[endpoint] = linked.get(endpoint, False) or is_linked  # two lives of one agent may have the same
        return without_absent(linked, self.election.state.setup.witness)

    def _one_for_each_address(self, seats: Iterable[Seat]) -> Iterator[Seat]:
        """Who has ranks, and of those that wait one of each address: a member may join under as many names as it likes, and
        places in a round are few."""
        assert self.server is not None
        number, spares = self.server.rendezvous.round, {""}
        for seat in seats:
            if seat.ranks_in(number):
                yield seat
            elif (address := self.came_from.get(seat.join.node, "")) not in spares or not address:
                spares.add(address)
                yield seat

    def _from_election(self, actions: Iterable[Action], now: float) -> list[Action]:
        return super()._from_election(map(self._answered, actions), now)

    def _answered(self, action: Action) -> Action:
        """An operator's request is answered as the coordinator would."""
        if not isinstance(action, ForceAnswered):
            return action
        node = self.group.join.node
        return FromCoordinator(message=Reply(node=node, ask=action.ask, ok=action.ok, text=action.text))

    def _may_vote(self, seat: Seat) -> bool:
        """An operator has declared one lost: it comes back without a say."""
        assert self.server is not None
        return self.server.rendezvous.excluded.by(seat.name) is not ExcludedBy.DECLARED_LOST

    def _take_the_lead(self, past: Past, reason: str, now: float) -> list[Action]:
        self.group.host(True)
        out = super()._take_the_lead(past, reason, now)
        assert self.server is not None and self.policy is not None
        self.of_late = past
        self.since_round, self.noted, self.keep_at = self.server.rendezvous.round, (), now
        self.server.take_guests(self.guests)
        self.came_from = {}
        if not reason:
            return out
        left = self.policy.restarts_left(now)
        life = self.server.rendezvous.round, self.server.rendezvous.attempt
        return [Record(event=Decided(decision=Verdict.REJOIN, reason=reason, restarts_left=left), life=life), *out]

    def _step_down(self, reason: str) -> list[Action]:
        self.group.host(False)
        return super()._step_down(reason)


def without_absent(linked: Mapping[str, bool], witness: bool) -> tuple[str, ...]:
    """Which of these endpoints have a say: not those whose link has broken, who are dead most likely, and else come back.

    Only where fewer votes than before are a majority then, and more than half are there: else one that lives all the same,
    and is cut off from us alone, would be missed."""
    absent = [endpoint for endpoint, is_linked in linked.items() if not is_linked]
    if 2 * len(absent) >= len(linked):
        return tuple(linked)
    kept = absent[: 0 if witness else 1 - (len(linked) - len(absent)) % 2]
    return tuple(endpoint for endpoint, is_linked in linked.items() if is_linked or endpoint in kept)


def _known_as(seat: Seat) -> str:
    """To the mandate: one that others cannot reach has no say in who leads, but must know where to look for the leader."""
    return seat.join.endpoint or seat.join.node
