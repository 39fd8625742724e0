"""What can a change break? Finds the tests that reach what differs from HEAD, and runs the nearest for a minute.

    make test-changed
    python tests/tools/changed.py --base main --seconds 300 -x     since another revision, longer, with arguments of pytest's

A test reaches what it imports, and what that imports, wherever it does; what it runs as a program; and files that it names. The
fewer steps it takes, the sooner a test's turn comes; of those that are equally near, those that start no process. When the time
is over no other test begins, and what has not been run is counted: `make test` runs all.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from kit.imports import imports, name_of  # noqa: E402

PATHS = ("src", "tests")
"""Folders whose modules are known by name."""
QUIET = ("tests/unit/", "tests/sim/")
"""Tests there start no process."""
COMMAND, MAIN = "holdfast", "src/holdfast/__main__.py"
"""The fixture that runs the product as its user does, and what is run then."""
RUNS_IT = "tests/kit/command.py"
"""The fixture is made of this, which every conftest imports: who does not use it runs nothing by it."""
LISTING = frozenset(("glob", "rglob", "iterdir", "listdir"))
"""Who calls one of these, and names a folder, reads what is in it."""
IN_TEXT = re.compile(r"^\s*((?:from|import) holdfast[\w., ]*)", re.MULTILINE)
"""An import in the text of a script that a test writes."""


# --- what one file uses -----------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """One Python file of the checkout."""

    path: str
    """Below the root."""
    imports: set[str]
    """Full names of what it imports, and of what scripts in it import that it writes."""
    texts: set[str]
    """All text in it but docstrings; what an f-string fills in is `*`."""
    runs: set[str]
    """Packages that it runs: `"-m", "holdfast"`."""
    lists_folders: bool
    """It looks what is in some folder."""
    fixtures: dict[str, set[str]]
    """Of each function: the names of its arguments, which for pytest are fixtures."""


def parsed(path: str, text: str) -> Source:
    """What can be read off a file's syntax tree, which is not kept: there are a thousand."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    texts = _texts(nodes)
    imported = {one.name for one in imports(tree, _module(path), path.endswith("/__init__.py"))}
    for line in (line for text in texts if " holdfast" in text for line in IN_TEXT.findall(text)):
        imported |= {one.name for one in imports(ast.parse(line.rstrip(" ,").removesuffix(" import")), "")}
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    return Source(
        path,
        imported,
        texts,
        runs=set(_runs(nodes)),
        lists_folders=any(isinstance(node, ast.Attribute) and node.attr in LISTING for node in nodes),
        fixtures={one.name: {arg.arg for arg in (*one.args.args, *one.args.kwonlyargs)} for one in functions},
    )


def _texts(nodes: list[ast.AST]) -> set[str]:
    said = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    said |= {id(part) for node in joined for part in node.values}
    plain = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in said)
    return {_pattern(node) for node in joined} | {node.value for node in plain if isinstance(node.value, str)}


def _pattern(text: ast.JoinedStr) -> str:
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in text.values)


