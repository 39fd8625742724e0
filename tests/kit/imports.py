"""What does a module import? Read off its syntax tree: all of it, also what is imported within functions and for types only."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from kit import ROOT

SRC = ROOT / "src"


class Import(NamedTuple):
    """One import statement: the full name of what it imports, where, and whether loading the module runs it."""

    name: str
    line: int
    on_load: bool


def imports(tree: ast.Module, module: str, is_package: bool = False) -> list[Import]:
    """Every import in `tree`, relative ones resolved. Those under `if TYPE_CHECKING:` or in a function do not run on load."""
    found = _walk(tree, True)
    return [Import(name, node.lineno, on_load) for node, on_load in found for name in _names(node, module, is_package)]


def modules() -> list[tuple[str, Path]]:
    """Every module of ours: dotted name and file."""
    return [(name_of(path.relative_to(SRC)), path) for path in sorted(SRC.rglob("*.py"))]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree, read once for all that look at it and change nothing in it."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: PurePath) -> str:
    """`holdfast/core/__init__.py`, below a folder on Python's path → `holdfast.core`."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _walk(node: ast.AST, on_load: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, on_load
        elif isinstance(child, ast.If) and _is_for_types(child.test):
            for branch, runs in ((child.body, False), (child.orelse, on_load)):
                yield from _walk(ast.Module(body=branch, type_ignores=[]), runs)
        else:
            yield from _walk(child, on_load and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))


def _is_for_types(test: ast.expr) -> bool:
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")) == "TYPE_CHECKING"


def _names(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parents = module.split(".") if is_package else module.split(".")[:-1]
        kept = parents[: len(parents) - node.level + 1]
        base = ".".join([*kept, base] if base else kept)
    return [f"{base}.{alias.name}" for alias in node.names]
