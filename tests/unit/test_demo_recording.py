"""Is docs/demo.svg, the recording of `make demo`, a drawing that any browser plays? What it shows: `e2e/test_demo.py`."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from kit import ROOT
from tools.record_demo import COLUMNS, MOST_S, ROWS, Line, drawn, lines_of

RECORDING = ROOT / "docs" / "demo.svg"


def test_it_is_well_formed_small_and_plays_without_a_script_or_another_s_file() -> None:
    """In light and dark, and stands still for whom moving drawings disturb."""
    text = RECORDING.read_text()
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "title", "style", "rect", "g", "text"}
    assert "href" not in text and "url(" not in text and len(text.encode()) < 60_000
    assert "prefers-color-scheme:dark" in text and "prefers-reduced-motion:reduce" in text and "infinite" in text


def test_it_shows_how_the_demo_ends() -> None:
    first, *_, last = lines_of(RECORDING.read_text())
    assert first.startswith("  Two nodes × two ranks") and "the final loss is the same" in last


def test_long_lines_are_wrapped_and_nothing_is_lost() -> None:
    """Signs that mean something in XML included."""
    lines = ["$ " + "word <& " * 40, "next", "x" * (COLUMNS + 1)]
    assert lines_of(drawn([Line(number, text) for number, text in enumerate(lines)])) == lines


def test_it_moves_up_once_the_window_is_full_and_a_long_pause_is_shortened() -> None:
    lines = [Line(100.0 * number, f"line {number}") for number in range(ROWS + 1)]
    text = drawn(lines)
    roll = text.partition("@keyframes roll{")[2].partition("}}")[0]
    assert roll.count("translateY(0px)") == 1 and f"animation:roll {MOST_S * ROWS + 8:.1f}s" in text
