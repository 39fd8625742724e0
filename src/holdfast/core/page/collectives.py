"""What does a rank say of its last collectives (`client.collectives`)? It may have written anything there."""

from __future__ import annotations

import json

from holdfast.core.job.failure import Reached

MOST_GROUPS, MOST_TEXT, MOST_SEQ = 64, 200, 2**53  # That are read: groups, characters of a text, a number.


def reached(said: bytes) -> tuple[Reached, ...]:
    """Its last collective in each group. Nothing, where what it `said` makes no sense."""
    try:
        found = json.loads(said or b"[]")[:MOST_GROUPS]
        return tuple(
            Reached(group=str(group)[:MOST_TEXT], seq=min(int(seq), MOST_SEQ), what=str(what)[:MOST_TEXT], waits=bool(waits))
            for group, seq, what, waits in found
        )
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
        return ()
