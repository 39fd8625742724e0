"""How heavy is the house? Counts what makes it hard to carry, over the syntax tree of every module, and prints a table.

    python tests/tools/house.py            the table
    python tests/tools/house.py cycles     each circle of imports; so for every row that is a list

What is counted, how many there may be, and the number to reach stand in `ROWS`; `tests/unit/test_house.py` holds them.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import ROOT
from kit.imports import imports, modules, tree_of

MIRRORS = ("elastic", "fault_tolerance", "inprocess", "ptl_resiliency")
"""Packages laid out as torch's and NVRx's are, so that their users find what they know."""
CLOCKS = {
    *("time.time", "time.monotonic", "time.perf_counter", "time.sleep", "time.time_ns", "time.monotonic_ns", "time.localtime"),
    *("time.strftime", "time.gmtime", "datetime.now", "datetime.utcnow", "datetime.datetime.now", "asyncio.sleep"),
}
HAVE_CLOCKS = ("runtime", "sim", "elastic", "inprocess")
"""Packages that are there to read the clock, to play one, or to be like torch's and NVRx's, which do."""
ONE_OPTION = ("grow_after", "grow-after", "GROW_AFTER")
"""The option whose places are counted for all of them."""


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT / "src/holdfast"))

    @property
    def package(self) -> str:
        return self.where.partition("/")[0]


@functools.cache
def house() -> tuple[Module, ...]:
    """Every module of ours."""
    return tuple(Module(name, path, tree_of(path)) for name, path in modules())


def largest_folder() -> list[str]:
    """The files of the folder with most modules."""
    folders = Counter(one.path.parent for one in house() if one.package not in MIRRORS)
    folder, _ = folders.most_common(1)[0]
    return sorted(one.where for one in house() if one.path.parent == folder)


def cycles() -> list[str]:
    """Circles of imports, those for types and those within functions included."""
    names = {one.name for one in house()}
    to: dict[str, set[str]] = {}
    for one in house():
        used = (found.name for found in imports(one.tree, one.name, one.path.name == "__init__.py"))
        targets = {name if name in names else name.rpartition(".")[0] for name in used}
        to[one.name] = (targets & names) - {one.name}
    return [" ".join(sorted(circle)) for circle in _circles(to)]


def _circles(to: dict[str, set[str]]) -> Iterator[set[str]]:
    """Tarjan's: sets of more than one whose members all reach each other."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(to[name]):
            if target not in index:
                yield from visit(target)
            low[name] = min(low[name], low[target] if target in stack else low[name])
        if low[name] == index[name]:
            circle = set(stack[(at := stack.index(name)) :])
            del stack[at:]
            if len(circle) > 1:
                yield circle

    for name in sorted(to):
        if name not in index:
            yield from visit(name)


def imports_in_functions() -> list[str]:
    """Import statements that run only when a function does."""
    found = []
    for one in house():
        for node in ast.walk(one.tree):
            if isinstance(node, FUNCTIONS):
                inside = {inner for inner in ast.walk(node) if isinstance(inner, (ast.Import, ast.ImportFrom))}
                found += [(one.where, inner.lineno, ast.unparse(inner)) for inner in inside]
    return [f"{where}:{line}: {text}" for where, line, text in sorted(set(found))]


def assignments_to_others() -> list[str]:
    """Assignments to a field of an object other than the method's own."""
    found = []
    for one in house():
        for node in ast.walk(one.tree):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _assigns(node) else []
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and not _is_own(part.value):
                    found.append(f"{one.where}:{part.lineno}: {ast.unparse(part)}")
    return found


def _assigns(node: ast.AST) -> bool:
    return isinstance(node, (ast.AugAssign, ast.AnnAssign))


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def complex_functions() -> list[str]:
    """Functions with a cyclomatic complexity above 15, the highest first: one more than there are places where they branch."""
    found = []
    for one in house():
        for node in ast.walk(one.tree):
            if isinstance(node, FUNCTIONS) and (branches := 1 + sum(map(_branches, _inside(node)))) > 15:
                found.append((branches, f"{one.where}:{node.lineno}: {node.name}"))
    return [f"{where} has {branches}" for branches, where in sorted(found, reverse=True)]


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension)


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """All of a function but functions and classes within."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield child
            yield from _inside(child)


def _branches(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.match_case):
        return int(ast.unparse(node.pattern) != "_")
    return int(isinstance(node, BRANCHES))


def bare_states() -> list[str]:
    """Comparisons of a field called as states are with a string."""
    found = []
    for one in house():
        for node in ast.walk(one.tree):
            if isinstance(node, ast.Compare) and _is_state(node.left) and any(_is_words(other) for other in node.comparators):
                found.append(f"{one.where}:{node.lineno}: {ast.unparse(node)}")
    return found


STATES = ("state", "phase", "status", "outcome", "stage", "standing", "condition", "kind", "mode")


def _is_state(value: ast.expr) -> bool:
    name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
    return name.rpartition("_")[2] in STATES


def _is_words(value: ast.expr) -> bool:
    parts = value.elts if isinstance(value, (ast.Tuple, ast.Set, ast.List)) else [value]
    return bool(parts) and all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)


def places_of_an_option() -> list[str]:
    """Files that name `--grow-after`."""
    return [one.where for one in house() if any(word in one.path.read_text() for word in ONE_OPTION)]


def clock_calls() -> list[str]:
    """Calls that read the clock or wait for it, outside of what is there for that."""
    found = []
    for one in house():
        if one.package not in HAVE_CLOCKS:
            for node in ast.walk(one.tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS:
                    found.append(f"{one.where}:{node.lineno}: {ast.unparse(node)}")
    return found


def lines() -> list[str]:
    """Every line in src."""
    return [line for one in house() for line in one.path.read_text().splitlines()]


def architecture() -> list[str]:
    """The lines of ARCHITECTURE.md."""
    return (ROOT / "ARCHITECTURE.md").read_text().splitlines()


class Row(NamedTuple):
    """What is counted, by what lists it; how many there may be today, and in the end."""

    what: str
    found: Callable[[], list[str]]
    most: int
    reach: int


ROWS = (
    Row("files in the largest folder, mirrors of others' layout aside", largest_folder, 16, 16),
    Row("circles of imports", cycles, 0, 0),
    Row("imports inside functions", imports_in_functions, 100, 100),
    Row("assignments to another object's fields", assignments_to_others, 60, 60),
    Row("functions above a complexity of 15", complex_functions, 0, 0),
    Row("comparisons with bare-string states", bare_states, 0, 0),
    Row("files that name one option (--grow-after)", places_of_an_option, 2, 2),
    Row("clock calls outside runtime, sim, elastic and inprocess", clock_calls, 20, 20),
    Row("lines in src", lines, 88_796, 60_000),
    Row("lines in ARCHITECTURE.md", architecture, 250, 250),
)


def main(argv: list[str]) -> int:
    """Print the table, or what a row counts."""
    if argv:
        print(*next(row.found for row in ROWS if row.found.__name__ == argv[0])(), sep="\n")
        return 0
    width = max(len(row.what) for row in ROWS)
    print(f"{'':{width}} {'now':>7} {'reach':>7}")
    for row in ROWS:
        print(f"{row.what:{width}} {len(row.found()):7,} {row.reach:7,}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
