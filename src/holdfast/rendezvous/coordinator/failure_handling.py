"""What does it mean for the running round that something has gone wrong in it?

A worker has failed or hangs, or a member takes no part any more. The policy says what next, and spends the budget; here it is
worked out what to ask it: which failure was the first, whether it is only the consequence of a node's death, which rank is to
blame for a hang.
"""

from __future__ import annotations

from holdfast.core.job.ends import left
from holdfast.core.job.events import ExcludedBy, FailureSeen
from holdfast.core.job.failure import Cause, Failure, describe
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.machine import Action
from holdfast.core.value import replace
from holdfast.core.wire.messages import Failed, HangFound, LookAround, Stopped, Succeeded
from holdfast.rendezvous.coordinator import hang_blame
from holdfast.rendezvous.coordinator.gathering import named
from holdfast.rendezvous.coordinator.job import Doubt, Job, Phase
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.rendezvous.coordinator.rounds import Hung, carry_out
from holdfast.rendezvous.rules import Tell

# --- a worker fails, or a member is missing -----------------------------------------------------------------------------


DOUBT_S = 1.5
"""How long a failure that follows from another rank's end waits to hear of that. An interpreter with torch in it takes
0.1 to 0.5 s to end, and the connections of its collectives close before; on a busy host longer."""


def failed(job: Job, seat: Seat, said: Failed, now: float) -> list[Action]:
    """A worker on that seat's node has failed."""
    number, failure = said.round, said.failure
    if number == job.round:
        job.failures.keep(number, seat.join.node, (failure,), now)
        note_exits(job, seat, said)
    if number != job.round or job.phase is not Phase.RUNNING:
        return []
    inquiry, has_hung = job.inquiry, failure.cause == Cause.HUNG
    if inquiry is not None and (has_hung or inquiry.held):
        _impair(job, seat)
        if has_hung:
            inquiry.hold(seat.join.node, failure)
        return []  # until it is known which hang is to blame; who dies after one has been ended dies of that
    if job.doubt is not None:
        _impair(job, seat)
        return []  # whether that is settled by it, is seen at once
    if seat.state is not SeatState.RUNNING or seat.is_impaired:
        return []
    _impair(job, seat)
    if failure.follows and not job.policy.carries_on:
        job.open_doubt(Doubt(round=number, failure=failure, until=now + DOUBT_S))
        return []
    return _weigh(job, seat.name, failure, now)


def note_exits(job: Job, seat: Seat, said: Failed | Succeeded | Stopped) -> None:
    """Which workers of that seat's node had exited with 0 by then."""
    role, attempt = seat.join.role, job.attempt
    exits = [left(one, node=seat.name, role=role, round=said.round, attempt=attempt) for one in said.exited]
    job.failures.note_exits(seat.join.node, exits)


def settle_doubt(job: Job, now: float) -> list[Action]:
    """Decide about a failure that follows from another, as soon as that is known; or by itself, when nothing is to come."""
    if (doubt := job.doubt) is None:
        return []
    node, first = job.failures.told(job.round)[0]
    is_cut = any(not seat.linked for seat in job.seats.members)
    has_come = not first.follows and not first.innocent
    if not (has_come or is_cut or job.failures.first_exit(job.round) or now >= doubt.until or not job.seats.has_workers):
        return []
    job.close_doubt()
    actions: list[Action] = []
    if not has_come and not is_cut and (exit := job.failures.first_exit(job.round)) is not None:
        node, first = exit
        job.failures.put_first(job.round, node, first, by_s=0.0)
        actions.append(job.record(FailureSeen(failure=first)))
    return actions + _weigh(job, job.seats[node].name if node in job.seats else first.node, first, now)


def without(job: Job, why: str, now: float) -> list[Action]:
    """A member takes no part in the running round any more, through no fault of its workers."""
    verdict = job.policy.judge(job.seats.health, why)
    if verdict.then is not Verdict.RESTART:
        return carry_out(job, verdict, now)
    if job.failures.borne is not None:
        return _blame(job, *job.failures.borne, verdict.reason, now)
    return carry_out(job, Decision(then=Verdict.REJOIN, reason=_joined(why, verdict.reason)), now)


def _impair(job: Job, seat: Seat) -> None:
    seat.impair()
    if not job.policy.carries_on:
        seat.move(SeatState.STOPPING)  # it does so without being told


