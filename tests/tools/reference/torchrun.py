"""What does docs/reference/torchrun.md say? Made from the table of flags."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.config.flags import FLAGS, USE_ENV
from holdfast.core.config.option import OURS, Option
from tools.reference.differences import DIFFERENCES, KEPT, VARIABLES

HEAD = """\
# Command line: `holdfast run`

<!-- Made from the table of flags by `make reference`. Do not edit. -->

`holdfast run` takes the command line of `torchrun` 2.13: the same flags in both spellings, the same defaults and the same
variables. Replace the word `torchrun` with `holdfast run`; nothing else changes. `python -m holdfast run` does the same.
`holdfast launch` replaces the old `python -m torch.distributed.launch`.

    holdfast run [options] SCRIPT [script's arguments]

The script gets everything after SCRIPT unchanged. A flag takes precedence over its variable, and a variable over the default.
`--print-config` shows every value and its source. `--dry-run` shows what Holdfast would start.
"""


def page() -> str:
    """The whole page."""
    theirs = [flag for flag in FLAGS if flag.torchrun]
    parts = [HEAD, "## torchrun's flags\n"]
    for group in dict.fromkeys(flag.group for flag in theirs):
        parts += [f"### {group.capitalize()}\n", _table(flag for flag in theirs if flag.group == group)]
    parts += ["## Holdfast's own flags\n", _table(flag for flag in FLAGS if flag.group == OURS)]
    parts += [
        "## `holdfast launch`\n",
        "Like `holdfast run`, but each worker gets `--local-rank=N` before the script's own arguments, unless you give:\n",
    ]
    parts += [_table([USE_ENV])]
    parts += ["## Other variables\n", _variables()]
    parts += ["## Where Holdfast differs on purpose\n", _differences()]
    parts += ["## torchrun's behaviour that Holdfast keeps\n", "\n".join(f"- {line}" for line in KEPT) + "\n"]
    return "\n".join(parts)


def _table(flags: Iterable[Option]) -> str:
    rows = ["| flag | meaning | default | variable |", "|---|---|---|---|"]
    for flag in flags:
        names = ", ".join(f"`{name}`" for name in flag.names) + (f" {cell(flag.metavar)}" if flag.metavar else "")
        meaning = flag.help + (f" (one of {', '.join(flag.choices)})" if flag.choices else "")
        meaning += f". *{flag.note}*" if flag.note else ""
        default = "off" if flag.kind == "switch" else f"`{flag.default}`" if flag.default else "–"
        rows.append(f"| {names} | {cell(meaning)} | {default} | {f'`{flag.env}`' if flag.env else '–'} |")
    return "\n".join(rows) + "\n"


def _variables() -> str:
    rows = [f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {cell(what)} |" for names, what in VARIABLES]
    return "\n".join(["| variable | effect |", "|---|---|", *rows]) + "\n"


def _differences() -> str:
    rows = ["| | torchrun | Holdfast |", "|---|---|---|"]
    rows += [f"| {' | '.join(map(cell, row))} |" for row in DIFFERENCES]
    return "\n".join(rows) + "\n"


def cell(text: str) -> str:
    """`text` as it may stand in a table."""
    return text.replace("|", "\\|")
