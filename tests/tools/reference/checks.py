"""What does docs/reference/checks.md say? Made from the table of checks."""

from __future__ import annotations

from importlib import import_module

from holdfast.core.job.xid import ROWS
from holdfast.health.check import CHECKS
from holdfast.health.checks.kernel_log import PATTERNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.health.check import Check

HEAD = """# Checks

<!-- Made from the table of checks by `make reference`. Do not edit. -->

What `holdfast check`, `holdfast health-service`, `--check-before`, `--check-after` and `--check-during` can look at. To use
them: [Leave unfit nodes out](../how-to/health.md). To add one: [Write a check](../how-to/write-a-check.md). A check is asked
for by its name, or as `NAME=ARGUMENT`. Behind any name, another package's too, may stand in brackets for how long it is waited
for, and how many answers in a row count: `NAME[deadline=30 bad=2 good=3]=ARGUMENT` is given up after 30 seconds, makes the node
unfit when it has said so twice in a row (before, it is degraded), and fit again after three other answers.

| check | argument | looks at | deadline | no answer in time |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD + "\n".join(map(_row, CHECKS)) + "\n"]
    parts.append(
        "`auto` stands for those of `gpu`, `xid`, `amd` and `nic` whose hardware is there. `holdfast check` without a name\n"
        "runs `memory`, `files`, `clock`, `kernel-log` and `auto`.\n"
    )
    parts += [f"## {check.name}\n\n{_prose(check)}" for check in CHECKS]
    log = ["## What the kernel's log is searched for\n", "| verdict | what it is | regular expression |", "|---|---|---|"]
    log += [f"| {state} | {what} | `{pattern.replace('|', chr(92) + '|')}` |" for state, what, pattern in PATTERNS]
    xids = [
        "## Xid errors\n",
        "From NVIDIA's catalogue of Xid errors.\n",
        "| Xid | what | kind | what helps |",
        "|---|---|---|---|",
    ]
    xids += [f"| {number} | {what} | {kind} | {action} |" for number, what, kind, action in ROWS]
    return "\n".join(parts) + "\n" + "\n".join(log) + "\n\n" + "\n".join(xids) + "\n"


def _row(check: Check) -> str:
    silence = f"{check.silence}" if check.silence != "fit" else "fit: not held against the node"
    return f"| `{check.name}` | {check.argument or '–'} | {check.help} | {check.deadline_s:g} s | {silence} |"


def _prose(check: Check) -> str:
    """The text of the function, and that of its module where it is alone there."""
    module, _, name = check.target.partition(":")
    loaded = import_module(module)
    text = " ".join((getattr(loaded, name).__doc__ or "").split())
    alone = sum(other.target.startswith(f"{module}:") for other in CHECKS) == 1
    return f"{_marked(loaded.__doc__ or '')}\n" if alone else f"{text}\n"


def _marked(text: str) -> str:
    """A module's text as Markdown: indented lines are a block of their own."""
    out: list[str] = []
    inside = False
    for line in text.strip().splitlines():
        indented = line.startswith("    ")
        if indented != inside and (indented or line):
            out.append("```text" if indented else "```")
            if not indented:
                out.append("")
            inside = indented
        out.append(line)
    if inside:
        out.append("```")
    return "\n".join(out).replace("\n\n```\n", "\n```\n")