def _weigh(job: Job, name: str, failure: Failure, now: float, hung: Hung | None = None) -> list[Action]:
    """Decide about a failure of a worker of the node `name`: the round's first, unless others were borne with."""
    verdict = job.policy.judge(job.seats.health, describe(failure))
    if verdict.then is not Verdict.RESTART:
        job.failures.bear(name, failure)
        return carry_out(job, verdict, now, hung=hung)
    if broken := [other.name for other in job.seats.members if not other.linked]:
        # A peer that dies breaks its links before others notice its silence. No restart is spent on the consequence.
        why = f"the link to {named(broken)} broke, which is why {describe(failure)}"
        return carry_out(job, Decision(then=Verdict.REJOIN, reason=why), now, hung=hung)
    return _blame(job, *(job.failures.borne or (name, failure)), verdict.reason, now, hung)


def _blame(job: Job, name: str, failure: Failure, more: str, now: float, hung: Hung | None = None) -> list[Action]:
    """All restart because of that worker of the node `name`, or the job ends. `more`: what else there is to say."""
    decision = job.policy.consider(failure, uptime_s=now - job.formed_at, now=now)
    out = decision.exclude and failure.node == name and job.seats.is_replaceable(name, job.round)
    excluded = [job.exclude(name, decision.exclude, ExcludedBy.FAILURES, now)] if out else []
    why = _joined(f"{decision.reason}, without {name}" if out else decision.reason, more)
    return [*excluded, *carry_out(job, replace(decision, reason=why), now, hung=hung)]


def _joined(reason: str, more: str) -> str:
    return f"{reason}; {more}" if more else reason


# --- a rank hangs -------------------------------------------------------------------------------------------------------


def inquire(job: Job, seat: Seat, found: HangFound, now: float) -> list[Action]:
    """Have every node look at its ranks, before any of them is stopped."""
    if job.inquiry is not None:
        return []
    nodes = [node for node, other in job.seats.items() if other.state is SeatState.RUNNING]
    job.open_inquiry(hang_blame.Inquiry(job.round, nodes, until=now + found.within_s + hang_blame.ANSWER_S))
    look = LookAround(round=job.round, reason=f"rank {found.rank} on {seat.name} hung: {found.reason}")
    return [Tell(node=node, message=look) for node in nodes if node != seat.join.node]


def close(job: Job, inquiry: hang_blame.Inquiry, now: float) -> list[Action]:
    """Decide about a hang whose culprit is known by now, as far as it can be."""
    job.close_inquiry()
    if not inquiry.held:
        return []  # the node that found it has gone, or its rank has gone on
    blame = hang_blame.culprit(inquiry.positions)
    node, failure = inquiry.held[0]
    actions: list[Action] = []
    hung: Hung | None = None
    if (exit := job.failures.first_exit(job.round)) is not None and hang_blame.all_wait(inquiry.positions):
        blame, (node, failure) = None, exit  # a rank that has gone comes to no collective
        job.failures.put_first(job.round, node, failure, by_s=0.0)
        actions.append(job.record(FailureSeen(failure=failure)))
    elif blame is None and (why := hang_blame.undecided(inquiry.positions)):
        failure = replace(failure, message=f"{failure.message}; {why}", undecided=True)
        job.failures.put_first(job.round, node, failure, by_s=0.0)
        actions.append(job.record(FailureSeen(failure=failure)))
    if blame is not None and (seat := job.seats.get(blame.node)) is not None:
        node, failure, hung = blame.node, _culprit(job, inquiry, blame, seat, now), (blame.node, blame.position.local_rank)
        seat.impair()
        # It hung before those that waited for it exceeded their limits.
        job.failures.put_first(job.round, node, failure, by_s=blame.position.quiet_s or 0.0)
        actions.append(job.record(FailureSeen(failure=failure)))
    return actions + _weigh(job, job.seats[node].name if node in job.seats else failure.node, failure, now, hung)


def _culprit(job: Job, inquiry: hang_blame.Inquiry, blame: hang_blame.Blame, seat: Seat, now: float) -> Failure:
    """The failure of the rank that is to blame: as its node has told it, or made up where its limit has not run out."""
    reported = {known.rank: known for _, known in inquiry.held}
    own = reported.get(blame.position.rank) or hang_blame.unreported(
        blame.position,
        node=seat.name,
        role=seat.join.role,
        round=job.round,
        attempt=job.attempt,
        now_unix=job.unix(now),
    )
    return hang_blame.blamed(own, blame)
