"""Which step do all ranks go on from, and which rank gives its state to which? Decided from what every rank says that it has.

    rank 0   step 9, whole      ──▶ goes on with its own
    rank 1   died: a new process ◀── rank 0's
    rank 2   torn in its update  ◀── rank 3's
    rank 3   step 9, whole      ──▶ goes on with its own

Each rank decides for itself, from the same list, and comes to the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

Generation = tuple[int, int]
"""A state's round and step. The same step of two rounds is not the same state."""


class Has(NamedTuple):
    """What one rank has in its memory."""

    generation: Generation | None  # None: nothing that is whole.
    part: int  # Of the model: ranks of the same part hold the same bytes.


class Agreement(NamedTuple):
    generation: Generation | None  # What all go on from. None: what the ranks have is not enough.
    moves: tuple[tuple[int, int], ...]  # Which rank gives its state to which.


def agree(ranks: Sequence[Has]) -> Agreement:
    """The newest generation, by round and then step, of which every part is there. `ranks`: what each has, by rank."""
    parts = {has.part for has in ranks}
    for generation in sorted({has.generation for has in ranks if has.generation is not None}, reverse=True):
        holders: dict[int, list[int]] = {}
        for rank, has in enumerate(ranks):
            if has.generation == generation:
                holders.setdefault(has.part, []).append(rank)
        if parts <= holders.keys():
            return Agreement(generation, _moves(ranks, generation, holders))
    return Agreement(None, ())


def _moves(ranks: Sequence[Has], generation: Generation, holders: dict[int, list[int]]) -> tuple[tuple[int, int], ...]:
    """Those who have it take turns in giving it to those who have not."""
    moves = []
    turns = dict.fromkeys(holders, 0)
    for rank, has in enumerate(ranks):
        if has.generation != generation:
            givers = holders[has.part]
            moves.append((givers[turns[has.part] % len(givers)], rank))
            turns[has.part] += 1
    return tuple(moves)
