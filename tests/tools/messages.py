"""What do we say to users? Every error with its hint, and every line on stderr or stdout, found over the syntax tree.

    python tests/tools/messages.py            all of them, as `file:line: what | hint`
    python tests/tools/messages.py cli        those of one package

`tests/unit/test_messages.py` holds a few rules of plain English over them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit.imports import SRC, modules, tree_of

SPEAKING = ("print", "tell", "warn", "complain", "say", "Say", "Notice")
"""Functions and values that say something to a person. So does what ends in `Error`."""
SHORTEST = 8
"""Shorter texts are names and formats."""


class Message(NamedTuple):
    """One message, with what is filled in in braces."""

    where: str
    text: str


def messages() -> Iterator[Message]:
    """All of them, in order of their files."""
    for _, path in modules():
        where = str(path.relative_to(SRC / "holdfast"))
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and _speaks(node.func):
                given = [*node.args, *(word.value for word in node.keywords if word.arg in ("hint", "text", "what"))]
                texts = [text for one in given if len(text := _text(one)) >= SHORTEST]
                if texts:
                    yield Message(f"{where}:{node.lineno}", " | ".join(texts))


def _speaks(function: ast.expr) -> bool:
    name = function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    return name.endswith("Error") or name in SPEAKING


def _text(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else _text(part) for part in value.values
        )
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


if __name__ == "__main__":
    wanted = tuple(sys.argv[1:])
    print(*(f"{one.where}: {one.text}" for one in messages() if one.where.startswith(wanted or "")), sep="\n")
