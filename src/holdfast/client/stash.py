"""How does a training script leave its state where the next life of its rank finds it? In this node's memory, each N steps.

    from holdfast.client import stash

    found = stash.latest()                       # the newest step that all ranks can restore, or None
    ...
    stash.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

The memory is the agent's (`core.page.stash`): it outlives the worker and the round, not the job. A state is whole or not there:
the one before is kept until the new one is complete (`client.stash_memory`). Nothing is pickled (`client.stash_code`).

Which step all ranks can restore is agreed on as the nodes meet for the next round, when no worker lives: each says what its
ranks have left, and the worker finds the answer in its environment. So torch.distributed is not needed, and nobody waits.

Without an agent every call does nothing, and so it does in forked children. Any thread may call anything.
"""

from __future__ import annotations

import json
import os
import sys
from _operator import index
from _thread import RLock, allocate_lock
from _warnings import warn
from time import monotonic_ns, time_ns

from holdfast.client import stash_memory as memory
from holdfast.client.stash_code import Coder, Unstashable, decode
from holdfast.client.stash_tensors import Damaged, Fetcher, Loan, Sender
from holdfast.client.worker import this_worker
from holdfast.core.page import stash as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["Unstashable", "drop", "every", "latest", "latest_step", "prepare", "save", "wait"]

PAGE = 4096
MOST_LOOKS = 5000  # So often does a save look whether the disk has the last state, some ten seconds; then that one is left out.


def save(step: int, state: Any, *, blocking: bool = False) -> bool:
    """Keep `state` as that of `step` (0 or more, the same in every rank, once in a life), in place of the oldest one kept.

    When it returns, the state may be changed: tensors on the CPU have been copied, and those of a GPU are copied before the
    next work of its stream. A thread does the rest; `blocking`: wait for that. Two generations of the state must fit, three
    where a GPU copies while the script goes on. False: it is not kept; a warning has said why, once.

    Unstashable: something in it is no dict, list, number, text, bytes, tensor or array. It says where.
    """
    stash = _open()
    return stash is not None and stash.save(step, state, blocking)


def prepare(state: Any) -> None:
    """Take memory for states as large as this one, in a thread: without it the first saves wait for their memory."""
    if (stash := _open()) is not None:
        stash.prepare(state)


def latest(*, into: Any = None, map_location: Any = None) -> tuple[int, Any] | None:
    """Step and state to go on from: the newest that all ranks of this round can restore. None: there is none.

    For the beginning of a script: what this life has saved is ignored. The state is the caller's own. Tensors are on the device
    that they were on, or on `map_location`. A tensor or numpy array of the same shape and type at the same place of `into` is
    filled, which is faster than a new one.
    """
    stash = _open()
    return stash.latest(into, map_location) if stash is not None else None


def latest_step() -> int | None:
    """The step that `latest` would give, without its state."""
    stash = _open()
    found = stash.found() if stash is not None else None
    return found.step if found is not None else None


def every(n: int) -> Callable[[int, Callable[[], Any]], bool]:
    """`keep = every(10)`; then `keep(step, lambda: state)` saves each tenth step, and asks for no state at others."""
    if n < 1:
        raise ValueError(f"every: {n!r} is not a number of steps, 1 or more")
    return lambda step, state: step % n == 0 and save(step, state())


def wait() -> None:
    """Wait until what was saved last is whole and, where states are replicated, until all partners have it."""
    if (stash := _open()) is not None:
        with stash.lock:
            stash.wait()
            stash._await_partners()


def drop() -> None:
    """Give this rank's part of the memory back, and with it what could be restored. The end of the job does the same."""
    if (stash := _open()) is not None:
        stash.drop()


