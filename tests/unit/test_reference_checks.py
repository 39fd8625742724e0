"""The page of checks is made from their table."""

from __future__ import annotations

from pathlib import Path

from tools.reference.checks import page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text() == page(), "run: make reference"
