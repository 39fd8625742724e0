"""How does `make demo` look? `make recording` runs it, and draws what it prints as `docs/demo.svg`, which plays by itself.

It is one column of lines in a window, moved up line by line, by CSS alone. Pauses are shortened; nothing else is changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import ROOT

TARGET = ROOT / "docs" / "demo.svg"
COLUMNS, ROWS, LINE = 132, 26, 16  # Of the window; pixels from one line to the next.
MOST_S, HOLD_S = 0.7, 8.0  # The longest pause between two lines; how long the end stays.
WIDTH, HEIGHT = 12 * 2 + round(COLUMNS * 6.75), 12 * 2 + ROWS * LINE

TITLE = "make demo: a rank and then a node are killed, and training ends with the same loss (pauses are shortened)"
STYLE = """
svg{--paper:#fff;--ink:#24292f;--edge:#d0d7de;--lost:#b3261e;--well:#116329;--ours:#0a53a8}
@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#d6dce3;--edge:#3d444d;--lost:#ff8f87;--well:#6fdd8b;--ours:#8ec2ff}}
rect{fill:var(--paper)}
text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:var(--ink)}
.lost{fill:var(--lost);font-weight:700}.well{fill:var(--well);font-weight:700}.ours{fill:var(--ours)}.typed{font-weight:700}
"""


class Line(NamedTuple):
    """A line, and when it came."""

    at_s: float
    text: str


def recorded(command: Sequence[str]) -> Iterator[Line]:
    """What a command prints. CalledProcessError: it failed."""
    with tempfile.TemporaryDirectory(prefix="recording-") as folder:
        env = os.environ | {"TMPDIR": folder}
        running = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        for text in running.stdout:
            yield Line(time.monotonic(), text.rstrip().replace(folder, "/tmp").replace(f"{ROOT}/", ""))
    if running.wait():
        raise subprocess.CalledProcessError(running.returncode, command)


def drawn(lines: Sequence[Line]) -> str:
    """The SVG."""
    rows = [(row, _style(line.text), number > 0) for line in lines for number, row in enumerate(_wrapped(line.text))]
    texts = "\n".join(
        f'<text x="12" y="{12 + (number + 1) * LINE - 4}"{_class(style, goes_on)}>{escape(row)}</text>'
        for number, (row, style, goes_on) in enumerate(rows)
        if row
    )
    shown = _shown(lines)
    whole_s = shown[-1][0] + HOLD_S
    roll = [(at_s, min(0, ROWS - count) * LINE) for at_s, count in shown]
    cover = [(at_s, min(count, ROWS) * LINE) for at_s, count in shown if count <= ROWS + 4]
    moves = "".join(
        f"@keyframes {name}{{{_frames(steps, whole_s)}}}\n"
        f"#{name}{{animation:{name} {whole_s:.1f}s step-end infinite}}\n"
        f"@media(prefers-reduced-motion:reduce){{#{name}{{animation:none;transform:translateY({steps[-1][1]}px)}}}}\n"
        for name, steps in (("roll", roll), ("cover", cover))
    )
    box = f'width="{WIDTH}" height="{HEIGHT - 24}" viewBox="0 12 {WIDTH} {HEIGHT - 24}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xml:space="preserve">\n'
        f"<title>{TITLE}</title>\n<style>{STYLE}{moves}</style>\n"
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" style="stroke:var(--edge)"/>\n'
        f'<svg y="12" {box}>\n<g id="roll">\n{texts}\n</g>\n'
        f'<rect id="cover" x="8" y="12" width="{WIDTH - 16}" height="{HEIGHT}"/>\n</svg>\n</svg>\n'
    )


def lines_of(svg: str) -> list[str]:
    """The lines that a drawing shows, as they were before they were wrapped."""
    found: list[str] = []
    for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if "on" in text.get("class", "").split():
            found[-1] += text.text or ""
        else:
            found.append(text.text or "")
    return found


def _wrapped(text: str) -> list[str]:
    """As a terminal does it."""
    return textwrap.wrap(text, COLUMNS, drop_whitespace=False, break_on_hyphens=False) or [""]


def _style(text: str) -> str:
    said = text.partition("│ ")[2]
    marks = {"✂": "lost", "→": "well", "Done": "well", "$": "typed"}
    own = next((style for mark, style in marks.items() if text.strip().startswith(mark)), "")
    return own or ("ours" if said.startswith(("holdfast", "Decision", "  ")) else "")


def _class(style: str, goes_on: bool) -> str:
    names = " ".join(filter(None, (style, "on" if goes_on else "")))
    return f' class="{names}"' if names else ""


def _shown(lines: Iterable[Line]) -> list[tuple[float, int]]:
    """By second: how many rows are shown from then on."""
    shown, at_s, before = [(0.0, 0)], 0.0, None
    for line in lines:
        at_s += 0.0 if before is None else min(line.at_s - before, MOST_S)
        before = line.at_s
        count = shown[-1][1] + len(_wrapped(line.text))
        if at_s - shown[-1][0] < 0.02:
            shown[-1] = shown[-1][0], count
        else:
            shown.append((at_s, count))
    return shown


def _frames(steps: Sequence[tuple[float, int]], whole_s: float) -> str:
    frames, last = [], None
    for at_s, pixels in steps:
        if pixels != last:
            frames.append(f"{100 * at_s / whole_s:.2f}%{{transform:translateY({pixels}px)}}")
        last = pixels
    return "".join(frames) + f"100%{{transform:translateY({last}px)}}"


def main() -> None:
    """Record it."""
    TARGET.write_text(drawn(list(recorded([sys.executable, str(ROOT / "examples" / "demo.py")]))))
    print(f"wrote {TARGET.relative_to(ROOT)}: {TARGET.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
