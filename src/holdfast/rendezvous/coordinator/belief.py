"""What of a member's message is believed? What it says of itself, as far as it can be so, and cut to what is kept.

Whoever has the job's token is a member, and may say anything. So what it says of its ranks is of *its* ranks, in the round
that the coordinator has given them; names, roles and numbers that the coordinator knows are the coordinator's; texts are cut.
`BELIEVED` has a line for each message that a member sends; what has no meaning is left out, or not heard at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from holdfast.core.job.ends import Exited
from holdfast.core.job.events import ExcludedBy
from holdfast.core.job.failure import Cause, Failure, Position
from holdfast.core.value import replace
from holdfast.core.wire import messages as wire
from holdfast.rendezvous.coordinator.job import Job
from holdfast.rendezvous.coordinator.membership import Seat

ROUNDS_AHEAD = 1 << 16
"""A member may know of so many more rounds than the coordinator, which was started again. Any number more would be its last."""

LINE_CHARS, TEXT_CHARS, PATH_CHARS = 2000, 1 << 16, 4096
"""Characters of a sentence, of a traceback (its end is kept), of a path."""

TAIL_LINES, RECORD_CHARS = 100, 1 << 18
"""Lines of a log, and characters of an error record, that come with a failure."""

EVIDENCE = 64
"""Failures of one node of which more than a sentence is kept: a report shows no more of them all."""

LOOK_S = 10.0  # The longest that a node may take to look at its ranks. It takes 2 s (`agent.group.hang_response`).

ALIKE = 64  # Entries of what a node lists: collectives of a rank, checks, verdicts.

About = TypeVar("About", Exited, Failure, Position)
Believed = Callable[[Job, Seat, Any], wire.Message | None]


def believed(job: Job, message: wire.Message) -> wire.Message | None:
    """That message as far as it is believed. None: not at all, or nobody knows who says it."""
    if isinstance(message, wire.Join):
        return _join(job, message)
    seat = job.seats.get(getattr(message, "node", ""))
    if seat is None:
        return _wish(message, may_be_own=True) if isinstance(message, wire.Request) else message
    judge = BELIEVED.get(type(message))
    return None if judge is None else judge(job, seat, message)


def _join(job: Job, join: wire.Join) -> wire.Join:
    """A round that nobody can have reached is none, a rank that this coordinator gave to another is not its, and neither is an
    endpoint at which another is."""
    most = job.round + ROUNDS_AHEAD
    if join.round > most or join.known_round > most:
        join = replace(join, round=0, known_round=0, group_rank=None)
    given = job.seats.given
    if given and join.group_rank is not None and given.get(join.node) != join.group_rank:
        join = replace(join, group_rank=None)
    if given and join.calculated_s and given.get(join.node) != 0:
        join = replace(join, calculated_s={})  # as `Calculated`: the node of group rank 0 says it
    if not join.endpoint:
        return join
    endpoint = job.seats.endpoint_of(join)
    return join if endpoint == join.endpoint else replace(join, endpoint=endpoint)


def _as_it_is(job: Job, seat: Seat, message: wire.Message) -> wire.Message:
    return message


def _failed(job: Job, seat: Seat, said: wire.Failed) -> wire.Failed | None:
    failures = _failures(job, seat, said.round, (said.failure,))
    return replace(said, failure=failures[0], exited=_exited(seat, said.round, said.exited)) if failures else None


def _stopped(job: Job, seat: Seat, said: wire.Stopped) -> wire.Stopped:
    if not said.failures and not said.exited:
        return said  # as thousands at once
    failures = _failures(job, seat, said.round, said.failures)
    return replace(said, failures=failures, exited=_exited(seat, said.round, said.exited))


def _succeeded(job: Job, seat: Seat, said: wire.Succeeded) -> wire.Succeeded:
    if not said.exited:
        return said
    return replace(said, exited=_exited(seat, said.round, said.exited))


def _hang(job: Job, seat: Seat, said: wire.HangFound) -> wire.HangFound | None:
    if said.rank not in seat.ranks_in(said.round):
        return None
    return replace(said, reason=said.reason[:LINE_CHARS], within_s=min(max(said.within_s, 0.0), LOOK_S))


def _positions(job: Job, seat: Seat, said: wire.Positions) -> wire.Positions:
    mine = _of_its_ranks(seat, said.round, said.positions)
    return replace(said, positions=tuple(_position(one, rank) for rank, one in sorted(mine.items())))


def _position(one: Position, rank: int) -> Position:
    texts = {field: getattr(one, field)[:LINE_CHARS] for field in ("overdue", "section", "state", "where")}
    reached = tuple(replace(last, group=last.group[:LINE_CHARS], what=last.what[:LINE_CHARS]) for last in one.reached[:ALIKE])
    return replace(one, rank=rank, reached=reached, stacks_path=_path(one.stacks_path), **texts)


def _leave(job: Job, seat: Seat, said: wire.Leave) -> wire.Leave:
    return replace(said, reason=said.reason[:LINE_CHARS]) if len(said.reason) > LINE_CHARS else said


def _calculated(job: Job, seat: Seat, said: wire.Calculated) -> wire.Calculated | None:
    """The node of group rank 0 says it."""
    return said if seat.assigned is not None and seat.assigned.group_rank == 0 else None


def _request(job: Job, seat: Seat, said: wire.Request) -> wire.Request | None:
    """A rank's wish is of a rank of that node, and a node's word on its own health is of itself."""
    ranks = seat.ranks_in(said.round)
    if said.is_of_a_rank and ranks and said.rank not in ranks:
        return None
    return _wish(said, may_be_own=said.target == seat.name)


def _wish(said: wire.Request, *, may_be_own: bool) -> wire.Request:
    """An operator's, or the node's own: whoever comes back from under another coordinator has no seat, and the node that it
    names takes that back by its next Join."""
    by = ExcludedBy.ITSELF if may_be_own and said.by is ExcludedBy.ITSELF else ExcludedBy.OPERATOR
    return replace(said, by=by)  # too much of it is refused, not cut: `demands`


def _reply(job: Job, seat: Seat, said: wire.Reply) -> wire.Reply:
    verdicts = tuple(
        replace(one, check=one.check[:LINE_CHARS], reason=one.reason[:LINE_CHARS], advice=one.advice[:LINE_CHARS])
        for one in said.verdicts[:ALIKE]
    )
    return replace(said, text=said.text[:TEXT_CHARS], verdicts=verdicts)


BELIEVED: dict[type[wire.Message], Believed] = {
    wire.Renew: _as_it_is,  # a time, which comes back to it, and a version (`leader_lease`)
    wire.Failed: _failed,
    wire.Stopped: _stopped,
    wire.Succeeded: _succeeded,
    wire.HangFound: _hang,
    wire.Positions: _positions,
    wire.Leave: _leave,
    wire.Calculated: _calculated,
    wire.Pace: _as_it_is,  # kept by kind, and as far as it is sane (`pace`)
    wire.Saving: _as_it_is,  # of itself
    wire.Imports: _as_it_is,  # as many as `job.KnownImports` takes
    wire.Request: _request,
    wire.Reply: _reply,
}
"""What is done with each message of a member that has a seat. `Join` comes before it has one."""


# --- of its own ranks ---------------------------------------------------------------------------------------------------


def _of_its_ranks(seat: Seat, round: int, those: Iterable[About]) -> dict[int, About]:
    """By rank: what it says of each that it had in that round, and not of any other's."""
    ranks = seat.ranks_in(round)
    return {ranks[one.local_rank]: one for one in those if 0 <= one.local_rank < len(ranks)}


