"""What do members say, or no longer say, and what follows from it? One case per message; `rendezvous.coordinator.machine` has
the phases.

Here it is known who is a member, and whether its workers may be alive. What a member's failure or absence means for the running
round is for `rendezvous.coordinator.failure_handling` to say; whether it may take part at all, for
`rendezvous.coordinator.exclusion`.
"""

from __future__ import annotations

from holdfast.core.job.events import LimitsCalculated, NodeJoined, NodeLeft, NodeLost, StragglerSeen
from holdfast.core.job.failure import Cause, Failure, describe
from holdfast.core.job.report import Outcome
from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.wire.messages import (
    Calculated,
    Examine,
    Examined,
    Exclude,
    Failed,
    Finish,
    HangFound,
    Imports,
    Inject,
    InjectionHeard,
    Join,
    Leave,
    Message,
    Pace,
    Paced,
    Positions,
    Readmit,
    Renew,
    Renewed,
    Requested,
    Roster,
    Saving,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
)
from holdfast.rendezvous.coordinator.exclusion import CHARS
from holdfast.rendezvous.coordinator.pace import described
from holdfast.rendezvous.lease import FENCE_S, fence_after_loss_s, granted
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.job.events import Event
    from holdfast.rendezvous.clocks import Clocks
    from holdfast.rendezvous.coordinator.fault_requests import Injections
    from holdfast.rendezvous.coordinator.health_query import Examinations
    from holdfast.rendezvous.coordinator.machine import Rendezvous
    from holdfast.rendezvous.coordinator.membership import Seat
    from holdfast.rendezvous.coordinator.script_imports import KnownImports


