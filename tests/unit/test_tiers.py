"""What is only in `make test-all` is listed, with its reason, and exists."""

from __future__ import annotations

import ast
import re

import pytest
from kit import ROOT, TESTS, tiers


def test_contributing_lists_what_make_test_leaves_out_with_the_reason() -> None:
    assert tiers.table() in (ROOT / "CONTRIBUTING.md").read_text(), f"put this into CONTRIBUTING.md:\n{tiers.table()}"


@pytest.mark.parametrize("line", tiers.lines(), ids=lambda line: line.prefix)
def test_what_is_left_out_exists(line: tiers.Line) -> None:
    path, _, test = line.prefix.partition("::")
    assert (TESTS / path).exists()
    if test:
        names = [node.name for node in ast.walk(ast.parse((TESTS / path).read_text())) if isinstance(node, ast.FunctionDef)]
        assert test in names


@pytest.mark.parametrize(
    ("line", "test", "left_out"),
    [
        ("e2e/test_jax.py", "e2e/test_jax.py::test_the_example", True),
        ("e2e/test_jax.py", "e2e/test_jaxon.py::test_the_example", False),
        ("e2e/test_tee.py::test_it but a b", "e2e/test_tee.py::test_it[a b]", False),
        ("e2e/test_tee.py::test_it but a b", "e2e/test_tee.py::test_it[a c]", True),
        ("e2e/test_tee.py but test_it", "e2e/test_tee.py::test_it[a c]", False),
        ("e2e/test_tee.py but test_it", "e2e/test_tee.py::test_that", True),
        ("compat only torch, nvrx", "compat/test_ft.py::test_it[nvrx-3]", True),
        ("compat only torch, nvrx", "compat/test_ft.py::test_it[ours-3]", False),
        ("compat only torch, nvrx", "compat/test_ft.py::test_torch", False),
    ],
)
def test_a_line_takes_what_it_names(line: str, test: str, left_out: bool) -> None:
    assert tiers.line_of(line, "a reason").takes(test) is left_out


def test_no_invariant_of_the_architecture_is_left_out() -> None:
    """A parametrised one may keep some of its parameters only."""
    links = re.findall(r"\[`(test_\w+)`\]\(tests/([\w/]+\.py)\)", (ROOT / "ARCHITECTURE.md").read_text())
    named = [f"{path}::{test}" for test, path in links]
    assert len(named) > 50
    whole = [line for line in tiers.lines() if not line.but and not line.only]
    assert [test for test in named if any(line.takes(test) for line in whole)] == []
