"""How does the agent share memory with a worker, and how does it learn of the worker's death before its memory is freed?

A page is a memfd: nothing in /dev/shm, nothing to clean up. `DeathWatch` waits in futex(2) for the kernel to mark
the worker's robust mutex, which it does first thing when the worker's main thread ends, however it ends; a pidfd becomes
readable only after the whole address space has been torn down (about 0.1 s per GB).

The mark says that the worker's main thread is gone *or has called exec*. The thread that wakes asks `process.dying(pid)`, which
tells the two apart and knows the exit code. The same thread is roused by a worker whose script ends with an uncaught exception
(`Page.error_at_unix`), which takes Python a while longer to die of, and by one that asks something of the job (`Page.asked`).
"""

from __future__ import annotations

import _thread
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from holdfast.core.errors import HoldfastError
from holdfast.core.page import layout
from holdfast.core.page.in_memory import HAS_ALL, STASHES
from holdfast.core.page.signs import MOST, Limits, Moments, SectionSigns, Signs, is_save
from holdfast.core.page.silences import BEAT, FIRST, OUT, in_section
from holdfast.runtime.process.process import state

NOT_ASKED = -1
COUNTS = layout.CONTROL_COUNT, layout.CALCULATED_COUNT, layout.LIFE_COUNT  # A change of one is something new to read.

MOST_BYTES = 4 << 20  # Of stacks, 100 bytes for each frame: the worker can make the file as long as it likes.
LAST_SIGNAL = 64  # Linux has no more of them (but on MIPS).
CLOSE_PATIENCE_S = 1.0  # How long `DeathWatch.close` waits for its thread, which needs microseconds.


