"""Many failures in one job whose ranks begin again in their processes. `make in-place` plays a thousand."""

from __future__ import annotations

from typing import Any

import pytest
from tools.in_place import RANKS, play

FAILURES = 10
MORE = {"kB": 16_384, "descriptors": 12, "threads": 8}
"""So much more than after half of them. A life's process group has five descriptors and four threads, and may end late."""


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["any", "step", "twice"])
def test_after_many_failures_the_weights_are_those_of_an_undisturbed_run_and_who_lived_has_its_process(
    tmp_path: Any, way: str
) -> None:
    """At any moment; at offsets spread over a step; and with a second failure meanwhile."""
    found = play(way, FAILURES if way == "any" else FAILURES // 2, 1, tmp_path / "jobs")
    assert found["code"] == 0 and found["as_undisturbed"] and not found["replaced"], found
    if way == "any":
        early, late = found["grown"][-2:]
        assert late["failures"] == FAILURES - 1
        assert not [name for name, more in MORE.items() if late[name] > early[name] + more], found["grown"]


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_an_update_that_takes_its_time_is_not_torn(tmp_path: Any) -> None:
    """Else it was torn in all ranks at once, and nobody had a state to go on with."""
    found = play("step", 5, 1, tmp_path / "jobs", {"UPDATE_S": "0.2"})
    assert found["code"] == 0 and found["as_undisturbed"] and found["came_from"]["script"] == RANKS, found


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["gloo", "gloo-alive", "loader"])
def test_who_waits_for_others_or_for_its_data_is_out_and_keeps_its_process(tmp_path: Any, place: str) -> None:
    found = play(place, 3, 1, tmp_path / "jobs")
    assert found["code"] == 0 and not found["replaced"], found
