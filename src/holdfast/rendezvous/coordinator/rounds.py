"""How does a round begin, and how does it end? What is decided about one is carried out here, and said to its members."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.job.events import Decided
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned, Finish, Stop, Waiting
from holdfast.rendezvous.coordinator.job import Job, Phase
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.rendezvous.placement.partners import partners, ticket
from holdfast.rendezvous.placement.placement import Place, Placement
from holdfast.rendezvous.rules import Tell

SMALL = 64
"""Up to so many nodes everybody is told everybody's name; beyond, only group rank 0 (a table for all is O(N²) bytes)."""

Hung = tuple[str, int]
"""(node, local rank) of one that is to blame for a hang, though its limit has not told."""


def carry_out(job: Job, decision: Decision, now: float, *, hung: Hung | None = None, anew: bool = False) -> list[Action]:
    """Do what was decided about the running round. `anew`: no process of it goes on in place."""
    why = decision.reason
    match decision.then:
        case Verdict.CARRY_ON:
            job.carry_on()
            decided = Decided(decision=Verdict.CARRY_ON, reason=why, restarts_left=job.policy.restarts_left(now))
            return [job.record(decided), Say(text=why, level="warning")]
        case Verdict.FINISH:
            return end(job, Outcome.SUCCEEDED, why, now, hung=hung)
        case Verdict.REJOIN:
            decided = Decided(decision=Verdict.REJOIN, reason=why, restarts_left=job.policy.restarts_left(now))
        case Verdict.RESTART:
            job.spend_restart(decision.delay_s, now)
            left = decision.restarts_left
            decided = Decided(decision=Verdict.RESTART, reason=why, delay_s=decision.delay_s, restarts_left=left)
        case _:
            return end(job, Outcome.FAILED, why, now, hung=hung, exit_code=decision.exit_code)
    job.regroup(why, now)
    return [job.record(decided), *_stop_all(job, why, rejoin=True, hung=hung, anew=anew)]


def end(job: Job, outcome: Outcome, why: str, now: float, *, hung: Hung | None = None, exit_code: int = 1) -> list[Action]:
    """The job ends: as soon as the workers of all have stopped."""
    if job.phase in (Phase.ENDING, Phase.ENDED):
        return []
    job.begin_ending(outcome, why, exit_code)
    verdict = Verdict.FINISH if outcome is Outcome.SUCCEEDED else Verdict.STOP
    decided = Decided(decision=verdict, reason=why, restarts_left=job.policy.restarts_left(now))
    return [job.record(decided), *_stop_all(job, why, rejoin=False, hung=hung)]


def _stop_all(job: Job, why: str, *, rejoin: bool, hung: Hung | None, anew: bool = False) -> list[Action]:
    all_ran = job.seats.tally.of(SeatState.RUNNING) == job.seats.size
    is_growth, is_asked = rejoin and all_ran and not job.is_restart, not rejoin and job.outcome is Outcome.STOPPED
    stop = Stop(round=job.round, reason=why, rejoin=rejoin, regrouped=is_growth, on_request=is_asked, anew=anew)
    actions: list[Action] = []
    for node, seat in job.seats.items():
        if _must_hear(seat, job.outcome):
            said = replace(stop, hung=hung[1]) if hung is not None and node == hung[0] else stop
            job.seats.stop(seat, said)
            actions.append(Tell(node=node, message=said))
    return actions


def _must_hear(seat: Seat, outcome: Outcome) -> bool:
    """Whether a node must be told that its round is over."""
    if seat.state is SeatState.SUCCEEDED:
        return outcome is not Outcome.SUCCEEDED
    # One that was done with stopping before this was decided waits for the word.
    return seat.state in (SeatState.RUNNING, SeatState.STOPPING) or (seat.state is SeatState.STOPPED and seat.stop is None)


# --- a round forms ------------------------------------------------------------------------------------------------------