class Page:
    """The agent's side of a worker's page. The worker inherits `fd`; `words` are its 64-bit fields (`core.page.layout`)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.map = mmap.mmap(fd, layout.SIZE)
        self.words = memoryview(self.map).cast("Q")
        self._heard = self._calculated = self._lives = 0
        self._file, self._link = _identity(os.fstat(fd)), os.readlink(f"/proc/self/fd/{fd}")
        self._stacks_at = layout.SIZE  # Where the stacks begin that were asked for last.
        self._ended_at = NOT_ASKED  # Where that begins which it writes when asked to end.

    @property
    def pid(self) -> int:
        """Who maps it: 0 while no bootstrap has."""
        return self.words[layout.PID]

    @property
    def error_at_unix(self) -> float | None:
        """When an uncaught exception ended the main thread (its record is on disk); None: none has."""
        return self.words[layout.ERROR_UNIX_NS] / 1e9 if self.words[layout.ERROR] else None

    def asked(self) -> tuple[str, str] | None:
        """What the script asks of the job, and why: each request once. None: nothing new."""
        count = self.words[layout.CONTROL_COUNT]
        kind = self.words[layout.CONTROL_KIND]
        reason = self._text(layout.CONTROL_TEXT, layout.CONTROL_TEXT_BYTES)
        if count == self._heard or not 0 < kind < len(layout.CONTROL_KINDS) or self.words[layout.CONTROL_KIND] != kind:
            return None  # or it is just being replaced by another, which we shall be woken for
        self._heard = count
        return layout.CONTROL_KINDS[kind], reason

    def calculated(self) -> dict[str, float] | None:
        """The limits that the script has calculated so far, in seconds by kind of silence: each change once, else None."""
        count = self.words[layout.CALCULATED_COUNT]
        if count == self._calculated:
            return None
        self._calculated = count
        words = {FIRST: layout.CALCULATED_INITIAL_NS, BEAT: layout.CALCULATED_BEAT_NS, OUT: layout.CALCULATED_OUT_NS}
        words |= {in_section(name): at + layout.CALCULATED_NS for at, name in self._slots()}
        return {kind: self.words[at] / 1e9 for kind, at in words.items() if self.words[at]}

    def life(self) -> int | None:
        """Whether it can begin another round in place (NOT_IN_PLACE, IN_PLACE, LET_GO): each change once, else None."""
        count = self.words[layout.LIFE_COUNT]
        if count == self._lives:
            return None
        self._lives = count
        return self.words[layout.LIFE_STATE]

    def regroup(self) -> None:
        """Have it let go of its round."""
        self._ask_life(self.words[layout.LIFE_ASKED] | 1)

    def begin_life(self, text: bytes) -> bool:
        """Give one that has let go what its next round needs. False: that is too long."""
        if len(text) > layout.LIFE_ROOM:
            return False
        at = layout.LIFE * 8
        self.map[at : at + len(text)] = text
        self.words[layout.LIFE_BYTES] = len(text)
        self._ask_life((self.words[layout.LIFE_ASKED] | 1) + 1)
        return True

    def _ask_life(self, number: int) -> None:
        self.words[layout.LIFE_ASKED] = number & 0xFFFF_FFFF
        self._wake(layout.LIFE_ASKED)

    def _wake(self, word: int) -> None:
        futex = _futex()
        futex.wake(futex.ctypes.addressof(futex.ctypes.c_char.from_buffer(self.map)) + word * 8)

    @property
    def beats(self) -> int:
        """How many heartbeats it has shown."""
        return self.words[layout.BEATS]

    @property
    def last_step(self) -> tuple[int | None, bool]:
        """The last step reported, and whether the script itself has done so. None: none was."""
        return _count(self.words[layout.STEP]) if self.words[layout.STEP_NS] else None, bool(self.words[layout.STEP_TOLD])

    def signs(self) -> Signs:
        """What the worker has shown so far. It may be writing meanwhile: fields are whole, and moments apart."""
        words = self.words
        stepped = words[layout.STEP_NS]
        return Signs(
            booted_at=_at(words[layout.BOOTED_NS]),
            exit_at=_at(words[layout.EXIT_NS]),
            first_beat_at=_at(words[layout.FIRST_BEAT_NS]),
            awaited_since=_at(words[layout.AWAITED_NS]),
            beat_at=_at(max(words[layout.BEAT_NS], stepped)),
            beats=_count(words[layout.BEATS]),
            longest_gap_s=words[layout.LONGEST_GAP_NS] / 1e9,
            step=_count(words[layout.STEP]) if stepped else None,
            step_at=_at(stepped),
            step_took_s=words[layout.STEP_TOOK_NS] / 1e9,
            out_since=_at(words[layout.OUT_SINCE_NS]),
            longest_out_s=words[layout.LONGEST_OUT_NS] / 1e9,
            limits=Limits(
                initial_s=_limit(words[layout.INITIAL_LIMIT_NS]),
                beat_s=_limit(words[layout.BEAT_LIMIT_NS]),
                out_s=_limit(words[layout.OUT_LIMIT_NS]),
                warmup_steps=words[layout.WARMUP_STEPS] - 1 if words[layout.WARMUP_STEPS] else None,
                count=words[layout.LIMITS_COUNT],
            ),
            sections=tuple(self._sections()),
        )

    @property
    def moments(self) -> Moments:
        """How far it has come in its life."""
        words = self.words
        first = words[layout.FIRST_STEP_NS]
        saves = [one.closed_at for one in self._sections() if one.closed_at is not None and is_save(one.name)]
        return Moments(
            booted_at=_at(words[layout.BOOTED_NS]),
            joining_at=_at(words[layout.JOINING_NS]),
            joined_at=_at(words[layout.JOINED_NS]),
            restored_at=_at(words[layout.RESTORED_NS]),
            restore_s=words[layout.RESTORE_TOOK_NS] / 1e9,
            stepped_at=_at(first),
            first_step=_count(words[layout.FIRST_STEP]) if first and words[layout.STEP_TOLD] else None,
            last_stepped_at=_at(words[layout.STEP_NS]),
            saved_at=max(saves, default=None),
            state_step=_count(words[layout.STATE_STEP]) if words[layout.STATE_FROM] else None,
            state_from=layout.source_in_words(words[layout.STATE_FROM]),
            held=self.held,
        )

    @property
    def held(self) -> tuple[int, int, int, int] | None:
        """As `Moments.held`."""
        bits, words = self.words[layout.HELD], self.words
        if not bits & layout.HELD_KEPT:
            return None
        step = _count(words[layout.HELD_STEP]) if bits & layout.HELD_WHOLE else -1
        more = STASHES * bool(bits & layout.HELD_STASHED) | HAS_ALL * bool(bits & layout.HELD_ALL)
        return _count(words[layout.HELD_ROUND]), step, _count(words[layout.HELD_PART]), more

    @property
    def saves(self) -> tuple[bool, int]:
        """Whether it writes a checkpoint, and how many it has written, as its sections tell."""
        found = [one for one in self._sections() if is_save(one.name)]
        return any(one.open_since is not None for one in found), sum(one.count for one in found)

    def _slots(self) -> Iterator[tuple[int, str]]:
        """Each section's first word, and its name."""
        for slot in range(layout.SECTION_SLOTS):
            at = layout.SECTIONS + slot * layout.SECTION_WORDS
            if not self.words[at]:
                return
            yield at, self._text(at, layout.SECTION_NAME_BYTES)

    def _sections(self) -> Iterator[SectionSigns]:
        for at, name in self._slots():
            yield SectionSigns(
                name=name,
                open_since=_at(self.words[at + layout.OPEN_NS]),
                took_s=self.words[at + layout.TOOK_NS] / 1e9,
                longest_s=self.words[at + layout.LONGEST_NS] / 1e9,
                count=_count(self.words[at + layout.CLOSED]),
                closed_at=_at(self.words[at + layout.CLOSED_NS]),
                limit_s=_limit(self.words[at + layout.LIMIT_NS]),
            )

    def show_lease(self, until: float | None) -> None:
        """The worker may change what others read until then (monotonic). None: nobody else counts on its node."""
        self.words[layout.LEASE_NS] = 0 if until is None else max(1, int(until * 1e9))

    def modules(self) -> tuple[str, ...]:
        """Modules that the worker has loaded, in the order in which loading began, and changes by its script between them
        (`core.page.layout.CHANGED`, `ELSEWHERE`)."""
        start, end = layout.MODULES * 8, min(self.words[layout.MODULES_END], layout.MODULES_BYTES)
        lines = self.map[start : start + end].decode("utf-8", "replace").split("\n")
        loaded, others = layout.LOADED.decode(), (layout.CHANGED.decode(), layout.ELSEWHERE.decode())
        found = (line.removeprefix(loaded) for line in lines if line.startswith((loaded, *others)))
        return tuple(line for line in found if line)

    def _text(self, at: int, size: int) -> str:
        return self.map[at * 8 : at * 8 + size].split(b"\0", 1)[0].decode("utf-8", "replace")

    @property
    def last_words(self) -> str:
        """The exception that ends, or ended, its script, in one line. Empty: none has."""
        return self._text(layout.LAST_WORDS, layout.LAST_WORDS_BYTES)

    @property
    def last_line(self) -> str:
        """What it wrote to stderr last, once its interpreter has begun to end without an exception. Empty: nothing."""
        return self._text(layout.LAST_LINE, layout.LAST_LINE_BYTES)

    @property
    def is_ending(self) -> bool:
        """Whether its interpreter has begun to end in good order."""
        return bool(self.words[layout.EXIT_NS])

    @property
    def is_booted(self) -> bool:
        """Whether our bootstrap has run in it."""
        return bool(self.words[layout.BOOTED_NS])

    @property
    def trouble(self) -> str:
        """Why the bootstrap could not do its whole work; empty if it could."""
        return self._text(layout.TROUBLE, layout.TROUBLE_BYTES)

    def ask_for_stacks(self, below: int | None = None) -> str:
        """Have the worker write all threads' stacks, in less than a millisecond, even deadlocked or holding the GIL; if
        stopped, when it is continued. Returns why it cannot; empty: asked.

        `below`: pid of a forked process below it. All write to one place: wait for the one asked before."""
        pid = below or self.words[layout.PID]
        self._stacks_at = self._size()
        return self._ask(pid, self.words[layout.DUMP_SIGNAL], any_thread=True)

    def stacks(self) -> str:
        """What has been written since somebody was asked last: faulthandler's text, which ends with the main thread."""
        return self._written(self._stacks_at)

    def ends(self) -> None:
        """The worker is being asked to end: it writes where its main thread was, unless it handles that request itself."""
        self._ended_at = self._size()

    def ask_where(self) -> None:
        """Have it write that all the same, if it has not."""
        if self._ended_at != NOT_ASKED and self._size() == self._ended_at:
            self._ask(self.words[layout.PID], self.words[layout.MAIN_DUMP_SIGNAL], any_thread=False)

    def where(self) -> str:
        """What it has written of its main thread since it was asked to end. Empty: nothing, or it was not."""
        return "" if self._ended_at == NOT_ASKED else self._written(self._ended_at)

    def _ask(self, pid: int, signum: int, *, any_thread: bool) -> str:
        """`any_thread`: whichever hears the signal writes what is wanted; else the main one has to."""
        if not 0 < signum <= LAST_SIGNAL:
            return "its interpreter has not started, or offers none"
        try:
            # It could be anything by now. This also proves that the pid is.
            # Its name first: to ask for more waits for its file system, which may hang.
            path = f"/proc/{pid}/fd/{self.words[layout.DUMP_FD]}"
            if os.readlink(path) != self._link or _identity(os.stat(path)) != self._file:
                return "the script uses the descriptor for something else"
            if not _catches(pid, signum):
                return "the script has reset the signal"
            os.kill(_listener(pid) if any_thread else pid, signum)
        except OSError as error:
            return f"the script has closed the descriptor, or is gone: {error.strerror}"
        return ""

    def _size(self) -> int:
        return os.fstat(self.fd).st_size

    def _written(self, since: int) -> str:
        return os.pread(self.fd, min(max(0, self._size() - since), MOST_BYTES), since).decode("utf-8", "replace")

    def ask_for_collectives(self) -> bool:
        """Have the worker say how far its collectives are, some hundredths of a second unless the GIL is held. False: nobody
        hears."""
        if not self.words[layout.HEARS]:
            return False
        self.words[layout.REQUEST] |= layout.REQUEST_RECORD
        self.words[layout.REQUEST_COUNT] = (self.words[layout.REQUEST_COUNT] + 1) & 0xFFFF_FFFF
        self._wake(layout.REQUEST_COUNT)
        return True

    def collectives(self) -> tuple[bytes, bytes] | None:
        """What it has said since: each group's last one, as JSON (`client.collectives`), and torch's whole record; empty: it
        could not. None: nothing yet."""
        words, start = self.words, layout.RECORD * 8
        if words[layout.REQUEST_SEEN] != words[layout.REQUEST_COUNT]:
            return None
        end = start + layout.RECORD_ROOM
        middle = min(start + words[layout.REACHED_BYTES], end)
        return self.map[start:middle], self.map[middle : min(middle + words[layout.RECORD_BYTES], end)]

    def close_fd(self) -> None:
        """Give the fd back where nobody asks for stacks; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def close(self) -> None:
        """Forget the page. A DeathWatch on it must be closed first."""
        self.close_fd()
        self.words.release()
        try:  # noqa: SIM105
            self.map.close()
        except BufferError:  # a watch still looks at it: the mapping goes when the watch does
            pass


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _catches(pid: int, signum: int) -> bool:
    with open(f"/proc/{pid}/status", "rb") as file:
        caught = next((line for line in file if line.startswith(b"SigCgt:")), b"SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)


def _listener(pid: int) -> int:
    """The thread of `pid` that can take a signal: the main one, unless it sleeps deaf to all. Any writes the stacks of all."""
    threads = [pid, *(tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if tid != pid)]
    return next((tid for tid in threads if state(tid) != "D"), pid)  # kill(2) begins with the thread that it is given


def _at(time_ns: int) -> float | None:
    return time_ns / 1e9 if time_ns else None


def _count(word: int) -> int:
    """A number that other nodes take, whatever the worker has written."""
    return min(word, MOST)


def _limit(limit_ns: int) -> float | None:
    if limit_ns == layout.NO_LIMIT:
        return float("inf")
    return limit_ns / 1e9 if limit_ns else None


def create_page(hook: int = 0) -> Page:
    """A fresh page. `hook`: HOOK_*, what of an unmodified script is noted. HoldfastError: no memory can be shared."""
    fd = nameless_file("holdfast-page")
    os.ftruncate(fd, layout.SIZE)
    keep_length(fd)
    page = Page(fd)
    page.words[layout.MAGIC_AT] = layout.MAGIC
    page.words[layout.VERSION_AT] = layout.VERSION
    page.words[layout.AGENT_PID] = os.getpid()
    page.words[layout.HOOK] = hook
    return page


def nameless_file(label: str) -> int:
    """A memfd; where that is refused (an old kernel, a seccomp filter), a file that never has a name. Or HoldfastError."""
    try:
        return os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as error:
        refused = error
    for folder in ("/dev/shm", os.environ.get("TMPDIR", "/tmp")):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
    raise HoldfastError(f"no memory to share with workers: memfd_create: {refused}; nor a nameless file in /dev/shm or /tmp")


def keep_length(fd: int) -> None:
    """Nobody makes that file shorter from now on, which would end whoever maps it by SIGBUS. Only a memfd can promise that."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


