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

`holdfast check`, `holdfast health-service`, `--check-before`, `--check-after` and `--check-during` run these checks. To use
them, read [Leave unfit nodes out](../how-to/health.md). To add one, read [Write a check](../how-to/write-a-check.md).

Give a check as `NAME` or `NAME=ARGUMENT`. Options go in brackets after the name, for checks of other packages too. For example,
`NAME[deadline=30 bad=2 good=3]=ARGUMENT` has a deadline of 30 seconds. It makes the node unfit after two bad answers in a row
(after the first, the node is degraded), and fit again after three other answers in a row.

| check | argument | what it checks | deadline | no answer in time |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD + "\n".join(map(_row, CHECKS)) + "\n"]
    parts.append(
        "`auto` means those of `gpu`, `xid`, `amd` and `nic` for which the node has the hardware. `holdfast check` without a\n"
        "name runs `memory`, `files`, `clock`, `kernel-log` and `auto`.\n"
    )
    parts += [f"## {check.name}\n\n{_prose(check)}" for check in CHECKS]
    log = ["## Patterns in the kernel's log\n", "| verdict | meaning | regular expression |", "|---|---|---|"]
    log += [f"| {state} | {what} | `{pattern.replace('|', chr(92) + '|')}` |" for state, what, pattern in PATTERNS]
    xids = [
        "## Xid errors\n",
        "From NVIDIA's catalogue of Xid errors.\n",
        "| Xid | meaning | kind | action |",
        "|---|---|---|---|",
    ]
    xids += [f"| {number} | {what} | {kind} | {action} |" for number, what, kind, action in ROWS]
    return "\n".join(parts) + "\n" + "\n".join(log) + "\n\n" + "\n".join(xids) + "\n"


def _row(check: Check) -> str:
    silence = f"{check.silence}" if check.silence != "fit" else "fit"
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
