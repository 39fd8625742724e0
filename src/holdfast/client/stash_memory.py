"""Where do a rank's generations lie, how much memory may they take, and how are bytes copied there fast?

The file is the agent's (`core.page.stash`) and has no name, so it goes with the agent and its workers. Memory is taken before
it is written to, so that too little of it is an error and no SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from _thread import LockType, allocate_lock, start_new_thread

from holdfast.core.page import stash as layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHUNK_BYTES = 64 << 20
"""What one thread copies at a time: some ten milliseconds, so that all end together; large: memcpy then spares the caches."""

STEP_BYTES = 4 << 20
"""What is copied behind the script's back at a time: a few milliseconds, for which it cannot map or free memory."""

MOST_THREADS = 8  # More do not copy faster: memory is what is slow.
SMALL_BYTES = 16 << 20  # A slot that is twice as large as it need be, and so much more, gives its memory back.
POLL_S = 0.002  # Between two looks at what the agent says.
SPARE_SHARE = 0.05  # Of this host's memory, what is never taken.
_POPULATE_READ, _POPULATE_WRITE = 22, 23  # Advice to the kernel (Linux 5.14) that Python has no name for.


class NoRoom(Exception):
    """Why a state cannot be stashed here."""


class Slot:
    """A slot of ours, mapped as far as it has memory."""

    def __init__(self, fd: int, at: int) -> None:
        self.fd, self.at = fd, at
        self.map: mmap.mmap | None = None
        self.capacity = 0
        self.address = 0
        self.asked = 0  # For how many bytes it was last reserved.
        self._let_go: Callable[[], object] | None = None  # Called before it is unmapped. None: it is not pinned.
        self._anchor: object = None
        if written := _written(fd, at):
            self.map_as_it_is(written)

    def reserve(self, size: int) -> None:
        """Have memory for `size` bytes. OSError: there is none."""
        asked = size
        if not size <= self.capacity <= 2 * size + SMALL_BYTES:
            size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            if size < self.capacity:
                self.give_back()
            self.unmap()
            if os.fstat(self.fd).st_size < self.at + size:
                # Not ftruncate: another rank, further on in the file, may have made it longer meanwhile.
                os.posix_fallocate(self.fd, self.at + size - 1, 1)
            self.map_as_it_is(size)
        try:
            populate(self.address, size, to_write=True)
        except OSError:
            self.give_back()
            raise
        self.asked = asked

    def pin(self, register: Callable[[], Callable[[], object]]) -> None:
        """Call `register`, once while it is mapped. What that returns is called before it is unmapped."""
        if self._let_go is None:
            self._let_go = register()

    def map_as_it_is(self, size: int) -> None:
        """Map what is there."""
        self.map = mmap.mmap(self.fd, size, offset=self.at)
        self.capacity = size
        in_large_pages(self.map)
        self._anchor = anchor = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(anchor)

    def unmap(self) -> None:
        if self.map is not None:
            if self._let_go is not None:
                self._let_go()
            self._anchor = self._let_go = None
            self.map.close()
            self.map, self.capacity, self.asked = None, 0, 0

    def give_back(self) -> None:
        """Free its memory."""
        if self.map is not None:
            self.map.madvise(mmap.MADV_REMOVE)  # on a shared mapping: a hole in the file
        self.unmap()


def _written(fd: int, at: int) -> int:
    """How much of the file is there from `at` on, in bytes."""
    try:
        return os.lseek(fd, at, os.SEEK_HOLE) - at if os.lseek(fd, at, os.SEEK_DATA) == at else 0
    except OSError:  # nothing is, up to the file's end
        return 0


class Region:
    """This rank's part of the node's stash. OSError: the file is not there, or not ours to open."""

    def __init__(self, path: str, local_rank: int, limit: str, local_world_size: int) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        at = layout.header_at(local_rank)
        if os.fstat(self.fd).st_size < at + layout.HEADER_BYTES:
            os.posix_fallocate(self.fd, at, layout.HEADER_BYTES)
        self._headers = mmap.mmap(self.fd, layout.HEADER_BYTES, offset=at)
        self.words = memoryview(self._headers).cast("Q")
        while self.words[layout.FETCHED] == layout.COMING:  # from another node, by the agent's hand
            rest()
        self.slots = [Slot(self.fd, layout.slot_at(local_rank, slot)) for slot in range(layout.SLOTS)]
        self.limit, self.sharers = limit, local_world_size

    def reserve(self, slot: int, size: int, slots: int) -> None:
        """Have memory for `size` bytes in a slot, where `slots` of them are used in turn. NoRoom: there is none for all."""
        one = self.slots[slot]
        if size == one.asked:
            return  # as in every step but the first
        share = allowed_bytes(self.limit) // self.sharers
        if size * slots > share:
            raise NoRoom(
                f"{slots} generations of {_told(size)} are more than this rank's share of the stash, {_told(share)}: "
                f"give --stash-limit {_told(size * slots * self.sharers)} or more, or stash less"
            )
        more = max(0, size - one.capacity)
        if more and more > (free := free_bytes()):
            raise NoRoom(f"{_told(more)} more are needed, and of this host's memory {_told(free)} can be had")
        try:
            one.reserve(size)
        except OSError as error:
            raise NoRoom(f"{_told(more)} more cannot be had: {error.strerror}") from error


def rest() -> None:
    """Between two looks at what the agent says: a moment."""
    _never.acquire(timeout=POLL_S)


_never = allocate_lock()
_never.acquire()


def allowed_bytes(limit: str) -> int:
    """What `--stash-limit` allows a node: `40%` of the memory that it has, or a number of bytes."""
    if limit.endswith("%"):
        return int(memory_bytes() * float(limit[:-1]) / 100)
    return int(limit)