class DeathWatch:
    """Calls `notify()` in its own thread: once when the kernel marks the worker's lock, once before when an uncaught exception
    ends the script, once when the interpreter begins to end, and whenever the script asks or calculates something, or lets go.

    HoldfastError: no futex(2), or no thread: the pidfd watches alone. A thread per worker (40 kB), since futex_waitv for all
    needs Linux 5.16."""

    def __init__(self, page: Page, notify: Callable[[], None]) -> None:
        self.died = False  # The lock's mark was seen.
        self._told_of_error = self._told_of_end = False
        self._told_of = [0] * len(COUNTS)  # So many of each.
        self._futex = _futex()
        self._notify = notify
        self._anchor = self._futex.ctypes.c_char.from_buffer(page.map)
        self._base = self._futex.ctypes.addressof(self._anchor)
        self._words = memoryview(page.map).cast("I")
        self._closing = False
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:  # as many as ulimit -u or the container's pids.max allow are there
            raise HoldfastError(f"worker exits are detected by pidfd only: {error}") from error

    def close(self) -> None:
        """End the thread, whether or not the worker ever took its lock. Again is no harm."""
        if self._closing:
            return
        self._closing = True
        for _ in range(int(CLOSE_PATIENCE_S * 1000)):
            # Wake both words it may sleep on; again, since it may have been just about to fall asleep.
            self._futex.wake(self._base + layout.LOCK_AT * 8)
            if at := self._words[layout.LOCK_AT * 2]:
                self._futex.wake(self._base + at)
            if self._ended.acquire(timeout=0.001):
                self._ended.release()
                self._words.release()
                del self._anchor
                return

    def _run(self) -> None:
        try:
            if self._wait_for_death():
                self.died = True
                self._notify()
        finally:
            self._ended.release()

    def _wait_for_death(self) -> bool:
        """True: marked. False: closed, or released in good order."""
        lock_at = layout.LOCK_AT * 2
        while not (at := self._words[lock_at]):
            if self._closing:
                return False
            self._futex.wait(self._base + layout.LOCK_AT * 8, 0)
        if at % 4 or at > layout.SIZE - 4:
            return False  # not a page that a bootstrap has written
        while not self._closing:
            word = self._words[at // 4]
            if word & layout.FUTEX_OWNER_DIED:
                return True
            if not word & layout.FUTEX_TID_MASK:
                return False
            if self._words[layout.ERROR * 2] and not self._told_of_error:
                self._told_of_error = True
                self._notify()
            if self._words[layout.STATE * 2] == layout.FINISHING and not self._told_of_end:
                self._told_of_end = True
                self._notify()
            if (said := [self._words[at * 2] for at in COUNTS]) != self._told_of:
                self._told_of = said
                self._notify()
            self._futex.wait(self._base + at, word)
        return False


def _futex() -> _Futex:
    """One for all: each new one would load the C library again."""
    global _one_futex
    _one_futex = _one_futex or _Futex()
    return _one_futex


_one_futex: _Futex | None = None


class _Futex:
    """futex(2) on words shared between processes."""

    def __init__(self) -> None:
        try:
            import ctypes  # a Python without it has no death watch, and works

            self.ctypes = ctypes
            self._syscall = ctypes.CDLL(None).syscall
        except (ImportError, OSError, AttributeError) as error:
            raise HoldfastError(f"worker exits are detected by pidfd only: no ctypes: {error}") from error
        machine = os.uname().machine
        number = layout.futex_syscall(machine)
        if number is None or (machine == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 4):
            raise HoldfastError(f"worker exits are detected by pidfd only: futex(2) is not known on {machine}")
        self._number = ctypes.c_long(number)

    def wait(self, address: int, expected: int) -> None:
        """Sleep until woken, if the word at `address` still is `expected`. May return early."""
        c = self.ctypes
        self._syscall(self._number, c.c_void_p(address), c.c_long(layout.FUTEX_WAIT), c.c_uint32(expected), None, None, 0)

    def wake(self, address: int) -> None:
        c = self.ctypes
        self._syscall(self._number, c.c_void_p(address), c.c_long(layout.FUTEX_WAKE), c.c_int(1), None, None, 0)
