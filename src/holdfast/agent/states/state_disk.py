"""Writes stashed states to a folder of a local disk, and reads them back in the job's next life.

By threads of the agent: the loop touches nothing of the folder, and no rank waits for it longer than its next state for the
disk is due (`client.stash`). A file has its whole name when it is whole and on the disk:

    DIR/JOB/LIFE-ROUND-STEP-RANK-WORLD_SIZE-LOCAL_RANK-RANKS.state
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable

from holdfast.agent.component import Component
from holdfast.agent.group.messages import SatBefore, StashedOnDisk
from holdfast.core.machine import NEVER, Observation
from holdfast.core.page import stash as layout
from holdfast.core.value import Value, replace
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.private_files import own_folder, private
from holdfast.runtime.shm.stash import CHUNK_BYTES, Filling, chunks, generations, words

SUFFIX, PART = ".state", ".part"
LOOK_S = 0.02  # Between two looks at whether a rank has a state for the disk.
LIST_S = 5.0  # How long an agent waits for the folder's list before it joins without it.


class Stored(Value):
    """One file."""

    life: str
    round: int
    step: int
    rank: int
    world_size: int
    local_rank: int
    ranks: int  # Of the node that wrote it.
    saved_s: int

    @property
    def name(self) -> str:
        parts = (self.life, self.round, self.step, self.rank, self.world_size, self.local_rank, self.ranks)
        return "-".join(map(str, parts)) + SUFFIX


def stored(name: str, saved_s: int) -> Stored | None:
    """What a file's name tells. None: it is not one of ours."""
    life, *numbers = name.removesuffix(SUFFIX).split("-")
    if not name.endswith(SUFFIX) or len(numbers) != 6 or not all(number.isdigit() for number in numbers):
        return None
    round, step, rank, world_size, local_rank, ranks = map(int, numbers)
    return Stored(
        life=life,
        round=round,
        step=step,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        ranks=ranks,
        saved_s=saved_s,
    )


def held_by_all(files: list[Stored], ranks: int) -> tuple[layout.OnDisk, ...]:
    """Those of which the folder has every local rank's part, for nodes of so many ranks."""
    parts: dict[tuple[str, int, int, int, int], dict[int, int]] = {}
    for one in files:
        if one.ranks == ranks:
            key = one.life, one.round, one.step, one.rank - one.local_rank, one.world_size
            parts.setdefault(key, {})[one.local_rank] = one.saved_s
    whole = ((*key, max(found.values())) for key, found in parts.items() if len(found) == ranks)
    return tuple(sorted(whole, key=lambda one: one[5])[-8:])


