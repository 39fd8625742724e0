"""Does the page about the fleet say what the supervisor's machine does?"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.reference.fleet import page
from tools.reference.fleet_walk import STATES, SWAPS, Step, walk

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fleet.md"


@pytest.fixture(scope="module")
def steps() -> set[Step]:
    return walk()


def test_the_reference_is_made_from_the_machine(steps: set[Step]) -> None:
    assert PAGE.read_text() == page(steps), "run: make reference"


def test_the_walk_comes_through_every_state_of_a_node_and_every_step_of_a_swap(steps: set[Step]) -> None:
    assert {step.after for step in steps if step.machine == "node"} == set(STATES)
    assert {step.after for step in steps if step.machine == "swap"} == set(SWAPS)
