"""How many files may this agent open? Raises the limit for a coordinator's links, and keeps room for a restart.

A coordinator holds a connection to every other node, and the usual limit is 1,024. Any process may raise its own, up to a hard
limit. An agent that can open nothing could not start its ranks again, and each try would cost a restart: so it keeps some
descriptors in reserve, and puts its limit back where somebody has lowered it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.host import Host

SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""What a host says that is short of descriptors, processes or memory: it may have them again soon."""

KEPT, KEPT_OF = 32, 16
"""Descriptors in reserve: enough to start some ten ranks, and never more than a sixteenth of the limit."""

ELSE = 200  # Files besides links: workers' logs, pages, pidfds, strangers.


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


def make_room(host: Host, links: int) -> str:
    """Allow for `links` as far as the limit can be raised; workers keep the user's. Returns what to tell a person; empty:
    nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = links + ELSE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ""
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        host.start_with_files((soft, hard))
    if most == wanted:
        return ""
    return (
        f"this node hosts the coordinator and may open {most} files, so no more than some {max(0, most - ELSE)} of {links} "
        f"other nodes can join: raise its hard limit to {wanted} (ulimit -Hn, LimitNOFILE= of systemd, --ulimit of docker)"
    )
