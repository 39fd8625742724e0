"""What does a node do whose coordinator is elected, whether a store elects it or the nodes among themselves?

                    Send                    link to the leader, which may be ourselves (loopback)
         ┌───────┐ ──────▶ ┌────────┐ ◀────────────────────────────────┐
         │ Group │         │ Member │                                  ▼
         └───────┘ ◀────── └───▲────┘                       ┌─────────────────────────┐
                     Told      │ Follow            Lead     │ LinkRouter ─ Rendezvous │  only while we lead
                           ┌───┴──────┐ ──────────────────▶ └─────────────────────────┘
                           │ Election │ ◀─────────────── what a successor must know
                           └──────────┘

The leader's own group reaches the coordinator by a link like everybody else's, so it has a lease like everybody else's: a
leader that was cut off or stopped loses its workers no later than any other member.

Who says that we lead is a machine: `rendezvous.election.store_election` in `agent.leader.store_elected_node`,
`rendezvous.election.succession` in `agent.leader.peer_elected_node`.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Send, Told
from holdfast.agent.node import Found, Node
from holdfast.core.job.events import CoordinatorFound, NodeExcluded
from holdfast.core.job.report import JobReport
from holdfast.core.machine import Action, Observation, Record, Say, Tick
from holdfast.core.value import quicken, replace
from holdfast.core.wire.links import Arrived, HangUp, LinkDown
from holdfast.core.wire.messages import Past, Refused
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.election.messages import Follow, GiveUp, Lead, MemberLink, RunOver, StepDown
from holdfast.rendezvous.election.store_election import Election
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.rules import Heard, Tell

FAILURES_KEPT = 16
"""Failures in the report that the store keeps for members who missed it: a store's values are small (etcd: 1.5 MB)."""


class ElectedNode(Node):
    """One node: a group, a member, a candidate, and a server while it leads."""

    member: Member
    found: Found

    def __init__(self, group: Group, member: Member, election: Election | Succession, found: Found) -> None:
        quicken(Tick, Heard, Tell)
        self.group = group
        self.member = member
        self.election = election
        self.found = found
        self.server: LinkRouter | None = None
        self.policy: RestartOnFailure | None = None
        self.kept = Past(life="")  # What this node knows of the job, should it lead next.
        self.noted: tuple[object, ...] = ()
        """What the successors have been told of our own coordinator: told again when it differs."""
        self.leader = group.state.endpoint  # Where the coordinator was when we last followed one.

    def deadline(self) -> float:
        server = [self.server.deadline()] if self.server is not None else []
        return min(self.group.deadline(), self.member.deadline(), self.election.deadline(), *server)

    @property
    def _rendezvous(self) -> Rendezvous | None:
        return None if self.server is None else self.server.rendezvous

    # --- links ----------------------------------------------------------------------------------------------------------

    def _over_a_link(self, seen: Observation, now: float) -> list[Action]:
        out = self._from_server(self.server.observe(seen, now), now) if self.server is not None else []
        if isinstance(seen, Arrived) and seen.link != self.member.link:
            return out  # thousands a second, and our member's time comes with a Tick
        was_up = self.member.up
        out += self._from_member(self.member.observe(seen, now), now)
        broke = isinstance(seen, LinkDown) and seen.link == self.member.link
        if self.member.up != was_up or broke:
            out += self._elect(MemberLink(up=self.member.up), now)
        return out

    def _from_group(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            if isinstance(action, Send):
                out += self._from_member(self.member.say(action.message, now), now)
            else:
                out.append(action)
        return out

    # --- the election ---------------------------------------------------------------------------------------------------

    def _elect(self, seen: Observation, now: float) -> list[Action]:
        """Show the election this; what is left to do."""
        return self._from_election(self.election.observe(seen, now), now)

    def _from_election(self, actions: Iterable[Action], now: float) -> list[Action]:
        out: list[Action] = []
        for action in actions:
            match action:
                case Lead(past=past, reason=reason):
                    out += self._take_the_lead(past, reason, now)
                case StepDown(reason=reason):
                    out += self._step_down(reason)
                case Follow(endpoint=endpoint):
                    out += [*self._found_at(endpoint), *self._follow(endpoint, now)]
                case RunOver(finish=finish):
                    self.member.close()
                    out += self._show(Told(message=finish), now)
                case GiveUp(reason=reason, hint=hint):
                    out += self._show(Told(message=Refused(reason=reason, hint=hint)), now)
                case _:
                    out.append(action)
        return out

    def _take_the_lead(self, past: Past, reason: str, now: float) -> list[Action]:
        """Be the coordinator. `reason`: what became of the one before; empty: there was none, or nobody knows."""
        if self.kept.life == past.life and self.kept.round > past.round:
            past = self.kept  # the store has lost it since we led
        self.server, self.policy = self.found(now)
        # Where the store lost what it knew, our own memory is better than none.
        mine = self.group.assigned
        number, restarts, longest_s = (mine.round, mine.restart_count, mine.longest_s) if mine else (0, 0, {})
        forgotten = mine.group_world_size if mine is not None and mine.round > past.round else 0
        known = max(number, self.group.join.known_round)
        fence_s = self.server.rendezvous.rules.lease_s + FENCE_S if known > max(number, past.round) else 0.0
        both = replace(
            past,
            round=max(past.round, known),
            restarts=max(past.restarts, restarts),
            members=max(past.members, forgotten),
            fence_s=max(past.fence_s, fence_s),
            longest_s={**past.longest_s, **longest_s},
        )
        self.policy.resume(past, uncounted=restarts - past.restarts, now=now)
        self.server.rendezvous.resume(both, logs_at=self.group.join.logs_at, why=reason, now=now)
        self.kept = past
        self.leader = self.election.endpoint
        self.noted = past.round, past.restarts, past.report is not None, self.server.rendezvous.excluded.changes
        life = self.server.rendezvous.round, self.server.rendezvous.attempt
        left_out = (one for one in past.excluded if not one.wanted)
        out = [NodeExcluded(name=one.name, reason=one.reason, by=one.by, age_s=one.age_s) for one in left_out]
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
        self.server, self.policy, self.noted = None, None, ()
        said = Say(text=f"this agent no longer leads the job: {reason}", level="warning")
        return [said, *(HangUp(link=link) for link in guests)]

    def _follow(self, endpoint: str, now: float) -> list[Action]:
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
            longest_s=rendezvous.paces.longest_s,
            calculated_s=rendezvous.paces.calculated_s,
            reached=self.policy.progress.reached,
            idle_restarts=self.policy.progress.idle,
            report=None if report is None else shortened(report),
        )


def shortened(report: JobReport) -> JobReport:
    """With the first failures only, and the others counted: as those are told who missed the end."""
    more = max(0, len(report.failures) - FAILURES_KEPT)
    return replace(report, failures=report.failures[:FAILURES_KEPT], failures_left_out=report.failures_left_out + more)
