"""What does an agent do that may open nothing more? It keeps descriptors in reserve, and puts its limit back.

Without any it could not start its ranks again, and each try would cost a restart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource

SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""What a host says that is short of descriptors, processes or memory: it may have them again soon."""

KEPT, KEPT_OF = 32, 16
"""Descriptors in reserve: enough to start some ten ranks, and never more than a sixteenth of the limit."""


class OpenFiles:
    """The limit that this process was given, and descriptors that it keeps for later."""

    def __init__(self) -> None:
        self.given = self.known = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.kept: list[int] = []

    def keep(self) -> None:
        """Take descriptors into reserve, as far as there are any."""
        soft = self.known[0]
        wanted = KEPT if soft == resource.RLIM_INFINITY else min(KEPT, soft // KEPT_OF)
        try:
            if len(self.kept) < wanted and not self.is_low:
                null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                self.kept.append(null)
                self.kept += [fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, 0) for _ in range(wanted - len(self.kept))]
        except OSError:
            pass  # what there is has to do

    def release(self) -> None:
        """Let others have them."""
        kept, self.kept = self.kept, []
        for fd in kept:
            os.close(fd)

    @property
    def is_low(self) -> bool:
        """Whether somebody has lowered the limit, and it could not be put back."""
        return _is_less(self.known[0], self.given[0])

    def look(self) -> str:
        """Put a limit back that somebody has lowered. Returns what to tell a person; empty: nothing."""
        now = resource.getrlimit(resource.RLIMIT_NOFILE)
        if now == self.known:
            return ""
        before, self.known = self.known, now
        if not _is_less(now[0], before[0]):
            return ""
        for wanted in (before, (now[1] if _is_less(now[1], before[0]) else before[0], now[1])):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
                break
            except (ValueError, OSError):
                continue  # only root may raise a hard limit
        self.known = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowered = f"somebody has lowered this agent's limit of open files from {before[0]} to {now[0]}"
        if not self.is_low:
            return f"{lowered}; it is {self.known[0]} again"
        self.release()
        return f"{lowered}, and the hard limit to {now[1]}: it goes on with {self.known[0]}, and so do ranks to come"


def _is_less(one: int, other: int) -> bool:
    return one != resource.RLIM_INFINITY and (other == resource.RLIM_INFINITY or one < other)
