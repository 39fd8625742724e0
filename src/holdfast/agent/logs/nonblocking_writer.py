"""How is text written to our own stdout or stderr without holding up the agent?

A terminal that was stopped with Ctrl-S, or a pipe whose reader pauses, must not keep the agent from seeing a worker die. So
`Console.write` writes what goes at once and keeps the rest. Pieces end at a line's end and are at most `PIPE_BUF` long, which a
pipe takes whole or not at all: lines are not torn, not even when several agents share one pipe.

`Stderr` is what the agent says itself. A reader that has gone (`2>&1 | head`), a full disk, a terminal that was closed or
stopped: none of them may end a job, hold it up, or change its exit code. What can never be written is dropped.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
from collections.abc import Callable

from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.peer_user import is_ours
from holdfast.runtime.private_files import make_folder
from holdfast.runtime.process.descriptors import SHORT_OF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.telemetry.record.io_thread import IoThread

PIECE = 4096  # Bytes per write: Linux's PIPE_BUF.

RETRY_S = 0.1  # Seconds until a stderr that takes nothing is tried again.

PATIENCE_S = 5.0  # How long `Stderr.close` waits for a stderr that takes nothing.

FILE_S = 0.02  # How long a file is waited for, once, so that what is said next to it elsewhere comes behind.

KEPT_BYTES = 1 << 20  # What waits in a `Stderr` at most; what is said after that is dropped.


class Console:
    """One of our standard streams."""

    def __init__(self, fd: int) -> None:
        self._of = fd
        self._fd, self._never_blocks = _own(fd)
        self._pending = b""
        self._at = 0
        self.gone = False  # Nobody can read it any more: what is written is dropped.
        self.trouble = ""  # Why; empty: it is not gone.

    @property
    def pending(self) -> bool:
        """True while something waits to be written."""
        return self._at < len(self._pending)

    def write(self, text: bytes, *, at_most: int | None = None) -> bool:
        """Write what goes at once; keep the rest for `flush`. Dropped, where more than `at_most` bytes wait already. True:
        nothing is left."""
        if at_most is not None and len(self._pending) - self._at > at_most:
            return False
        self._pending = self._pending[self._at :] + text
        self._at = 0
        return self.flush()

    def flush(self) -> bool:
        """Write what goes at once. True: nothing is left."""
        while self.pending:
            end = self._at + PIECE
            if end < len(self._pending):
                end = self._pending.rfind(b"\n", self._at, end) + 1 or end
            try:
                if not self._never_blocks and not self.ready(0.0):
                    return False
                self._at += os.write(self._fd, self._pending[self._at : min(end, len(self._pending))])
            except BlockingIOError:
                return False
            except OSError as error:
                self.gone, self.trouble = True, error.strerror or str(error)
                self._at = len(self._pending)
        self._pending, self._at = b"", 0
        return True

    def ready(self, timeout_s: float) -> bool:
        """Wait until it takes something; False after `timeout_s`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        if self._fd != self._of:
            os.close(self._fd)


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _own(fd: int) -> tuple[int, bool]:
    """A descriptor for the same stream, and whether writing to it never blocks."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or (stat.S_ISCHR(mode) and os.isatty(fd)):
        try:
            # Opened anew: O_NONBLOCK set on `fd` itself would hold for everybody who has the stream, our workers too.
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), True
        except OSError:
            pass  # somebody else's terminal (sudo), or no /proc: ask before each write instead
    try:
        return os.dup(fd), stat.S_ISREG(mode)
    except OSError as error:
        if error.errno not in SHORT_OF:
            raise
        return fd, stat.S_ISREG(mode)  # nothing more can be opened, which is what there is to say


def open_log(path: str) -> int:
    """The log at that path, to append to; it is made where there is none, and its folder, for this user
    only. OSError: it cannot be, or another user has put something there: a file, a link or a pipe."""
    make_folder(os.path.dirname(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        _refuse_anothers(os.lstat(path), path)
    except FileNotFoundError:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # what somebody puts there now is neither followed nor waited for
    fd = os.open(path, flags, 0o600)
    try:
        _refuse_anothers(os.fstat(fd), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _refuse_anothers(seen: os.stat_result, path: str) -> None:
    """OSError: that is another user's, and no terminal."""
    if not stat.S_ISCHR(seen.st_mode) and not is_ours(seen.st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {seen.st_uid})", path)


class Stderr:
    """Our own stderr, or another descriptor. Nothing here raises OSError, and only `close` waits."""

    def __init__(self, fd: int = 2, clock: Callable[[], float] = time.monotonic, io_thread: IoThread | None = None) -> None:
        """`io_thread`: writes where that is a file, whose disk may hang. None: the caller's thread does."""
        self._fd, self._clock = fd, clock
        self._io_thread = io_thread if io_thread is not None and _is_file(fd) else None
        self._console: Console | None = None  # opened with the first word: most jobs have nothing to say
        self.due_at = NEVER  # When to call `due`: soon, while something waits.

    def say(self, text: str) -> None:
        """Say `text`, which ends with its line; at once if that goes."""
        if self._io_thread is not None:
            self._io_thread.do(lambda: self._write(text), FILE_S)
        else:
            self._write(text)

    def _write(self, text: str) -> None:
        if self._console is None:
            try:
                self._console = Console(self._fd)
            except OSError:
                return  # there is no such descriptor
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        all_said = self._console.write(text.encode(encoding, "backslashreplace"), at_most=KEPT_BYTES)
        self.due_at = NEVER if all_said else self._clock() + RETRY_S

    def due(self) -> list[Observation]:
        """Say what waits, as far as somebody takes it."""
        all_said = self._console is None or self._console.flush()
        self.due_at = NEVER if all_said else self._clock() + RETRY_S
        return []

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Say the rest, as far as somebody takes it."""
        if self._io_thread is not None:
            self._io_thread.do(self._close_console)  # the thread opens it, and may not have come to its first word yet
            self._io_thread.close()
            return
        if self._console is None:
            return
        end = self._clock() + patience_s
        while not self._console.flush() and self._clock() < end:
            self._console.ready(RETRY_S)
        self._close_console()

    def _close_console(self) -> None:
        if self._console is not None:
            self._console.close()
            self._console = None


def tell(text: str) -> None:
    """Say one thing, and close."""
    stderr = Stderr()
    stderr.say(f"{text}\n")
    stderr.close()
