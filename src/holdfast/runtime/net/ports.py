"""How does a job get a TCP port that nobody can take from it? One question, so that a one-node job loads nothing more."""

from __future__ import annotations

import _socket as socket  # `socket` itself, with its enums and selectors, takes 3 ms that the first worker would wait for

from holdfast.core.errors import StartError


def hold_port(rather: int = 0) -> socket.socket:
    """A free port, `rather` that one, bound with SO_REUSEADDR and not listening.

    A worker's store, with the same option, can still bind it; the kernel gives it to nobody who asks for any port."""
    # Dual-stack where possible: torch's store listens on [::] first.
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            has_it = bool(rather) and _bind(sock, (anywhere, rather))  # without the option: two would hold the same
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not has_it:
                sock.bind((anywhere, 0))
            return sock
        except OSError:
            sock.close()
    raise StartError("no free TCP port on this host", hint="see `sysctl net.ipv4.ip_local_port_range`")


def _bind(sock: socket.socket, to: tuple[str, int]) -> bool:
    try:
        sock.bind(to)
    except OSError:  # somebody has it, or has just had it
        return False
    return True
