"""Which generations of their state have a node's ranks left in its memory? The agent's look at the file that it holds open.

What it finds is exact once no worker lives. The file has no name: its memory is free when the last process that has it is gone.
"""

from __future__ import annotations

import os

from holdfast.core import stash as layout


def held(fd: int, local_ranks: int) -> tuple[layout.Held, ...]:
    """Those that all local ranks have."""
    return layout.held_by_all([_generations(fd, local_rank) for local_rank in range(local_ranks)])


def _generations(fd: int, local_rank: int) -> list[layout.Generation]:
    page = os.pread(fd, layout.HEADER_BYTES, layout.header_at(local_rank))
    return layout.generations(memoryview(page.ljust(layout.HEADER_BYTES, b"\0")).cast("Q"))
