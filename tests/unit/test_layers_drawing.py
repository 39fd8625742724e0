"""Is the drawing of the layers the one that the code's layers make, and does it have every folder?"""

from __future__ import annotations

from kit import ROOT
from kit.layers import ASIDE, FLOORS
from tools.draw_layers import drawn


def test_the_drawing_is_the_one_that_the_layers_make() -> None:
    svg = (ROOT / "docs" / "layers.svg").read_text()
    assert svg == drawn(), "run: python tests/tools/draw_layers.py > docs/layers.svg"


def test_every_folder_has_a_layer_or_a_rule_of_its_own() -> None:
    there = {path.parent.name for path in (ROOT / "src" / "holdfast").glob("*/__init__.py")}
    assert {name for floor in FLOORS for name in floor} | set(ASIDE) == there


def test_every_folder_is_drawn() -> None:
    svg = drawn()
    assert [name for floor in (*FLOORS, tuple(ASIDE)) for name in floor if f">{name}</text>" not in svg] == []
