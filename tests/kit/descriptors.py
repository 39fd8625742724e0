"""Which descriptors has this process? For tests of what must leave none behind, beside others whose come and go."""

from __future__ import annotations

import os
from contextlib import suppress


def open_here() -> set[tuple[str, str]]:
    """Each with what it is. None was left behind if what is open now is a part of what was (`<=`)."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found
