"""A node of a job whose coordinator is elected: every agent may host it, and none must.

                    Send                    link to the leader, which may be ourselves (loopback)
         ┌───────┐ ──────▶ ┌────────┐ ◀────────────────────────────────┐
         │ Group │         │ Member │                                  ▼
         └───────┘ ◀────── └───▲────┘                       ┌─────────────────────┐
                     Told      │ Follow            Lead     │ Server ─ Rendezvous │  only while we lead
                           ┌───┴──────┐ ──────────────────▶ └─────────────────────┘
                           │ Election │ ◀─────────────── what a successor must know
                           └────▲─────┘
                                ▼ the store

The leader's own group reaches the coordinator by a link like everybody else's, so it has a lease like everybody else's: a
leader that was cut off or stopped loses its workers no later than any other member.

What a successor must know is written down before it is true: nobody is assigned to a round that the store does not have.
So no two leaders give two rounds the same number.
"""

from __future__ import annotations

from holdfast.agent.group import Group
from holdfast.agent.node import Node
from holdfast.agent.words import Send, Told
from holdfast.core.events import CoordinatorFound, NodeExcluded
from holdfast.core.links import Arrived, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.machine import Action, Observation, Record, Say, Tick
from holdfast.core.messages import Assigned, Past, Refused, Stop
from holdfast.core.value import replace
from holdfast.rendezvous.election import Election, Follow, GiveUp, Lead, Persisted, StepDown, StoreSeen, StoreTrouble
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.member import Deliver, Member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.core.report import JobReport
    from holdfast.recovery.policy import RestartOnFailure
    from holdfast.rendezvous.round import Rendezvous
    from holdfast.rendezvous.server import Server

FAILURES_KEPT = 16
"""Failures in the report that the store keeps for members who missed it: a store's values are small (etcd: 1.5 MB)."""


