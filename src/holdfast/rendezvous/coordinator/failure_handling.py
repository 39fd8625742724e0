"""What does it mean for the running round that something has gone wrong in it? Loaded when that happens for the first time.

A worker has failed, hangs, or wishes something; or a member takes no part any more. The policy says what next, and spends the
budget; here it is worked out what to ask it: which failure was the first, whether it is only the consequence of a node's death,
which rank is to blame for a hang. `rendezvous.coordinator.machine` carries out what was decided.
"""

from __future__ import annotations

from holdfast.core.job.events import FailureSeen
from holdfast.core.job.failure import Cause, Failure, describe
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.value import replace
from holdfast.core.wire.messages import LookAround
from holdfast.rendezvous.coordinator.first_failure import Failures
from holdfast.rendezvous.coordinator.gathering import named
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.core.wire.messages import HangFound, Requested
    from holdfast.rendezvous.coordinator.hang_blame import Inquiry
    from holdfast.rendezvous.coordinator.machine import Rendezvous
    from holdfast.rendezvous.coordinator.membership import Seat


class Judge:
    """Of one job. Remembers what has failed in the round, what it has borne with, and the question that is open."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.seats = rendezvous.seats
        self.failures = Failures()
        self.borne: tuple[str, Failure] | None = None
        """The first failure that the round has carried on without, with its node's name."""
        self._inquiry: Inquiry | None = None

    def begin_round(self) -> None:
        """Another has formed: what came of the one before is decided."""
        self.borne = None
        self.failures.forget(before=self.rendezvous.round)

    # --- a worker fails, or a member is missing -------------------------------------------------------------------------

    def failed(self, seat: Seat, number: int, failure: Failure, now: float) -> list[Action]:
        """A worker on that seat's node has failed, in round `number`."""
        job = self.rendezvous
        self.failures.keep(number, seat.join.node, (failure,), now)
        if number != job.round or job.phase != "running":
            return []
        if self.inquiry is not None and (failure.cause == Cause.HUNG or self.inquiry.held):
            self._impair(seat)
            if failure.cause == Cause.HUNG:
                self.inquiry.held.append((seat.join.node, failure))
            return []  # until it is known which hang is to blame; who dies after one has been ended dies of that
        if seat.state != "running" or seat.is_impaired:
            return []
        self._impair(seat)
        return self._weigh(seat.name, failure, now)

    def without(self, why: str, now: float) -> list[Action]:
        """A member takes no part in the running round any more, through no fault of its workers."""
        job = self.rendezvous
        verdict = job.policy.judge(self.seats.health, why)
        if verdict.then != Verdict.RESTART:
            return job.carry_out(verdict, now)
        if self.borne is not None:
            return self._blame(*self.borne, verdict.reason, now)
        return job.carry_out(Decision(then=Verdict.REJOIN, reason=_joined(why, verdict.reason)), now)

    def _impair(self, seat: Seat) -> None:
        seat.is_impaired = True
        if not self.rendezvous.policy.carries_on:
            seat.state = "stopping"  # it does so without being told

    def _weigh(self, name: str, failure: Failure, now: float, hung: tuple[str, int] | None = None) -> list[Action]:
        """Decide about a failure of a worker of the node `name`: the round's first, unless others were borne with. `hung`: as
        in `Rendezvous.carry_out`."""
        job = self.rendezvous
        verdict = job.policy.judge(self.seats.health, describe(failure))
        if verdict.then != Verdict.RESTART:
            self.borne = self.borne or (name, failure)
            return job.carry_out(verdict, now, hung=hung)
        if broken := [other.name for other in self.seats.members if not other.linked]:
            # A peer that dies breaks its links before others notice its silence. No restart is spent on the consequence.
            why = f"{describe(failure)}, right after the link to {named(broken)} broke: taken for a consequence of that"
            return job.carry_out(Decision(then=Verdict.REJOIN, reason=why), now, hung=hung)
        return self._blame(*(self.borne or (name, failure)), verdict.reason, now, hung)

    def _blame(self, name: str, failure: Failure, more: str, now: float, hung: tuple[str, int] | None = None) -> list[Action]:
        """All restart because of that worker of the node `name`, or the job ends. `more`: what else there is to say."""
        job = self.rendezvous
        decision = job.policy.consider(failure, uptime_s=now - job.formed_at, now=now)
        out = decision.exclude and failure.node == name and job.admission.is_replaceable(name)
        excluded = job.admission.exclude(name, decision.exclude, "failures", now) if out else []
        why = _joined(f"{decision.reason}, without {name}" if out else decision.reason, more)
        return excluded + job.carry_out(replace(decision, reason=why), now, hung=hung)

    # --- a worker's wish ------------------------------------------------------------------------------------------------

    def requested(self, seat: Seat, asked: Requested, now: float) -> list[Action]:
        """A worker's wish. Whatever becomes of its round meanwhile, it stands; but one restart fulfils all that ask for one."""
        job, who = self.rendezvous, f"rank {asked.rank} on {seat.name}" if asked.rank >= 0 else f"an operator of {seat.name}"
        match asked.kind:
            case "stop":
                return job.end(Outcome.STOPPED, f"{who} asked to stop the job: {asked.reason}", now)
            case "restart" if asked.round == job.round and job.phase == "running":
                what = f"{who} asked for a restart: {asked.reason}"
                return job.carry_out(job.policy.consider_request(what, uptime_s=now - job.formed_at, now=now), now)
            case "exclude" if not job.excluded.why(seat.name):
                what = f"{who} asked to exclude its node: {asked.reason}"
                if needed := job.admission.lacking(seat.name):
                    why = f"{what}; not done, since the job cannot go on without it: {needed}"
                    return job.carry_out(Decision(then=Verdict.CARRY_ON, reason=why), now)
                excluded = job.admission.exclude(seat.name, asked.reason, "script", now)
                return excluded + job.admission.dismiss(seat.name, what, now)
        return []

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    @property
    def inquiry(self) -> Inquiry | None:
        """Which of the round's ranks is to blame for a hang. None: nobody has told of one, or that round is over."""
        job, asked = self.rendezvous, self._inquiry
        return asked if asked is not None and asked.round == job.round and job.phase == "running" else None

    def inquire(self, seat: Seat, found: HangFound, now: float) -> list[Action]:
        """Have every node look at its ranks, before any of them is stopped."""
        from holdfast.rendezvous.coordinator.hang_blame import ANSWER_S, Inquiry

        job = self.rendezvous
        if self.inquiry is not None or job.phase != "running":
            return []
        nodes = [node for node, other in self.seats.items() if other.state == "running"]
        self._inquiry = Inquiry(job.round, nodes, until=now + found.within_s + ANSWER_S)
        look = LookAround(round=job.round, reason=f"rank {found.rank} on {seat.name} hung: {found.reason}")
        return [Tell(node=node, message=look) for node in nodes if node != seat.join.node]

    def close(self, inquiry: Inquiry, now: float) -> list[Action]:
        """Decide about a hang whose culprit is known by now, as far as it can be."""
        from holdfast.rendezvous.coordinator.hang_blame import blamed, unreported

        job, self._inquiry = self.rendezvous, None
        if not inquiry.held:
            return []  # whoever found it has gone, or thought better of it
        blame, hung = inquiry.blame(), None
        node, failure = inquiry.held[0]
        actions: list[Action] = []
        if blame is None and (why := inquiry.undecided()):
            failure = replace(failure, message=f"{failure.message}; {why}", undecided=True)
            self.failures.put_first(job.round, node, failure, by_s=0.0)
            actions.append(job.record(FailureSeen(failure=failure)))
        if blame is not None and (seat := self.seats.get(blame.node)) is not None:
            position, reported = blame.position, {known.rank: known for _, known in inquiry.held}
            own = reported.get(position.rank) or unreported(
                position,
                node=seat.name,
                role=seat.join.role,
                round=job.round,
                attempt=job.attempt,
                now_unix=job.unix(now),
            )
            node, failure = blame.node, blamed(own, blame)
            hung, seat.is_impaired = (node, position.local_rank), True
            # It hung before those that waited for it exceeded their limits.
            self.failures.put_first(job.round, node, failure, by_s=position.quiet_s or 0.0)
            actions.append(job.record(FailureSeen(failure=failure)))
        return actions + self._weigh(self.seats[node].name if node in self.seats else failure.node, failure, now, hung)


def _joined(reason: str, more: str) -> str:
    return f"{reason}; {more}" if more else reason