def memory_bytes() -> int:
    """Memory of this host, or of the container around us."""
    return min([_meminfo("MemTotal"), *(limit for limit, _ in _groups())])


def free_bytes() -> int:
    """What may be taken of it now."""
    free = min([_meminfo("MemAvailable"), *(limit - used for limit, used in _groups())])
    return max(0, free - int(SPARE_SHARE * memory_bytes()))


def _meminfo(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:")), 1 << 62)


def _groups() -> Iterable[tuple[int, int]]:
    """Limit and use of each control group around us that has a limit; what the kernel can drop is not used."""
    folders = ["/sys/fs/cgroup/memory"]  # the first version's, as a container sees its own
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            own = next((line[3:].strip() for line in file if line.startswith("0::")), "/")
    except OSError:
        own = "/"
    while own:
        folders.append("/sys/fs/cgroup" + own.rstrip("/"))
        own = own.rpartition("/")[0]
    for folder in dict.fromkeys([*folders, "/sys/fs/cgroup"]):
        for limit_name, used_name in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                with open(f"{folder}/{limit_name}", encoding="ascii") as file:
                    limit = int(file.read())
                with open(f"{folder}/{used_name}", encoding="ascii") as file:
                    used = int(file.read())
                with open(f"{folder}/memory.stat", encoding="ascii") as file:
                    cached = sum(int(line.split()[1]) for line in file if line.startswith(("inactive_file ", "active_file ")))
            except (OSError, ValueError):  # not there; or `max`: no limit
                continue
            yield limit, used - cached


def _told(size: int) -> str:
    return f"{size / 1e9:.1f}GB" if size >= 1e9 else f"{size / 1e6:.1f}MB"


def threads() -> int:
    """How many copy at once: this rank's share of the CPUs."""
    sharers = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // sharers))


def copy(moves: Iterable[tuple[int, int, int]], by: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Copy memory: for each `(to, from, size)`. `by`: so many threads; 0: as many as help."""
    _share_out(_pieces(moves, chunk_bytes), ctypes.memmove, by)


def read(fd: int, moves: Iterable[tuple[int, int, int]], by: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Copy out of a file in memory: for each `(to, from, size)`, where `from` is a place in the file. Faster than from a
    mapping, whose pages would have to be faulted in first. OSError: it cannot be read."""
    troubles: list[OSError] = []

    def take(to: int, source: int, size: int) -> None:
        while size and not troubles:
            taken = _libc.pread(fd, ctypes.c_void_p(to), ctypes.c_size_t(size), ctypes.c_int64(source))
            if taken > 0:
                to, source, size = to + taken, source + taken, size - taken
            elif not taken:
                troubles.append(OSError(errno.EIO, "it is shorter than expected"))
            elif ctypes.get_errno() != errno.EINTR:
                troubles.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))

    _share_out(_pieces(moves, chunk_bytes), take, by)
    if troubles:
        raise troubles[0]


def populate(address: int, size: int, *, to_write: bool) -> None:
    """Fault in all pages of a mapping at once, where the kernel can (5.14). OSError: there is not enough memory."""
    advice = _POPULATE_WRITE if to_write else _POPULATE_READ
    troubles: list[int] = []

    def at_hand(begin: int, length: int) -> None:
        if _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice):
            troubles.append(ctypes.get_errno())

    _share_out([(address + at, length) for at, length in _chunks(size)], at_hand)
    for trouble in set(troubles) - {errno.EINVAL}:
        raise OSError(errno.ENOMEM if trouble == errno.EFAULT else trouble, os.strerror(errno.ENOMEM))


def can_populate() -> bool:
    """Can the kernel do what `populate` asks for (5.14)?"""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    begin = ctypes.byref(ctypes.c_char.from_buffer(page))
    return not _libc.madvise(begin, ctypes.c_size_t(mmap.PAGESIZE), _POPULATE_READ)


def make_own(address: int, size: int) -> None:
    """Copy a part of a private mapping, so that it no longer shows the file. OSError: there is not enough memory."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    if _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + size - first), _POPULATE_WRITE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def in_large_pages(area: mmap.mmap) -> None:
    """Use large pages for a mapping, where the kernel can: they are faster to take, and to copy."""
    try:  # noqa: SIM105 (contextlib is not needed for anything else here)
        area.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, ValueError):
        pass


def beside(do: Callable[..., object], *args: object) -> None:
    """`do` it in a thread of its own; at once, if there may be no more threads or the interpreter ends."""
    try:
        start_new_thread(do, args)
    except RuntimeError:
        do(*args)


def _pieces(moves: Iterable[tuple[int, int, int]], chunk_bytes: int) -> list[tuple[int, ...]]:
    return [(to + at, source + at, size) for to, source, whole in moves for at, size in _chunks(whole, chunk_bytes)]


def _chunks(size: int, chunk_bytes: int = CHUNK_BYTES) -> Iterable[tuple[int, int]]:
    return ((at, min(chunk_bytes, size - at)) for at in range(0, size, chunk_bytes))


def _share_out(tasks: list[tuple[int, ...]], do: Callable[..., object], by: int = 0) -> None:
    """`do` each, in `by` threads (0: as many as help), of which this is one. `do` must release the GIL."""
    left = iter(tasks)
    ended = [allocate_lock() for _ in range(min(by or threads(), len(tasks)) - 1)]

    def work() -> None:
        for task in left:  # a list's iterator gives each item to one of them
            do(*task)

    def help_out(mine: LockType) -> None:
        try:
            work()
        finally:
            mine.release()

    for lock in ended:
        lock.acquire()
        beside(help_out, lock)
    work()
    for lock in ended:
        lock.acquire()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.pread.restype = ctypes.c_ssize_t
