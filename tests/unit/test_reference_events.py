"""Is docs/reference/events.md what core/job/events.py says?"""

from __future__ import annotations

from pathlib import Path

from tools.reference.events import page

from holdfast.core.job.events import CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"


def test_the_page_is_made_from_the_catalogue():
    assert PAGE.read_text() == page(), "run: make reference"


def test_every_event_has_a_section_and_says_what_it_means():
    sections = dict(section.split("\n\n", 1) for section in page().split("\n## ")[1:])
    for name in CATALOGUE:
        assert not sections[name].startswith(("|", "\n")), f"{name} has no docstring"


def test_every_field_says_what_it_means():
    bare = [line for line in page().splitlines() if line.startswith("|") and line.split(" | ")[-1].strip(" |") == ""]
    assert not bare, "a field without a docstring in core/job/events.py or core/job/failure.py"
    assert page().count("\n| `") > 60, "or the tables have another form by now"
