"""How do the workers' lines get from their files to our stdout and stderr, prefixed?

The files are followed, so no worker waits for our console, and what is not shown yet waits on disk and not in memory. `pump`
waits for no console and does a bounded amount of work; `look_at` and `fileno` say when to call it again. It waits for the
files' disk: the agent's loop calls it in a thread (`agent.logs.tee_thread`).

A line is shown when it is complete, so ranks' lines are never joined. What stays without a line end for `PARTIAL_S` (a prompt)
is shown as a line of its own, and what follows as another. A progress bar, redrawn with carriage returns, is shown as it stands
every `PROGRESS_S`, and once more when it ends. In a file (`agent.logs.app_log`) lines wait for their end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from holdfast.agent.logs.nonblocking_writer import Console
from holdfast.agent.logs.tail import last_drawn
from holdfast.core.machine import NEVER
from holdfast.telemetry.record.file_watch import IN_MODIFY, Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.logs.sender import LogSender

CHUNK = 64 * 1024  # Bytes read from one file at a time, and the longest line that is shown in one piece.

PUMP_BYTES = 256 * 1024
"""Bytes after which `pump` returns with work left: about a millisecond, and a worker's death must not wait longer."""

PARTIAL_S = 0.5  # Seconds a line without an end is held back.

PROGRESS_S = 2.0  # Seconds between two states of one progress bar: tqdm redraws ten times a second, on every rank.

BATCH_S = 0.02  # Seconds between looks while the files grow: below what an eye sees, and a thousand small writes cost one look.

IDLE_S, POLL_S = 1.0, 0.1
"""Seconds between looks though the kernel tells of no write: one through mmap, or on some network file systems, makes no event.
And where it never tells (a container's limit on inotify instances); torchrun's tee: 0.1."""

BLOCKED_S = 0.05  # Seconds until a console that takes nothing is tried again.

STALL_S = 10.0
"""Seconds that `drain` waits for a console that takes nothing. The text is in the files: the job's end must not hang on it."""


def _at_once(task: Callable[[], object]) -> bool:
    task()
    return True


class Source:
    """One worker's stream: its file, how far we are in it, and the line that has no end yet. `Tee.follow` opens it."""

    def __init__(self, path: str, prefix: str, shown: bool, filed: bool = False) -> None:
        """`filed`: it is shown in a file that people search. There lines are whole, however long they take, and text."""
        self.path = path
        self.prefix = prefix.encode("utf-8", "surrogateescape")
        self.shown = shown
        self.filed = filed
        self._fd = -1
        self._offset = 0
        self._end: int | None = None  # where to stop; None: nowhere
        self._held = b""
        self._held_since = 0.0
        self._redrawn = False
        self._redraw_shown_at = float("-inf")
        self._cut = False  # the held piece was shown with a line end of ours: its own, if it comes now, is left out

    def open(self) -> None:
        """Begin to read it. OSError: it cannot be."""
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def due(self) -> float:
        """When (monotonic) the piece without a line end is to be shown; infinity: not before the end, or there is none."""
        if not self._held or self.filed:
            return float("inf")
        soonest = self._held_since + PARTIAL_S
        return max(soonest, self._redraw_shown_at + PROGRESS_S) if self._redrawn else soonest

    def read(self, now: float) -> tuple[int, bytes]:
        """(bytes read, the complete lines in them)."""
        got, lines = self._next(), b""
        if not got and os.fstat(self._fd).st_size < self._offset:
            # The file was cut short under us (logrotate's copytruncate): begin again.
            lines, self._held, self._offset = self._held and self._held + b"\n", b"", 0
            if self._end is not None:
                self.stop_here()
            got = self._next()
        self._offset += len(got)
        return len(got), lines + (self._lines(got, now) if got else b"")

    def overdue(self, now: float) -> bytes:
        """The piece without a line end, given one, if its time has come."""
        if not self._held or now < self.due:
            return b""
        if self._redrawn:
            self._redraw_shown_at = now
        line, self._held, self._cut = last_drawn(self._held), b"", True
        return line + b"\n" if line else b""

    def stop_here(self) -> None:
        """Read no further than what is in the file now."""
        self._end = os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _next(self) -> bytes:
        size = CHUNK if self._end is None else min(CHUNK, self._end - self._offset)
        return os.pread(self._fd, size, self._offset) if size > 0 else b""

    def _lines(self, got: bytes, now: float) -> bytes:
        if self._cut:
            self._cut = False
            got = got[1:] if got.startswith(b"\n") else got[2:] if got.startswith(b"\r\n") else got
        text = self._held + got
        end = text.rfind(b"\n") + 1
        whole, held = text[:end], text[end:]
        if end or not self._held:
            self._held_since = now
        self._redrawn = b"\r" in held
        if self._redrawn:
            held = held[held.rfind(b"\r", 0, -1) + 1 :]
        if len(held) > CHUNK:
            whole, held = whole + held + b"\n", b""
        self._held = held
        return _without_redraws(whole) if b"\r" in whole else whole


