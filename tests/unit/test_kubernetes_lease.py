"""Whose is a Lease of Kubernetes? Decided by what changes in it, and by no other's clock."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.integrations.kubernetes.lease import Lease, Turn, lease_of


def lease(version: str, holder: str = "another_1", duration_s: float = 10.0) -> Lease:
    return Lease(version=version, holder=holder, duration_s=duration_s, transitions=0)


@pytest.mark.parametrize("found", [None, lease("1", ""), lease("1", "us_1")], ids=["none is there", "given back", "ours"])
def test_what_nobody_else_holds_is_taken_at_once(found: Lease | None) -> None:
    assert Turn("us_1").wait_for(found, 100.0) == ""


def test_another_s_is_waited_for_as_long_as_it_is_renewed() -> None:
    turn = Turn("us_1")
    for at in range(100):
        assert turn.wait_for(lease(str(at // 9)), float(at)) == "another_1"


def test_one_that_is_not_renewed_is_over_when_its_time_has_passed_here() -> None:
    turn = Turn("us_1")
    assert turn.wait_for(lease("7"), 50.0) == turn.wait_for(lease("7"), 59.9) == "another_1"
    assert turn.wait_for(lease("7"), 60.0) == ""


def test_the_time_begins_anew_with_each_holder() -> None:
    turn = Turn("us_1")
    turn.wait_for(lease("7"), 50.0)
    assert turn.wait_for(lease("8", "a third_1"), 60.0) == turn.wait_for(lease("8", "a third_1"), 69.0) == "a third_1"


@pytest.mark.parametrize("thing", [{}, {"spec": None}, {"spec": {"holderIdentity": None}}])
def test_a_lease_that_somebody_has_made_by_hand_is_nobody_s(thing: dict[str, Any]) -> None:
    assert Turn("us_1").wait_for(lease_of({"metadata": {"resourceVersion": "1"}, **thing}), 0.0) == ""
