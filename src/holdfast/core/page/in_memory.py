"""Which step do all ranks go on from, and which rank gives its state to which? Decided from what every rank says that it has.

    rank 0   step 9, whole      ──▶ goes on with its own
    rank 1   died: a new process ◀── rank 0's
    rank 2   torn in its update  ◀── rank 3's
    rank 3   step 9, whole      ──▶ goes on with its own

The coordinator decides it before a round begins, from what the nodes say of their ranks (`foresee`); so far as the parts of the
model are known by then. The ranks decide it once more when they have met (`client.in_place.state`): each for itself, from the
same list, and they come to the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Holding = tuple[int, int, int, int, int, int, int]
"""What a node says of one of its ranks: its local rank; its rank and the world size then; round and step of the state that it
has (step -1: none that is whole, or the process is gone); its part of the model; and bits: `STASHES`, `HAS_ALL`."""

STASHES, HAS_ALL = 1, 2
"""It stashes its part. Its part is all of the model, whatever its rank and however many there are: the ranks do not divide the
model among themselves."""

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


class Foreseen(NamedTuple):
    """What a round's ranks go on from."""

    generation: Generation | None  # None: no rank has it any more.
    givers: dict[int, int]  # By rank, for those that are given it.
    otherwise: str = ""  # Where all have it from, where no rank has: `stash`, or their `script`. Empty: see `UNKNOWN`.

    def came_from(self, base_rank: int, nproc: int) -> tuple[str, ...]:
        """Where each rank of a node will have it from: its own `memory`, `rank N`, the `stash`, or its `script`. Empty: see
        `UNKNOWN`."""
        if self.generation is None:
            return (self.otherwise,) * nproc if self.otherwise else ()
        ranks = range(base_rank, base_rank + nproc)
        return tuple(f"rank {self.givers[rank]}" if rank in self.givers else "memory" for rank in ranks)


UNKNOWN = Foreseen(None, {})
"""No script keeps a state, or nobody knows which part of it some rank is to hold: they see when they have met."""


def foresee(nodes: Iterable[tuple[Iterable[Holding], int, int]], world_size: int, *, has_stash: bool) -> Foreseen:
    """What all ranks go on from. `nodes`: what each says of its ranks, its base rank, its ranks. `has_stash`: all can restore
    one."""
    known = {base + one[0]: one for holdings, base, nproc in nodes for one in holdings if one[0] in range(nproc)}
    is_as_before = len(known) == world_size and all(one[1:3] == (rank, world_size) for rank, one in known.items())
    if not known or not (is_as_before or _have_all(known.values())):
        return UNKNOWN
    nothing = Has(None, min(one[5] for one in known.values()))
    ranks = [_has(known[rank]) if rank in known else nothing for rank in range(world_size)]
    found = agree(ranks)
    stashes = has_stash and all(one[6] & STASHES for one in known.values())
    return Foreseen(found.generation, {taker: giver for giver, taker in found.moves}, "stash" if stashes else "script")


def _have_all(known: Collection[Holding]) -> bool:
    """Whether they hold all of the model, and the same: then so does whoever else there is."""
    return len({one[5] for one in known}) == 1 and all(one[6] & HAS_ALL for one in known)


def _has(one: Holding) -> Has:
    return Has((one[3], one[4]) if one[4] >= 0 else None, one[5])
