"""Does every import inside a function say why it stands there, and not at the top of its module?

A heavy third party is imported where it is used. Any other import inside a function has a comment that states the reason, on
its own line or on the line above. `UNEXPLAINED` counts those without, by package. It may only fall, and ends as an empty table.
"""

from __future__ import annotations

import ast
import re

import pytest
from kit.imports import SRC, modules

HEAVY = frozenset(
    "PIL accelerate etcd3gw grpc jax lightkube lightning msgspec numpy opentelemetry prometheus_client py_spy pynvml "
    "pytorch_lightning rich starlette torch transformers uvicorn yaml".split()
)
"""Third parties whose import takes long, or which not every user has installed."""
UNEXPLAINED = {
    "agent": 7,
    "elastic": 5,
    "health": 5,
    "integrations": 1,
    "recovery": 1,
    "telemetry": 1,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FOR_TOOLS = re.compile(r"#\s*(noqa|type:|pragma|ruff:|mypy:|fmt:)[^#]*")
"""What is written for a program is no reason."""


def unexplained(source: str) -> list[str]:
    """Imports within functions, neither of a heavy third party nor with a reason: `line: statement`."""
    lines = source.splitlines()
    found = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, FUNCTIONS):
            for node in ast.walk(function):
                if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_heavy(node) and not _reason(lines, node):
                    found[node.lineno] = ast.unparse(node)
    return [f"{line}: {text}" for line, text in sorted(found.items())]


def _is_heavy(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else ["" if node.level else node.module or ""]
    return all(name.partition(".")[0] in HEAVY for name in names)


def _reason(lines: list[str], node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a comment of at least three words stands on the statement's lines, or fills the line above it."""
    above = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
    its_own = [line.partition("#")[1] + line.partition("#")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
    comments = [FOR_TOOLS.sub("", comment).strip("# ") for comment in (*its_own, above if above.startswith("#") else "")]
    return any(len(comment.split()) >= 3 for comment in comments)


@pytest.mark.parametrize("package", sorted({path.relative_to(SRC / "holdfast").parts[0] for _, path in modules()}))
def test_an_import_inside_a_function_says_why_it_stands_there(package: str) -> None:
    found = [
        f"{path.relative_to(SRC / 'holdfast')}:{one}"
        for _, path in modules()
        if path.relative_to(SRC / "holdfast").parts[0] == package
        for one in unexplained(path.read_text())
    ]
    most = UNEXPLAINED.get(package, 0)
    assert len(found) <= most, "\n".join([f"{len(found)}, and there may be {most}: move them to the top, or say why", *found])


@pytest.mark.parametrize(
    "line",
    [
        "import yaml",
        "from rich.table import Table",
        "import json  # the writer needs it once in a day",
        "# A rank without torch has no use for it.\n    import json",
        "from os import (\n        path,  # only on a node that has a disk\n    )",
    ],
)
def test_a_heavy_third_party_or_a_reason_is_enough(line: str) -> None:
    assert unexplained(f"def f():\n    {line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "import json",
        "import json  # noqa: E402",
        "import json  # type: ignore[x]",
        "import json  # lazily",
        "from . import yaml",
    ],
)
def test_anything_else_is_found(line: str) -> None:
    assert [one.partition(": ")[2] for one in unexplained(f"def f():\n    {line}\n")] == [line.partition("  #")[0]]


def test_imports_at_the_top_and_for_types_need_none() -> None:
    assert unexplained("import json\nif TYPE_CHECKING:\n    import ast\nclass A:\n    import os\n") == []
