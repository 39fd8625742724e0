"""Which of the ranks that are still is the one that all others wait for?"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job.failure import Failure, Position, Reached
from holdfast.rendezvous.coordinator.hang_blame import ANSWER_S, Blame, Inquiry, blamed, culprit, undecided, unreported


def at(rank: int, **what: Any) -> Position:
    """A rank that has been still for 10 s, as all of them."""
    return Position(**{"rank": rank, "local_rank": rank % 2, "pid": 100 + rank, "quiet_s": 10.0, "state": "S", **what})


def blame(*positions: Position) -> Blame | None:
    """Two ranks per node, `n0` and so on."""
    nodes: dict[str, tuple[Position, ...]] = {}
    for position in positions:
        node = f"n{position.rank // 2}"
        nodes[node] = (*nodes.get(node, ()), position)
    return culprit(nodes)


def to_blame(*positions: Position) -> tuple[int, str] | None:
    found = blame(*positions)
    return (found.position.rank, found.why) if found else None


WAITS = {"waits": True, "where": "all_reduce (distributed_c10d.py:2830)"}
LOADS = {"waits": False, "where": "load (data.py:88)"}


def test_the_one_that_is_not_in_the_collective_is_to_blame() -> None:
    found = to_blame(at(0, overdue="o", **WAITS), at(1, **WAITS), at(2, **LOADS), at(3, **WAITS))
    assert found == (2, "others wait for it in a collective")


def test_the_one_that_is_behind_is_to_blame_though_it_is_in_a_collective_as_well() -> None:
    found = to_blame(at(0, overdue="o", step=42, **WAITS), at(1, step=41, **WAITS), at(2, step=42, **LOADS))
    assert found == (1, "it is at step 41, others are at step 42")


def reached(seq: int, waits: bool = False, group: str = "0") -> Reached:
    return Reached(group=group, seq=seq, what=f"all_reduce [[{seq}]] Float", waits=waits)


def test_the_one_that_never_came_to_a_collective_is_to_blame_whatever_stacks_say() -> None:
    others = [at(rank, overdue="o", reached=(reached(7, waits=True),), **LOADS) for rank in (0, 1, 3)]
    found = to_blame(*others, at(2, reached=(reached(6),), **LOADS))
    assert found == (2, "it never reached all_reduce [[7]] Float, number 7 of its group, in which others wait for it")


def test_who_waits_in_another_group_is_not_to_blame_for_what_it_never_came_to() -> None:
    """Rank 1 waits for rank 2 in a group of their own, and therefore does not come to rank 0."""
    first = at(0, overdue="o", reached=(reached(7, waits=True),), **WAITS)
    second = at(1, reached=(reached(6), reached(3, waits=True, group="own")), **WAITS)
    assert to_blame(first, second, at(2, reached=(reached(7), reached(2, group="own")), **WAITS)) == (
        2,
        "it never reached all_reduce [[3]] Float, number 3 of its group, in which others wait for it",
    )


def test_where_each_waits_for_the_other_in_another_group_the_record_of_collectives_blames_nobody() -> None:
    first = at(0, overdue="o", reached=(reached(7, waits=True), reached(2, group="own")), **WAITS)
    assert to_blame(first, at(1, reached=(reached(6), reached(3, waits=True, group="own")), **WAITS)) is None


def test_who_has_gone_ahead_while_nobody_waits_makes_nobody_late() -> None:
    assert to_blame(at(0, overdue="o", reached=(reached(7),)), at(1, reached=(reached(6),))) is None


def test_a_rank_without_a_record_is_not_taken_for_one_that_never_came() -> None:
    assert to_blame(at(0, overdue="o", reached=(reached(7, waits=True),), **WAITS), at(1, **WAITS)) is None


def test_of_those_that_are_behind_the_one_that_is_not_in_a_collective() -> None:
    found = blame(at(0, overdue="o", step=42, **WAITS), at(1, step=41, **WAITS), at(2, step=41, **LOADS))
    assert found is not None and found.position.rank == 2 and found.node == "n1"
    assert found.why == "it is at step 41, others are at step 42, and others wait for it in a collective"


def test_the_one_that_was_stopped_is_to_blame_whatever_else_there_is() -> None:
    found = blame(at(0, overdue="o", step=1), at(1, step=2, state="T"), at(2, step=2, **LOADS))
    assert found is not None and found.position.rank == 1
    own = unreported(found.position, node="n0", role="r", round=1, attempt=0, now_unix=0.0)
    assert blamed(own, found).message == "hung: no sign of life for 10.0 s; at step 2, stopped (SIGSTOP)"


@pytest.mark.parametrize("silent", [{"state": "D"}, {}])
def test_the_one_that_shows_no_stacks_is_to_blame_where_all_others_wait(silent: dict[str, Any]) -> None:
    found = to_blame(at(0, overdue="o", **WAITS), at(1, **WAITS), at(2, **silent))
    assert found is not None and found[0] == 2


def test_one_that_gets_on_is_not_to_blame_though_it_is_behind() -> None:
    assert to_blame(at(0, overdue="o", step=100), at(1, step=99, quiet_s=0.1), at(2, step=101, quiet_s=0.1)) is None
    assert to_blame(at(0, overdue="o", step=100, **LOADS), at(1, step=9, quiet_s=0.1, **WAITS)) is None


def test_one_whose_signs_nobody_sees_may_be_to_blame_by_its_stacks() -> None:
    assert to_blame(at(0, overdue="o", **WAITS), at(1, quiet_s=None, **LOADS)) == (1, "others wait for it in a collective")


def test_steps_that_not_all_ranks_report_tell_nothing() -> None:
    assert to_blame(at(0, overdue="o", step=42), at(1), at(2, step=7)) is None


def test_sections_tell_only_where_nothing_else_does() -> None:
    assert to_blame(at(0, overdue="o", sections=7), at(1, sections=6, section="data")) == (
        1,
        "it has been through 6 sections, others through 7",
    )
    assert to_blame(at(0, overdue="o", sections=7, step=5), at(1, sections=6, step=5)) is None, "rank 0 saves as well"
    assert to_blame(at(0, overdue="o", sections=7), at(1)) is None, "only rank 0 uses sections"


CASTS = {"waits": True, "where": "broadcast (distributed_c10d.py:2710), called in tell (train.py:52)"}
REDUCES = {"waits": True, "where": "all_reduce (distributed_c10d.py:2830), called in step (train.py:41)"}


def test_where_all_wait_the_one_that_waits_in_another_collective_is_out_of_place() -> None:
    found = to_blame(at(0, overdue="o", **REDUCES), at(1, **REDUCES), at(2, **CASTS))
    assert found == (2, f"the others wait for it elsewhere, in {REDUCES['where']}")


def test_the_same_collective_called_in_another_line_of_the_script_is_another_one() -> None:
    later = {"waits": True, "where": REDUCES["where"].replace("train.py:41", "train.py:77")}
    assert to_blame(*(at(rank, overdue="o", **(later if rank == 3 else REDUCES)) for rank in range(8))) == (
        3,
        f"the others wait for it elsewhere, in {REDUCES['where']}",
    )


def test_another_line_of_the_library_is_the_same_collective() -> None:
    inner = {"waits": True, "where": REDUCES["where"].replace(":2830", ":2826")}
    positions = at(0, overdue="o", **REDUCES), at(1, **REDUCES), at(2, **inner)
    assert to_blame(*positions) is None and "all 3 ranks wait in the same collective" in undecided({"n": positions})


@pytest.mark.parametrize("odd", [2, 4])
def test_where_many_wait_elsewhere_nobody_knows_who_is_out_of_place(odd: int) -> None:
    positions = tuple(at(rank, overdue="o", **(CASTS if rank < odd else REDUCES)) for rank in range(odd + 2))
    assert culprit({"n": positions}) is None
    why = undecided({"n": positions})
    assert why.startswith(f"all {odd + 2} ranks wait for one another, and nothing tells which is out of place: ranks ")
    assert f"in {CASTS['where']}" in why and f"in {REDUCES['where']}" in why


def test_that_nobody_can_be_blamed_is_said_only_where_all_are_known_to_wait() -> None:
    assert "says nothing of whose fault it is" in undecided({"n": (at(0, overdue="o", **WAITS), at(1, **WAITS))})
    for other in ({}, LOADS, {"waits": True, "quiet_s": 0.1}):
        assert undecided({"n": (at(0, overdue="o", **WAITS), at(1, **{**WAITS, **other, "waits": other.get("waits")}))}) == ""


def test_where_nothing_tells_the_ranks_apart_nobody_is_blamed_for_another() -> None:
    assert to_blame(at(0, overdue="o", **WAITS), at(1, **WAITS)) is None
    assert to_blame(at(0, overdue="o", **LOADS), at(1, **LOADS)) is None
    assert to_blame(at(0, overdue="o")) is None
    assert to_blame() is None


def test_of_several_that_cannot_be_told_apart_the_one_that_is_still_for_longest_and_the_others_are_named() -> None:
    found = blame(at(0, overdue="o", **WAITS), at(1, **LOADS), at(2, quiet_s=10.5, **LOADS), at(3, **LOADS))
    assert found is not None and found.position.rank == 2 and found.others == (1, 3)
    own = Failure(node="n1", rank=2, at_unix=0.0, cause="hung", message="hung: no heartbeat for 12 s")
    assert blamed(own, found).message == (
        "hung: no heartbeat for 12 s; others wait for it in a collective (nor can ranks 1, 3 be told from it)"
    )


def test_a_rank_whose_own_limit_has_not_told_hangs_since_its_last_sign() -> None:
    failure = unreported(at(3, step=41, **LOADS), node="n", role="r", round=2, attempt=1, now_unix=1000.0)
    assert failure.cause == "hung" and failure.at_unix == 990.0 and failure.pid == 103
    assert failure.message == "hung: no sign of life for 10.0 s; at step 41, in load (data.py:88)"


def test_an_inquiry_waits_for_every_node_and_for_none_for_ever() -> None:
    inquiry = Inquiry(1, ["a", "b"], until=5.0 + ANSWER_S)
    inquiry.hear("a", (at(0),))
    inquiry.held.append(("a", Failure(node="a", rank=0, at_unix=0.0, cause="hung")))
    assert not inquiry.is_over(5.0)
    assert inquiry.is_over(5.0 + ANSWER_S), "b is silent"
    inquiry.hear("b", ())
    assert inquiry.is_over(5.0)
    assert not Inquiry(1, [], until=1.0).is_over(0.0), "nothing to judge"
