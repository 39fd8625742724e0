"""Which user here has the other end of a TCP connection? The kernel tells: by sock_diag, and by /proc where it lacks that.

A socket that its process has closed has no user any more. The kernel then says 0, which is root's number, and no inode: so only
who still holds the connection is told, and nobody else may be believed.
"""

from __future__ import annotations

import os
import socket
import struct

Address = tuple[str, int]

_SOCK_DIAG, _BY_FAMILY = 4, 20
"""NETLINK_SOCK_DIAG and SOCK_DIAG_BY_FAMILY (linux/netlink.h, linux/sock_diag.h)."""

_ASKS = struct.Struct("=LHHLL BBBBL")
"""A request: length, kind, flags, number, port; family, protocol, what more, nothing, states. Then two ends, and no more."""

_ANSWERS = struct.Struct("=4xH10x 4x48x12x LL")
"""An answer: its kind; behind its head, the state, both ends and three numbers the user and the inode (linux/inet_diag.h)."""


def is_ours(user: int | None) -> bool:
    """Whether that is our own user or root, who may do as we may."""
    return user in (0, os.geteuid())


def user_of(sock: socket.socket) -> int | None:
    """Whose process has the other end of a TCP connection within this host. None: the kernel does not tell."""
    try:
        return user_between(sock.getsockname()[:2], sock.getpeername()[:2])
    except OSError:
        return None


def user_between(here: Address, there: Address) -> int | None:
    """Who has the end `there` of a connection that ends `here`. None: the kernel does not tell, or it is closed."""
    found = socket_between(here, there)
    return found[0] if found is not None else None


def socket_between(here: Address, there: Address) -> tuple[int, int] | None:
    """User and inode of the socket at the end `there`. None: as above."""
    try:
        found: tuple[int, int] | None = _asked(here, there)
    except (OSError, ValueError, struct.error):
        found = in_proc(here, there)
    return found if found is not None and found[1] else None


def _asked(here: Address, there: Address) -> tuple[int, int]:
    family = socket.AF_INET6 if ":" in _plain(here[0]) else socket.AF_INET
    ours, theirs = (socket.inet_pton(family, _plain(one[0])).ljust(16, b"\0") for one in (here, there))
    ends = struct.pack("!HH16s16s", there[1], here[1], theirs, ours) + struct.pack("=LLL", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(0.1)
        size = _ASKS.size + len(ends)
        kernel.send(_ASKS.pack(size, _BY_FAMILY, 1, 0, 0, family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + ends)
        kind, user, inode = _ANSWERS.unpack_from(kernel.recv(4096))
    if kind != _BY_FAMILY:
        raise ValueError("the kernel has no such connection, or does not tell")
    return user, inode


def in_proc(here: Address, there: Address, root: str = "/proc/net") -> tuple[int, int] | None:
    """The same by /proc, where the kernel lacks sock_diag, or it is not for us: user and inode."""
    ours, theirs = _as_in_proc(here), _as_in_proc(there)
    for table in ("tcp", "tcp6"):
        try:
            with open(os.path.join(root, table), encoding="ascii", errors="replace") as file:
                for line in file:
                    words = line.split()
                    if len(words) > 9 and words[1] in theirs and words[2] in ours:
                        return int(words[7]), int(words[9])
        except (OSError, ValueError):
            continue
    return None


def _plain(host: str) -> str:
    """Without what an IPv6 socket puts before an IPv4 address, and without an interface."""
    return host.removeprefix("::ffff:").partition("%")[0]


def _as_in_proc(end: Address) -> tuple[str, ...]:
    """Addresses there are in words of 32 bits, in the host's byte order, and ports in hexadecimal."""
    host, port = _plain(end[0]), end[1]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        packed = socket.inet_pton(family, host)
    except OSError:
        return ()
    said = [packed] if family == socket.AF_INET6 else [packed, b"\0" * 10 + b"\xff\xff" + packed]
    return tuple("".join(f"{word:08X}" for word in struct.unpack(f"={len(one) // 4}I", one)) + f":{port:04X}" for one in said)
