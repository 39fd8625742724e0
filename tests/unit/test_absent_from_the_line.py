"""Who has a say in who leads, of those whose links have broken? Sizes, and no clock."""

from __future__ import annotations

import pytest

from holdfast.agent.leader.peer_elected_node import without_absent
from holdfast.core.wire.messages import Electorate


def line(nodes: str, absent: str, *, witness: bool = False) -> str:
    return "".join(without_absent({node: node not in absent for node in nodes}, witness))


@pytest.mark.parametrize(
    ("nodes", "absent", "left"),
    [
        ("abcd", "b", "acd"),
        ("abcde", "bc", "ade"),
        ("abcdef", "bf", "abcde"),
        ("abc", "", "abc"),
    ],
)
def test_whoever_is_gone_has_no_say_where_fewer_votes_are_a_majority_then(nodes: str, absent: str, left: str) -> None:
    assert line(nodes, absent) == left


@pytest.mark.parametrize(("nodes", "absent"), [("abc", "b"), ("ab", "b"), ("abcd", "bc"), ("abcde", "bcde")])
def test_all_keep_theirs_where_it_would_change_nothing_or_half_are_gone(nodes: str, absent: str) -> None:
    assert line(nodes, absent) == nodes


def test_a_witness_makes_an_even_number_as_good_as_an_odd_one() -> None:
    assert line("abc", "b", witness=True) == "ac" and line("ab", "b", witness=True) == "ab"


def majority(size: int, witness: bool) -> int:
    return Electorate(id=1, size=size, witness=witness and size % 2 == 0).majority


def test_a_majority_of_those_that_are_left_is_never_larger() -> None:
    for size in range(1, 12):
        for gone in range(size):
            for witness in (False, True):
                nodes = {str(number): number >= gone for number in reversed(range(size))}
                left = len(without_absent(nodes, witness))
                assert majority(left, witness) <= majority(size, witness)
                assert left == size or left >= 3 or witness
