"""How do the lines of a cycle's ranks come into one file, each with its rank? By a thread that follows the ranks' own files.

    <prefix>_cycle<N>.log:     "3: loss 2.31"

The workers write to files of their own, as under --redirects, so none waits for this log, and nothing is lost with it: what has
not been gathered yet is still there, whoever crashes. A file server that hangs holds up the thread alone. Lines are appended
whole, with O_APPEND, so the agents of all nodes may share one file. After the round the thread gathers the rest and ends; the
next round does not wait for it, the job's end does, for a while.
"""

from __future__ import annotations

import _thread
import os
import select
from _queue import Empty, SimpleQueue

from holdfast.agent.tee import Source, Tee

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.machine import Observation
    from holdfast.runtime.host import Host


class AppLog:
    """One cycle's file, on this node. `fd` is readable when there is `trouble` to tell."""

    def __init__(self, path: str, sources: Sequence[tuple[str, str]]) -> None:
        """`sources`: the files to follow, and what stands before each line of them."""
        self.path = path
        self.trouble = ""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sources = [Source(path=file, prefix=prefix, shown=True, filed=True) for file, prefix in sources]
        self._over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._done: SimpleQueue[None] = SimpleQueue()
        _thread.start_new_thread(self._follow, ())

    def finish(self) -> None:
        """The workers are gone: gather the rest, and end."""
        os.eventfd_write(self._over, 1)

    def wait(self, patience_s: float) -> bool:
        """After `finish`: whether all has been gathered, within that time."""
        try:
            self._done.get(True, patience_s)
        except Empty:
            return False
        self._done.put(None)  # for whoever asks again
        return True

    def close(self) -> None:
        """Give the descriptors back, once all has been gathered."""
        os.close(self.fd)
        os.close(self._over)

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            fd = self._open()
            if fd is not None:
                self._gather(fd)
                os.close(fd)
        finally:
            self._done.put(None)

    def _open(self) -> int | None:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._tell(error.strerror or str(error))
            return None

    def _gather(self, fd: int) -> None:
        tee = Tee()
        tee.follow(self._sources, fd)
        poll = select.poll()
        poll.register(self._over, select.POLLIN)
        if tee.interval_s is None:
            poll.register(tee.fileno(), select.POLLIN)
        while all(ready != self._over for ready, _ in poll.poll(None if tee.interval_s is None else tee.interval_s * 1000)):
            tee.pump()
            self._tell(tee.trouble)
        tee.drain(stall_s=float("inf"))
        self._tell(tee.trouble)
        tee.close()

    def _tell(self, trouble: str) -> None:
        if trouble and not self.trouble:
            self.trouble = f"{self.path} does not get all of the ranks' output, which is in their own files: {trouble}"
            os.eventfd_write(self.fd, 1)


class AppLogs:
    """Those of this node: one that is written, and others that are being finished."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.open: list[AppLog] = []

    def begin(self, path: str, sources: Sequence[tuple[str, str]]) -> None:
        """A cycle's workers write from now on; see `AppLog`."""
        try:
            log = AppLog(path, sources)
        except (OSError, RuntimeError) as error:  # no descriptors, no threads
            return self.host.complain(f"{path} does not get this node's output, which is in the ranks' own files: {error}")
        self.open.append(log)
        self.host.watch(log.fd, select.EPOLLIN, lambda events: self._told(log))

    def finish(self, patience_s: float = 0.0) -> None:
        """The workers are gone: what is left is gathered, and waited for that long at most."""
        for log in self.open:
            log.finish()
        for log in [log for log in self.open if log.wait(patience_s)]:
            self._told(log)
            log.close()
            self.open.remove(log)
        if patience_s:
            for log in self.open:
                self.host.complain(f"{log.path} takes nothing: some of the ranks' output is in their own files only")

    def is_whole(self, path: str) -> bool:
        """Whether nothing more comes from this node into the log at that path. Any thread may ask."""
        return all(log.wait(0.0) for log in list(self.open) if log.path == path)

    def _told(self, log: AppLog) -> list[Observation]:
        if log.fd in self.host.handlers:
            self.host.unwatch(log.fd)
            if log.trouble:
                self.host.complain(log.trouble)
        return []
