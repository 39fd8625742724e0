"""Links over TCP: sockets that never block, each with a handshake before its first message."""

from __future__ import annotations

import errno
import os
import select
import socket
from functools import partial

from holdfast.core.errors import ProtocolError, RendezvousError
from holdfast.core.links import Arrived, LinkDown, LinkUp
from holdfast.runtime.codec import decode, encode
from holdfast.runtime.frames import FRAME_BYTES, Frames, Handshake, Identity, Turned, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.machine import Observation
    from holdfast.core.messages import Message
    from holdfast.runtime.host import Host

GUESTS_FROM = 1 << 20
"""Numbers of links that others opened to us; those that we ask for are smaller."""

HANDSHAKE_S = 10.0
"""Longest time from connection to proof. A slow or half-open stranger holds one descriptor for so long."""

STRANGERS = 256
"""At most so many connections without proof at a time; the oldest goes."""

BACKLOG = 4096
"""Connections that may wait to be accepted (the kernel's somaxconn caps it): thousands come at once after a restart."""


class Wire:
    """One socket."""

    def __init__(self, sock: socket.socket, link: int, handshake: Handshake, until: float, peer: str) -> None:
        self.sock = sock
        self.link = link
        self.handshake = handshake
        self.until = until
        """The handshake's deadline."""
        self.peer = peer
        self.frames = Frames()
        self.unsent = bytearray()
        self.connecting = handshake.ours
        self.closing = False


