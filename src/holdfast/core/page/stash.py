"""Where is what in a node's stash, and which generation can all ranks restore? Layout and arithmetic only; pure.

A node has one nameless file, which its agent holds open for as long as it lives. Each local rank has a region of it: a page
of headers, and room for `SLOTS` generations of its state, far apart, so that each can grow (the file is sparse: what has
not been written costs nothing).

    0            HEADER_BYTES for each local rank: SLOTS descriptors of SLOT_WORDS words, and what the agent says
    SLOT_BYTES   the first slot of local rank 0; then its others, then those of local rank 1, and so on

One process writes a region: the worker. It writes a descriptor last, and its first word, the sequence number, after all
others; before it touches a slot it sets that word to 0. So a slot whose number is not 0 is whole, whenever its writer died.

Where states are replicated, more files of the same form hold what the ranks of other nodes have left, `REPLICAS` each.

Where they go to a disk too, a generation there is a file: one page with its descriptor (`file_page`), and its slot.
"""

from __future__ import annotations

import struct
import zlib

from holdfast.core.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADER_BYTES = 4096
SLOTS = 5
SLOT_WORDS = 16
AT_PARTNER = SLOTS * SLOT_WORDS
"""The agent's word: up to this sequence number all partners have what there is, or cannot be given it."""
FETCHED = AT_PARTNER + 1  # The agent's word: has what comes from another node arrived?
COMING, HERE, LOST = 1, 2, 3
DUE = FETCHED + 1
"""The rank's word: the generation of this number is to go to the disk. It is not overwritten before `ON_DISK` says so."""
ON_DISK = DUE + 1  # The agent's word: this one is there, or cannot be brought there.
ON_DISK_KEPT = 2
"""Generations of a rank on the disk. A rank makes the next one due when the last one is there, so that with a collective
between two saves the ranks are never further apart."""
FILE_MAGIC = b"holdfast stash 1"
REPLICAS = 3
"""Generations that a node keeps of each of another's ranks. While the next one comes of a rank that is ahead of the others on
its node by a generation, it still has what they have."""
LAST_ROUND = 2**31  # No job has as many.
SLOT_BYTES = 1 << 40  # Between the beginnings of two slots: more than the state of one rank.

ALIGN = 64
"""Every tensor begins at a multiple of it: a cache line, and no less than what any vector instruction asks for."""

VARIABLE = "HOLDFAST_STASH"
"""`FILE:LOCAL_RANK:LIMIT[:COPIES[:EVERY]]`, where the file is the agent's, so many other nodes are to have what is saved, and
the disk a state of each so many steps. None, if it does not say so."""
AGREED_VARIABLE = "HOLDFAST_STASH_AGREED"  # `ROUND:STEP` that all ranks can restore. Not set: none.

Held = tuple[int, int, int, int]
"""A generation that all local ranks of a node have: the round that wrote it, its step, the node's base rank then, and the
world size then."""


Kept = tuple[int, int, int, int, int]  # The same, of another node's ranks: and how many these are.


OnDisk = tuple[str, int, int, int, int, int]
"""A generation that all local ranks of a node have on its disk: the job's life, round and step, the node's base rank and the
world size then, and when it was saved (Unix seconds)."""


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


def file_page(one: Generation) -> bytes:
    """The first page of a generation's file."""
    page = bytearray(HEADER_BYTES)
    seal(memoryview(page).cast("Q"), replace(one, slot=0))
    page[-len(FILE_MAGIC) :] = FILE_MAGIC
    return bytes(page)


def of_file(page: bytes) -> Generation | None:
    """What a file's first page tells. None: it is no such page."""
    if len(page) != HEADER_BYTES or not page.endswith(FILE_MAGIC):
        return None
    return next(iter(generations(memoryview(page).cast("Q"))), None)


def agreed(
    nodes: Sequence[tuple[Iterable[Held], Iterable[OnDisk], int, int]],
    world_size: int,
    kept: Sequence[tuple[str, Iterable[Kept]]] = (),
    life: str = "",
    last_round: int = LAST_ROUND,
) -> tuple[tuple[int, int], dict[int, str], dict[int, tuple[str, int, int]]] | None:
    """Round and step of the newest generation that every node can have at its place; by base rank, where a node has to fetch
    it, and what a node has to read from its disk. None: there is none.

    `nodes`: what each holds in memory and on its disk, its base rank, its ranks. `kept`: by address, what can be fetched. Of
    this `life` the later round wins: a job that began again from an older step knows better. What earlier lives have left on
    the disks comes after that, what was saved last before the rest, and is of round 0 from now on.

    What is kept afar is a node's word on another's ranks. It is not believed of a round after `last_round`, nor of a later step
    of a round than the ranks' own node has in its memory, if that has any of that round."""
    afar: dict[tuple[int, int], dict[tuple[str, int, int], str]] = {}
    for address, found in kept:
        for round, step, base, world, nproc in found:
            if world == world_size:
                afar.setdefault((base, nproc), {}).setdefault((life, round, step), address)
    saved_s: dict[tuple[str, int, int], int] = {}
    common: set[tuple[str, int, int]] | None = None
    own = []
    for held, disk, at, nproc in nodes:
        own.append({(life, round, step) for round, step, base, world in held if (base, world) == (at, world_size)})
        there = {(one[0], one[1], one[2]): one[5] for one in disk if one[3:5] == (at, world_size)}
        saved_s |= {key: max(saved_s.get(key, 0), at_s) for key, at_s in there.items()}
        afar[at, nproc] = _borne_out(afar.get((at, nproc), {}), own[-1], last_round)
        here = own[-1] | there.keys() | afar[at, nproc].keys()
        common = here if common is None else common & here
    if not common:
        return None
    best = max(common, key=lambda key: (key[0] == life, saved_s[key] if key[0] != life else 0, *key[1:], key[0]))
    lacking = [(at, afar.get((at, nproc), {})) for mine, (_, _, at, nproc) in zip(own, nodes) if best not in mine]
    fetch = {at: elsewhere[best] for at, elsewhere in lacking if best in elsewhere}
    load = {at: best for at, elsewhere in lacking if best not in elsewhere}
    return (best[1] if best[0] == life else 0, best[2]), fetch, load


def _borne_out(
    afar: dict[tuple[str, int, int], str], own: set[tuple[str, int, int]], last_round: int
) -> dict[tuple[str, int, int], str]:
    """What others keep of a node's ranks, as far as what that node has itself does not contradict it."""
    newest: dict[int, int] = {}
    for _, round, step in own:
        newest[round] = max(step, newest.get(round, step))
    return {key: at for key, at in afar.items() if key[1] <= last_round and key[2] <= newest.get(key[1], key[2])}
