"""Links over TCP: sockets that never block, each with a handshake before its first message, and TLS below where configured.

Whatever a stranger does costs a descriptor for a few seconds, a few kilobytes and one line: see `_turn_away` and `_make_room`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from functools import partial

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import ProtocolError, RendezvousError
from holdfast.core.machine import NEVER
from holdfast.core.value import Value, quicken
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Message
from holdfast.runtime.net.addresses import bind_addresses, host_and_port, is_loopback
from holdfast.runtime.net.admission import Door
from holdfast.runtime.net.codec import decode, encode, warm
from holdfast.runtime.net.frames import (
    FRAME_BYTES,
    NONCE_BYTES,
    SEAL_BYTES,
    TLS_HELLO,
    TOKEN_BYTES,
    Frames,
    Handshake,
    Identity,
    Seal,
    Turned,
    frame,
    refusal,
    stranger,
)
from holdfast.runtime.net.link_pool import Crowd
from holdfast.runtime.net.loopback_link import Mirror
from holdfast.runtime.net.names import Names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from holdfast.core.machine import Observation
    from holdfast.runtime.host import Host, Ready
    from holdfast.runtime.net.names import Addresses
    from holdfast.runtime.net.tls import Shelter, Tunnel

GUESTS_FROM = 1 << 20
"""Numbers of links that others opened to us; those that we ask for are smaller."""

HANDSHAKE_S = 10.0
"""Longest time from connection to proof, and from our goodbye to theirs. A slow or half-open stranger holds one descriptor for
so long."""

STRANGERS = 1024
"""At most so many connections without proof at a time. Then the oldest of the address that has most goes, so that a flood from
one host keeps nobody else out."""

CROWD, YOUNG_S, PAUSE_S = 16, 1.0, 0.01
"""While no address has more connections without proof than `CROWD`, these are many nodes that come at once: those who come next
wait in the kernel's queue, until the oldest has had `YOUNG_S` for its proof; they are looked for every `PAUSE_S`."""

BACKLOG = 4096
"""Connections that may wait to be accepted (the kernel's somaxconn caps it): thousands come at once after a restart."""

LISTEN_TRIES = 100
"""To serve an address. Each takes microseconds."""

UNSENT_BYTES = 4 * FRAME_BYTES
"""What may wait for a member that does not read. It would have lost its lease long before."""

READ_BYTES = 1 << 16
"""At most so much of one link is taken in at a time: what others have said is not to wait for a report of megabytes."""

NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
REST_S = 0.5
"""How long no connection is accepted when there is no room for one, rather than to be woken by it again and again."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A peer that lost its power says no goodbye: its descriptor comes back after 40 s."""

AGAIN = ((16, 1), (44, 1000))
"""TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS (Linux 2.6.34 and 6.15, linux/tcp.h). Over a link that says a word a second TCP
notices a loss by its clock alone, and doubles its patience each time: 0.2, 0.6, 1.4, 3.0 s, so that an interface that was down
for half a lease would cost the lease. With these it tries six times at even intervals, and then once a second at least."""


class Limits(Value):
    """What those who have proved nothing may take: see the numbers of the same names."""

    strangers: int = STRANGERS
    crowd: int = CROWD
    young_s: float = YOUNG_S


LIMITS = Limits()


class Wire:
    """One socket. It has slots, as all that is held for each of thousands: one place in memory to be fetched, not three."""

    __slots__ = (
        "closing",
        "connecting",
        "events",
        "frames",
        "handshake",
        "known",
        "leaving",
        "link",
        "ours",
        "peer",
        "seals",
        "sock",
        "tunnel",
        "unsent",
        "until",
        "watched_by",
    )

    def __init__(self, sock: socket.socket, link: int, handshake: Handshake, until: float, peer: str) -> None:
        self.sock = sock
        self.link = link
        self.events = 0
        """What epoll waits for."""
        self.watched_by: Ready
        self.handshake = handshake
        self.ours = handshake.ours
        """We asked for it."""
        self.until = until
        """When it has to be proven, or gone after our goodbye."""
        self.peer = peer
        self.tunnel: Tunnel | None = None
        self.frames = Frames()
        self.known = False
        """Its first bytes have been looked at."""
        self.seals: tuple[Seal, Seal] | None = None
        """Of what we send, of what comes; None before the proof."""
        self.unsent = bytearray()
        self.connecting = self.ours
        self.leaving = False
        """We have something to do with it no more, and hang up once we have proved who we were."""
        self.closing = False

    @property
    def stranger(self) -> bool:
        """Somebody who came to us and has proved nothing."""
        return not self.ours and not self.handshake.done


