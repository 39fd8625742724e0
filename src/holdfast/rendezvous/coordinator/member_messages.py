"""How does a node become a member, and how does it cease to be one? It joins, its workers end, it leaves, or it is silent.

Here it is known whether its workers may be alive. What its absence means for the running round is for
`rendezvous.coordinator.failure_handling` to say; whether it may take part at all, for `rendezvous.coordinator.admission`.
"""

from __future__ import annotations

from holdfast.core.config.fault_tolerance import OnStraggler
from holdfast.core.job.events import Event, NodeJoined, NodeLeft, NodeLost, StragglerSeen
from holdfast.core.job.failure import Cause, Failure, describe
from holdfast.core.machine import Action, Say
from holdfast.core.wire import messages as wire
from holdfast.rendezvous.agreement import of_newcomer
from holdfast.rendezvous.coordinator.admission import give_way, newcomer, of_itself
from holdfast.rendezvous.coordinator.exclusion import CHARS
from holdfast.rendezvous.coordinator.failure_handling import note_exits, without
from holdfast.rendezvous.coordinator.job import Job, Phase
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.rendezvous.coordinator.pace import described
from holdfast.rendezvous.lease import FENCE_S, fence_after_loss_s
from holdfast.rendezvous.rules import Tell

# --- any node speaks ----------------------------------------------------------------------------------------------------


def spoke(job: Job, message: wire.Message, now: float) -> None:
    """A node has said something: its lease begins anew, if it is a member."""
    seat = job.seats.get(_node(message))
    if seat is not None:
        job.seats.heard(seat, now)
    elif max(getattr(message, "round", 0), getattr(message, "known_round", 0)) > job.round:
        # It was a member under an earlier life of the coordinator; others may still hold a lease from that.
        job.gathering.wait_until(job.started_at + job.rules.lease_s + FENCE_S)


def stranger(message: wire.Message) -> list[Action]:
    """The answer to a node that has no seat: it has been lost, or we are another life of the coordinator. It may come back."""
    reason = "the coordinator does not know this node (any more): it was not heard from for too long, or the coordinator is new"
    stop = wire.Stop(round=getattr(message, "round", 0), reason=reason, rejoin=True)
    return [Tell(node=_node(message), message=stop)]


def after_the_end(job: Job, message: wire.Message) -> list[Action]:
    """A node that does not know it yet is told how the job has ended."""
    if job.report is None or isinstance(message, wire.Leave) or _is_of_the_next_run(job, message):
        return []
    return [Tell(node=_node(message), message=wire.Finish(report=job.report))]


def _is_of_the_next_run(job: Job, message: wire.Message) -> bool:
    """It knows nothing of this one, nor this one of it: to be told how this one ended would end that one. It goes on
    looking, and finds its own coordinator, or nobody."""
    knows = any(getattr(message, what, 0) for what in ("round", "known_round", "roster"))
    return bool(job.seats.known) and _node(message) not in job.seats.known and not knows


def _node(message: wire.Message) -> str:
    return getattr(message, "node", "")


# --- a member renews its lease ------------------------------------------------------------------------------------------


def renews(job: Job, seat: Seat, renew: wire.Renew, now: float) -> list[Action]:
    """It hears that it is a member, and again what it may have missed."""
    actions: list[Action] = [Tell(node=renew.node, message=renewed(job, seat, renew, now, lease_s=job.granted_s))]
    # A Stop may have gone down with its link. Said twice it does no harm; said never, we would wait for ever.
    if seat.stop is not None and seat.state in (SeatState.STOPPING, SeatState.STOPPED):
        actions.append(Tell(node=renew.node, message=seat.stop))
    return actions


def renewed(
    job: Job, seat: Seat, renew: wire.Renew, now: float, *, lease_s: float, mark: float = 0.0, roster: wire.Roster | None = None
) -> wire.Renewed:
    """The answer to a `Renew` of that member, whose lease begins anew."""
    job.seats.heard(seat, now)
    job.clocks.heard(seat, renew.ahead_s, now)
    at_unix, middle_s = now + job.ahead_unix, job.clocks.middle_s
    return wire.Renewed(lease_s=lease_s, sent_at=renew.sent_at, mark=mark, roster=roster, at_unix=at_unix, middle_s=middle_s)


# --- a node joins, or has no workers left -------------------------------------------------------------------------------


def joined(job: Job, join: wire.Join, here: bool, now: float) -> list[Action]:
    """It has no workers, and wants to take part. `here`: it shares our process."""
    if refusal := job.seats.refusal(join):
        return [Tell(node=join.node, message=refusal)]
    job.paces.joined(join.longest_s, now)
    job.paces.calculated(join.calculated_s, join.round)
    if join.round == job.round:
        job.gathering.came_back(join.node)
    seat = job.seats.get(join.node)
    if seat is None:
        return _comes(job, join, here, now)
    if seat.assigned is not None and join.round < seat.assigned.round:
        again = [seat.assigned, *([seat.stop] if seat.stop else [])]
        return [Tell(node=join.node, message=message) for message in again]
    return _comes_again(job, seat, join, now)


def _comes(job: Job, join: wire.Join, here: bool, now: float) -> list[Action]:
    seat = job.seats.add(join, here=here, now=now)
    actions: list[Action] = [job.record(NodeJoined(name=join.name)), *of_itself(job, join, now)]
    actions += of_newcomer(join, job.seats.values())
    return actions + (newcomer(job, seat, now) if job.phase is Phase.RUNNING else [])