class Hearing:
    """The members' side of a rendezvous. What it knows of them is in their seats (`rendezvous.coordinator.membership`)."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.rules, self.seats = rendezvous.rules, rendezvous.seats
        self.granted_s = granted(self.rules.lease_s)
        self._examinations: Examinations | None = None
        """None: no operator has asked how the nodes are."""
        self._injections: Injections | None = None
        """None: nobody has asked for a fault."""
        self._clocks: Clocks | None = None
        self._imports: KnownImports | None = None
        """None: nobody has said what the script imports."""

    @property
    def examinations(self) -> Examinations:
        """Made when it is needed for the first time."""
        if self._examinations is None:
            from holdfast.rendezvous.coordinator.health_query import Examinations

            self._examinations = Examinations(self.seats)
        return self._examinations

    @property
    def injections(self) -> Injections:
        """Made when it is needed for the first time."""
        if self._injections is None:
            from holdfast.rendezvous.coordinator.fault_requests import Injections

            self._injections = Injections(self.seats)
        return self._injections

    @property
    def clocks(self) -> Clocks:
        """Made when a member renews its lease for the first time."""
        if self._clocks is None:
            from holdfast.rendezvous.clocks import Clocks

            self._clocks = Clocks(self.seats)
        return self._clocks

    def hear(self, message: Message, here: bool, now: float) -> list[Action]:
        """A member has spoken; `here`: it shares our process."""
        job, node = self.rendezvous, getattr(message, "node", "")
        if job.report is not None:
            heeds = not (isinstance(message, Leave) or self._is_of_the_next_run(message, node))
            return [Tell(node=node, message=Finish(report=job.report))] if heeds else []
        seat = self.seats.get(node)
        if seat is not None:
            self.seats.heard(seat, now)
        elif max(getattr(message, "round", 0), getattr(message, "known_round", 0)) > job.round:
            # It was a member under an earlier life of the coordinator; others may still hold a lease from that.
            job.gathering.wait_until(job.started_at + self.rules.lease_s + FENCE_S)
        match message:
            case Renew() if seat is not None:
                # A Stop may have gone down with its link. Said twice it does no harm; said never, we would wait for ever.
                again = [seat.stop] if seat.stop is not None and seat.state in ("stopping", "stopped") else []
                answers = [self.renewed(seat, message, now, lease_s=self.granted_s), *again]
                return [Tell(node=node, message=answer) for answer in answers]
            case Join():
                return self._joined(message, seat, here, now)
            case StopJob(reason=reason):
                return job.end(Outcome.STOPPED, reason, now)
            case Exclude() | Readmit():
                return job.admission.asked(message, now)
            case _ if seat is None:
                return [Tell(node=node, message=_stranger(message))]
            case Examine():
                return self.examinations.asked(message)
            case Examined():
                return self.examinations.answered(message)
            case Inject():
                return self.injections.asked(message)
            case InjectionHeard():
                return self.injections.answered(message)
            case HangFound() if message.round == job.round and seat.state == "running":
                return job.judge.inquire(seat, message, now)
            case Positions(round=number, positions=positions) if job.inquiry is not None and number == job.inquiry.round:
                job.inquiry.hear(node, positions)
            case Failed(round=number, failure=failure):
                return job.judge.failed(seat, number, failure, now)
            case Pace(round=number) if number == job.round and job.phase == "running":
                return self._paced(seat, message, now)
            case Saving(round=number) if number == job.round and seat.state == "running":
                job.growth.heard(message, now)
            case Calculated(round=number, limits_s=limits_s) if number == job.round:
                return [job.record(LimitsCalculated(limits_s=limits_s))] if job.paces.calculated(limits_s, number) else []
            case Imports() if seat.state == "running":
                return self._told_imports(message)
            case Requested():
                return job.judge.requested(seat, message, now)
            case Succeeded(round=number) if number == job.round and seat.state == "running" and not seat.is_impaired:
                return self._succeeded(seat, now)
            case Stopped(round=number, failures=failures):
                if failures:
                    job.judge.failures.keep(number, node, failures, now)
                if seat.state == "leaving":
                    return self._remove(seat, NodeLeft(name=seat.name, reason="its workers have been stopped"))
                if number == job.round and seat.state in ("running", "stopping", "succeeded"):
                    return self._stopped(seat, now)
            case Leave(reason=reason) if seat.state != "leaving":
                return self._leaves(seat, reason, now)
        return []

    def renewed(
        self, seat: Seat, renew: Renew, now: float, *, lease_s: float, mark: float = 0.0, roster: Roster | None = None
    ) -> Renewed:
        """The answer to that member's `Renew`, whose lease begins anew."""
        self.seats.heard(seat, now)
        self.clocks.heard(seat, renew.ahead_s, now)
        at_unix, middle_s = now + self.rendezvous.ahead_unix, self.clocks.middle_s
        return Renewed(lease_s=lease_s, sent_at=renew.sent_at, mark=mark, roster=roster, at_unix=at_unix, middle_s=middle_s)

    def _is_of_the_next_run(self, message: Message, node: str) -> bool:
        """It knows nothing of this one, nor this one of it: to be told how this one ended would end that one. It goes on
        looking, and finds its own coordinator, or nobody."""
        knows = any(getattr(message, what, 0) for what in ("round", "known_round", "roster"))
        return bool(self.seats.known) and node not in self.seats.known and not knows

    # --- coming, getting on, going --------------------------------------------------------------------------------------

    def _joined(self, join: Join, seat: Seat | None, here: bool, now: float) -> list[Action]:
        job = self.rendezvous
        if refusal := self.seats.refusal(join):
            return [Tell(node=join.node, message=refusal)]
        job.paces.joined(join.longest_s, now)
        job.paces.calculated(join.calculated_s, join.round)
        if job.gathering.awaited and join.round == job.round:
            job.gathering.back.add(join.node)
        if seat is None:
            seat = self.seats.add(join, here=here, now=now)
            actions = [job.record(NodeJoined(name=join.name)), *job.admission.of_itself(join, now)]
            if job.phase == "running":
                actions += job.admission.newcomer(seat, now)
            return actions
        if seat.assigned is not None and join.round < seat.assigned.round:
            again = [seat.assigned, *([seat.stop] if seat.stop else [])]
            return [Tell(node=join.node, message=message) for message in again]
        took_part = job.phase == "running" and seat.state != "ready"
        self.seats.know(seat, join)
        seat.state, seat.is_impaired = "ready", False
        said = job.admission.of_itself(join, now)
        if not took_part:
            return said + (self._imports.tell(seat) if self._imports is not None and job.phase == "running" else [])
        if seat.stop is None:
            said += job.judge.without(_by_itself(seat), now)
        return said + (job.admission.newcomer(seat, now) if job.phase == "running" else [])

    def _told_imports(self, message: Imports) -> list[Action]:
        if self._imports is None:
            from holdfast.rendezvous.coordinator.script_imports import KnownImports

            self._imports = KnownImports(self.seats)
        return self._imports.heard(message)

    def _stopped(self, seat: Seat, now: float) -> list[Action]:
        """All its workers have ended. Where nothing had gone wrong, and nobody had told it to, the round is another now."""
        took_part, seat.state = self._takes_part(seat), "stopped"
        return self.rendezvous.judge.without(_by_itself(seat), now) if took_part and seat.stop is None else []

    def _succeeded(self, seat: Seat, now: float) -> list[Action]:
        seat.state = "succeeded"
        health = self.seats.health
        if not self.rendezvous.has_lost_some or health.healthy or health.succeeded == health.size:
            return []
        return self.rendezvous.judge.without(f"{seat.name} is the last to have done its part", now)

    def _leaves(self, seat: Seat, reason: str, now: float) -> list[Action]:
        if not seat.has_workers:
            return self._remove(seat, NodeLeft(name=seat.name, reason=reason))
        took_part, seat.state = self._takes_part(seat), "leaving"
        return self.rendezvous.judge.without(f"{seat.name} left: {reason}", now) if took_part else []

    def _takes_part(self, seat: Seat) -> bool:
        """Whether the running round is another without that node."""
        return self.rendezvous.phase == "running" and seat.state == "running" and not seat.is_impaired

    def _paced(self, seat: Seat, pace: Pace, now: float) -> list[Action]:
        """How a node gets on. A slow one is left out, if that was asked for, and if a spare can take its place."""
        job, actions = self.rendezvous, list[Action]()
        if more := job.paces.heard(seat.name, pace, now):
            actions.append(Tell(node=seat.join.node, message=Paced(round=job.round, longest_s=more)))
        if busy_s := job.paces.busy(pace, now):
            paced = Paced(round=job.round, longest_s=job.paces.longest_s, busy_s=busy_s)
            actions += [Tell(node=one.join.node, message=paced) for one in self.seats.members if one is not seat]
        slow = {seat.name: pace.straggler[:CHARS]} if pace.straggler else {}
        for event in job.paces.compare(now):
            actions.append(job.record(event))
            if isinstance(event, StragglerSeen):
                slow[event.name] = described(event)
                actions.append(Say(text=f"straggler: {event.name}: {slow[event.name]}", level="warning"))
        for name, why in slow.items() if self.rules.on_straggler == "exclude" else ():
            actions += job.admission.give_way(name, why, now)
        return actions

    # --- members that are not heard from --------------------------------------------------------------------------------

    def expire(self, now: float) -> list[Action]:
        """Give up those whose leases are over."""
        if self.rendezvous.phase == "ended" or now < self.seats.look_at:
            return []
        actions: list[Action] = []
        for seat in list(self.seats.values()):
            if now >= self.seats.lease_ends(seat):
                silent = f"not heard from for {now - seat.heard_at:.1f} s (lease {self.rules.lease_s:g} s)"
                actions += self._lose(seat, silent, now)
        self.seats.look_at = min(map(self.seats.lease_ends, self.seats.values()), default=NEVER)
        return actions

    def _lose(self, seat: Seat, reason: str, now: float) -> list[Action]:
        job = self.rendezvous
        if seat.has_workers:
            job.gathering.wait_until(now + fence_after_loss_s(self.rules.lease_s))
        if seat.state == "leaving":
            return self._remove(seat, NodeLeft(name=seat.name, reason=f"it had said so, and was {reason}"))
        needed = self._takes_part(seat)
        actions = self._remove(seat, NodeLost(name=seat.name, reason=reason, silent_s=now - seat.heard_at))
        self.seats.lost.append(seat.name)
        if seat.linked:  # else its agent is gone, as far as its host knows
            self.seats.cut_off[seat.join.node] = now
        lost = Failure(node=seat.name, rank=-1, at_unix=job.unix(now), cause=Cause.NODE_LOST, message=reason, round=job.round)
        if seat.state in ("running", "stopping"):
            # Since it was last heard: whoever failed after that may have failed because of it.
            job.judge.failures.keep(job.round, seat.join.node, (lost,), seat.heard_at)
        return actions + (job.judge.without(describe(lost), now) if needed else [])

    def _remove(self, seat: Seat, event: Event) -> list[Action]:
        self.seats.remove(seat)
        return [self.rendezvous.record(event)]


def _by_itself(seat: Seat) -> str:
    return f"{seat.name} stopped its workers by itself"


def _stranger(message: Message) -> Message:
    """Answer to a node that has no seat: it has been lost, or we are another life of the coordinator. It may come back."""
    reason = "the coordinator does not know this node (any more): it was not heard from for too long, or the coordinator is new"
    return Stop(round=getattr(message, "round", 0), reason=reason, rejoin=True)
