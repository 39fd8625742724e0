"""Makes text of a worker safe to show: it can neither rewrite the terminal nor break a line of a log."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""A change of colour. Programs mean it well, and as an escape it would only be in the way."""


def plain(text: str, keep: str = "\n\t") -> str:
    """`text` with control, direction and other unprintable characters escaped as in Python source, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text)


def uncoloured(text: str) -> str:
    """`text` without changes of colour."""
    if "\x1b" not in text:
        return text
    return _COLOUR.sub("", text)


def one_line(text: str, limit: int = 300) -> str:
    """The text as one safe line of at most `limit` characters."""
    line = plain(" ".join(uncoloured(text).split()), keep="")
    return line if len(line) <= limit else line[: limit - 1] + "…"
