"""Rules of style that have bitten, or would: each is one function over a module's syntax tree, with its reason."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
from kit.imports import tree_of

SRC = Path(__file__).parents[2] / "src" / "holdfast"

MAY_SLEEP = {
    "client/commit.py": "until its agent renews the lease in shared memory, or kills it: nobody wakes a rank that has none",
    "integrations/kubernetes/orchestrator.py": "an API server that is busy says how long to wait; the call is a thread's own",
    "elastic": "torch's own names promise it",
}
MAY_PICKLE = {
    "diagnosis/hangs/recorder_file.py": "torch writes pickle: read by an unpickler that knows no names, so nothing is called",
    "client/collectives.py": "reads what torch has written that very moment, in the same process",
    "core/value.py": "makes values picklable; unpickles nothing",
}
MAY_SWALLOW = {
    "client/boot": "runs in the user's interpreter: whatever goes wrong with us, the script must start as if we were not there",
    "client/bootstrap.py": "the same",
}
Rule = Callable[[ast.Module, str], list[str]]


def _allowed(path: str, places: dict[str, str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


@lru_cache(maxsize=1)  # each rule looks at the same module in turn
def _nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def _calls(tree: ast.Module) -> list[ast.Call]:
    return [node for node in _nodes(tree) if isinstance(node, ast.Call)]


def _named(node: ast.expr) -> str:
    """`os.system`, of a name or a name's attribute; of anything else nothing that a rule asks for."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
        case ast.Name(id=name):
            return name
    return ""


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def no_sleep(tree: ast.Module, path: str) -> list[str]:
    """A sleep is a poll, or a race covered up: wait for the event, or give the loop a deadline. It raises where an interposed
    clock (libfaketime) was set back, and what ends workers may not."""
    if _allowed(path, MAY_SLEEP):
        return []
    imported = any(
        isinstance(node, ast.ImportFrom) and node.module == "time" and any(alias.name == "sleep" for alias in node.names)
        for node in _nodes(tree)
    )
    lines = [call.lineno for call in _calls(tree) if _named(call.func) == "time.sleep"]
    return [f"line {line}: time.sleep" for line in lines] + (["from time import sleep"] if imported else [])


def no_pickle(tree: ast.Module, path: str) -> list[str]:
    """Unpickling what a peer sent runs the peer's code: nothing on the wire is pickled."""
    if _allowed(path, MAY_PICKLE):
        return []
    wanted = {"pickle", "marshal", "shelve"}
    named = [
        (node.lineno, name.split(".")[0])
        for node in _nodes(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    return [f"line {line}: {name}" for line, name in named if name in wanted]


def no_shell(tree: ast.Module, path: str) -> list[str]:
    """A command is a list of words: a shell in between splits paths at spaces and hides the exit code."""
    shells = [call.lineno for call in _calls(tree) if _named(call.func) in ("os.system", "os.popen")]
    shells += [
        call.lineno
        for call in _calls(tree)
        for keyword in call.keywords
        if keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
    ]
    return [f"line {line}: a shell" for line in shells]


def annotations_are_text(tree: ast.Module, path: str) -> list[str]:
    """`Value` reads its fields' annotations as text, and evaluating them would cost every start."""
    if not any(getattr(node, "annotation", None) or getattr(node, "returns", None) for node in _nodes(tree)):
        return []
    there = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
    return [] if there else ["no `from __future__ import annotations`"]


def says_its_question(tree: ast.Module, path: str) -> list[str]:
    """A module's first paragraph says which question it answers and what it leaves to others."""
    return [] if not tree.body or ast.get_docstring(tree) else ["no docstring at the top"]


def public_names_are_explained(tree: ast.Module, path: str) -> list[str]:
    """A public function says what it means: its name alone gives no units, shapes or errors. (elastic's are torch's, known.)"""
    if path.startswith("elastic/"):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"line {node.lineno}: {node.name} has no docstring"
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]


def a_docstring_has_its_name(tree: ast.Module, path: str) -> list[str]:
    """Two docstrings in a row: something was put between a name and what is said of it."""
    return [
        f"line {after.lineno}: a docstring behind another"
        for node in _nodes(tree)
        if isinstance(body := getattr(node, "body", None), list)
        for before, after in pairwise(body)
        if _is_text(before) and _is_text(after)
    ]


def nothing_unseen_is_caught(tree: ast.Module, path: str) -> list[str]:
    """`except Exception: pass` makes a broken promise look kept: catch what can be acted on, or say why nothing can be done."""
    if _allowed(path, MAY_SWALLOW):
        return []
    return [
        f"line {node.lineno}: swallows every exception"
        for node in _nodes(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or _named(node.type) in ("Exception", "BaseException"))
        and len(node.body) == 1
        and isinstance(node.body[0], ast.Pass)
    ]


RULES: list[Rule] = [
    no_sleep,
    no_pickle,
    no_shell,
    annotations_are_text,
    says_its_question,
    public_names_are_explained,
    a_docstring_has_its_name,
    nothing_unseen_is_caught,
]


def test_the_house_keeps_the_rule() -> None:
    """Each of them: a module is parsed once for all."""
    found = dict[Rule, list[str]]()
    for file in sorted(SRC.rglob("*.py")):
        tree, path = tree_of(file), str(file.relative_to(SRC))
        for rule in RULES:
            for fault in rule(tree, path):
                found.setdefault(rule, []).append(f"{path}: {fault}")
    told = (f"{rule.__name__.replace('_', ' ')}: {rule.__doc__}\n" + "\n".join(faults) for rule, faults in found.items())
    assert not found, "\n\n".join(told)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (no_sleep, "import time\ntime.sleep(1)"),
        (no_sleep, "from time import sleep"),
        (no_pickle, "def f():\n    from pickle import loads"),
        (no_pickle, "import json, marshal"),
        (no_shell, "import os\nos.system('true')"),
        (no_shell, "subprocess.run('true', shell=True)"),
        (annotations_are_text, "class A:\n    rank: int"),
        (says_its_question, "import os"),
        (public_names_are_explained, "def stop(): ..."),
        (a_docstring_has_its_name, 'STEP = 73\n"""Of this."""\n"""And of that."""'),
        (nothing_unseen_is_caught, "try:\n    f()\nexcept Exception:\n    pass"),
    ],
)
def test_a_broken_rule_is_seen(rule: Rule, source: str) -> None:
    assert rule(ast.parse(source), "agent/workers/launch.py")


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their names alone, from whatever folder comes first."""
    names = [file.name for file in Path(__file__).parents[1].rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