class Outlet:
    """One console, the sources shown on it, and the file for the lines that have one of `words`."""

    def __init__(self, sources: Sequence[Source], console: Console | LogSender, words: Iterable[str]) -> None:
        self.sources = sources
        self.console = console
        self._kept_fd: int | None = None
        self._words = [word.encode("utf-8", "surrogateescape") for word in words]

    def open(self, kept: str) -> None:
        """Open the files. OSError: one of them cannot be."""
        if kept:
            self._kept_fd = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        for source in self.sources:
            source.open()

    def pump(self, budget: int, now: float) -> int:
        """Pass on up to `budget` bytes, in turns; returns how many were read."""
        used, found = 0, True
        self.console.flush()
        while found and used < budget and not self.console.pending:
            found = False
            for source in self.sources:
                size, lines = source.read(now)
                self._pass_on(source, lines)
                used += size
                found = found or size > 0
        return used

    def show_overdue(self, now: float) -> None:
        """Show the pieces without a line end that have waited long enough."""
        for source in self.sources:
            self._pass_on(source, source.overdue(now))

    def close(self) -> None:
        self.console.close()
        for source in self.sources:
            source.close()
        if self._kept_fd is not None:
            os.close(self._kept_fd)

    def _pass_on(self, source: Source, lines: bytes) -> None:
        if not lines:
            return
        if source.shown and not self.console.gone:
            text = _as_text(lines) if source.filed else lines
            self.console.write(source.prefix + text[:-1].replace(b"\n", b"\n" + source.prefix) + b"\n")
        if self._kept_fd is not None and any(word in lines for word in self._words):
            _write_all(
                self._kept_fd,
                b"".join(
                    source.prefix + line + b"\n"
                    for line in lines[:-1].split(b"\n")
                    if any(word in line for word in self._words)
                ),
            )


class Tee:
    """Follows files and shows them. `pump` at `look_at`, or when `fileno` is readable; at the end `drain`, then `close`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._watch = Watch()
        self.look_at = clock()  # When (monotonic) to call `pump`, if `fileno` does not become readable before.
        self._listens = False
        self._outlets: list[Outlet] = []
        self._ends = False  # Nothing more is written to the files, or it is not to be shown.
        self._is_read = False  # All of them are, then.

    def follow(self, sources: Sequence[Source], to: int | LogSender, kept: str = "", words: Iterable[str] = ()) -> None:
        """Show `sources` on a descriptor, or send them; copy lines that contain one of `words` to the file `kept`. OSError: a
        file cannot be opened; `close` gives back those that were."""
        if not sources:
            return
        outlet = Outlet(sources, Console(to) if isinstance(to, int) else to, words)
        self._outlets.append(outlet)
        outlet.open(kept)
        for source in sources:
            self._watch.add(source.path, IN_MODIFY)

    def fileno(self) -> int:
        """Readable when something was written. -1: only `look_at` counts, as for a moment after a look that found something."""
        return self._watch.fileno() if self._listens and not self._watch.is_blind else -1

    @property
    def trouble(self) -> str:
        """Why one of the consoles can be written to no more; empty: all can."""
        return next((outlet.console.trouble for outlet in self._outlets if outlet.console.trouble), "")

    def pump(self) -> bool:
        """Show what is new, without blocking. True: all that was complete has been shown."""
        self._watch.clear()
        now = self._clock()
        used = 0
        for outlet in self._outlets:
            share = outlet.pump(PUMP_BYTES, now)
            outlet.show_overdue(now)
            used += share
        blocked = self._blocked()
        self._listens = not blocked and not used
        if blocked:
            self.look_at = now + BLOCKED_S
        elif used:
            self.look_at = now if used >= PUMP_BYTES else now + BATCH_S
        else:
            due = min((source.due for outlet in self._outlets for source in outlet.sources), default=NEVER)
            self.look_at = min(due, now + (POLL_S if self._watch.is_blind else IDLE_S))
        return self._listens

    def drain(
        self,
        stall_s: float = STALL_S,
        limit_s: float = float("inf"),
        *,
        do: Callable[[Callable[[], object]], bool] = _at_once,
        cut: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Show all that is in the files now, lines without an end too, for when the workers have ended.

        Blocks while there is something to show, but no longer than `limit_s` seconds in all, nor than `stall_s` for a console
        that takes nothing, nor any longer once `cut`. False: something was left out; it is in the files. `do`: how each piece
        of it is done, and whether it has been: a piece that is not counts as a console that takes nothing.
        """
        begun = moved = self._clock()
        while True:
            has_done, now = do(self._end), self._clock()
            if has_done:
                blocked = self._blocked()
                if self._is_read and not blocked:
                    return True
                if not blocked or blocked[0].ready(BLOCKED_S):
                    moved = now
            if now - moved > stall_s or now - begun > limit_s or cut():
                return False

    def _end(self) -> None:
        """A piece of the end: the files' as they are at the first."""
        if not self._ends:
            for outlet in self._outlets:
                for source in outlet.sources:
                    source.stop_here()
            self._ends = True
        self._is_read = self._is_read or self.pump()
        if self._is_read:
            for outlet in self._outlets:
                outlet.show_overdue(float("inf"))
                outlet.console.flush()

    def _blocked(self) -> list[Console | LogSender]:
        return [outlet.console for outlet in self._outlets if outlet.console.pending]

    def close(self) -> None:
        """Give everything back; shows nothing more."""
        for outlet in self._outlets:
            outlet.close()
        self._outlets = []
        self._watch.close()


def _without_redraws(lines: bytes) -> bytes:
    """Each line as it stood on the screen at its end; a carriage return right before the line end stays."""

    def settled(line: bytes) -> bytes:
        body = line[:-1] if line.endswith(b"\r") else line
        return last_drawn(body) + line[len(body) :]

    return b"\n".join(settled(line) if b"\r" in line else line for line in lines.split(b"\n"))


def _as_text(lines: bytes) -> bytes:
    """Without what makes grep take a file for a binary one: NUL, and what is no UTF-8. ft_launcher's log shows them so too."""
    text = lines if lines.isascii() else lines.decode("utf-8", "replace").encode()
    return text.replace(b"\0", b"<NUL>")


def _write_all(fd: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(fd, text) :]
    except OSError:
        pass  # the disk is full: the line is in the worker's own log too, or nowhere
