"""Reads and fills the stash, the ranks' saved states in shared memory, for the agent, which holds its file open.

What is found is exact once no worker lives. The file has no name: its memory is free when the last process that has it is gone.
Where a generation is read while its rank may write, it is whole if the slot's sequence number is the same afterwards.
"""

from __future__ import annotations

import mmap
import os
from _thread import allocate_lock
from collections.abc import Iterator

from holdfast.core.page import stash as layout
from holdfast.core.value import replace

CHUNK_BYTES = 1 << 20  # What is read and sent at a time.
MORE_BYTES = 16 << 20  # A slot that is twice as large as it need be, and so much more, gives its memory back.


def held(fd: int, local_ranks: int) -> tuple[layout.Held, ...]:
    """Those that all local ranks have."""
    return layout.held_by_all([generations(fd, local_rank) for local_rank in range(local_ranks)])


def generations(fd: int, local_rank: int) -> list[layout.Generation]:
    """Those that a local rank has, oldest first."""
    page = os.pread(fd, layout.HEADER_BYTES, layout.header_at(local_rank))
    return layout.generations(memoryview(page.ljust(layout.HEADER_BYTES, b"\0")).cast("Q"))


def words(fd: int, local_rank: int) -> memoryview:
    """A local rank's page of headers, to read and to write; it is made where there is none."""
    at = layout.header_at(local_rank)
    if os.fstat(fd).st_size < at + layout.HEADER_BYTES:
        os.posix_fallocate(fd, at, layout.HEADER_BYTES)  # not ftruncate: a rank may make it longer meanwhile
    return memoryview(mmap.mmap(fd, layout.HEADER_BYTES, offset=at)).cast("Q")


def clear(fd: int, local_ranks: int, slots: int) -> None:
    """Nothing of this is kept any more, and its memory is free."""
    for local_rank in range(local_ranks):
        page = words(fd, local_rank)
        for slot in range(slots):
            layout.unseal(page, slot)
            _give_back(fd, layout.slot_at(local_rank, slot))


def _give_back(fd: int, at: int, above: int = 0) -> None:
    """Free a slot's memory, if it is more than so many bytes."""
    try:
        there = os.lseek(fd, at, os.SEEK_HOLE) - at if os.lseek(fd, at, os.SEEK_DATA) == at else 0
    except OSError:
        return  # nothing is, up to the file's end
    if there > above:
        with mmap.mmap(fd, there, offset=at) as area:
            area.madvise(mmap.MADV_REMOVE)


def chunks(fd: int, local_rank: int, one: layout.Generation) -> Iterator[memoryview]:
    """What is in a slot, piece by piece. Each is there until the next is asked for."""
    begin, room = layout.slot_at(local_rank, one.slot), memoryview(bytearray(CHUNK_BYTES))
    for at in range(0, one.size, CHUNK_BYTES):
        yield room[: os.preadv(fd, [room[: one.size - at]], begin + at)]


class Filling:
    """One generation of another node's rank on its way into a slot of ours. OSError: there is no memory for it."""

    def __init__(self, fd: int, local_rank: int, made: layout.Generation, slots: int, agreed: tuple[int, int] | None) -> None:
        self.fd, self.words = fd, words(fd, local_rank)
        whole = layout.generations(self.words)
        taken = {one.slot for one in whole}
        free = [slot for slot in range(slots) if slot not in taken]
        slot = free[0] if free else layout.oldest(whole, made.round, agreed).slot
        self.made = replace(made, slot=slot, sequence=whole[-1].sequence + 1 if whole else 1)
        self.begin, self.at = layout.slot_at(local_rank, slot), 0
        self.lock, self.is_off = allocate_lock(), False
        layout.unseal(self.words, slot)
        _give_back(fd, self.begin, 2 * made.size + MORE_BYTES)

    def take(self, chunk: memoryview) -> None:
        """The next piece."""
        with self.lock:
            if self.is_off or self.at + len(chunk) > self.made.size:
                raise OSError(None, "another one has taken its place" if self.is_off else "it is more than was announced")
            while chunk:
                written = os.pwrite(self.fd, chunk, self.begin + self.at)
                chunk, self.at = chunk[written:], self.at + written

    def seal(self) -> None:
        """It is whole."""
        with self.lock:
            if not self.is_off:
                layout.seal(self.words, self.made)

    def call_off(self) -> None:
        """Nothing is written to the slot any more."""
        with self.lock:
            self.is_off = True