class Network:
    """All links of this process."""

    def __init__(self, host: Host, identity: Identity, endpoint: tuple[str, int]) -> None:
        self.host = host
        self.identity = identity
        self.endpoint = endpoint
        self.wires: dict[int, Wire] = {}
        self.listeners: list[socket.socket] = []
        self.next_guest = GUESTS_FROM
        self.addresses: list[tuple[int, tuple[object, ...]]] = []

    # --- asked for by actions -------------------------------------------------------------------------------------------

    def listen(self) -> bool:
        """Serve the endpoint. False when somebody else does already; RendezvousError when it cannot be served at all."""
        name, port = self.endpoint
        for family, address in _bind_addresses(name, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                sock.listen(BACKLOG)
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRINUSE:
                    self._unlisten()
                    return False
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                raise RendezvousError(
                    f"cannot listen on {name}:{port}: {error.strerror}", hint="choose another port"
                ) from error
            sock.setblocking(False)
            self.listeners.append(sock)
            self.host.watch(sock.fileno(), select.EPOLLIN, partial(self._accept, sock))
        return bool(self.listeners)

    def connect(self, link: int) -> list[Observation]:
        """Begin a link to the endpoint; its `LinkUp` or `LinkDown` follows."""
        name, port = self.endpoint
        try:
            infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return [LinkDown(link=link, reason=f"cannot resolve {name}: {error.strerror}")]
        # Each attempt takes the next address, so a name with a dead IPv6 address still works.
        family, _, _, _, address = infos[link % len(infos)]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return [LinkDown(link=link, reason=os.strerror(code))]
        self._add(sock, link, ours=True, peer=f"{name}:{port}")
        return []

    def transmit(self, link: int, message: Message) -> None:
        """Send a message; it is lost when the link is down."""
        if (wire := self.wires.get(link)) and not wire.closing:
            self._write(wire, [encode(message)])

    def hang_up(self, link: int) -> None:
        """Say no more over a link; it goes down once everything has been sent and the other side has closed it too."""
        if (wire := self.wires.get(link)) and not wire.closing:
            wire.closing = True
            self._flush(wire)

    def close(self) -> None:
        """Close everything at once."""
        self._unlisten()
        for wire in list(self.wires.values()):
            self._drop(wire)

    # --- asked for by time ----------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the next handshake runs out."""
        return min((wire.until for wire in self.wires.values() if not wire.handshake.done), default=float("inf"))

    def expire(self, now: float) -> list[Observation]:
        """Drop whoever took too long to prove itself."""
        late = [wire for wire in self.wires.values() if not wire.handshake.done and now >= wire.until]
        return [seen for wire in late for seen in self._lost(wire, "no answer within the time for a handshake")]

    # --- events of sockets ----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, events: int) -> list[Observation]:
        dropped: list[Observation] = []
        for _ in range(64):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                self.host.complain(f"cannot accept a connection: {error.strerror}")
                break
            sock.setblocking(False)
            strangers = [wire for wire in self.wires.values() if not wire.handshake.done]
            if len(strangers) >= STRANGERS:
                dropped += self._lost(strangers[0], "too many strangers at once")
            self._add(sock, self.next_guest, ours=False, peer=str(address[0]))
            self.next_guest += 1
        return dropped

    def _add(self, sock: socket.socket, link: int, *, ours: bool, peer: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = Handshake(self.identity, os.urandom(16).hex(), ours=ours)
        wire = self.wires[link] = Wire(sock, link, handshake, self.host.now() + HANDSHAKE_S, peer)
        events = select.EPOLLIN | (select.EPOLLOUT if ours else 0)
        self.host.watch(sock.fileno(), events, lambda events: self._ready(wire, events))
        self._write(wire, handshake.opening())

    def _ready(self, wire: Wire, events: int) -> list[Observation]:
        if wire.link not in self.wires:
            return []
        if wire.connecting and (code := wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            return self._lost(wire, os.strerror(code))
        wire.connecting = False
        if events & select.EPOLLOUT and (failed := self._flush(wire)):
            return self._lost(wire, failed)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and wire.link in self.wires:
            return self._read(wire)
        return []

    def _read(self, wire: Wire) -> list[Observation]:
        try:
            data = wire.sock.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            return self._lost(wire, error.strerror or "broken")
        if not data:
            return self._lost(wire, "closed by the other side")
        seen: list[Observation] = []
        try:
            wire.frames.feed(data)
            while (payload := wire.frames.next()) is not None:
                seen += self._frame(wire, payload)
        except Turned as turned:
            self._write(wire, turned.answer)
            return seen + self._lost(wire, turned.what, final=True)
        except ProtocolError as error:
            return seen + self._lost(wire, error.what)
        return seen

    def _frame(self, wire: Wire, payload: bytes) -> list[Observation]:
        if wire.handshake.done:
            return [Arrived(link=wire.link, message=decode(payload))]
        self._write(wire, wire.handshake.take(payload))
        if not wire.handshake.done:
            return []
        wire.frames.limit = FRAME_BYTES
        return [LinkUp(link=wire.link, ours=wire.handshake.ours)]

    def _write(self, wire: Wire, payloads: list[bytes]) -> None:
        for payload in payloads:
            wire.unsent += frame(payload)
        if not wire.connecting:
            self._flush(wire)  # a failure shows again as an event of the socket

    def _flush(self, wire: Wire) -> str:
        try:
            while wire.unsent:
                del wire.unsent[: wire.sock.send(wire.unsent)]
            if wire.closing and not wire.unsent:
                wire.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            return error.strerror or "broken"
        self.host.rewatch(wire.sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if wire.unsent else 0))
        return ""

    def _lost(self, wire: Wire, reason: str, *, final: bool = False) -> list[Observation]:
        self._drop(wire)
        stranger = not wire.handshake.ours and not wire.handshake.done
        if stranger:
            self.host.complain(f"turned away a connection from {wire.peer}: {reason}")
            return []
        return [LinkDown(link=wire.link, reason=reason, final=final)]

    def _drop(self, wire: Wire) -> None:
        if self.wires.pop(wire.link, None):
            self.host.unwatch(wire.sock.fileno())
            wire.sock.close()

    def _unlisten(self) -> None:
        for sock in self.listeners:
            self.host.unwatch(sock.fileno())
            sock.close()
        self.listeners = []


def is_here(name: str) -> bool:
    """Does `name` mean this host? It does when one of its addresses can be bound here."""
    try:
        infos = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
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
            family, _, _, _, address = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(address)
                found = str(sock.getsockname()[0])
        except OSError:
            continue
        if not is_loopback(found) or is_loopback(endpoint):
            return found
    return socket.getfqdn()


def is_loopback(host: str) -> bool:
    """Does `host`, as written, mean this host and nothing else?"""
    return host in ("localhost", "::1") or host.startswith("127.")


def _bind_addresses(name: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    """Where to listen so that everybody who resolves `name` reaches us, and no wider than that."""
    infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    found = [(int(family), tuple(address)) for family, _, _, _, address in infos]
    if not is_loopback(name) and all(is_loopback(str(address[0])) for _, address in found):
        # /etc/hosts gives many hosts a loopback address for their own name; other nodes come by the real one.
        return [(socket.AF_INET, ("0.0.0.0", port)), (socket.AF_INET6, ("::", port))]
    return found
