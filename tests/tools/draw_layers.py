"""Draws the layers of the code, from `tests/kit/layers.py`: which folder may import which?

    python tests/tools/draw_layers.py > docs/layers.svg

`tests/unit/test_layers_drawing.py` compares the two.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.layers import ASIDE, FLOORS

LAYER, GAP, BOX, STEP = 46, 8, 30, 8
LEFT, WIDE, BESIDE = 46, 620, 236
"""In pixels: a layer's height, between two; a box's height, between two; the layers' left and width, the width beside them."""
TOP = 16


def drawn() -> str:
    """The layers, the ground at the bottom, and beside them the folders with a rule of their own."""
    down = TOP + len(FLOORS) * (LAYER + GAP)
    parts = [f'<rect width="{LEFT + WIDE + BESIDE + 32}" height="{down + 34}" fill="#fff"/>']
    for number, floor in enumerate(FLOORS):
        y = _top(number)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDE}" height="{LAYER}" rx="5" fill="#eef2f6"/>')
        wide = (WIDE - STEP) // len(floor) - STEP
        for place, name in enumerate(floor):
            parts.append(_box(LEFT + STEP + place * (wide + STEP), y + STEP, wide, name, "#4c78a8", "#fff"))
    for name, (number, rule) in ASIDE.items():
        x, y = LEFT + WIDE + 16, _top(number)
        parts.append(_box(x, y, BESIDE, name, "#fff", "#333", ' stroke="#4c78a8" stroke-dasharray="5 3"'))
        parts.append(_text(x + BESIDE // 2, y + LAYER, rule, "#333", 12))
    parts.append(f'<path d="M24 {TOP} V{down - GAP} M18 {down - GAP - 10} L24 {down - GAP} L30 {down - GAP - 10}" {LINE}/>')
    said = "A folder imports from the layers below its own: never from a neighbour, never from above."
    parts.append(_text(LEFT + WIDE // 2, down + 16, said, "#333", 13))
    size = f"0 0 {LEFT + WIDE + BESIDE + 32} {down + 34}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif">'
    return "\n".join((head, *parts, "</svg>\n"))


LINE = 'fill="none" stroke="#333" stroke-width="1.5"'


def _top(number: int) -> int:
    return TOP + (len(FLOORS) - 1 - number) * (LAYER + GAP)


def _box(x: int, y: int, wide: int, name: str, fill: str, ink: str, border: str = "") -> str:
    box = f'<rect x="{x}" y="{y}" width="{wide}" height="{BOX}" rx="4" fill="{fill}"{border}/>'
    return f"{box}\n{_text(x + wide // 2, y + BOX // 2 + 5, name, ink, 14)}"


def _text(x: int, y: int, said: str, ink: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" fill="{ink}">{said}</text>'


if __name__ == "__main__":
    print(drawn(), end="")
