"""Opens the agent's port, and accepts and makes links over TCP: sockets that never block.

Each has a handshake before its first message, and TLS below where configured.

Whatever a stranger does costs a descriptor for a few seconds, a few kilobytes and one line: see `_lost` and `_accept`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import ProtocolError, RendezvousError
from holdfast.core.machine import NEVER, Observation
from holdfast.core.value import quicken
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Serving, Transmit
from holdfast.core.wire.messages import Message, Reply, Request
from holdfast.core.wire.speakers import objection
from holdfast.runtime.host import Host
from holdfast.runtime.net.addresses import bind_addresses, host_and_port, is_loopback, is_within_this_host, looked_up, origin
from holdfast.runtime.net.admission import LIMITS, NO_ROOM, Admission, Limits, RejectionLog
from holdfast.runtime.net.codec import MEMBERS_VALUES, MOST_VALUES, decode, encode, warm
from holdfast.runtime.net.frames import FRAME_BYTES, SEAL_BYTES, TOKEN_BYTES, Identity, Turned
from holdfast.runtime.net.link_pool import LinkPool
from holdfast.runtime.net.loopback_link import Loopback
from holdfast.runtime.net.names import Addresses, Names
from holdfast.runtime.net.ports import listening_process
from holdfast.runtime.net.wire import Wire
from holdfast.runtime.peer_user import is_ours, user_of
from holdfast.runtime.secrets import Shelter

GUESTS_FROM = 1 << 20  # Numbers of links that others opened to us; those that we ask for are smaller.

HANDSHAKE_S = 10.0
"""Longest time from connection to proof, from that to the first word, from a message's first byte to its last, and from our
goodbye to theirs. A slow or half-open stranger holds one descriptor for so long."""

PAUSE_S = 0.01  # How often strangers who wait in the kernel's queue are looked for.

BACKLOG = 4096  # Connections waiting to be accepted: thousands come after a restart.

LISTEN_TRIES = 100  # To serve an address. Each takes microseconds.

UNSENT_BYTES = 4 * FRAME_BYTES  # For who does not read; a member's lease ends long before.

READ_BYTES, LEAST_BYTES = 1 << 16, 1 << 11
"""Taken in of one link at a time, so that others are heard meanwhile; and where many have come to us and have something to say
at one look, so many bytes of all of them together, but at least so many of each. What we have to do ourselves, as renewing our
own lease, waits for one look."""

LOOK_BYTES = 1 << 22
"""Decoded at one look, but for the message with which it is enough: many links may have held back the ends of long ones."""

REMEDY = "`holdfast token --write FILE` makes one; give each node --token-file FILE"

REST_S = 0.5  # Without accepting, where there is no room for a connection.


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
        self.family = family
        self.identity = identity
        self.endpoint = endpoint
        self.shelter = shelter
        self.names = Names(host)
        self.pool = LinkPool(host, self._heard_together)  # Those that have come to us and proved themselves.
        self.came: deque[tuple[Wire, bytes]] = deque()  # What they have said, and is still to be heard.
        self.has_heard = False  # At this look, some of it was.
        self.sought: set[int] = set()  # Links whose address is not known yet.
        self.turns: dict[str, int] = {}  # Of the addresses of each name that was called.
        self.wires: dict[int, Wire] = {}
        self.timed: dict[int, Wire] = {}  # Those with a deadline, the earliest first.
        self.guests: Admission[Wire] = Admission(limits)
        self.listeners: list[socket.socket] = []
        self.taken = 0  # The endpoint's port, while somebody else on this host has it.
        self.rest_until = NEVER  # When to accept again; NEVER: we do.
        self.rejections = RejectionLog(host.complain)
        self.next_guest = GUESTS_FROM
        self.loopback = Loopback()
        self.room = memoryview(bytearray(READ_BYTES))
        """What comes is taken in here: making room anew would cost more."""
        self.encoded: tuple[Message | None, bytes] = None, b""
        """The last message sent: often thousands are told the same."""

    @property
    def listens_at(self) -> str:
        """`host:port`; empty where nobody can come to us."""
        return shown_endpoint(*self.endpoint) if self.listeners else ""

    # --- asked for by actions -------------------------------------------------------------------------------------------

    def listen_at(self, addr: str, port: int) -> bool:
        """As `listen`, at another endpoint."""
        self.endpoint = addr, port
        return self.listen()

    def listen(self) -> bool:
        """Serve the endpoint; port 0 becomes the one that was got. False: another does. RendezvousError: it cannot be
        served."""
        name, port = self.endpoint
        try:
            found = looked_up(name, port)
        except OSError as error:
            raise RendezvousError(
                f"cannot serve the rendezvous at {name}:{port}: the name does not resolve ({error.strerror})",
                hint="give an address of this host in --rdzv-endpoint",
            ) from error
        return self._serve(name, port, found)

    def _serve(self, name: str, port: int, found: list[tuple[Any, ...]]) -> bool:
        """As `listen`, where the name's addresses are known. False also: none of them is this host's."""
        made: list[socket.socket] = []
        for family, (address, _, *scope) in bind_addresses(name, port, found):
            try:
                made.append(_listener(family, (address, port, *scope)))
                port = made[-1].getsockname()[1]
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                for sock in made:
                    sock.close()
                if error.errno == errno.EADDRINUSE:
                    self.taken = port
                    return False
                raise RendezvousError(
                    f"cannot listen on {name}:{port}: {error.strerror}", hint="choose another port"
                ) from error
        for sock in made:
            sock.setblocking(False)
            self.listeners.append(sock)
            self._welcome(sock)
        self.taken = 0
        if made:
            self.endpoint = name, port
        return bool(made)

    def warm(self) -> None:
        """Do now what the first message would otherwise have to wait for."""
        warm(self.family)
        quicken(Arrived, Transmit)

    def perform(self, action: Connect | Transmit | HangUp) -> list[Observation]:
        """Do what a machine wants done with a link; what can be told at once is returned."""
        match action:
            case Transmit(link=link, message=message, more=more):
                return self.transmit(link, message, more=more)
            case Connect(link=link, endpoint=endpoint, may_serve=may_serve):
                return self.connect(link, endpoint, may_serve=may_serve)
            case HangUp(link=link, why=why):
                if why and (wire := self.wires.get(link)):
                    self.rejections.note(wire.peer, f"hung up on {wire.peer}: {why}", self.host.now())
                self.hang_up(link)
        return []

    def connect(self, link: int, endpoint: str = "", *, may_serve: bool = False) -> list[Observation]:
        """Begin a link to `endpoint`, or to the job's; its `LinkUp` or `LinkDown` follows, or `Serving`."""
        name, port = host_and_port(endpoint) if endpoint else self.endpoint
        if self.listeners and (name, port) == self.endpoint:
            self.loopback.open(link, self._guest())
            return []
        self.sought.add(link)
        return self.names.ask(name, port, lambda found: self._reach(link, name, port, found, may_serve=may_serve))

    def _reach(self, link: int, name: str, port: int, found: Addresses, *, may_serve: bool) -> list[Observation]:
        if link not in self.sought:
            return []
        self.sought.remove(link)
        if isinstance(found, OSError):
            return [LinkDown(link=link, reason=f"cannot resolve {name}: {found.strerror}")]
        if may_serve and self._serve_instead(name, port, found):
            return [Serving()]
        # Each attempt that fails is followed by one at the next address, so a name with a dead IPv6 address still works.
        turn = self.turns[f"{name}:{port}"] = self.turns.get(f"{name}:{port}", -1) + 1
        family, _, _, _, address = found[turn % len(found)]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is left
            return [LinkDown(link=link, reason=str(error.strerror))]
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            return [LinkDown(link=link, reason=os.strerror(code), refused=code == errno.ECONNREFUSED)]
        self._add(sock, link, ours=True, peer=f"{name}:{port}")
        return []

    def _serve_instead(self, name: str, port: int, found: list[tuple[Any, ...]]) -> bool:
        try:
            return self._serve(name, port, found)
        except RendezvousError as error:
            self.host.complain(str(error))
            return False

    def transmit(self, link: int, message: Message, *, more: bool = False) -> list[Observation]:
        """Send a message; it is lost when the link is down. `more`: with the next one. Who goes for that is returned."""
        if link in self.loopback.pairs:
            self.loopback.say(link, message)
        elif (wire := self.wires.get(link)) and not wire.closing:
            if self.encoded[0] is not message:
                self.encoded = message, encode(message, FRAME_BYTES - SEAL_BYTES)
            wire.say(self.encoded[1])
            if not wire.connecting and not more:
                return self._flushed(wire)
        return []

    def transmit_all(self, those: Sequence[Transmit]) -> list[Observation]:
        """Send many messages: all are made ready before the first goes, for the reason that `LinkPool` gives."""
        for one in those:
            self.transmit(one.link, one.message, more=True)
        seen: list[Observation] = []
        for one in those:
            if (wire := self.wires.get(one.link)) and not wire.connecting:
                seen += self._flushed(wire)
        return seen

    def _flushed(self, wire: Wire) -> list[Observation]:
        """Send what can be now, where a failure shows again as an event of the socket. Who goes for what cannot be?"""
        wire.flush()
        if len(wire.unsent) > UNSENT_BYTES:
            return self._lost(wire, "it does not read what it is told", bad=True)
        return self._weighed(wire) if wire.unsent else []

    def _weighed(self, wire: Wire) -> list[Observation]:
        """Who has to go for what is held for all that have come to us?"""
        why = "it sends a long message slowly, or does not read what it is told, and all such hold too much memory"
        gone = [] if wire.ours else self.guests.hold(wire, wire.weight)
        return [seen for one in gone for seen in self._lost(one, why, bad=True)]

    def hang_up(self, link: int) -> None:
        """Say no more over a link; it goes down once everything has been sent and the other side has closed it too."""
        self.sought.discard(link)
        self.loopback.close(link)
        wire = self.wires.get(link)
        if wire is not None and wire.ours and not wire.is_proven:
            wire.leave()
        elif wire is not None and not wire.closing:
            self._say_goodbye(wire)

    def _say_goodbye(self, wire: Wire) -> None:
        self.timed.pop(wire.link, None)  # to the end of the line
        self.timed[wire.link] = wire
        wire.say_goodbye(self.host.now() + HANDSHAKE_S)

    def close(self) -> None:
        """Close everything at once."""
        for sock in self.listeners:
            self.host.unwatch(sock.fileno())
            sock.close()
        self.listeners = []
        self.names.close()
        for wire in list(self.wires.values()):
            self._drop(wire)
        self.pool.close()
        self.rejections.tell()

    def heard_here(self) -> list[Observation]:
        """What this process has said to itself. To be heard before what others say: they may speak of its consequences."""
        return self.loopback.heard()

    # --- asked for by time ----------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the next handshake or goodbye runs out, or something is to be told or heard."""
        if self.loopback.said or self.came:
            return 0.0
        first = next(iter(self.timed.values()), None)
        return min(NEVER if first is None else first.until, self.rejections.tell_at, self.rest_until, self.pool.look_at)

    def due(self) -> list[Observation]:
        """What the passing of time has brought."""
        return self.expire(self.host.now())

    def expire(self, now: float) -> list[Observation]:
        """Drop peers that took too long to prove themselves, or to go."""
        self.rejections.due(now)
        if now >= self.rest_until:
            self.rest_until = NEVER
            for sock in self.listeners:
                self._welcome(sock)
        seen = [*(self._heard_together() if self.came and not self.has_heard else ()), *self.pool.due(now)]
        self.has_heard = False
        for wire in list(self.timed.values()):
            if now < wire.until:
                break
            why = "it did not close the connection" if wire.closing else self._silence(wire)
            seen += self._lost(wire, why, bad=wire.is_proven and not wire.closing)
        return seen

    def _silence(self, wire: Wire) -> str:
        if wire.connecting:
            what = "no answer"
        elif not wire.is_proven:
            what = "no proof that it belongs to the job"
        else:
            what = "no whole message" if wire.held else "no word"
        return f"{what} within {HANDSHAKE_S:g} s"

    # --- events of sockets ----------------------------------------------------------------------------------------------

    def _welcome(self, listener: socket.socket) -> None:
        self.host.watch(listener.fileno(), select.EPOLLIN, partial(self._accept, listener))

    def _accept(self, listener: socket.socket, events: int) -> list[Observation]:
        dropped: list[Observation] = []
        for _ in range(64):
            if self.guests.is_crowded(self.host.now()):
                self._rest(PAUSE_S)
                break
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self.host.complain(f"cannot accept a connection: {error.strerror}")
                dropped += self._dismiss(self.guests.least_wanted())
                self._rest(REST_S if error.errno in NO_ROOM else PAUSE_S)
                break
            sock.setblocking(False)
            wire = self._add(sock, self._guest(), ours=False, peer=str(address[0]))
            dropped += self._dismiss(self.guests.enter(wire, origin(sock, wire.peer), self.host.now(), sock.fileno()))
            if self._asks_whose() and (why := _is_anothers(sock, wire.peer)):
                dropped += self._lost(wire, why)
        return dropped

    def _asks_whose(self) -> bool:
        """Whether the other end of a connection within this host must be this user's, since nothing else is proved."""
        return not is_authenticated(self.identity, self.shelter)

    def _guest(self) -> int:
        number, self.next_guest = self.next_guest, self.next_guest + 1
        return number

    def _dismiss(self, wire: Wire | None) -> list[Observation]:
        if wire is None:
            return []
        return self._lost(wire, f"too many connections {'of members' if wire.is_proven else 'without proof'} at once", bad=True)

    def _rest(self, seconds: float) -> None:
        if self.rest_until == NEVER:
            self.rest_until = self.host.now() + seconds
            for sock in self.listeners:
                self.host.unwatch(sock.fileno())

    def _add(self, sock: socket.socket, link: int, *, ours: bool, peer: str) -> Wire:
        until = self.host.now() + HANDSHAKE_S
        wire = Wire(sock, link, self.identity, self.shelter, ours=ours, until=until, peer=peer)
        self.wires[link] = self.timed[link] = wire
        wire.watch(self.host, partial(self._ready, wire))
        if not wire.connecting:
            wire.flush()
        return wire

    def _ready(self, wire: Wire, events: int) -> list[Observation]:
        if failed := wire.connected():
            return self._lost(wire, failed)
        if events & select.EPOLLOUT:
            if failed := wire.flush():
                return self._lost(wire, failed)
            self._weighed(wire)  # nobody goes for what has become less
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return self._read(wire)
        return []

    def _read(self, wire: Wire) -> list[Observation]:
        try:
            data = bytes(self.room[: wire.sock.recv_into(self.room, self._share(wire))])
        except BlockingIOError:
            return []
        except OSError as error:
            return self._lost(wire, error.strerror or "broken")
        if wire.ours and not wire.is_proven and self._asks_whose() and (why := _is_anothers(wire.sock, _answers(wire.sock))):
            return self._lost(wire, why, bad=True)  # looked at now: who has not taken the connection yet is nobody
        if wire.is_watched_by(self.pool):
            self.came.append((wire, data))
            return []
        return self._made_of(wire, data)

    def _share(self, wire: Wire) -> int:
        """How many bytes of that link are taken in now."""
        return max(LEAST_BYTES, READ_BYTES // max(1, self.pool.ready)) if wire.is_watched_by(self.pool) else READ_BYTES

    def _heard_together(self) -> list[Observation]:
        self.has_heard = True
        seen: list[Observation] = []
        left = LOOK_BYTES
        while self.came and left > 0:
            wire, data = self.came.popleft()
            if wire.link in self.wires:  # it may have had to go for another
                size = wire.held + len(data)
                seen += self._made_of(wire, data)
                left -= size - wire.held
        return seen

    def _made_of(self, wire: Wire, data: bytes) -> list[Observation]:
        if not data:
            why = "it closed the connection without a proof" if wire.is_stranger else "closed by the other side"
            return self._lost(wire, why)
        if wire.closing:
            return []  # we have said goodbye: nothing that comes now is heard
        seen: list[Observation] = []
        try:
            wire.feed(data)
            if not wire.is_proven and wire.shake_hands():
                seen += self._proven(wire)
            while wire.is_proven and not wire.closing and (payload := wire.next()) is not None:
                seen += self._heard(wire, payload)
        except ProtocolError as error:
            return seen + self._turned_away(wire, error)
        gone = self._flushed(wire) if wire.unsent and not wire.connecting else []
        if wire.link in self.wires and (wire.owes or wire.held):
            gone += self._owed(wire, seen)
        return seen + gone

    def _owed(self, wire: Wire, seen: list[Observation]) -> list[Observation]:
        """A guest has said something, or part of it: until when the rest is due, and who has to go for what is held."""
        if wire.ours or not wire.is_proven:
            return []
        heard = bool(seen) and isinstance(seen[-1], Arrived)
        if heard:
            self.guests.speak(wire)
        if heard or not wire.owes:
            self._due_by(wire, self.host.now() + HANDSHAKE_S if wire.held else NEVER)
        return self._weighed(wire)

    def _due_by(self, wire: Wire, until: float) -> None:
        self.timed.pop(wire.link, None)  # to the end of the line
        wire.owe(until)
        if wire.owes:
            self.timed[wire.link] = wire

    def _proven(self, wire: Wire) -> list[Observation]:
        self.timed.pop(wire.link, None)
        if not wire.ours:
            self.guests.prove(wire)
            self._due_by(wire, self.host.now() + HANDSHAKE_S)
            wire.move(self.pool)
        if wire.leaving:
            self.hang_up(wire.link)
            return []
        if wire.ours:
            self.turns[wire.peer] -= 1  # this address is a good one
            return [LinkUp(link=wire.link, ours=True)]
        return [LinkUp(link=wire.link, ours=False, peer=wire.peer, names=wire.names)]

    def _heard(self, wire: Wire, payload: bytes) -> list[Observation]:
        message = decode(payload, self.family, values=MOST_VALUES if wire.ours else MEMBERS_VALUES)
        if why := objection(message, to_caller=wire.ours):
            raise ProtocolError(why)
        if isinstance(message, Request) and not wire.ours and not self._is_authenticated(wire):
            self._refuse(wire, message)
            return []
        return [Arrived(link=wire.link, message=message)]

    def _is_authenticated(self, wire: Wire) -> bool:
        """More is known of the other side than that it knows the run id. Within this host, whose it is was seen as it came."""
        return is_authenticated(self.identity, self.shelter) or is_within_this_host(wire.sock, wire.peer)

    def _refuse(self, wire: Wire, request: Request) -> None:
        """Who has only proved the run id gives no orders."""
        why = f"{request.kind} is refused: this job has no token, so who asks could be anybody ({REMEDY})"
        self.rejections.note(wire.peer, f"an order from {wire.peer}: {why}", self.host.now())
        if request.ask is not None:
            self.transmit(wire.link, Reply(ask=request.ask, ok=False, text=why), more=True)

    def _turned_away(self, wire: Wire, error: ProtocolError) -> list[Observation]:
        """One of us turns the other away. Who came to us hears why, and closes: it looks whose process says so."""
        turned = isinstance(error, Turned)
        if turned and not wire.ours:
            self.rejections.note(wire.peer, f"turned away a connection from {wire.peer}: {error.what}", self.host.now())
            self._say_goodbye(wire)
            return []
        wire.flush()  # it tells the other side why
        return self._lost(wire, error.what, final=turned, bad=not turned)

    def _lost(self, wire: Wire, reason: str, *, final: bool = False, bad: bool = False) -> list[Observation]:
        self._drop(wire)
        if wire.is_stranger:
            if not wire.closing:  # it has not been told of
                self.rejections.note(wire.peer, f"turned away a connection from {wire.peer}: {reason}", self.host.now())
            return []
        if self.taken and not wire.is_proven and (owner := listening_process(self.taken)):
            answer = "no agent of this job answers there: this agent takes the port as soon as it is free"
            self.host.complain(f"port {self.taken} of the job's endpoint is in use on this host, by {owner}, and {answer}")
        # A member cannot mend its certificate while it tries again, no more than its token.
        hopeless = final or (bad and wire.uses_tls and not wire.is_proven)
        if bad and wire.is_proven:
            self.rejections.note(wire.peer, f"hung up on {wire.peer}: {reason}", self.host.now())
        foreign, refused = bad and not wire.is_proven, reason == os.strerror(errno.ECONNREFUSED)
        return [LinkDown(link=wire.link, reason=reason, final=hopeless, foreign=foreign, refused=refused)]

    def _drop(self, wire: Wire) -> None:
        if self.wires.pop(wire.link, None):
            self.timed.pop(wire.link, None)
            self.guests.leave(wire)
            wire.close()


def _answers(sock: socket.socket) -> str:
    """The address that answers; empty where nothing does any more."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return ""


def _is_anothers(sock: socket.socket, peer: str) -> str:
    """Why a connection within this host is not heard where nothing has to be proved: it is another user's. Empty: it is."""
    if not is_within_this_host(sock, peer) or is_ours(user := user_of(sock)):
        return ""
    if user is None:
        return "nobody has its other end any more, and there is no token that it could show"
    return f"it is of another user (uid {user}), and there is no token that it could show"


def _listener(family: int, at: tuple[Any, ...]) -> socket.socket:
    """Listen there. OSError (EADDRINUSE): another does. The kernel may refuse two that begin at once, so a bound socket tries
    again."""
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


def is_authenticated(identity: Identity, shelter: Shelter | None) -> bool:
    """Whether who comes over the network has to prove more than that it knows the run id."""
    return identity.is_secret or shelter is not None


def is_open(network: Network, max_nodes: int) -> bool:
    """Whether the job is unauthenticated: who reaches this node from another host and knows the run id can join it."""
    listens = network.listeners and max_nodes > 1 and not is_loopback(network.endpoint[0])
    return bool(listens) and not is_authenticated(network.identity, network.shelter)


def open_doors(network: Network, max_nodes: int, *, token_by: str) -> str:
    """What a person should know about who can join; empty: nothing. `token_by`: how a node is given a token."""
    token = network.identity.token
    is_well_kept = network.identity.voucher is not None or len(token) >= TOKEN_BYTES
    if not network.listeners or max_nodes < 2 or is_loopback(network.endpoint[0]) or is_well_kept:
        return ""
    if not token:
        who = "holds a certificate of the CA" if network.shelter else f"reaches {shown_endpoint(*network.endpoint)}"
        remedy = f"make one with `holdfast token --write FILE`, and give each node {token_by}"
        if network.shelter:
            return f"no job token: anyone who {who} and knows the run id can join the job, or stop it ({remedy})"
        return (
            f"unauthenticated: no job token: anyone who {who} and knows the run id can join the job, and fail in it; orders "
            f"from other hosts are refused, and no state is replicated ({remedy})"
        )
    return f"the job's token has only {len(token)} characters and can be guessed: `holdfast token` makes a better one"