class StateDisk(Component):
    """This node's."""

    def __init__(
        self,
        folder: str,
        *,
        nproc: int,
        complain: Callable[[str], None],
        unix: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.nproc, self.unix = folder, nproc, unix
        self.tell = complain
        self.complaints: list[str] = []
        self.has_failed = False  # It has been told.
        self.lock = allocate_lock()  # Over the list.
        self.files: list[Stored] = []
        self.assigned: Assigned | None = None
        self.stash = -1

    # --- for the agent's loop -------------------------------------------------------------------------------------------

    def first(self) -> list[Observation]:
        """Say what is there, and take the place that this node had when it wrote that."""
        listed = allocate_lock()
        listed.acquire()
        start_new_thread(self._list, (listed.release,))
        if not listed.acquire(timeout=LIST_S):
            self.tell(f"--stash-dir: {self.folder} does not answer: this node joins without the states that are there")
            return []
        found = self.held()
        if not found:
            return []
        bases = {one[3] for one in found}
        sat = [SatBefore(group_rank=base // self.nproc) for base in bases if len(bases) == 1 and base % self.nproc == 0]
        return [StashedOnDisk(stash_on_disk=found), *sat]

    def held(self) -> tuple[layout.OnDisk, ...]:
        """What can be read."""
        with self.lock:
            return held_by_all(self.files, self.nproc)

    @property
    def due_at(self) -> float:
        return 0.0 if self.complaints else NEVER

    def due(self) -> list[Observation]:
        """Show what a thread could not do."""
        while self.complaints:
            self.tell(self.complaints.pop(0))
        return []

    def begin(self, assigned: Assigned, stash: int) -> None:
        """The ranks of a round are about to be started, with `stash` as their file."""
        is_first = self.assigned is None
        self.assigned, self.stash = assigned, stash
        if assigned.stash_disk is not None:
            for local_rank in range(self.nproc):
                words(stash, local_rank)[layout.FETCHED] = layout.COMING
            start_new_thread(self._read_all, (assigned,))
        if is_first:
            start_new_thread(self._write_all, ())

    # --- threads --------------------------------------------------------------------------------------------------------

    def _list(self, done: Callable[[], None]) -> None:
        try:
            found: list[tuple[int, Stored]] = []
            if os.path.lexists(self.folder):
                own_folder(self.folder)  # what another user has put there is not restored
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.endswith(PART):
                        os.unlink(entry.path)
                    elif (one := stored(entry.name, int(entry.stat().st_mtime))) is not None:
                        found.append((entry.stat().st_mtime_ns, one))
            with self.lock:  # the oldest first, also of one second
                self.files += [one for _, one in sorted(found, key=lambda one: one[0])]
        except FileNotFoundError:
            pass
        except OSError as error:
            self._complain(f"cannot be listed: {error.strerror}")
        done()

    def _write_all(self) -> None:
        never = allocate_lock()
        never.acquire()
        pages = [words(self.stash, local_rank) for local_rank in range(self.nproc)]
        while True:
            for local_rank, page in enumerate(pages):
                if (due := page[layout.DUE]) != page[layout.ON_DISK]:
                    try:
                        self._write(local_rank, due)
                    except OSError as error:
                        self._complain(f"cannot be written to: {error.strerror}")
                    page[layout.ON_DISK] = due
            never.acquire(timeout=LOOK_S)

    def _write(self, local_rank: int, sequence: int) -> None:
        assigned = self.assigned
        assert assigned is not None
        one = next((one for one in generations(self.stash, local_rank) if one.sequence == sequence), None)
        if one is None:
            return
        made = Stored(
            life=assigned.life,
            round=one.round,
            step=one.step,
            rank=one.rank,
            world_size=one.world_size,
            local_rank=local_rank,
            ranks=self.nproc,
            saved_s=int(self.unix()),
        )
        own_folder(self.folder)
        path = os.path.join(self.folder, made.name)
        with open(path + PART, "wb", opener=private) as file:
            file.write(layout.file_page(one))
            for chunk in chunks(self.stash, local_rank, one):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if one not in generations(self.stash, local_rank):
            return os.unlink(path + PART)  # it was dropped meanwhile
        os.rename(path + PART, path)
        with self.lock:
            self.files = [other for other in self.files if other.name != made.name] + [made]
            old = [other for other in self.files if other.rank == made.rank][: -layout.ON_DISK_KEPT]
            old.sort(key=lambda other: other.saved_s)
            self.files = [other for other in self.files if other not in old]
        for other in old:
            os.unlink(os.path.join(self.folder, other.name))

    def _read_all(self, assigned: Assigned) -> None:
        for local_rank in range(self.nproc):
            page = words(self.stash, local_rank)
            try:
                self._read(assigned, local_rank)
                page[layout.FETCHED] = layout.HERE
            except OSError as error:
                self._complain(f"has no whole state of step {assigned.stash[1] if assigned.stash else 0}: {error.strerror}")
                page[layout.FETCHED] = layout.LOST

    def _read(self, assigned: Assigned, local_rank: int) -> None:
        assert assigned.stash is not None and assigned.stash_disk is not None
        life, round, step = assigned.stash_disk
        wanted = life, round, step, assigned.base_rank + local_rank, assigned.world_size
        with self.lock:
            names = [one for one in self.files if (one.life, one.round, one.step, one.rank, one.world_size) == wanted]
        if not names:
            raise OSError(None, "it is gone")
        try:
            with open(os.path.join(self.folder, names[0].name), "rb") as file:
                made = layout.of_file(file.read(layout.HEADER_BYTES))
                if made is None or (made.rank, made.step) != (wanted[3], step):
                    raise OSError(None, "it is damaged")
                filling = Filling(self.stash, local_rank, replace(made, round=assigned.stash[0]), layout.SLOTS, None)
                while filling.at < filling.made.size:
                    chunk = file.read(min(CHUNK_BYTES, filling.made.size - filling.at))
                    if not chunk:
                        raise OSError(None, "it is cut short")
                    filling.take(memoryview(chunk))
                filling.seal()
        except OSError:
            with self.lock:
                self.files = [one for one in self.files if one not in names]  # the next round goes on from another
            raise

    def _complain(self, what: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            self.complaints.append(f"--stash-dir: {self.folder} {what}")