class Stash:
    """This rank's own."""

    def __init__(self, region: memory.Region, copies: int = 0, to_disk_every: int = 0) -> None:
        self.region = region
        self.pid = os.getpid()
        self.lock = RLock()
        self.busy = False
        self.under_way = allocate_lock()  # Held by the thread that completes what was saved last.
        self.warned = False
        self.copies = copies  # How many other nodes are to have what is saved.
        self.to_disk_every = to_disk_every  # Steps between two states that go to the disk. 0: none does.
        self.loans: dict[int, Loan] = {}  # By slot: what restored arrays still have of it, perhaps.
        self.begin_life()

    def begin_life(self) -> None:
        """A round begins, with what the environment says of it."""
        self.wait()
        self.round, self.rank, self.world_size = (_number(name) for name in ("HOLDFAST_ROUND", "RANK", "WORLD_SIZE"))
        round, _, step = os.environ.get(layout.AGREED_VARIABLE, "").partition(":")
        self.agreed = (int(round), int(step)) if step else None  # Round and step of what all ranks have. None: nothing.
        self.slots = max((one.slot + 1 for one in self._whole()), default=0)
        self.was_due = self.agreed[1] if self.agreed is not None else -1  # The step of the last that went there.
        self.saved = 0  # The sequence number of what this life has saved last.

    def _whole(self) -> list[layout.Generation]:
        return layout.generations(self.region.words)

    # --- saving ---------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, blocking: bool) -> bool:
        if not hasattr(step, "__index__") or not 0 <= index(step) < 1 << 63:  # numpy's numbers are whole, too
            raise ValueError(f"step: {step!r} is not a whole number, 0 or more")
        step = index(step)
        with self.lock:
            if self.busy:  # a signal handler's, in the midst of ours
                return self._refuse("another stash is in progress in this thread")
            self.busy = True
            try:
                self.wait()
                return self._save(step, state, blocking)
            except memory.NoRoom as error:
                return self._refuse(str(error))
            finally:
                self.busy = False

    def _save(self, step: int, state: Any, blocking: bool) -> bool:
        coder = Coder()
        header = json.dumps(coder.code(state), separators=(",", ":")).encode()
        bytes_at = -(-len(header) // PAGE) * PAGE
        sender = Sender(coder.sources)
        self.slots = max(self.slots, (3 if sender.is_late and not blocking else 2) + self._more_slots)
        self._await_partners()
        is_due = self._is_due(step)
        at, sequence = self._next()
        if not self._settle(at):
            raise memory.NoRoom("not enough memory to copy the restored state")
        layout.unseal(self.region.words, at)
        if any(not loan.is_over for loan in self.loans.values()):
            memory.beside(self._settle_all)  # before the next save has to wait for it
        self.region.reserve(at, bytes_at + coder.size, self._generations)
        slot = self.region.slots[at]
        assert slot.map is not None
        made = layout.Generation(
            slot=at,
            sequence=sequence,
            round=self.round,
            step=step,
            rank=self.rank,
            world_size=self.world_size,
            header_bytes=len(header),
            bytes_at=bytes_at,
            size=bytes_at + coder.size,
            saved_unix_ns=time_ns(),
            header_crc=layout.crc(header),
        )
        self.saved = sequence
        slot.map[: len(header)] = header
        sender.send(slot, bytes_at)
        if sender.is_late and not blocking:
            self._beside(lambda: self._complete(sender, made, is_due))
            return True
        self._complete(sender, made, is_due)
        if lacking := [other for other in range(self.slots) if not self.region.slots[other].capacity]:
            self._reserve(lacking, made.size)
        return True

    def prepare(self, state: Any) -> None:
        coder = Coder()
        header = json.dumps(coder.code(state)).encode()
        with self.lock:
            self.wait()
            self.slots = max(self.slots, (3 if Sender(coder.sources).is_late else 2) + self._more_slots)
            taken = {one.slot for one in self._whole()}  # these have memory, and something in it
            free = [slot for slot in range(self.slots) if slot not in taken]
            self._reserve(free, -(-len(header) // PAGE) * PAGE + coder.size)

    def _reserve(self, slots: Iterable[int], size: int) -> None:
        """Have memory for the generations to come."""

        def reserve() -> None:
            try:
                for slot in slots:
                    self.region.reserve(slot, size, self._generations)
            except memory.NoRoom:
                return  # the save that needs it tells

        self._beside(reserve)

    def _beside(self, do: Callable[[], None]) -> None:
        """`do` it in a thread. `wait` waits for that."""

        def run() -> None:
            try:
                do()
            finally:
                self.under_way.release()

        self.under_way.acquire()
        memory.beside(run)

    def _next(self) -> tuple[int, int]:
        """Which slot is written next, and its number. A free one; else the oldest."""
        whole = self._whole()
        sequence = whole[-1].sequence + 1 if whole else 1
        taken = {one.slot for one in whole}
        free = [slot for slot in range(self.slots) if slot not in taken]
        if free:
            return max(free, key=lambda slot: self.region.slots[slot].capacity), sequence
        words = self.region.words
        writing = words[layout.DUE] if words[layout.DUE] != words[layout.ON_DISK] else 0  # That one is read meanwhile.
        return layout.oldest([one for one in whole if one.sequence != writing], self.round, self.agreed).slot, sequence

    def _complete(self, sender: Sender, made: layout.Generation, is_due: bool) -> None:
        sender.wait()
        layout.seal(self.region.words, made)
        if is_due:
            self.region.words[layout.DUE] = made.sequence

    @property
    def _more_slots(self) -> int:
        """One that the partners still get, and one that goes to the disk."""
        return bool(self.copies) + bool(self.to_disk_every)

    def _is_due(self, step: int) -> bool:
        """Does that step go to the disk? The same for all ranks, as far as their disks are fast enough: one that is much slower
        leaves a state out."""
        every, words = self.to_disk_every, self.region.words
        if not every or step // every <= self.was_due // every:
            return False
        for _ in range(MOST_LOOKS):
            if words[layout.DUE] == words[layout.ON_DISK]:
                self.was_due = step
                return True
            memory.rest()
        return False

    def _refuse(self, why: str) -> bool:
        if not self.warned:
            self.warned = True
            warn(f"the state is not stashed: {why}", RuntimeWarning, 4)
        return False

    def wait(self) -> None:
        with self.under_way:
            pass

    @property
    def _generations(self) -> int:
        """Of how many of them its limit has to allow: where states are replicated, each node for which this one keeps copies
        has as large a share as its own ranks, however large those are."""
        return self.slots * (1 + self.copies)

    def _await_partners(self) -> None:
        """Until all partners have what was saved last, or the agent says that they cannot. Without that the nodes might have no
        step in common when one of them is lost, and what is being sent would be overwritten."""
        while self.copies and self.saved and self.region.words[layout.AT_PARTNER] != self.saved:
            memory.rest()

    def drop(self) -> None:
        with self.lock:
            self.wait()
            for at, slot in enumerate(self.region.slots):
                layout.unseal(self.region.words, at)
                if self._settle(at):
                    slot.give_back()
            self.slots = self.saved = self.region.words[layout.AT_PARTNER] = 0
            self.region.words[layout.DUE] = self.region.words[layout.ON_DISK]

    # --- restoring ------------------------------------------------------------------------------------------------------

    def latest(self, into: Any, map_location: Any) -> tuple[int, Any] | None:
        with self.lock:
            begun = monotonic_ns()
            found = self.found(stacklevel=5)
            if found is None:
                return None
            state = self._restored(found, into, map_location)
            this_worker.restored(begun)
            return found.step, state

    def found(self, stacklevel: int = 4) -> layout.Generation | None:
        """The generation that all ranks have, of those that were there when this life began. None: a warning says why, in the
        script's line."""
        with self.lock:
            self.wait()
            mine = [one for one in self._whole() if one.round != self.round]
            for one in mine:
                if (one.round, one.step) == self.agreed and one.rank == self.rank:
                    return one
            if self.agreed is not None and self.region.words[layout.FETCHED] == layout.LOST:
                raise RuntimeError(
                    f"the state of step {self.agreed[1]}, from which all ranks go on, could not be fetched from another "
                    "node, or read from the disk: "
                    "its agent tells why; the next round goes on from another"
                )
            if mine:
                self._tell_why_not(mine[-1], stacklevel)
            return None

    def _restored(self, one: layout.Generation, into: Any, map_location: Any) -> Any:
        slot = self.region.slots[one.slot]
        assert slot.map is not None
        header = slot.map[: one.header_bytes]
        fetcher = Fetcher(slot, one.bytes_at, one.size, map_location)
        try:
            # Another node may have kept it, or a disk: nothing is copied before all of it fits.
            if layout.crc(header) != one.header_crc or not one.header_bytes <= one.bytes_at <= one.size <= slot.capacity:
                raise Damaged("its header")
            state = decode(json.loads(header), fetcher.fetch, into)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            layout.unseal(self.region.words, one.slot)  # so that the next life agrees on another
            raise RuntimeError(f"the stashed state of step {one.step} is damaged: it is not used again ({error})") from error
        if (loan := fetcher.finish()) is not None:
            if not self.loans:
                os.register_at_fork(before=self._settle_all)  # a child would see what is written to the slot
            self._settle(one.slot)  # of a restore before this one
            self.loans[one.slot] = loan
        return state

    def _settle(self, slot: int) -> bool:
        """Nothing of a slot is lent any more: it may be written to. False: there is no memory to make it so."""
        loan = self.loans.get(slot)
        return loan is None or loan.settle()

    def _settle_all(self) -> None:
        for slot in list(self.loans):
            self._settle(slot)

    def _tell_why_not(self, newest: layout.Generation, stacklevel: int) -> None:
        if newest.world_size != self.world_size or newest.rank != self.rank:
            why = f"it is that of rank {newest.rank} of {newest.world_size}, and this is rank {self.rank} of {self.world_size}"
        else:
            why = (
                "not all ranks have one of the same step: a node is new, or they were further apart than the generations that "
                "are kept, which a collective between two saves prevents; begin from the last checkpoint"
            )
        warn(f"the stashed state of step {newest.step} is not used: {why}", RuntimeWarning, stacklevel)


def begin_life() -> None:
    """This process goes on in another round: what it has stashed so far can be restored, as the ranks have agreed."""
    if _stash is not None and _stash.pid == os.getpid():
        _stash.begin_life()


_stash: Stash | None = None
_complained = False


def _open() -> Stash | None:
    """This process's stash; None: it has none."""
    global _stash, _complained
    if _stash is not None:
        return _stash if _stash.pid == os.getpid() else None
    path, _, rest = _told().partition(":")
    if not path or _complained:
        return None
    local_rank, limit, *more = rest.split(":")
    try:
        region = memory.Region(path, int(local_rank), limit, _number("LOCAL_WORLD_SIZE") or 1)
    except OSError as error:
        _complained = True
        warn(f"no state can be stashed: {path}: {error.strerror}", RuntimeWarning, 3)
        return None
    _stash = Stash(region, *map(int, more))
    return _stash


def _told() -> str:
    """What the agent has told this process, and none of its children."""
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    if bootstrap is not None and bootstrap.words is None:
        return ""
    return getattr(bootstrap, "stash", "") or os.environ.pop(layout.VARIABLE, "")


def _number(name: str) -> int:
    return int(os.environ.get(name) or 0)
