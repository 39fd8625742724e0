"""How do the commands answer? With JSON for programs; for people with lines and tables.

A table is rich's on a terminal. Into a pipe or a file it goes as plain columns that stay as they are: two spaces or more
between columns, a heading line, no colours, nothing cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.core.value import to_plain
from holdfast.telemetry.report.safe_text import one_line

STYLES = {
    "running": "green", "ended": "dim", "lost": "bold red", "failed": "red", "succeeded": "green",
    "fit": "green", "spare": "cyan", "suspect": "yellow", "draining": "yellow", "unfit": "bold red",
    "have": "green", "degraded": "yellow", "missing": "bold red", "between": "yellow",
}  # fmt: skip
"""Colour of a cell that begins with the word."""


class Table(NamedTuple):
    """Rows under headings. Cells are shown as one safe line each."""

    headings: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""


def answer(as_json: bool, plain: Callable[[], Any], parts: Iterable[str | Table]) -> int:
    """Print the answer: `plain()` for programs, or its `parts`, lines and tables, for people. Returns 0."""
    if as_json:
        show_json(plain())
        return 0
    for part in parts:
        print(part) if isinstance(part, str) else show(*part)
    return 0


def show(headings: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
    """Print a table."""
    cells = [[one_line(str(cell), 2000) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _on_a_terminal(headings, cells, title)
        return
    if title:
        print(title)
    wide = [max(map(len, column)) for column in zip(headings, *cells)]
    for row in ([heading.upper() for heading in headings], *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, wide)).rstrip())


def _on_a_terminal(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich import box, console, table, text

    shown = table.Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for heading in headings:
        shown.add_column(text.Text(heading))
    for row in rows:
        shown.add_row(*(text.Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row))
    console.Console().print(shown)


def show_json(value: Any) -> None:
    """Print `value` as JSON."""
    print(json.dumps(to_plain(value), indent=2, default=str))
