"""Raises the limit on open files for a coordinator's many links.

It holds a connection to every other node, and the usual limit is 1,024. Any process may raise its own, up to a hard limit.
"""

from __future__ import annotations

import resource

from holdfast.runtime.host import Host

ELSE = 200  # Files besides links: workers' logs, pages, pidfds, strangers.


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
