"""When is it worth looking at the workers again? As soon as one of them has ended; a pidfd says so within a millisecond."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable

from holdfast.runtime.process.process import pidfd_open


class ExitWatch:
    """Watches processes for their end. Where the kernel has no pidfds it waits the whole time, as torch's agent does."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._pids: dict[int, int] = {}  # by pidfd
        for pid in pids:
            pidfd = pidfd_open(pid) if isinstance(pid, int) and pid > 0 else None
            if pidfd is not None:
                self._pids[pidfd] = pid

    def wait(self, seconds: float) -> None:
        """Until one of them ends, `seconds` at most. Each end is news once: a worker that is done does not end every wait."""
        if not self._pids:
            time.sleep(seconds)
            return
        poll = select.poll()
        for pidfd in self._pids:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(max(1, int(seconds * 1000))):
            del self._pids[pidfd]
            os.close(pidfd)

    def close(self) -> None:
        """Stop watching."""
        for pidfd in self._pids:
            os.close(pidfd)
        self._pids.clear()
