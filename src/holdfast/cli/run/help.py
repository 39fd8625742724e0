"""What does `holdfast run --help` say? The table of flags, laid out for a terminal."""

from __future__ import annotations

import shutil
import textwrap

from holdfast.core.config.flags import NVRX_FLAGS, flags_of
from holdfast.core.config.option import Option

COLUMN = 34  # Where the meanings start; a longer flag gets a line of its own.


def run_help(command: str = "run", width: int | None = None) -> str:
    """The help text, at most `width` columns wide (default: the terminal's, between 60 and 120)."""
    if width is None:
        width = min(120, max(60, shutil.get_terminal_size().columns))
    flags = [flag for flag in flags_of(command) if command == "ft_launcher" or flag not in NVRX_FLAGS]
    lines = [f"usage: holdfast {command} [options] SCRIPT [script's arguments]", ""]
    lines += _wrapped(
        "Launch SCRIPT on this node, or on this node's part of several, and keep it running. torchrun's flags, in both "
        "spellings (--max-restarts, --max_restarts); each can also be given as the variable in brackets.",
        0,
        width,
    )
    for group in dict.fromkeys(flag.group for flag in flags):
        lines += ["", f"{group}:"]
        for flag in (flag for flag in flags if flag.group == group):
            lines += _row(flag, width)
    page = "ft_launcher" if command == "ft_launcher" else "torchrun"
    more = "" if command == "ft_launcher" else "ft_launcher's flags (--ft-…) are taken too: `holdfast ft_launcher --help`. "
    lines += ["", *_wrapped(f"{more}Reference: docs/reference/{page}.md. Try `holdfast {command} --dry-run …`.", 0, width)]
    return "\n".join(lines)


def shown(flag: Option) -> str:
    """`-r, --redirects SPEC`: the spellings worth showing, with what follows."""
    names = ", ".join(worth_showing(flag))
    return f"{names} {flag.metavar or 'VALUE'}" if not flag.is_switch else names


def worth_showing(flag: Option) -> list[str]:
    """Its spellings, without those that follow from others."""
    return [name for name in flag.names if "_" not in name and not name.startswith("--ft-param-")]


def _row(flag: Option, width: int) -> list[str]:
    text = flag.help
    if flag.choices:
        text += f"; one of {', '.join(flag.choices)}"
    if flag.default:
        text += f" (default {flag.default})"
    if flag.env:
        text += f" [{flag.env}]"
    head, body = f"  {shown(flag)}", _wrapped(text, COLUMN, width)
    if len(head) < COLUMN:
        return [head.ljust(COLUMN) + body[0].lstrip(), *body[1:]]
    return [head, *body]


def _wrapped(text: str, indent: int, width: int) -> list[str]:
    margin = " " * indent
    return textwrap.wrap(text, width, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