class Network:
    """All links of this process."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        endpoint: tuple[str, int],
        *,
        shelter: Shelter | None = None,
        family: type[Message] = Message,
        limits: Limits = LIMITS,
    ) -> None:
        """`family`: which messages are understood here."""
        self.host = host
        self.limits = limits
        self.family = family
        self.identity = identity
        self.endpoint = endpoint
        self.shelter = shelter
        self.names = Names(host)
        self.crowd = Crowd(host, self._heard_together)
        """Those that have come to us and proved themselves."""
        self.came: list[tuple[Wire, bytes]] = []
        """What they have said at this look."""
        self.sought: set[int] = set()
        """Links whose address is not known yet."""
        self.wires: dict[int, Wire] = {}
        self.timed: dict[int, Wire] = {}
        """Those with a deadline, the earliest first: all are given the same time."""
        self.strangers: dict[str, dict[int, Wire]] = {}
        """Address → its connections without proof, the oldest first."""
        self.unproven = 0
        """How many those are."""
        self.listeners: list[socket.socket] = []
        self.taken = False
        """Somebody else on this host has the endpoint's port."""
        self.rest_until = NEVER
        """When to accept again; NEVER: we do."""
        self.door = Door(host.complain)
        self.next_guest = GUESTS_FROM
        self.mirror = Mirror()
        self.room = memoryview(bytearray(READ_BYTES))
        """What comes is taken in here: to have room made for each of thousands of messages costs more than the messages."""
        self.encoded: tuple[Message | None, bytes] = None, b""
        """The last message that was sent: often thousands are told the same."""

    @property
    def listens_at(self) -> str:
        """`host:port`; empty where nobody can come to us."""
        return shown_endpoint(*self.endpoint) if self.listeners else ""

    # --- asked for by actions -------------------------------------------------------------------------------------------

    def listen(self) -> bool:
        """Serve the endpoint, at any port where that is 0: `endpoint` then has the one that was got. False when somebody else
        does already; RendezvousError when it cannot be served at all."""
        name, port = self.endpoint
        try:
            addresses = bind_addresses(name, port)
        except OSError as error:
            raise RendezvousError(
                f"cannot serve the rendezvous at {name}:{port}: the name does not resolve ({error.strerror})",
                hint="give an address of this host in --rdzv-endpoint",
            ) from error
        for family, (address, _, *scope) in addresses:
            try:
                sock = _listener(family, (address, port, *scope))
                port = sock.getsockname()[1]
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    self.taken = True
                    self._unlisten()
                    return False
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                raise RendezvousError(
                    f"cannot listen on {name}:{port}: {error.strerror}", hint="choose another port"
                ) from error
            sock.setblocking(False)
            self.listeners.append(sock)
            self._welcome(sock)
        self.endpoint, self.taken = (name, port), False
        return bool(self.listeners)

    def warm(self) -> None:
        """Do now what the first message would otherwise have to wait for."""
        warm(self.family)
        quicken(Arrived, Transmit)

    def perform(self, action: Connect | Transmit | HangUp) -> list[Observation]:
        """Do what a machine wants done with a link; what can be told at once is returned."""
        match action:
            case Transmit(link=link, message=message, more=more):
                self.transmit(link, message, more=more)
            case Connect(link=link, endpoint=endpoint):
                return self.connect(link, endpoint)
            case HangUp(link=link):
                self.hang_up(link)
        return []

    def connect(self, link: int, endpoint: str = "") -> list[Observation]:
        """Begin a link to `endpoint`, or to the job's; its `LinkUp` or `LinkDown` follows."""
        name, port = host_and_port(endpoint) if endpoint else self.endpoint
        if self.listeners and (name, port) == self.endpoint:
            self.mirror.open(link, self._guest())
            return []
        self.sought.add(link)
        return self.names.ask(name, port, lambda found: self._reach(link, name, port, found))

    def _reach(self, link: int, name: str, port: int, found: Addresses) -> list[Observation]:
        if link not in self.sought:
            return []
        self.sought.remove(link)
        if isinstance(found, OSError):
            return [LinkDown(link=link, reason=f"cannot resolve {name}: {found.strerror}")]
        # Each attempt takes the next address, so a name with a dead IPv6 address still works.
        family, _, _, _, address = found[link % len(found)]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return [LinkDown(link=link, reason=os.strerror(code), refused=code == errno.ECONNREFUSED)]
        self._add(sock, link, ours=True, peer=f"{name}:{port}")
        return []

    def transmit(self, link: int, message: Message, *, more: bool = False) -> None:
        """Send a message; it is lost when the link is down. `more`: with the next one."""
        if link in self.mirror.pairs:
            self.mirror.say(link, message)
        elif (wire := self.wires.get(link)) and not wire.closing:
            if self.encoded[0] is not message:
                self.encoded = message, encode(message, FRAME_BYTES - SEAL_BYTES)
            self._write(wire, [self.encoded[1]], more=more)

    def transmit_all(self, those: Sequence[Transmit]) -> None:
        """Send many messages: all are made ready before the first goes, for the reason that `Crowd` gives."""
        for one in those:
            self.transmit(one.link, one.message, more=True)
        for one in those:
            if (wire := self.wires.get(one.link)) and not wire.connecting:
                self._flush(wire)

    def hang_up(self, link: int) -> None:
        """Say no more over a link; it goes down once everything has been sent and the other side has closed it too."""
        self.sought.discard(link)
        self.mirror.close(link)
        wire = self.wires.get(link)
        if wire is not None and wire.ours and not wire.handshake.done:
            wire.leaving = True  # to the other side, which is of our job too, we would be a stranger that gave up
        elif wire is not None and not wire.closing:
            wire.closing = True
            wire.until = self.host.now() + HANDSHAKE_S
            self.timed.pop(link, None)  # to the end of the line
            self.timed[link] = wire
            self._flush(wire)

    def close(self) -> None:
        """Close everything at once."""
        self._unlisten()
        self.names.close()
        for wire in list(self.wires.values()):
            self._drop(wire)
        self.crowd.close()
        self.door.tell()

    # --- asked for by time ----------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the next handshake or goodbye runs out, or something is to be told or heard."""
        if self.mirror.said:
            return 0.0
        first = next(iter(self.timed.values()), None)
        return min(NEVER if first is None else first.until, self.door.tell_at, self.rest_until, self.crowd.look_at)

    def due(self) -> list[Observation]:
        """What the passing of time has brought."""
        return self.expire(self.host.now())

    def expire(self, now: float) -> list[Observation]:
        """What this process has said to itself; drop whoever took too long to prove itself, or to go."""
        self.door.due(now)
        if now >= self.rest_until:
            self.rest_until = NEVER
            for sock in self.listeners:
                self._welcome(sock)
        seen = [*self.mirror.heard(), *self.crowd.due(now)]
        for wire in list(self.timed.values()):
            if now < wire.until:
                break
            seen += self._lost(wire, "it did not close the connection" if wire.closing else self._silence(wire))
        return seen

    def _silence(self, wire: Wire) -> str:
        what = "no answer" if wire.connecting else "no proof that it belongs to the job"
        return f"{what} within {HANDSHAKE_S:g} s"

    # --- events of sockets ----------------------------------------------------------------------------------------------

    def _welcome(self, listener: socket.socket) -> None:
        self.host.watch(listener.fileno(), select.EPOLLIN, partial(self._accept, listener))

    def _accept(self, listener: socket.socket, events: int) -> list[Observation]:
        dropped: list[Observation] = []
        for _ in range(64):
            if self.unproven >= self.limits.strangers and self._are_young():
                self._rest(PAUSE_S)
                break
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                self.host.complain(f"cannot accept a connection: {error.strerror}")
                if error.errno in NO_ROOM:
                    dropped += self._make_room()
                    self._rest(REST_S)
                break
            sock.setblocking(False)
            if self.unproven >= self.limits.strangers:
                dropped += self._make_room()
            self._add(sock, self._guest(), ours=False, peer=str(address[0]))
        return dropped

    def _guest(self) -> int:
        number, self.next_guest = self.next_guest, self.next_guest + 1
        return number

    def _are_young(self) -> bool:
        """Are those without proof likely to be members, who have only just come?"""
        if any(len(crowd) > self.limits.crowd for crowd in self.strangers.values()):
            return False
        oldest = next((wire for wire in self.timed.values() if wire.stranger and not wire.closing), None)
        return oldest is not None and self.host.now() < oldest.until - HANDSHAKE_S + self.limits.young_s

    def _make_room(self) -> list[Observation]:
        """Drop the oldest stranger of the address that has most."""
        crowd = max(self.strangers.values(), key=len, default=None)
        return self._lost(next(iter(crowd.values())), "too many connections without proof at once") if crowd else []

    def _rest(self, seconds: float) -> None:
        """Accept nobody for a moment."""
        if self.rest_until == NEVER:
            self.rest_until = self.host.now() + seconds
            for sock in self.listeners:
                self.host.unwatch(sock.fileno())

    def _add(self, sock: socket.socket, link: int, *, ours: bool, peer: str) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (*KEEPALIVE, *AGAIN):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:
            pass  # it is gone already, or the kernel has no such option: neither is worth more than being slower
        handshake = Handshake(self.identity, os.urandom(NONCE_BYTES).hex(), ours=ours)
        wire = self.wires[link] = self.timed[link] = Wire(sock, link, handshake, self.host.now() + HANDSHAKE_S, peer)
        if not ours:
            self.strangers.setdefault(peer, {})[link] = wire
            self.unproven += 1
        wire.events = select.EPOLLIN | (select.EPOLLOUT if ours else 0)
        self._watch(wire, self.host)
        if self.shelter is not None:
            wire.tunnel = self.shelter(ours)
            wire.unsent += wire.tunnel.begin()
        self._write(wire, handshake.opening())

    def _watch(self, wire: Wire, where: Ready) -> None:
        wire.watched_by = where
        where.watch(wire.sock.fileno(), wire.events, partial(self._ready, wire))

    def _ready(self, wire: Wire, events: int) -> list[Observation]:
        if wire.connecting and (code := wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            return self._lost(wire, os.strerror(code))
        wire.connecting = False
        if events & select.EPOLLOUT and (failed := self._flush(wire)):
            return self._lost(wire, failed)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return self._read(wire)
        return []

    def _read(self, wire: Wire) -> list[Observation]:
        try:
            data = bytes(self.room[: wire.sock.recv_into(self.room)])
        except BlockingIOError:
            return []
        except OSError as error:
            return self._lost(wire, error.strerror or "broken")
        if wire.watched_by is self.crowd:
            self.came.append((wire, data))
            return []
        return self._made_of(wire, data)

    def _heard_together(self) -> list[Observation]:
        came, self.came = self.came, []
        seen: list[Observation] = []
        for wire, data in came:
            seen += self._made_of(wire, data)
        return seen

    def _made_of(self, wire: Wire, data: bytes) -> list[Observation]:
        if not data:
            return self._lost(wire, "it closed the connection without a proof" if wire.stranger else "closed by the other side")
        if wire.closing:
            return []  # we have said goodbye: nothing that comes now is heard
        seen: list[Observation] = []
        try:
            self._take(wire, data)
            while wire.frames.buffer and (payload := wire.frames.next()) is not None:
                seen += self._frame(wire, payload)
        except Turned as turned:
            self._write(wire, turned.answer)
            return seen + self._lost(wire, turned.what, final=True)
        except ProtocolError as error:
            if wire.tunnel is not None:
                wire.unsent += wire.tunnel.answer()  # an alert: it says why to the other side
                self._flush(wire)
            return seen + self._lost(wire, error.what, bad=True)
        if len(wire.unsent) > UNSENT_BYTES:
            return seen + self._lost(wire, "it sends and does not read", bad=True)
        return seen

    def _take(self, wire: Wire, data: bytes) -> None:
        """Let `data` through the tunnel, if there is one, to where frames are cut."""
        if wire.tunnel is None:
            wire.frames.feed(data)
            if not wire.known and len(wire.frames.buffer) >= 4:
                wire.known = True
                self._look(wire, bytes(wire.frames.buffer[:4]))
            return
        if not wire.known:
            wire.known = True
            self._look(wire, data[:4])
        wire.frames.feed(wire.tunnel.received(data))
        wire.unsent += wire.tunnel.answer()
        self._flush(wire)

    def _look(self, wire: Wire, first: bytes) -> None:
        """Who speaks another protocol? ProtocolError for those that are easily told from ours."""
        if what := stranger(first):
            raise ProtocolError(what)
        if wire.tunnel is None and first.startswith(TLS_HELLO):
            raise ProtocolError("it speaks TLS, and this node does not (--tls-cert, --tls-key, --tls-ca)")
        if wire.tunnel is None or first[0] in (0x15, 0x16):  # an alert, a handshake
            return
        wire.tunnel = None
        if wire.ours:
            raise Turned("the coordinator does not use TLS, and this node does (--tls-cert)", [])
        wire.unsent[:] = refusal("this job uses TLS: give --tls-cert, --tls-key and --tls-ca")
        self._flush(wire)
        raise Turned("it does not use TLS, and this job does (--tls-cert, --tls-key, --tls-ca)", [])

    def _frame(self, wire: Wire, payload: bytes) -> list[Observation]:
        if wire.seals is not None:
            return [self._heard(wire, wire.seals[1].take(payload))]
        self._write(wire, wire.handshake.take(payload))
        if not wire.handshake.done:
            return []
        wire.frames.limit = FRAME_BYTES
        wire.seals = wire.handshake.seals()
        self._known_now(wire)
        if not wire.ours:
            self.host.unwatch(wire.sock.fileno())
            self._watch(wire, self.crowd)
        if wire.leaving:
            self.hang_up(wire.link)
            return []
        if wire.ours:
            return [LinkUp(link=wire.link, ours=True)]
        names = wire.tunnel.names() if wire.tunnel is not None else ()
        return [LinkUp(link=wire.link, ours=False, peer=wire.peer, names=names)]

    def _heard(self, wire: Wire, payload: bytes) -> Arrived:
        message = decode(payload, self.family)
        # Members say who speaks, the coordinator does not: neither may say the other's part.
        if ("node" in message.__fields__) == wire.ours:
            raise ProtocolError(f"it is not for it to say {type(message).__name__}")
        return Arrived(link=wire.link, message=message)

    def _write(self, wire: Wire, payloads: list[bytes], *, more: bool = False) -> None:
        for payload in payloads:
            framed = frame(payload if wire.seals is None else wire.seals[0].put(payload))
            wire.unsent += framed if wire.tunnel is None else wire.tunnel.send(framed)
        if not wire.connecting and not more:
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
        events = select.EPOLLIN | (select.EPOLLOUT if wire.unsent else 0)
        if events != wire.events:
            wire.events = events
            wire.watched_by.rewatch(wire.sock.fileno(), events)
        return ""

    def _lost(self, wire: Wire, reason: str, *, final: bool = False, bad: bool = False) -> list[Observation]:
        self._drop(wire)
        if wire.stranger:
            self.door.note(wire.peer, f"turned away a connection from {wire.peer}: {reason}", self.host.now())
            return []
        # A member cannot mend its certificate while it tries again, no more than its token.
        hopeless = final or (bad and wire.tunnel is not None and not wire.handshake.done)
        if bad and not hopeless:
            self.door.note(wire.peer, f"hung up on {wire.peer}: {reason}", self.host.now())
        foreign, refused = bad and not wire.handshake.done, reason == os.strerror(errno.ECONNREFUSED)
        return [LinkDown(link=wire.link, reason=reason, final=hopeless, foreign=foreign, refused=refused)]

    def _drop(self, wire: Wire) -> None:
        if self.wires.pop(wire.link, None):
            self._known_now(wire)
            wire.watched_by.unwatch(wire.sock.fileno())
            wire.sock.close()

    def _known_now(self, wire: Wire) -> None:
        """It is a stranger no more, in one way or the other."""
        self.timed.pop(wire.link, None)
        crowd = self.strangers.get(wire.peer, {})
        if crowd.pop(wire.link, None):
            self.unproven -= 1
            if not crowd:
                del self.strangers[wire.peer]

    def _unlisten(self) -> None:
        for sock in self.listeners:
            self.host.unwatch(sock.fileno())
            sock.close()
        self.listeners = []


def _listener(family: int, at: tuple[Any, ...]) -> socket.socket:
    """OSError (EADDRINUSE): somebody else listens there.

    Of two who begin in one moment the kernel may refuse both, as each is about to listen: who begins again is refused to bind
    as soon as the other one does listen.
    """
    for left in reversed(range(LISTEN_TRIES)):
        sock, is_bound = socket.socket(family, socket.SOCK_STREAM), False
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(at)
            is_bound = True
            sock.listen(BACKLOG)
            return sock
        except OSError as error:
            sock.close()
            if not (is_bound and left and error.errno == errno.EADDRINUSE):
                raise
    raise AssertionError("the last try returns or raises")


def open_doors(network: Network, max_nodes: int, *, token_by: str) -> str:
    """What a person should know about who can join, said by the node that others come to; empty: nothing. `token_by`: how a
    token is given to a node."""
    token = network.identity.token
    if not network.listeners or max_nodes < 2 or is_loopback(network.endpoint[0]) or len(token) >= TOKEN_BYTES:
        return ""
    if not token:
        who = "holds a certificate of the CA" if network.shelter else f"reaches {shown_endpoint(*network.endpoint)}"
        return (
            f"no job token: whoever {who} and knows the run id can join the job, or stop it "
            f"(make one with `holdfast token --write FILE`, and give each node {token_by})"
        )
    return f"the job's token has only {len(token)} characters and can be guessed: `holdfast token` makes a better one"