def form(job: Job, placement: Placement, now: float) -> list[Action]:
    """A round of these places begins: each node is told its own, and each spare why it has none."""
    places, seats = placement.active, job.seats
    world_size = sum(seats[given.node].join.nproc for given in places)
    names = tuple(seats[given.node].name for given in places)
    stash, to_fetch, to_read = seats.stash(places, world_size, job.life, job.round) or (None, {}, {})
    state = seats.in_memory(places, world_size, has_stash=stash is not None)
    partner = _partners(job, places)
    holders = {seat.join.stash_at: node for node, seat in seats.items()} if partner or to_fetch else {}
    chief = seats[places[0].node].join
    job.begin_round(seats.newest_round(seats.ready, job.round) + 1, places, now)  # no number may come twice
    addr, port = job.rules.master_addr or chief.addr, job.rules.master_port or chief.master_port
    longest_s = job.paces.longest_s
    actions: list[Action] = []
    for given in places:
        kept_at = {*partner.get(given.node, ()), to_fetch.get(given.base_rank, "")} & holders.keys() - {""}
        nproc = seats[given.node].join.nproc
        assigned = Assigned(
            round=job.round,
            restart_count=job.restarts,
            group_rank=given.group_rank,
            group_world_size=len(places),
            base_rank=given.base_rank,
            world_size=world_size,
            role_base_rank=given.role_base_rank,
            role_world_size=given.role_world_size,
            master_addr=addr,
            master_port=port,
            nodes=names if given.group_rank == 0 or len(names) <= SMALL else (),
            reason=job.why,
            longest_s=longest_s,
            calculated_s=job.paces.calculated_s,
            carries_on=job.policy.carries_on,
            life=job.life,
            state=state.generation,
            state_from=state.came_from(given.base_rank, nproc),
            stash=stash,
            stash_from=to_fetch.get(given.base_rank, ""),
            stash_disk=to_read.get(given.base_rank),
            stash_partners=partner.get(given.node, ()),
            stash_tickets={at: ticket(holders[at], job.round, given.base_rank, nproc) for at in sorted(kept_at)},
            logs_at=job.logs_at,
        )
        seats[given.node].assign(given, assigned)
        actions.append(Tell(node=given.node, message=assigned))
    for spare in placement.spares:
        actions.append(Tell(node=spare.node, message=Waiting(round=job.round, reason=spare.why, life=job.life)))
    return actions


def _partners(job: Job, places: Iterable[Place]) -> dict[str, tuple[str, ...]]:
    """By node: where its ranks' states are kept as well. As many copies as the node that wants fewest wants."""
    joins = [job.seats[given.node].join for given in places]
    if not any(join.stash_at for join in joins):
        return {}  # as in most jobs
    copies = min(join.stash_replicas for join in joins)
    found = partners([(join.stash_at, join.domain) for join in joins], copies)
    return {join.node: partner for join, partner in zip(joins, found)}


# --- the job ends -------------------------------------------------------------------------------------------------------


def finish(job: Job, now: float) -> list[Action]:
    """The workers of all have stopped: every member is told how the job has ended."""
    succeeded = job.outcome is Outcome.SUCCEEDED
    failures = () if succeeded and not job.has_lost_some else job.failures.in_order(job.round)
    nodes = tuple(seat.name for seat in job.seats.values() if seat.place is not None)
    report = JobReport(
        job=job.rules.job,
        outcome=job.outcome,
        exit_code=0 if succeeded else job.exit_code,
        failures=failures[:SMALL],
        failures_left_out=max(0, len(failures) - SMALL),
        restarts_used=job.restarts,
        max_restarts=job.rules.max_restarts,
        rounds=job.round,
        started_at_unix=job.started_at_unix - job.age_s,
        ended_at_unix=job.unix(now),
        reason=job.why,
        nodes=nodes[:SMALL],
        nodes_left_out=max(0, len(nodes) - SMALL),
        life=job.life,
    )
    job.over(report, now)
    return [Tell(node=node, message=Finish(report=report)) for node in job.seats]
