"""How does a thread, or a program without an event loop, talk over a link? It waits for each frame.

The link is one as all others: the same handshake, seals and TLS (`runtime.net.frames`, `runtime.net.tls`). It may be used by
one thread at a time, and after any exception it is good for nothing but `close`.
"""

from __future__ import annotations

import json
import socket
import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net.channel import Channel
from holdfast.runtime.net.frames import SEAL_BYTES, Identity
from holdfast.runtime.secrets import Shelter

T = TypeVar("T")

SLICE_S = 0.05  # Between two looks at whether the one who waits still wants to. Nothing is sent meanwhile.
HANDSHAKE_S = 10.0  # For a handshake, and for a peer that does not take what is sent.
SAID_BYTES = 1 << 20  # The longest object that is read: some megabytes of it would take Python a second.

RECEIVE_BYTES = 1 << 18


class Turn:
    """Lets one of many threads run at a time, and another while it waits.

    A thousand that wake at once need half a second, and Python's lock prefers nobody: so the agent's loop waits behind one."""

    def __init__(self) -> None:
        self.lock = allocate_lock()

    def meanwhile(self, wait: Callable[..., T], *given: Any) -> T:
        """Do what may take its time, while others have their turn."""
        self.lock.release()
        try:
            return wait(*given)
        finally:
            self.lock.acquire()


class InTurn:
    """What a link needs of a socket, for a thread that has its `Turn`."""

    def __init__(self, sock: socket.socket, turn: Turn) -> None:
        self.sock, self.turn = sock, turn
        self.settimeout, self.setsockopt, self.close = sock.settimeout, sock.setsockopt, sock.close

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        return self.turn.meanwhile(self.sock.recv, size)

    def recv_into(self, room: memoryview) -> int:
        """As a socket's."""
        return self.turn.meanwhile(self.sock.recv_into, room)

    def sendall(self, data: bytes | bytearray | memoryview, flags: int = 0) -> None:
        """As a socket's."""
        return self.turn.meanwhile(self.sock.sendall, data, flags)


class Place(Protocol):
    """What a server that somebody has come to is to be told of it."""

    def holds(self, size: int) -> None:
        """So many bytes have come of a frame that is not whole."""

    def speaks(self) -> None:
        """A whole frame has come."""


class BlockingLink:
    """One side of a link over a connected `sock`. `ours`: we asked for it. OSError: out of reach. ProtocolError: turned away,
    or not one of us."""

    def __init__(
        self,
        sock: socket.socket | InTurn,
        identity: Identity,
        shelter: Shelter | None,
        *,
        ours: bool,
        place: Place | None = None,
    ) -> None:
        until = time.monotonic() + HANDSHAKE_S
        self.place = place
        self.sock = sock
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.channel = Channel(identity, shelter, ours=ours)
            self._flush()
            while not self.channel.is_proven:
                self._receive(until)
        except BaseException:
            self.sock.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        self.sock.close()

    def send(self, payload: bytes) -> None:
        """Send one frame."""
        self.channel.say(payload)
        self._flush()

    def next(self, until: float, each: Callable[[], None] | None = None) -> bytes:
        """The next frame. TimeoutError: none before `until` (monotonic seconds). `each` is called meanwhile, and may raise."""
        while (payload := self.channel.next()) is None:
            self._receive(until, each)
        if self.place is not None:
            self.place.speaks()
            self.place.holds(self.channel.held)
        return payload

    def say(self, said: dict[str, Any]) -> None:
        """Send one JSON object."""
        self.send(json.dumps(said).encode())

    def heard(self, until: float) -> dict[str, Any]:
        """The JSON object that comes next; see `next`. ValueError: it is none, or a longer one than any of ours."""
        if len(payload := self.next(until)) > SAID_BYTES:
            raise ValueError(f"an object of {len(payload)} bytes")
        try:
            said = json.loads(payload)
        except RecursionError as error:
            raise ValueError("no JSON object") from error
        if not isinstance(said, dict):
            raise ValueError("no JSON object")
        return said

    def send_bulk(self, payload: memoryview) -> None:
        """As `send`, without a copy of it: to have memory made for each would cost more than all the rest."""
        if not self.channel.is_bulky:
            return self.send(bytes(payload))
        self.sock.settimeout(HANDSHAKE_S)
        self.sock.sendall(self.channel.head(payload), socket.MSG_MORE)
        self.sock.sendall(payload)

    def next_bulk(self, room: memoryview, until: float) -> memoryview:
        """As `next`, into the beginning of `room`. ProtocolError: it is larger."""
        if not self.channel.is_bulky:
            payload = self.next(until)
            if len(payload) > len(room):
                raise ProtocolError(f"it sends a frame of {len(payload)} bytes (at most {len(room)} are expected)")
            room[: len(payload)] = payload
            return room[: len(payload)]
        head = bytearray(4 + SEAL_BYTES)
        self._fill(memoryview(head), until)
        size = int.from_bytes(head[:4], "big") - SEAL_BYTES
        if not 0 <= size <= len(room):
            raise ProtocolError(f"it announced a frame of {size} bytes (at most {len(room)} are expected)")
        self._fill(room[:size], until)
        self.channel.check(bytes(head[4:]), room[:size])
        return room[:size]

    def _fill(self, room: memoryview, until: float) -> None:
        at = self.channel.take_buffered(room)
        while at < len(room):
            self.sock.settimeout(max(0.001, until - time.monotonic()))
            if not (size := self.sock.recv_into(room[at:])):
                raise ConnectionResetError("the other side closed the link")
            at += size

    def _receive(self, until: float, each: Callable[[], None] | None = None) -> None:
        while True:
            if each is not None:
                each()
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the other side does not answer")
            self.sock.settimeout(min(left_s, SLICE_S) if each is not None else left_s)
            with suppress(TimeoutError):
                data = self.sock.recv(RECEIVE_BYTES)
                break
        if not data:
            raise ConnectionResetError("the other side closed the link")
        try:
            self.channel.feed(data)
            self.channel.shake_hands()
        except ProtocolError:  # which is told to the other side, too
            with suppress(OSError):
                self._flush()
            raise
        if self.place is not None:
            self.place.holds(self.channel.held)
        self._flush()

    def _flush(self) -> None:
        if self.channel.unsent:
            self.sock.settimeout(HANDSHAKE_S)
            self.sock.sendall(self.channel.unsent)
            self.channel.unsent.clear()
