"""What does a module's source say? Its syntax tree, in which a meaning on a name's line stands below it, as longer ones do."""

from __future__ import annotations

import ast
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

BESIDE = re.compile(r"^( *)(\w+(?:, \w+)*(?:: | = ).+?)  # (?!noqa)(.+)$", re.MULTILINE)


def tree(module: ModuleType) -> ast.Module:
    """The module's syntax tree."""
    assert module.__file__ is not None
    with open(os.path.splitext(module.__file__)[0] + ".py", encoding="utf-8") as source:
        return ast.parse(BESIDE.sub(r'\1\2\n\1"""\3"""', source.read()))