def _runs(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        row = node.elts if isinstance(node, (ast.List, ast.Tuple)) else node.args if isinstance(node, ast.Call) else []
        for before, after in pairwise(row):
            if isinstance(before, ast.Constant) and before.value == "-m" and isinstance(after, ast.Constant):
                yield str(after.value)


def _module(path: str) -> str:
    top = path.partition("/")[0]
    return name_of(PurePosixPath(path).relative_to(top)) if top in PATHS else ""


# --- who reaches what -------------------------------------------------------------------------------------------------------


class Graph:
    """Which file of a checkout uses which. `tree`: path → text of its Python files; `others`: paths of others that matter."""

    def __init__(self, tree: Mapping[str, str], others: Iterable[str] = ()) -> None:
        self.sources = {path: parsed(path, text) for path, text in tree.items()}
        self.others = tuple(others)
        self.modules = {_module(path): path for path in (*tree, *self.others) if path.endswith(".py") and _module(path)}
        self.tests = [path for path in tree if path.startswith("tests/") and is_test(path)]
        self.programs = [path for path in tree if path.startswith("tests/") and not is_test(path)]

    def uses(self, path: str) -> set[str]:
        """What a file uses itself."""
        source = self.sources[path]
        names = source.imports | {text.partition(":")[0] for text in source.texts if text.startswith("holdfast.")}
        used = {file for name in names for file in self._named(name, str(PurePosixPath(path).parent))}
        if path != RUNS_IT:
            used |= {self.modules[f"{name}.__main__"] for name in source.runs if f"{name}.__main__" in self.modules}
        if path.startswith("tests/"):
            used |= set(self._conftests(path))
            used |= {one for one in self.programs if any(_is_file(text, one) for text in source.texts)}
            if self._runs_the_command(source):
                used.add(MAIN)
        return used - {path}

    def _named(self, name: str, folder: str) -> Iterator[str]:
        """The module of that name or with that name in it, its packages, and its neighbours in a folder without a package."""
        if "*" in name:
            if name.count(".") > 1:  # not a word of somebody else's, such as holdfast.something
                yield from (path for module, path in self.modules.items() if fnmatchcase(module, name))
            return
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            if path := self.modules.get(".".join(parts[:length])):
                yield path
        if (beside := f"{folder}/{parts[0]}.py") in self.sources:
            yield beside

    def _conftests(self, path: str) -> Iterator[str]:
        for folder in PurePosixPath(path).parents:
            if (conftest := f"{folder}/conftest.py") in self.sources:
                yield conftest

    def _runs_the_command(self, source: Source) -> bool:
        """Whether a fixture of it is the command, or made of it."""
        if not is_test(source.path) or MAIN not in self.sources:
            return False
        needed = {COMMAND}
        given = [self.sources[one].fixtures for one in self._conftests(source.path)]
        while more := {name for fixtures in given for name, args in fixtures.items() if args & needed} - needed:
            needed |= more
        return any(args & needed for args in source.fixtures.values())

    def distances(self, changed: set[str]) -> dict[str, int]:
        """Of every file that reaches one of these: in how many steps."""
        users: dict[str, set[str]] = {}
        for path, source in self.sources.items():
            for used in self.uses(path) | {one for one in changed if _names(source, one)}:
                users.setdefault(used, set()).add(path)
        found = {path: 0 for path in changed}
        queue = deque(sorted(changed))
        while queue:
            here = queue.popleft()
            for user in sorted(users.get(here, ())):
                if user not in found:
                    found[user] = found[here] + 1
                    queue.append(user)
        return found

    def choose(self, changed: set[str]) -> list[str]:
        """The test files that reach one of these, in the order of their turns."""
        distances = self.distances(changed)
        reached = [path for path in self.tests if path in distances]
        return sorted(reached, key=lambda path: (distances[path], not path.startswith(QUIET), path))


def is_test(path: str) -> bool:
    """Whether pytest collects it."""
    return PurePosixPath(path).name.startswith("test_")


def _is_file(text: str, path: str) -> bool:
    """Whether a text is the file's name, or a pattern of names with that among them."""
    name = text.rpartition("/")[2]
    return name.endswith(".py") and name != "*.py" and fnmatchcase(PurePosixPath(path).name, name)


def _names(source: Source, path: str) -> bool:
    """Whether it reads that file, as far as can be seen: it names the file, or a folder of it whose files it lists."""
    parts = path.split("/")
    names = {path, parts[-1]} - {"__init__.py", "__main__.py"}
    if source.lists_folders:
        names |= {"/".join(parts[:length]) for length in range(1, len(parts))} - {"tests"}
    return path != source.path and not source.texts.isdisjoint(names)


# --- a checkout -------------------------------------------------------------------------------------------------------------


def differing(root: Path, base: str) -> set[str]:
    """Files that differ from that revision, tracked or not; those that are gone, too."""
    tracked = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    others = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return {path for path in (tracked + others).split("\0") if path}


def read(root: Path, changed: set[str]) -> Graph:
    """The graph of a checkout as it is now."""
    listed = _git(root, "ls-files", "-co", "--exclude-standard", "-z", *(f"{top}/*.py" for top in PATHS))
    tree = {path: (root / path).read_text() for path in listed.split("\0") if path and (root / path).exists()}
    return Graph(tree, tuple(changed - set(tree)))


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], stdout=subprocess.PIPE, text=True, check=True).stdout


class InTurn:
    """A plugin of pytest's: files in this order, and no other test begins when the time is over."""

    def __init__(self, files: list[Path], until: float) -> None:
        self.turns = {file: turn for turn, file in enumerate(files)}
        self.until = until
        self.left: list[pytest.Item] = []
        """Tests that have not been run."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.turns.get(item.path, len(self.turns)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True: it is taken care of."""
        if time.monotonic() < self.until:
            return None
        self.left.append(item)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.left:
            files = len({item.path for item in self.left})
            left = f"{_many(len(self.left), 'test')} in {_many(files, 'file')} not run"
            terminalreporter.write_line(f"the time is over: {left}: make test")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def main(argv: list[str], root: Path = ROOT) -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], epilog="Other arguments are pytest's.")
    parser.add_argument("--base", metavar="REV", default="HEAD", help="what it has changed since; default: HEAD")
    parser.add_argument("--seconds", type=float, default=60.0, help="when no other test begins; default: 60")
    options, for_pytest = parser.parse_known_args(argv)
    changed = differing(root, options.base)
    if not changed:
        print(f"nothing has changed since {options.base}")
        return 0
    graph = read(root, changed)
    files = graph.choose(changed)
    print(f"changed: {', '.join(sorted(changed))}")
    if not files:
        print("no test reaches that")
        return 0
    print(f"{_many(len(files), 'file')} of {len(graph.tests)} can tell, first of all {', '.join(files[:3])}", flush=True)
    paths = [root / file for file in files]
    return int(pytest.main([*map(str, paths), *for_pytest], plugins=[InTurn(paths, time.monotonic() + options.seconds)]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