def _exited(seat: Seat, round: int, those: Iterable[Exited]) -> tuple[Exited, ...]:
    return tuple(replace(one, rank=rank) for rank, one in sorted(_of_its_ranks(seat, round, those).items()))


def _failures(job: Job, seat: Seat, round: int, those: Iterable[Failure]) -> tuple[Failure, ...]:
    mine = _of_its_ranks(seat, round, those)
    room = EVIDENCE - job.failures.count(round, seat.join.node)
    return tuple(
        _failure(replace(one, rank=rank, round=round), job, seat, is_short=number >= room)
        for number, (rank, one) in enumerate(mine.items())
    )


def _failure(one: Failure, job: Job, seat: Seat, *, is_short: bool) -> Failure:
    """What the coordinator knows itself is not the member's to say, and what it says at length is cut."""
    record = None if is_short or (one.error_record and len(str(one.error_record)) > RECORD_CHARS) else one.error_record
    return replace(
        one,
        node=seat.name,
        role=seat.join.role,
        attempt=job.attempt,
        cause=Cause.EXIT if one.cause is Cause.NODE_LOST else one.cause,
        message=one.message[:LINE_CHARS],
        trouble=one.trouble[:LINE_CHARS],
        error_record=record,
        traceback=None if is_short or one.traceback is None else one.traceback[-TEXT_CHARS:],
        log_tail=() if is_short else tuple(line[:LINE_CHARS] for line in one.log_tail[-TAIL_LINES:]),
        error_file=_path(one.error_file),
        log_path=_path(one.log_path),
        stacks_path=_path(one.stacks_path),
    )


def _path(path: str | None) -> str | None:
    return path if path is None else path[:PATH_CHARS]
