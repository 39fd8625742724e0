"""How does a job get a TCP port that nobody can take from it, and who has one that it does not get? Little, so that a one-node
job loads nothing more."""

from __future__ import annotations

import _socket as socket  # `socket` itself, with its enums and selectors, takes 3 ms that the first worker would wait for
import os
from collections.abc import Collection

from holdfast.core.errors import StartError


def hold_port(rather: int = 0) -> socket.socket:
    """A free port, `rather` that one, bound with SO_REUSEADDR and not listening.

    A worker's store, with the same option, can still bind it; the kernel gives it to nobody who asks for any port."""
    # Dual-stack where possible: torch's store listens on [::] first.
    why: OSError | None = None
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            why = error
            continue
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            has_it = bool(rather) and _bind(sock, (anywhere, rather))  # without the option: two would hold the same
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not has_it:
                sock.bind((anywhere, 0))
            return sock
        except OSError as error:
            why = error
            sock.close()
    assert why is not None
    what = f"no TCP port can be held on this host ({why.strerror})"
    raise StartError(what, hint="see `sysctl net.ipv4.ip_local_port_range`, and `ulimit -n`") from why


def _bind(sock: socket.socket, to: tuple[str, int]) -> bool:
    try:
        sock.bind(to)
    except OSError:  # somebody has it, or has just had it
        return False
    return True


LISTENS = "0A"  # TCP_LISTEN, as /proc/net/tcp shows it.


def listening_process(port: int) -> str:
    """Which process of this host listens at `port`: `pid 12 (nginx)`. Empty: none does."""
    inodes = {inode for table in ("/proc/net/tcp", "/proc/net/tcp6") for inode in _listeners(table, port)}
    if (pid := next(iter(holders(inodes).values()), None)) is not None:
        return f"pid {pid}{_name_of(pid)}"
    return "a process that cannot be seen from here" if inodes else ""


def holders(inodes: Collection[int]) -> dict[int, int]:
    """Which process has each of these sockets, as far as this user may see: pids by inode. One look at all of the host."""
    sockets = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    for pid in filter(str.isdecimal, os.listdir("/proc") if sockets else ()):
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it is gone, or another user's
            continue
        for link in filter(sockets.__contains__, (_link(f"/proc/{pid}/fd/{fd}") for fd in fds)):
            found.setdefault(sockets[link], int(pid))
        if len(found) == len(sockets):
            break
    return found


def _listeners(table: str, port: int) -> list[int]:
    """Inodes of the sockets that listen at `port`."""
    try:
        with open(table) as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [int(row[9]) for row in rows if len(row) > 9 and row[3] == LISTENS and row[1].endswith(f":{port:04X}")]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return f" ({file.read().strip()})"
    except OSError:
        return ""
