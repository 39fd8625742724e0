"""What does a node do whose coordinator is elected by an outside store? Every agent may host it, and none must.

What a successor must know is written down before it is true: nobody is assigned to a round that the store does not have.
So no two leaders give two rounds the same number.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.agent.group.machine import Group
from holdfast.agent.group.state import Phase
from holdfast.agent.leader.elected_node import ElectedNode
from holdfast.agent.node import Found
from holdfast.core.machine import Action, Observation, Say, Tick
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Assigned, Past, Stop
from holdfast.rendezvous.coordinator.job import Phase as JobPhase
from holdfast.rendezvous.election.store_election import Election, PastChanged, Persisted, Ranked, StoreSeen, StoreTrouble
from holdfast.rendezvous.member import Member


class StoreElectedNode(ElectedNode):
    """One node: a group, a member, a candidate, and a server while it leads."""

    election: Election

    def __init__(self, group: Group, member: Member, election: Election, found: Found) -> None:
        super().__init__(group, member, election, found)
        self.seats = 0
        self.from_the_start = False  # The coordinator here has led the job since before its first round.
        self.held: list[Transmit] = []  # Word of a round that the store does not have yet.

    def begin(self, now: float) -> list[Action]:
        return self._elect(Tick(), now) + self._from_group(self.group.begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        if self.member.lease_ends is not None:
            assigned = self.group.assigned
            self.election.observe(Ranked(group_rank=None if assigned is None else assigned.group_rank), now)
        # The election first: a leader that slept through the end of its lease must not say another word as one.
        if isinstance(seen, StoreSeen):
            return self._store_said(seen, now)
        out = self._elect(Tick(), now)
        match seen:
            case LinkUp(link=link, ours=False) if self.server is None:
                return [*out, HangUp(link=link)]
            case LinkUp() | LinkDown() | Arrived():
                return out + self._over_a_link(seen, now)
            case Tick():
                return out + self._show(seen, now) + self._over_a_link(seen, now)
        return out + self._show(seen, now)

    @property
    def done(self) -> bool:
        """A leader stays until everybody knows how the job ended; one that leaves before that is not needed."""
        rendezvous = self._rendezvous
        leads_on = rendezvous is not None and rendezvous.phase is JobPhase.ENDED and not self._everyone_knows
        return self.group.phase is Phase.ENDED and not leads_on

    def will(self, now: float) -> list[Action]:
        """See `Node.will`: a leader lets others lead, and tells them where the job stands."""
        rendezvous = self._rendezvous
        if rendezvous is None:
            return []
        # A node that was lost may come back and ask: it must hear that the job is over, not begin it again.
        forget = rendezvous.report is not None and self._everyone_knows and self.from_the_start and not rendezvous.seats.lost
        return self.election.will(self._past(now, leaving=True), forget=forget)

    @property
    def _everyone_knows(self) -> bool:
        return self.server is not None and self.server.idle

    # --- what the store must have -----------------------------------------------------------------------------------------

    def _from_server(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            told = action.message if isinstance(action, Transmit) else None
            if isinstance(action, Transmit) and isinstance(told, (Assigned, Stop)) and told.round > self.kept.round:
                self.held.append(action)
            else:
                out.append(action)
        return out + self._keep(now)

    def _keep(self, now: float) -> list[Action]:
        """Have the store keep what has changed: little, and seldom. Who comes is not asked, who is gone is."""
        rendezvous = self._rendezvous
        assert rendezvous is not None
        noted = rendezvous.round, rendezvous.restarts, rendezvous.report is not None, rendezvous.excluded.changes
        fewer, self.seats = len(rendezvous.seats) < self.seats, len(rendezvous.seats)
        if noted == self.noted and not fewer:
            return []
        self.noted, past = noted, self._past(now)
        return self._elect(PastChanged(past=past), now)

    def _store_said(self, seen: StoreSeen, now: float) -> list[Action]:
        if isinstance(seen, StoreTrouble):
            self.member.troubled(seen.reason)
        out = self._elect(seen, now)
        if isinstance(seen, Persisted) and self.server is not None and seen.term == self.election.term:
            self.kept = seen.past
            out += [told for told in self.held if self._round_of(told) <= self.kept.round]
            self.held = [told for told in self.held if self._round_of(told) > self.kept.round]
        return out

    @staticmethod
    def _round_of(told: Transmit) -> int:
        return int(getattr(told.message, "round", 0))

    def _take_the_lead(self, past: Past, reason: str, now: float) -> list[Action]:
        self.held, self.seats = [], 0
        self.from_the_start = past.round == 0 and self.group.assigned is None
        told = f"this agent leads the job now (term {self.election.term}, after round {past.round})"
        return [Say(text=told), *super()._take_the_lead(past, reason, now)]

    def _step_down(self, reason: str) -> list[Action]:
        self.held = []
        return super()._step_down(reason)
