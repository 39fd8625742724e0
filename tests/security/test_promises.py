"""Does the page on security promise nothing that no test shows? Each row of its table names one; each module here has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from kit import ROOT

PAGE = ROOT / "docs/explanation/security.md"
HERE = Path(__file__)


def rows() -> list[tuple[str, str, str]]:
    """(who, what, test) of each promise."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## What is promised, and by which test\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]
    return [(who, what, test.strip("`")) for who, what, test in found]


def named_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("who, what, test", rows(), ids=lambda text: text.rpartition("::")[2][:60])
def test_each_promise_has_a_test(who: str, what: str, test: str) -> None:
    module, _, name = test.partition("::")
    assert who and what and re.fullmatch(r"test_\w+\.py::test_\w+", test)
    (path,) = (ROOT / "tests").glob(f"*/{module}")
    assert name in named_in(path), f"{path} has no {name}"


def test_the_table_is_there_and_no_promise_stands_twice() -> None:
    promises = [(who, what) for who, what, _ in rows()]
    assert len(promises) > 30 and len({*promises}) == len(promises)


def test_each_module_here_shows_a_promise() -> None:
    named = {test.partition("::")[0] for _, _, test in rows()}
    assert {path.name for path in HERE.parent.glob("test_*.py")} - named == {HERE.name}
