"""How do the lines of a cycle's ranks get into one file, each with its rank? A thread follows the ranks' own files.

    <prefix>_cycle<N>.log:     "3: loss 2.31"

No worker waits for this log, and what it lacks is still in the ranks' files. A file server that hangs holds up the thread
alone. Lines are appended whole, with O_APPEND, so the agents of all nodes may share one file; or they are sent to the
coordinator's node (`agent.logs.sender`). The next round does not wait for the thread to gather the rest; the job's end does,
for a while.
"""

from __future__ import annotations

import _thread
import os
import select
import time
from _queue import Empty, SimpleQueue
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.agent.logs.nonblocking_writer import open_log
from holdfast.agent.logs.tee import Source, Tee
from holdfast.core.job.cycles import log_path
from holdfast.core.machine import Observation
from holdfast.runtime.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.logs.sender import LogSender, Upstream

LOOK_S = 0.05  # Between two looks whether that wait is cut short.

PATIENCE_S = 10.0
"""How long the job's end waits for a file that takes nothing. As for a console: the text is in the ranks' files."""


class AppLog:
    """One cycle's lines of this node, and where they go. `fd` is readable when there are `complaints`."""

    def __init__(
        self,
        prefix: str,
        cycle: int,
        sources: Sequence[tuple[str, str]],
        upstream: Upstream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources`: the files to follow, and what stands before each line of them. `upstream`: where they go, rather than to
        the file here. OSError, RuntimeError: there are no descriptors, or threads, left for it."""
        self.path, self.clock = log_path(prefix, cycle), clock
        self.complaints: list[str] = []
        self.sender = None if upstream is None or upstream.is_here else self._sender(upstream, cycle)
        self._sources = [Source(path=file, prefix=prefix, shown=True, filed=True) for file, prefix in sources]
        self._done: SimpleQueue[None] = SimpleQueue()
        self._is_told = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = -1
        try:
            self._over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            _thread.start_new_thread(self._follow, ())
        except (OSError, RuntimeError):
            self.close()
            raise

    def finish(self) -> None:
        """The workers are gone: gather the rest, and end."""
        os.eventfd_write(self._over, 1)

    def wait(self, patience_s: float, cut: Callable[[], bool] = lambda: False) -> bool:
        """After `finish`: whether all has been gathered, within that time, and before `cut`."""
        until = self.clock() + patience_s
        while True:
            try:
                self._done.get(True, min(LOOK_S, max(0.0, until - self.clock())))
            except Empty:
                if self.clock() < until and not cut():
                    continue
                return False
            self._done.put(None)  # for the next call
            return True

    def close(self) -> None:
        """Give the descriptors back, once all has been gathered."""
        for fd in (self.fd, self._over):
            if fd >= 0:
                os.close(fd)

    def say(self, text: str) -> None:
        """Have the agent tell a person. For the thread."""
        self.complaints.append(text)
        os.eventfd_write(self.fd, 1)

    def _sender(self, upstream: Upstream, cycle: int) -> LogSender:
        from holdfast.agent.logs.sender import LogSender  # most jobs never need it

        return LogSender(upstream, cycle, self.path, self.say)

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            tee = Tee(self.clock)
            try:
                self._gather(tee)
            finally:
                tee.close()
        except OSError as error:  # the log cannot be written, or what the ranks have written not be read: a disk is gone
            self._tell(error.strerror or str(error))
        finally:
            self._done.put(None)

    def _gather(self, tee: Tee) -> None:
        if self.sender is not None:
            self.sender.begin()
            tee.follow(self._sources, self.sender)
        else:
            fd = open_log(self.path)
            try:
                tee.follow(self._sources, fd)  # which has a copy of it
            finally:
                os.close(fd)
        self._follow_to_the_end(tee)

    def _follow_to_the_end(self, tee: Tee) -> None:
        while not self._is_over(tee):
            tee.pump()
            self._tell(tee.trouble)
        if self.sender is not None:
            self.sender.end()
        tee.drain(stall_s=float("inf"))
        self._tell(tee.trouble)

    def _is_over(self, tee: Tee) -> bool:
        """Wait until there is something to gather, or the workers are gone. Whether they are."""
        poll = select.poll()
        poll.register(self._over, select.POLLIN)
        if tee.fileno() >= 0:
            poll.register(tee.fileno(), select.POLLIN)
        return any(fd == self._over for fd, _ in poll.poll(max(0.0, tee.look_at - self.clock()) * 1000))

    def _tell(self, trouble: str) -> None:
        if trouble and not self._is_told:
            self._is_told = True
            self.say(f"{self.path} is incomplete; the ranks' own files are complete: {trouble}")


class AppLogs:
    """Those of this node: one that is written, and others that are being finished."""

    def __init__(self, host: Host, upstream: Upstream | None = None) -> None:
        """`upstream`: where the lines go, rather than to a file here."""
        self.host = host
        self.upstream = upstream
        self.open: list[AppLog] = []

    def begin(self, prefix: str, cycle: int, sources: Sequence[tuple[str, str]]) -> None:
        """A cycle's workers write from now on; see `AppLog`."""
        try:
            log = AppLog(prefix, cycle, sources, self.upstream, self.host.now)
        except (OSError, RuntimeError) as error:  # no descriptors, no threads
            path = log_path(prefix, cycle)
            return self.host.complain(f"{path} has no output of this node; the ranks' own files have it: {error}")
        self.open.append(log)
        self.host.watch(log.fd, select.EPOLLIN, lambda events: self._told(log))

    def finish(self, *, patient: bool, cut: Callable[[], bool]) -> None:
        """The workers are gone: what is left is gathered. `patient`: it is waited for, with all that may come of it, until
        `cut`."""
        if patient and self.upstream is not None:
            self.upstream.end()
        for log in self.open:
            log.finish()
        if patient and self.upstream is not None:
            until = self.host.now() + self.upstream.patience_s
            for log in self.open:
                if log.sender is not None and not log.wait(max(0.0, until - self.host.now()), cut):
                    log.sender.cut()
        for log in [log for log in self.open if log.wait(PATIENCE_S if patient else 0.0, cut)]:
            self._told(log)
            self.host.unwatch(log.fd)
            log.close()
            self.open.remove(log)
        if patient:
            for log in self.open:
                self._told(log)
                why = "a signal ended the wait" if cut() else f"it could not be written within {PATIENCE_S:g} s"
                self.host.complain(f"{log.path} is incomplete; the ranks' own files are complete: {why}")

    def is_whole(self, path: str) -> bool:
        """Whether nothing more comes from this node into the log at that path. Any thread may ask."""
        return all(log.wait(0.0) for log in list(self.open) if log.path == path)

    def _told(self, log: AppLog) -> list[Observation]:
        with suppress(BlockingIOError):  # nothing has been said
            os.eventfd_read(log.fd)
        while log.complaints:
            self.host.complain(log.complaints.pop(0))
        return []
