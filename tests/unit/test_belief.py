"""What of a member's message is believed? Each message has a row in the two tables; what it says of others is not heard."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.round_stage import Job, kinds

from holdfast.core.job.ends import Exited
from holdfast.core.job.events import ExcludedBy
from holdfast.core.job.failure import Cause, Failure, Position, Reached
from holdfast.core.wire.messages import (
    Calculated,
    Failed,
    HangFound,
    Join,
    Leave,
    Message,
    Positions,
    Reply,
    Request,
    RequestKind,
    Seek,
    Stopped,
    StoreAsk,
    Succeeded,
    Vote,
)
from holdfast.core.wire.speakers import SPEAKERS, Speaker, objection
from holdfast.rendezvous.coordinator import belief
from holdfast.rendezvous.coordinator.belief import BELIEVED, believed
from holdfast.rendezvous.rules import Unlinked
from holdfast.runtime.net.codec import MESSAGES

LONG = "x" * (1 << 20)
BY_CALLERS = {kind for kind, speaker in SPEAKERS.items() if speaker in (Speaker.CALLER, Speaker.EITHER)}


@pytest.fixture
def job() -> Job:
    """Two nodes of two ranks, in round 1; a has ranks 0 and 1."""
    job = Job()
    job.join("a", "b")
    return job


def heard(job: Job, message: Message) -> Any:
    return believed(job.machine, message)


# --- the tables -------------------------------------------------------------------------------------------------------------


def test_every_message_has_a_row_that_says_which_side_of_a_link_may_say_it() -> None:
    assert SPEAKERS.keys() == set(MESSAGES.values())


def test_every_message_to_the_coordinator_has_a_row_that_says_what_of_it_is_believed() -> None:
    elsewhere = {Join, StoreAsk, Vote}  # before there is a seat; a link of the store's; between electors
    assert BELIEVED.keys() == BY_CALLERS - elsewhere


@pytest.mark.parametrize("kind", SPEAKERS, ids=lambda kind: kind.__name__)
def test_neither_side_says_the_other_s_part(kind: type[Message]) -> None:
    """A message is refused over one side of a link, and not over the other."""
    named = "node" in kind.__fields__
    given = {field: "n" if field == "node" else None for field in kind.__fields__}
    refused = [bool(objection(kind(**given), to_caller=side)) for side in (True, False)]
    assert refused == [False, False] if kind is Seek else refused == [named, not named]
    if SPEAKERS[kind] is Speaker.CALLER:
        assert objection(kind(**{**given, "node": ""}), to_caller=False) == f"its {kind.__name__} names no node"


# --- what a member says of ranks --------------------------------------------------------------------------------------------


def failure(local_rank: int, **said: Any) -> Failure:
    return Failure(**{"node": "a", "rank": 0, "local_rank": local_rank, "exitcode": 1, "at_unix": 0.0, **said})


@pytest.mark.parametrize("local_rank", [-1, 2, 7, 2**31])
def test_a_failure_of_a_rank_that_is_not_the_node_s_is_not_heard(job: Job, local_rank: int) -> None:
    assert job.hear(Failed(node="b", round=1, failure=failure(local_rank))) == []
    job.hear(Stopped(node="b", round=1, failures=tuple(failure(local_rank + i * 2) for i in range(2, 50))))
    assert len(job.machine.failures) == 0


@pytest.mark.parametrize("number", [0, 2, 8, 2**31 - 300])
def test_nor_is_one_of_another_round(job: Job, number: int) -> None:
    for i in range(100):
        job.hear(Failed(node="b", round=number + 2 * i, failure=failure(0)))
        job.hear(Stopped(node="b", round=number + 2 * i, failures=(failure(1),)))
    assert len(job.machine.failures) == 0 and kinds(job.fail("a")) == ["Stop", "Stop"]


def test_a_failure_is_of_the_node_that_tells_it_whatever_it_says() -> None:
    job = Job(max_restarts=0)
    job.join("a", "b")
    lie = failure(1, node="a", rank=0, role="evil", round=9, attempt=7, cause=Cause.NODE_LOST)
    job.hear(Failed(node="b", round=1, failure=lie))
    job.stopped_and_back("a", "b")
    first = job.report.failures[0]
    assert (first.node, first.rank, first.role, first.round, first.attempt) == ("b", 3, "default", 1, 0)
    assert first.cause == "exit"


def test_what_it_says_at_length_is_cut() -> None:
    job = Job("1:1")
    job.hear(Join(node="a", name="a", addr="a", master_port=9, nproc=100, role="r"))
    texts = {field: LONG for field in ("message", "trouble", "traceback", "error_file", "log_path", "stacks_path")}
    long = [failure(i, **texts, error_record={"x": LONG}, log_tail=(LONG,) * 200) for i in range(100)]
    told = heard(job, Stopped(node="a", round=1, failures=tuple(long))).failures
    first, last = told[0], told[-1]
    assert len(told) == 100 and first.error_record is None and len(first.traceback) == belief.TEXT_CHARS
    assert len(first.message) == len(first.log_tail[0]) == belief.LINE_CHARS and len(first.log_tail) == belief.TAIL_LINES
    assert len(first.log_path) == belief.PATH_CHARS and last.traceback is None and last.log_tail == ()
    assert len(heard(job, Leave(node="a", round=1, reason=LONG)).reason) == belief.LINE_CHARS


def test_so_are_exits_and_places_of_ranks(job: Job) -> None:
    exits = tuple(Exited(rank=0, local_rank=i, pid=1, at_unix=0.0) for i in (-1, 0, 1, 1, 2, 9))
    assert [one.rank for one in heard(job, Succeeded(node="b", round=1, exited=exits)).exited] == [2, 3]
    assert heard(job, Succeeded(node="b", round=3, exited=exits)).exited == ()
    reached = tuple(Reached(group=LONG, seq=i, what=LONG, waits=True) for i in range(1000))
    places = tuple(Position(rank=0, local_rank=i, pid=1, where=LONG, reached=reached) for i in (1, 0, 1, 5))
    said = heard(job, Positions(node="b", round=1, positions=places)).positions
    assert [one.rank for one in said] == [2, 3] and len(said[0].where) == belief.LINE_CHARS
    assert len(said[0].reached) == belief.ALIKE and len(said[0].reached[0].what) == belief.LINE_CHARS


def test_a_hang_is_of_an_own_rank_and_a_look_takes_no_longer_than_looks_take(job: Job) -> None:
    assert job.hear(HangFound(node="b", round=1, rank=0, reason="no", within_s=1.0)) == []
    job.hear(HangFound(node="b", round=1, rank=3, reason=LONG, within_s=1e9))
    assert job.machine.inquiry is not None and job.machine.inquiry.until <= job.now + belief.LOOK_S + 1.0


# --- what it says of itself and of others -----------------------------------------------------------------------------------


def test_a_round_that_nobody_can_have_reached_makes_no_number_that_others_refuse() -> None:
    job = Job()
    join = Join(node="a", name="a", addr="a", master_port=9, nproc=2, role="r", round=2**31, known_round=2**31, group_rank=0)
    job.hear(join)
    job.join("b")
    assert job.machine.round == 1


def test_only_the_node_of_group_rank_0_calculates_limits(job: Job) -> None:
    job.hear(Calculated(node="b", round=1, limits_s={"step": 0.001}))
    assert job.machine.paces.calculated_s == {}
    job.hear(Calculated(node="a", round=1, limits_s={"step": 5.0}))
    assert job.machine.paces.calculated_s == {"step": 5.0}


@pytest.mark.parametrize("by", list(ExcludedBy))
def test_a_member_s_word_on_another_is_its_operator_s_and_no_decision_of_the_coordinator(job: Job, by: ExcludedBy) -> None:
    said = Request(node="b", kind=RequestKind.EXCLUDE, target="a", by=by, reason="because")
    assert heard(job, said).by == "operator"
    of_itself = heard(job, Request(node="b", kind=RequestKind.EXCLUDE, target="b", by=by))
    assert of_itself.by == ("itself" if by is ExcludedBy.ITSELF else "operator")
    stranger = heard(job, Request(node="z", kind=RequestKind.EXCLUDE, target="a", by=by))
    assert stranger.by == of_itself.by, "that node takes it back when it joins"


def test_a_rank_s_wish_is_of_an_own_rank(job: Job) -> None:
    assert heard(job, Request(node="b", kind=RequestKind.RESTART, round=1, rank=0)) is None
    assert heard(job, Request(node="b", kind=RequestKind.RESTART, round=1, rank=2)) is not None


def test_a_reply_comes_from_a_node_that_was_asked() -> None:
    job = Job("3:3")
    job.join("a", "b", "c")
    job.hear(Request(node="a", kind=RequestKind.CHECK, target="b", ask=5))
    assert job.hear(Reply(node="c", ask=1, text="all is well")) == []
    assert [reply.name for reply in job.hear(Reply(node="b", ask=1, text="it is ill"))] == ["b"]


def reachable(node: str, endpoint: str, **said: Any) -> Join:
    usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
    return Join(node=node, endpoint=endpoint, **{**usual, **said})


def test_an_endpoint_is_one_node_s_as_long_as_its_link_stands() -> None:
    job = Job("1:2")
    job.hear(reachable("a", "a:1"))
    job.hear(reachable("evil", "a:1"))
    seats = job.machine.seats
    assert (seats["a"].join.endpoint, seats["evil"].join.endpoint) == ("a:1", "")
    job.see(Unlinked(node="a"))
    job.hear(reachable("again", "a:1"))
    assert seats["again"].join.endpoint == "a:1", "its agent was started again"


def test_a_rank_that_this_coordinator_gave_to_another_is_nobody_else_s(job: Job) -> None:
    lie = reachable("evil", "", round=1, group_rank=0)
    assert heard(job, lie).group_rank is None
    assert heard(job, reachable("a", "", round=1, group_rank=0)).group_rank == 0


@pytest.mark.parametrize("round", [0, 2, 60_000])
def test_nor_is_it_for_a_round_that_this_coordinator_has_not_formed(job: Job, round: int) -> None:
    assert heard(job, reachable("evil", "", round=round, group_rank=0)).group_rank is None


def test_limits_that_a_node_brings_are_those_of_the_node_of_group_rank_0(job: Job) -> None:
    lie = {"step": 0.001}
    assert heard(job, reachable("evil", "", round=60_000, calculated_s=lie)).calculated_s == {}
    assert heard(job, reachable("a", "", round=1, calculated_s=lie)).calculated_s == lie
    assert heard(Job(), reachable("b", "", round=7, calculated_s=lie)).calculated_s == lie, "the coordinator is new"


def test_one_that_takes_a_node_s_name_does_not_have_it_left_out(job: Job) -> None:
    job.hear(reachable("evil", "", name="a", unhealthy="its GPU is lost"))
    assert not job.machine.excluded and kinds(job.renew("a")) == ["Renewed"]
