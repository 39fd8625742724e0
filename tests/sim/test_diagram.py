"""Do the pages about rounds say what the machine does?"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.reference.rounds import diagram, page
from tools.reference.walk import Step, walk

from holdfast.rendezvous.coordinator import exclusion

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def steps() -> set[Step]:
    return walk()


def test_the_reference_is_made_from_the_machine(steps: set[Step]) -> None:
    said = "run: make reference"
    assert (DOCS / "reference" / "rounds.md").read_text() == page(steps), said


def test_the_explanation_shows_the_same_diagram(steps: set[Step]) -> None:
    assert diagram(steps) in (DOCS / "explanation" / "rounds.md").read_text(), "run: make reference"


def test_the_walk_comes_through_every_phase_and_every_state_of_a_seat(steps: set[Step]) -> None:
    phases = {step.after for step in steps if step.machine == "phase"}
    assert phases == {"gathering", "running", "ending", "ended"}
    seats = {step.after for step in steps if step.machine == "seat"}
    assert seats == {"ready", "running", "succeeded", "stopping", "stopped", "leaving", "no seat"}


def test_a_machine_that_does_otherwise_makes_another_page(steps: set[Step], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusion.Admission, "newcomer", lambda self, seat, now: [])
    assert walk() != steps