def _comes_again(job: Job, seat: Seat, join: wire.Join, now: float) -> list[Action]:
    took_part = job.phase is Phase.RUNNING and seat.state is not SeatState.READY
    job.seats.know(seat, join)
    seat.is_ready()
    actions = of_itself(job, join, now)
    if not took_part:
        return actions + (job.imports.tell(seat) if job.phase is Phase.RUNNING else [])
    if seat.stop is None:
        actions += without(job, _by_itself(seat), now)
    return actions + (newcomer(job, seat, now) if job.phase is Phase.RUNNING else [])


def stopped(job: Job, seat: Seat, said: wire.Stopped, now: float) -> list[Action]:
    """All its workers have ended. Where nothing had gone wrong, and nobody had told it to, the round is another now."""
    if said.round == job.round:
        job.failures.keep(said.round, said.node, said.failures, now)
        note_exits(job, seat, said)
    if seat.state is SeatState.LEAVING:
        job.seats.remove(seat)
        return [job.record(NodeLeft(name=seat.name, reason="its workers have been stopped"))]
    if said.round != job.round or not (seat.has_workers or seat.state is SeatState.SUCCEEDED):
        return []
    took_part = _takes_part(job, seat)
    seat.move(SeatState.STOPPED)
    return without(job, _by_itself(seat), now) if took_part and seat.stop is None else []


def succeeded(job: Job, seat: Seat, said: wire.Succeeded, now: float) -> list[Action]:
    """All its workers have exited with 0."""
    note_exits(job, seat, said)
    seat.move(SeatState.SUCCEEDED)
    health = job.seats.health
    if not job.has_lost_some or health.healthy or health.succeeded == health.size:
        return []
    return without(job, f"{seat.name} is the last to have done its part", now)


def _by_itself(seat: Seat) -> str:
    return f"{seat.name} stopped its workers by itself"


# --- a node goes, or is not heard from ----------------------------------------------------------------------------------


def leaves(job: Job, seat: Seat, reason: str, now: float) -> list[Action]:
    """It goes for good, when its workers have stopped."""
    if not seat.has_workers:
        job.seats.remove(seat)
        return [job.record(NodeLeft(name=seat.name, reason=reason))]
    took_part = _takes_part(job, seat)
    seat.move(SeatState.LEAVING)
    return without(job, f"{seat.name} left: {reason}", now) if took_part else []


def expire(job: Job, now: float) -> list[Action]:
    """Give up those whose leases are over."""
    if now < job.seats.look_at:
        return []
    actions: list[Action] = []
    for seat in job.seats.overdue(now):
        silent = f"not heard from for {now - seat.heard_at:.1f} s (lease {job.rules.lease_s:g} s)"
        actions += _lose(job, seat, silent, now)
    job.seats.look_again()
    return actions


def _lose(job: Job, seat: Seat, reason: str, now: float) -> list[Action]:
    if seat.has_workers:
        job.gathering.wait_until(now + fence_after_loss_s(job.rules.lease_s))
    if seat.state is SeatState.LEAVING:
        job.seats.remove(seat)
        return [job.record(NodeLeft(name=seat.name, reason=f"it had said so, and was {reason}"))]
    needed = _takes_part(job, seat)
    job.seats.lose(seat, now)
    event: Event = NodeLost(name=seat.name, reason=reason, silent_s=now - seat.heard_at)
    lost = Failure(node=seat.name, rank=-1, at_unix=job.unix(now), cause=Cause.NODE_LOST, message=reason, round=job.round)
    if seat.has_workers:
        # From when it was last heard: ranks that failed after that may have failed because of it.
        job.failures.keep(job.round, seat.join.node, (lost,), seat.heard_at)
    return [job.record(event), *(without(job, describe(lost), now) if needed else [])]


def _takes_part(job: Job, seat: Seat) -> bool:
    """Whether the running round is another without that node."""
    return job.phase is Phase.RUNNING and seat.state is SeatState.RUNNING and not seat.is_impaired


# --- how a node gets on -------------------------------------------------------------------------------------------------


def paced(job: Job, seat: Seat, pace: wire.Pace, now: float) -> list[Action]:
    """A slow node is left out, if that was asked for, and if a spare can take its place."""
    actions: list[Action] = []
    if more := job.paces.heard(seat.name, pace, now):
        actions.append(Tell(node=seat.join.node, message=wire.Paced(round=job.round, longest_s=more)))
    if busy_s := job.paces.busy(pace, now):
        told = wire.Paced(round=job.round, longest_s=job.paces.longest_s, busy_s=busy_s)
        actions += [Tell(node=one.join.node, message=told) for one in job.seats.members if one is not seat]
    slow = {seat.name: pace.straggler[:CHARS]} if pace.straggler else {}
    for event in job.paces.compare(now):
        actions.append(job.record(event))
        if isinstance(event, StragglerSeen):
            slow[event.name] = described(event)
            actions.append(Say(text=f"straggler: {event.name}: {slow[event.name]}", level="warning"))
    for name, why in slow.items() if job.rules.on_straggler == OnStraggler.EXCLUDE else ():
        actions += give_way(job, name, why, now)
    return actions
