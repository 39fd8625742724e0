"""What does docs/reference/events.md say?

Made from the source of `core.job.events` and `core.job.failure`: classes, their fields with types and defaults, and the texts
beside them.
"""

from __future__ import annotations

import ast
from enum import StrEnum

from holdfast.core.job import events, failure
from tools.reference.source import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

HEAD = """\
# Events

<!-- Made from core/job/events.py by `make reference`. Do not edit. -->

Holdfast records everything that happens to a job as an event: one JSON line in `events-<node>.jsonl`, in the
[job's directory](state.md). `holdfast events` prints the events. `status`, `why`, `report` and `jobs` compute their output from
them. This page lists all events.

Every line begins with the same fields:

| field | type | meaning |
|---|---|---|
| `seq` | `int` | number of the line in this file, from 1; the count goes on if another agent continues the file |
| `at_unix` | `float` | when it was seen or decided, not written: seconds since the epoch, on this node's clock |
| `node` | `str` | name of the node, as in file names |
| `round` | `int` | round of the event; 0: before the first round |
| `attempt` | `int` | restarts of the job so far |
| `event` | `str` | name of the event, as below |

Each node records what it sees itself. The node that hosts the coordinator records what concerns the whole job (`NodeJoined`,
`NodeLeft`, `NodeLost`, `NodeExcluded`, `NodeReadmitted`, `Decided`). Readers must ignore unknown events and fields: a newer
version may add some.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for event in classes(events):
        if event.name in events.CATALOGUE:
            parts.append(section(event, "##"))
    parts.append("## The failure in it\n\nThe `failure` of a `FailureSeen`, and each of the `failures` in `report.json`.\n")
    parts += [section(value, "###") for value in classes(failure) if value.name == "Failure"]
    return "\n".join(parts)


def classes(module: ModuleType) -> Iterator[ast.ClassDef]:
    """Those of a module, as its source has them."""
    return (node for node in tree(module).body if isinstance(node, ast.ClassDef))


def section(node: ast.ClassDef, level: str) -> str:
    """A heading, what the class says of itself, and a table of its fields."""
    text = " ".join((ast.get_docstring(node) or "").split())
    rows = ["| field | type | meaning |", "|---|---|---|"]
    fields = list(_fields(node))
    rows += [f"| `{name}` | `{hint}`{default} | {meaning} |" for name, hint, default, meaning in fields]
    table = "\n".join(row.replace(" | None`", " \\| None`") for row in rows) + "\n" if fields else ""
    return f"{level} {node.name}\n\n{text}\n\n{table}"


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, meaning) of each field; the meaning is the text that follows it in the source."""
    for statement, after in zip(node.body, [*node.body[1:], None]):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = " ".join(str(after.value.value).split())
        default = "" if statement.value is None else f", else `{_on_disk(ast.unparse(statement.value))}`"
        yield statement.target.id, _on_disk(ast.unparse(statement.annotation)), default, meaning


def _on_disk(source: str) -> str:
    """A type or a default as JSON has it: words of an enum are text there."""
    name, _, member = source.partition(".")
    kind = vars(events).get(name) or vars(failure).get(name)
    if not isinstance(kind, type) or not issubclass(kind, StrEnum):
        return source
    return repr(str(kind[member])) if member else "str"
