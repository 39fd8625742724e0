"""Which of the nodes that are here take part? A newcomer, a node that is unfit, one that is slow, and one that may come back.

What depends on how its workers are is in `rendezvous.coordinator.failure_handling`.
"""

from __future__ import annotations

from holdfast.core.job.events import ExcludedBy, NodeReadmitted
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.machine import Action, Say
from holdfast.core.wire.messages import Join, Stop, Waiting
from holdfast.rendezvous.coordinator.failure_handling import without
from holdfast.rendezvous.coordinator.job import Job, Phase
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.rendezvous.coordinator.rounds import carry_out
from holdfast.rendezvous.rules import Tell

SAVED = "and a checkpoint has been written"  # Why a node is taken in that has waited for that.


def newcomer(job: Job, seat: Seat, now: float) -> list[Action]:
    """While a round runs, a node is ready for another: it takes the place of one that is to be left out, or all restart with
    it, or it waits as a spare."""
    if actions := leave_out_wanted(job, now):
        return actions
    why = _no_place_yet(job, seat)
    if not why:
        return carry_out(job, Decision(then=Verdict.REJOIN, reason=f"{seat.name} joined"), now)
    said = Say(text=f"{seat.name} waits as a spare: {why}")
    return [said, Tell(node=seat.join.node, message=Waiting(round=job.round, reason=why, life=job.life))]


def saved(job: Job, now: float) -> list[Action]:
    """A checkpoint has been written: all restart if a node has waited long enough and the job gains by it."""
    waiting = (
        seat
        for seat in job.seats.values()
        if seat.state is SeatState.READY
        and job.rules.is_due(max(seat.came_at, job.formed_at), now)
        and not job.excluded.why(seat.name)
    )
    seat = next(waiting, None)  # they are as many with any of them
    if seat is None or _no_place_yet(job, seat, is_saved=True):
        return []
    return carry_out(job, Decision(then=Verdict.REJOIN, reason=f"{seat.name} joined, {SAVED}"), now)


def _no_place_yet(job: Job, seat: Seat, *, is_saved: bool = False) -> str:
    why = job.seats.no_place_yet(seat, job.round, saved=is_saved)
    return why or ("nobody is restarted for a newcomer (min-healthy)" if job.policy.carries_on else "")


def of_itself(job: Job, join: Join, now: float) -> list[Action]:
    """A node knows best whether it is fit; but what others have against it stands."""
    if not join.unhealthy and join.name not in job.excluded:
        return []  # as nearly always
    namesakes = (seat for node, seat in job.seats.items() if seat.name == join.name and node != join.node)
    if any(seat.linked and seat.has_workers for seat in namesakes):
        return []  # another node by that name has ranks, and is not what this one speaks of
    by, why = job.excluded.by(join.name), job.excluded.why(join.name)
    if join.unhealthy and (not by or (by == ExcludedBy.ITSELF and why != join.unhealthy)):
        return [job.exclude(join.name, join.unhealthy, ExcludedBy.ITSELF, now)]
    return [] if join.unhealthy or by != ExcludedBy.ITSELF else readmit(job, join.name, "it says that it is fit again", now)


def give_way(job: Job, name: str, why: str, now: float) -> list[Action]:
    """A slow node is left out if a spare can take its place, as long as nobody has done its part."""
    done = job.seats.tally.of(SeatState.SUCCEEDED)
    if not is_member(job, name) or done or not job.seats.is_replaceable(name, job.round):
        return []
    excluded = job.exclude(name, why, ExcludedBy.SLOWNESS, now)
    return [excluded, *dismiss(job, name, f"{name} is excluded: {why}", now)]


def forgive(job: Job, now: float) -> list[Action]:
    """Nodes whose time of exclusion is over may come back."""
    after = f"it was excluded {job.excluded.back_after_s:g} s ago"
    return [action for name in job.excluded.over(now) for action in readmit(job, name, after, now)]


def dismiss(job: Job, name: str, why: str, now: float) -> list[Action]:
    """Stop an excluded node's part in the running round: alone, where the others may carry on, else with all. Where some have
    done their part already, it is left to do its own."""
    members = job.seats.members
    mine = [seat for seat in members if seat.name == name and seat.state is SeatState.RUNNING]
    if job.phase is not Phase.RUNNING or not mine or any(seat.state is SeatState.SUCCEEDED for seat in members):
        return []
    for seat in mine:
        seat.must_stop(Stop(round=job.round, reason=why, rejoin=True))
    actions = without(job, why, now)
    if job.phase is Phase.RUNNING:
        actions += [Tell(node=seat.join.node, message=seat.stop) for seat in mine if seat.stop is not None]
    return actions


def leave_out_wanted(job: Job, now: float) -> list[Action]:
    """Leave a node out that a script has wanted left out, if the job can go on without it by now."""
    for name, (wish, since) in list(job.excluded.wanted.items()):
        is_here = any(seat.name == name for seat in job.seats.values())
        if is_here and not job.seats.lacking(name, job.round):
            excluded = job.exclude(name, wish.reason, wish.by, now)
            why = f"{name} is excluded, as was asked for {now - since:.0f} s ago: {wish.reason}"
            return [excluded, *dismiss(job, name, why, now)]
    return []


def readmit(job: Job, name: str, reason: str, now: float) -> list[Action]:
    """It may take part again, and does so at once if it is here and of use."""
    job.excluded.remove(name)
    job.policy.pardon(name)
    actions: list[Action] = [job.record(NodeReadmitted(name=name, reason=reason))]
    for seat in list(job.seats.values()):
        if seat.name == name and seat.state is SeatState.READY and job.phase is Phase.RUNNING:
            actions += newcomer(job, seat, now)
    return actions


def relent(job: Job, names: list[str]) -> list[Action]:
    """A node that has failed often is better than none: without these no round could be made."""
    for name in names:
        job.excluded.remove(name)  # what it did is still known, and the next spare will have its place
    return [job.record(NodeReadmitted(name=name, reason="too few nodes are left without it")) for name in names]


def is_member(job: Job, name: str) -> bool:
    """Whether that node is one of the running round."""
    return job.phase is Phase.RUNNING and any(member.name == name for member in job.seats.members)
