"""Which addresses mean this host, and under which one do other nodes reach it?"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Any

from holdfast.runtime.peer_user import user_of

SCONTROL_S = 5.0  # Longest wait for Slurm's controller. It answers in milliseconds.


def askable(name: str) -> bytes | str:
    """`name` for `socket.getaddrinfo`: ASCII as bytes, past Python's IDNA codec, which is slow to load and may raise
    UnicodeError."""
    return name.encode() if name.isascii() else name


def looked_up(name: str, port: int) -> list[tuple[Any, ...]]:
    """The addresses of `name`, as of `socket.getaddrinfo`. Takes as long as a name server. OSError: there are none."""
    return list(socket.getaddrinfo(askable(name), port, type=socket.SOCK_STREAM))


def is_here(name: str) -> bool:
    """Does `name` mean this host? It does when one of its addresses can be bound here."""
    try:
        infos = looked_up(name, 0)
    except OSError:
        return False
    for family, _, _, _, address in infos:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(address)
                return True
            except OSError:
                continue
    return False


def own_address(endpoint: str) -> str:
    """The address under which nodes that meet at `endpoint` reach this one: that of the interface towards it."""
    for target in (endpoint, "192.0.2.1"):  # the second stands for "somewhere else" (TEST-NET-1); nothing is sent
        try:
            family, _, _, _, address = socket.getaddrinfo(askable(target), 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(address)
                found = str(sock.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(found) or is_loopback(endpoint):
            return found
    return socket.getfqdn()


def is_loopback(host: str) -> bool:
    """Does `host`, as written, mean this host and nothing else? (127.evil.example is a name that somebody else has.)"""
    try:
        return host in ("localhost", "::1") or socket.inet_pton(socket.AF_INET, host)[0] == 127
    except (OSError, ValueError):
        return False


def is_any_address(host: str) -> bool:
    """Does `host`, as written, mean all addresses of this host, as `0.0.0.0` and `::` do?"""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def bind_addresses(name: str, port: int, infos: list[tuple[Any, ...]]) -> list[tuple[int, tuple[Any, ...]]]:
    """Where to listen so that everybody who resolves `name`, as `infos`, reaches us, and no wider than that."""
    found = [(int(family), tuple(address)) for family, _, _, _, address in infos]
    if not is_loopback(name) and all(is_loopback(str(address[0])) for _, address in found):
        # /etc/hosts gives many hosts a loopback address for their own name; other nodes come by the real one.
        return [(socket.AF_INET, ("0.0.0.0", port)), (socket.AF_INET6, ("::", port))]
    return found


def host_and_port(endpoint: str) -> tuple[str, int]:
    """The two halves of an endpoint as it is written, IPv6 in brackets."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isdecimal() else 0


def slurm_address(node: str, patience_s: float = SCONTROL_S) -> str:
    """Where a node of Slurm is reached: its name, or where that does not resolve, the NodeAddr that Slurm itself goes by."""
    try:
        socket.getaddrinfo(askable(node), None)
        return node
    except OSError:
        pass
    import subprocess  # heavy, and most names resolve

    command = ["scontrol", "show", "--oneliner", "node", node]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=patience_s, errors="replace").stdout
    except (OSError, subprocess.SubprocessError):
        return node  # there will be a message that it does not resolve
    words = dict(word.partition("=")[::2] for word in shown.split())
    return words.get("NodeAddr") or node


def is_within_this_host(sock: socket.socket, host: str) -> bool:
    """Whether a connection from the address `host` comes from this host: over loopback, or from the address that it came to."""
    return host.removeprefix("::ffff:").startswith("127.") or host in ("::1", sock.getsockname()[0])


def origin(sock: socket.socket, host: str) -> tuple[str, str]:
    """Whom a connection from the address `host` counts for, and `host`. Within this host that is a user, of IPv6 a network:
    both have as many addresses as they like."""
    plain = host.removeprefix("::ffff:")
    if is_within_this_host(sock, host):
        user = user_of(sock)
        return "here" if user is None else f"user {user}", host
    if ":" not in plain:
        return plain, host
    try:
        return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex(), host
    except OSError:
        return host, host
