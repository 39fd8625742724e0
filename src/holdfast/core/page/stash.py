"""Where is what in a node's stash, and which generation can all ranks restore? Layout and arithmetic only; pure.

A node has one nameless file, which its agent holds open for as long as it lives. Each local rank has a region of it: a page
of headers, and room for `SLOTS` generations of its state, far apart, so that each can grow (the file is sparse: what has
not been written costs nothing).

    0            HEADER_BYTES for each local rank: SLOTS descriptors of SLOT_WORDS words, and what the agent says
    SLOT_BYTES   the first slot of local rank 0; then its others, then those of local rank 1, and so on

One process writes a region: the worker. It writes a descriptor last, and its first word, the sequence number, after all
others; before it touches a slot it sets that word to 0. So a slot whose number is not 0 is whole, whenever its writer died.

Where states are replicated, more files of the same form hold what the ranks of other nodes have left, `REPLICAS` each.
"""

from __future__ import annotations

import struct
import zlib

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADER_BYTES = 4096
SLOTS = 4
SLOT_WORDS = 16
AT_PARTNER = SLOTS * SLOT_WORDS
"""The agent's word: up to this sequence number all partners have what there is, or cannot be given it."""
FETCHED = AT_PARTNER + 1  # The agent's word: has what comes from another node arrived?
COMING, HERE, LOST = 1, 2, 3
REPLICAS = 3
"""Generations that a node keeps of each of another's ranks. While the next one comes of a rank that is ahead of the others on
its node by a generation, it still has what they have."""
SLOT_BYTES = 1 << 40  # Between the beginnings of two slots: more than the state of one rank.

ALIGN = 64
"""Every tensor begins at a multiple of it: a cache line, and no less than what any vector instruction asks for."""

VARIABLE = "HOLDFAST_STASH"
"""`FILE:LOCAL_RANK:LIMIT[:COPIES]`, where the file is the agent's, and so many other nodes are to have what is saved."""
AGREED_VARIABLE = "HOLDFAST_STASH_AGREED"  # `ROUND:STEP` that all ranks can restore. Not set: none.

Held = tuple[int, int, int, int]
"""A generation that all local ranks of a node have: the round that wrote it, its step, the node's base rank then, and the
world size then."""


Kept = tuple[int, int, int, int, int]  # The same, of another node's ranks: and how many these are.


class Generation(Value):
    """One rank's state at one step, as a slot's descriptor tells."""

    slot: int
    sequence: int  # Grows with each one that a rank writes.
    round: int
    step: int
    rank: int
    world_size: int
    header_bytes: int  # At the beginning of the slot: what is where, as text.
    bytes_at: int  # Where the tensors begin, from the beginning of the slot.
    size: int  # Of the whole, in bytes, from the beginning of the slot.
    saved_unix_ns: int
    header_crc: int


def header_at(local_rank: int) -> int:
    """Where in the file a local rank's descriptors are."""
    return local_rank * HEADER_BYTES


def slot_at(local_rank: int, slot: int) -> int:
    """Where in the file a slot begins."""
    return (1 + local_rank * SLOTS + slot) * SLOT_BYTES


_FIELDS = tuple(field for field in Generation.__fields__ if field != "slot")  # the first is the sequence number
_CRC = len(_FIELDS)


def unseal(words: memoryview, slot: int) -> None:
    """The slot is nobody's from now on. `words`: a rank's page of headers as 64-bit words."""
    words[slot * SLOT_WORDS] = 0


def seal(words: memoryview, made: Generation) -> None:
    """The slot is whole."""
    values = [getattr(made, field) for field in _FIELDS]
    at = made.slot * SLOT_WORDS
    words[at + _CRC] = _crc(values)
    for offset in range(1, len(values)):
        words[at + offset] = values[offset]
    words[at] = values[0]


def generations(words: memoryview) -> list[Generation]:
    """Those of a rank that are whole, oldest first."""
    found = []
    for slot in range(SLOTS):
        at = slot * SLOT_WORDS
        values = list(words[at : at + len(_FIELDS)])
        if values[0] and words[at + _CRC] == _crc(values):
            found.append(Generation(slot=slot, **dict(zip(_FIELDS, values))))
    return sorted(found, key=lambda one: one.sequence)


def oldest(whole: Sequence[Generation], round: int, agreed: tuple[int, int] | None) -> Generation:
    """The generation that is overwritten next in that round. `agreed` goes last: until there are newer ones, it is all there
    is."""
    old = [one for one in whole if one.round != round and (one.round, one.step) != agreed]
    return (old or whole)[0]


def crc(text: bytes) -> int:
    """Of a slot's header."""
    return zlib.crc32(text)


def _crc(values: list[int]) -> int:
    return zlib.crc32(struct.pack(f"={len(values)}Q", *values))


def held_by_all(ranks: Sequence[Iterable[Generation]]) -> tuple[Held, ...]:
    """What all local ranks of a node have, by what each of them has, in order."""
    common: set[Held] | None = None
    for local_rank, found in enumerate(ranks):
        mine = {(one.round, one.step, one.rank - local_rank, one.world_size) for one in found}
        common = mine if common is None else common & mine
    return tuple(sorted(common or ()))


def agreed(
    nodes: Sequence[tuple[Iterable[Held], int, int]], world_size: int, kept: Sequence[tuple[str, Iterable[Kept]]] = ()
) -> tuple[tuple[int, int], dict[int, str]] | None:
    """Round and step of the newest generation that every node can have at its place, and the base ranks that have to fetch it,
    with where. None: there is none.

    `nodes`: what each holds, its base rank, its ranks. `kept`: by address, what can be fetched. The later round wins: a job
    that began again from an older step knows better."""
    common: set[tuple[int, int]] | None = None
    afar: dict[tuple[int, int], dict[tuple[int, int], str]] = {}
    for address, generations in kept:
        for round, step, base, world, nproc in generations:
            if world == world_size:
                afar.setdefault((base, nproc), {}).setdefault((round, step), address)
    own = [{(round, step) for round, step, base, world in held if (base, world) == (at, world_size)} for held, at, _ in nodes]
    for mine, (_, base_rank, nproc) in zip(own, nodes):
        here = mine | afar.get((base_rank, nproc), {}).keys()
        common = here if common is None else common & here
        if not common:
            return None
    if not common:
        return None
    best = max(common)
    lacking = [(base, nproc) for mine, (_, base, nproc) in zip(own, nodes) if best not in mine]
    return best, {at[0]: afar[at][best] for at in lacking}