class ElectedNode(Node):
    """One node: a group, a member, a candidate, and a server while it leads."""

    member: Member

    def __init__(
        self, group: Group, member: Member, election: Election, found: Callable[[float], tuple[Server, RestartOnFailure]]
    ) -> None:
        self.group = group
        self.member = member
        self.election = election
        self.found = found
        """Makes a coordinator that knows nothing yet, with its policy."""
        self.server: Server | None = None
        self.policy: RestartOnFailure | None = None
        self.kept = Past(life="")
        """What the store has."""
        self.noted: tuple[object, ...] = ()
        """What it has been asked to keep."""
        self.seats = 0
        self.from_the_start = False
        """The coordinator here has led the job since before its first round."""
        self.leader = group.endpoint
        """Where the coordinator was when we last followed one."""
        self.held: list[Transmit] = []
        """Word of a round that the store does not have yet."""

    def begin(self, now: float) -> list[Action]:
        """See `Node.begin`."""
        return self._from_election(self.election.observe(Tick(), now), now) + self._from_group(self.group.begin(now), now)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        # The election first: whoever slept through the end of its lease must not say another word as the leader.
        if isinstance(seen, StoreSeen):
            return self._store_said(seen, now)
        out = self._from_election(self.election.observe(Tick(), now), now)
        match seen:
            case LinkUp(link=link, ours=False) if self.server is None:
                return [*out, HangUp(link=link)]
            case LinkUp() | LinkDown() | Arrived():
                return out + self._over_a_link(seen, now)
            case Tick():
                return out + self._from_group(self.group.observe(seen, now), now) + self._over_a_link(seen, now)
        return out + self._from_group(self.group.observe(seen, now), now)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        server = [self.server.deadline()] if self.server is not None else []
        return min(self.group.deadline(), self.member.deadline(), self.election.deadline(), *server)

    @property
    def done(self) -> bool:
        """A leader stays until everybody knows how the job ended; one that leaves before that is not needed."""
        rendezvous = self._rendezvous
        return self.group.state == "ended" and (rendezvous is None or rendezvous.phase != "ended" or self._everyone_knows)

    def will(self, now: float) -> list[Action]:
        """See `Node.will`: a leader lets others lead, and tells them where the job stands."""
        rendezvous = self._rendezvous
        if rendezvous is None:
            return []
        # Whoever was lost on the way may come back and ask: it must hear that the job is over, not begin it again.
        forget = rendezvous.report is not None and self._everyone_knows and self.from_the_start and not rendezvous.seats.lost
        return self.election.will(self._past(now, leaving=True), forget=forget)

    @property
    def _rendezvous(self) -> Rendezvous | None:
        return None if self.server is None else self.server.rendezvous

    @property
    def _everyone_knows(self) -> bool:
        return self.server is not None and self.server.idle

    # --- links ----------------------------------------------------------------------------------------------------------

    def _over_a_link(self, seen: Observation, now: float) -> list[Action]:
        out = self._from_server(self.server.observe(seen, now), now) if self.server is not None else []
        was_up = self.member.up
        out += self._from_member(self.member.observe(seen, now), now)
        broke = isinstance(seen, LinkDown) and seen.link == self.member.link
        if self.member.up != was_up or broke:
            out += self._from_election(self.election.link_is(self.member.up, now), now)
        return out

    def _from_group(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            if isinstance(action, Send):
                out += self._from_member(self.member.say(action.message, now), now)
            else:
                out.append(action)
        return out

    def _from_member(self, actions: Iterable[Action | Deliver], now: float) -> list[Action]:
        out = super()._from_member(actions, now)
        if self.group.assigned is not None:
            self.election.rank = self.group.assigned.group_rank
        return out

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
        noted = rendezvous.round, rendezvous.restarts, rendezvous.report is not None, *rendezvous.excluded.names
        fewer, self.seats = len(rendezvous.seats) < self.seats, len(rendezvous.seats)
        if noted == self.noted and not fewer:
            return []
        self.noted, past = noted, self._past(now)
        return self._from_election(self.election.write(past, now), now)

    # --- the election ---------------------------------------------------------------------------------------------------

    def _store_said(self, seen: StoreSeen, now: float) -> list[Action]:
        if isinstance(seen, StoreTrouble):
            self.member.trouble = seen.reason
        out = self._from_election(self.election.observe(seen, now), now)
        if isinstance(seen, Persisted) and self.server is not None and seen.term == self.election.term:
            self.kept = seen.past
            out += [told for told in self.held if self._round_of(told) <= self.kept.round]
            self.held = [told for told in self.held if self._round_of(told) > self.kept.round]
        return out

    @staticmethod
    def _round_of(told: Transmit) -> int:
        return int(getattr(told.message, "round", 0))

    def _from_election(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            match action:
                case Lead(past=past, reason=reason):
                    out += self._lead(past, reason, now)
                case StepDown(reason=reason):
                    out += self._step_down(reason)
                case Follow(endpoint=endpoint):
                    out += [*self._found_at(endpoint), *self._follow(endpoint, now)]
                case GiveUp(reason=reason, hint=hint):
                    out += self._from_group(self.group.observe(Told(message=Refused(reason=reason, hint=hint)), now), now)
                case _:
                    out.append(action)
        return out

    def _lead(self, past: Past, reason: str, now: float) -> list[Action]:
        told = f"this agent leads the job from now on (term {self.election.term}, after round {past.round})"
        return [Say(text=told), *self._take_the_lead(past, now)]

    def _take_the_lead(self, past: Past, now: float) -> list[Action]:
        if self.kept.life == past.life and self.kept.round > past.round:
            past = self.kept  # the store has lost it since we led
        self.server, self.policy = self.found(now)
        self.policy.budget.spent_at = [now - age_s for age_s in past.restart_ages_s]
        self.policy.suspects.resume(past.fault_ages_s, now)
        # Where the store lost what it knew, our own memory is better than none.
        mine = self.group.assigned
        number, restarts = (mine.round, mine.restart_count) if mine else (0, 0)
        self.policy.budget.spent_at += [now] * (restarts - past.restarts)
        forgotten = mine.group_world_size if mine is not None and mine.round > past.round else 0
        known = max(number, self.group.join.known_round)
        fence_s = self.server.rendezvous.rules.lease_s + FENCE_S if known > max(number, past.round) else 0.0
        self.server.rendezvous.resume(
            round=max(past.round, known),
            restarts=max(past.restarts, restarts),
            members=max(past.members, forgotten),
            largest=past.largest,
            fence_s=max(past.fence_s, fence_s),
            age_s=past.age_s,
            excluded=past.excluded,
            report=past.report,
            now=now,
        )
        self.kept, self.held, self.seats = past, [], 0
        self.from_the_start = past.round == 0 and mine is None
        self.leader = self.election.endpoint
        self.noted = past.round, past.restarts, past.report is not None, *(one.name for one in past.excluded)
        life = self.server.rendezvous.round, self.server.rendezvous.attempt
        out = [NodeExcluded(name=one.name, reason=one.reason, by=one.by, age_s=one.age_s) for one in past.excluded]
        return [*(Record(event=event, life=life) for event in out), *self._follow(self.election.endpoint, now)]

    def _found_at(self, endpoint: str) -> list[Action]:
        if endpoint == self.leader:
            return []
        self.leader, was_here = endpoint, self.member.lease_ends is not None
        said = Say(text=f"the coordinator is at {endpoint} now", level="warning" if was_here else "info")
        return [Record(event=CoordinatorFound(endpoint=endpoint)), said]

    def _step_down(self, reason: str) -> list[Action]:
        assert self.server is not None
        guests = sorted(self.server.guests)
        self.server, self.policy, self.held, self.noted = None, None, [], ()
        said = Say(text=f"this agent leads the job no longer: {reason}", level="warning")
        return [said, *(HangUp(link=link) for link in guests)]

    def _follow(self, endpoint: str, now: float) -> list[Action]:
        self.election.linked = False
        return self._from_member(self.member.redirect(endpoint, now), now)

    def _past(self, now: float, *, leaving: bool = False) -> Past:
        assert self.server is not None and self.policy is not None
        rendezvous = self.server.rendezvous
        ours = self.group.join.node if leaving and not self.group.has_workers else ""
        seats = [seat for node, seat in rendezvous.seats.items() if node != ours and seat.assigned is not None]
        members = sum(seat.assigned is not None and seat.assigned.round == rendezvous.round for seat in seats)
        report = rendezvous.report
        return Past(
            life=self.election.life,
            round=rendezvous.round,
            restarts=rendezvous.restarts,
            restart_ages_s=tuple(now - at for at in self.policy.budget.spent_at),
            # Until our own first round has formed, those that our predecessor left are still to be waited for.
            members=max(members, rendezvous.gathering.awaited),
            largest=rendezvous.seats.largest,
            fence_s=max(0.0, rendezvous.gathering.not_before - now),
            age_s=rendezvous.age_s + now - rendezvous.started_at,
            excluded=rendezvous.excluded.kept(now),
            fault_ages_s=self.policy.suspects.ages_s(now),
            report=None if report is None else shortened(report),
        )


def shortened(report: JobReport) -> JobReport:
    """With the first failures only, and the others counted: as those are told who missed the end."""
    more = max(0, len(report.failures) - FAILURES_KEPT)
    return replace(report, failures=report.failures[:FAILURES_KEPT], failures_left_out=report.failures_left_out + more)
