"""What does the manual page holdfast(1) say? Made from the commands and the table of flags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast import __version__
from holdfast.cli.main import commands
from holdfast.core.config.flags import FLAGS
from holdfast.core.config.option import Option

DESCRIPTION = (
    "Holdfast launches the ranks of a distributed training job on every node, sees at once when one of them dies and within a "
    "bound when one hangs, finds out why, and has the job training again. holdfast run takes the command line of torchrun."
)
EXIT = (
    ("0", "every worker exited with 0"),
    ("1", "a worker failed and no restart was left, or the job was stopped, or the nodes did not come together"),
    ("2", "the command line, a variable or a file is wrong; nothing was started"),
    ("93", "restarts were left, but they made no progress or would fail in the same way"),
)
FILES = (("$XDG_STATE_HOME/holdfast, ~/.local/state/holdfast", "what jobs record, unless HOLDFAST_STATE_DIR names another"),)


def page() -> str:
    """The whole page, as roff."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield r".\" Made from the commands and the table of flags by `make reference`. Do not edit."
    yield f'.TH HOLDFAST 1 "" "holdfast {__version__}"'
    yield from (".SH NAME", r"holdfast \- launch distributed training and keep it running")
    yield from (".SH SYNOPSIS", ".B holdfast run", "[options] SCRIPT [script's arguments]", ".br", ".B holdfast", "COMMAND ...")
    yield from (".SH DESCRIPTION", _text(DESCRIPTION), ".SH COMMANDS")
    yield from _items((name, words.splitlines()[0]) for name, words in commands().items())
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        yield f".SH OPTIONS OF RUN: {_text(group.upper())}"
        yield from _items((_names(flag), _meaning(flag)) for flag in FLAGS if flag.group == group)
    yield from (".SH EXIT STATUS OF RUN", *_items(EXIT), ".SH FILES", *_items(FILES))


def _items(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, words in items:
        yield from (".TP", f".B {_text(name)}", _text(words))


def _names(flag: Option) -> str:
    names = [name for name in flag.names if not (name.startswith("--") and "_" in name)]
    return ", ".join(names) + (f" {flag.metavar}" if flag.metavar else "")


def _meaning(flag: Option) -> str:
    default = f" (default: {flag.default})" if flag.default and flag.kind != "switch" else ""
    return flag.help + default


def _text(words: str) -> str:
    """In roff's spelling: a hyphen that can be copied, and no line that begins like a request."""
    spelled = words.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{spelled}" if spelled.startswith((".", "'")) else spelled
