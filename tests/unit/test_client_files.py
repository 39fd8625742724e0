"""Is `holdfast-client` what a script imports, the whole of it and no more, and can Python 3.10 read it?"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from kit.imports import SRC, imports, modules, name_of, tree_of
from kit.pythons import client_config, client_files

import holdfast

FILES = client_files()


def test_it_has_what_the_client_and_google_s_names_import_and_no_more() -> None:
    paths = dict(modules())
    waiting = [name for name in paths if name.startswith(("holdfast.client", "holdfast.google"))]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in needed or name not in paths:
            continue
        needed.add(name)
        used = {found.name for found in imports(tree_of(paths[name]), name, paths[name].name == "__init__.py")}
        waiting += [*used, *(one.rpartition(".")[0] for one in used), name.rpartition(".")[0]]
    assert {name_of(file.relative_to(SRC)) for file in FILES if file.suffix == ".py"} == needed
    assert SRC / "holdfast/py.typed" in FILES


@pytest.mark.parametrize("path", [file for file in FILES if file.suffix == ".py"], ids=lambda path: str(path.relative_to(SRC)))
def test_python_3_10_can_read_it(path: Path) -> None:
    """That it calls nothing newer is what mypy says for that version: tests/tools/lint_client.py."""
    ast.parse(path.read_text(), feature_version=(3, 10))


def test_its_version_is_holdfast_s_and_it_needs_nothing() -> None:
    project = client_config()["project"]
    assert (project["version"], project["requires-python"]) == (holdfast.__version__, ">=3.10")
    assert "dependencies" not in project
