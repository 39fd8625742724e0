"""How does a thread, or a program without an event loop, talk over a link? It waits for each frame.

The link is one as all others: the same handshake, seals and TLS (`runtime.net.frames`, `runtime.net.tls`). It may be used by
one thread at a time, and after any exception it is good for nothing but `close`.
"""

from __future__ import annotations

import json
import os
import socket
import time
from _thread import allocate_lock
from contextlib import suppress

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net.frames import FRAME_BYTES, NONCE_BYTES, SEAL_BYTES, Frames, Handshake, Seal, Turned, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from holdfast.runtime.net.frames import Identity
    from holdfast.runtime.net.tls import Shelter, Tunnel

    T = TypeVar("T")

SLICE_S = 0.05
"""Between two looks at whether the one who waits still wants to. Nothing is sent meanwhile."""
HANDSHAKE_S = 10.0
"""As long as the coordinator gives, for a handshake and for whoever does not take what is sent."""
RECEIVE_BYTES = 1 << 18


class Turn:
    """Which of many threads runs: one, and no other but while it waits.

    What a thousand do when all wake at once takes half a second, and Python's lock prefers nobody: the agent's loop would wait
    behind them all. So it waits behind one.
    """

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

    def sendall(self, data: bytes | memoryview, flags: int = 0) -> None:
        """As a socket's."""
        return self.turn.meanwhile(self.sock.sendall, data, flags)


class BlockingLink:
    """One side of a link over `sock`, which is connected. `ours`: we have asked for it. OSError: the other side is out of
    reach. ProtocolError: it turned us away, or is not one of us."""

    def __init__(self, sock: socket.socket | InTurn, identity: Identity, shelter: Shelter | None, *, ours: bool) -> None:
        until = time.monotonic() + HANDSHAKE_S
        self.sock = sock
        self.frames = Frames()
        self.seals: tuple[Seal, Seal] | None = None
        self.tunnel: Tunnel | None = None
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if shelter is not None:
                self.tunnel = shelter(ours)
                self.sock.sendall(self.tunnel.begin())
            self._shake_hands(Handshake(identity, os.urandom(NONCE_BYTES).hex(), ours=ours), until)
        except BaseException:
            self.sock.close()
            raise

    def _shake_hands(self, handshake: Handshake, until: float) -> None:
        for payload in handshake.opening():
            self.send(payload)
        while not handshake.done:
            payload = self.next(until)
            try:
                answers = handshake.take(payload)
            except Turned as turned:
                for answer in turned.answer:
                    self.send(answer)
                raise
            for answer in answers:
                self.send(answer)
        self.frames.limit = FRAME_BYTES
        self.seals = handshake.seals()

    def close(self) -> None:
        """Let go of it."""
        self.sock.close()

    def send(self, payload: bytes) -> None:
        """Send one frame."""
        framed = frame(payload if self.seals is None else self.seals[0].put(payload))
        self.sock.settimeout(HANDSHAKE_S)
        self.sock.sendall(framed if self.tunnel is None else self.tunnel.send(framed))

    def next(self, until: float, each: Callable[[], None] | None = None) -> bytes:
        """The next frame. TimeoutError: none came before `until` (monotonic seconds). `each` is called again and again
        meanwhile, and may end the wait by an exception."""
        while (payload := self.frames.next()) is None:
            if each is not None:
                each()
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the other side does not answer")
            self.sock.settimeout(min(left_s, SLICE_S) if each is not None else left_s)
            try:
                data = self.sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                continue
            if not data:
                raise ConnectionResetError("the other side closed the link")
            self._take(data)
        return payload if self.seals is None else self.seals[1].take(payload)

    def say(self, said: dict[str, Any]) -> None:
        """Send one JSON object."""
        self.send(json.dumps(said).encode())

    def heard(self, until: float) -> dict[str, Any]:
        """The JSON object that comes next; see `next`. ValueError: it is none."""
        try:
            said = json.loads(self.next(until))
        except RecursionError as error:
            raise ValueError("no JSON object") from error
        if not isinstance(said, dict):
            raise ValueError("no JSON object")
        return said

    def send_bulk(self, payload: memoryview) -> None:
        """As `send`, without a copy of it: to have memory made for each would cost more than all the rest."""
        if self.seals is None or self.tunnel is not None:
            return self.send(bytes(payload))
        head = (SEAL_BYTES + len(payload)).to_bytes(4, "big") + self.seals[0].mark(payload)
        self.sock.settimeout(HANDSHAKE_S)
        self.sock.sendall(head, socket.MSG_MORE)
        self.sock.sendall(payload)

    def next_bulk(self, room: memoryview, until: float) -> memoryview:
        """As `next`, into the beginning of `room`. ProtocolError: it is larger."""
        if self.seals is None or self.tunnel is not None:
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
        self.seals[1].check(bytes(head[4:]), room[:size])
        return room[:size]

    def _fill(self, room: memoryview, until: float) -> None:
        buffered = min(len(room), len(self.frames.buffer))
        room[:buffered] = self.frames.buffer[:buffered]
        del self.frames.buffer[:buffered]
        at = buffered
        while at < len(room):
            self.sock.settimeout(max(0.001, until - time.monotonic()))
            if not (size := self.sock.recv_into(room[at:])):
                raise ConnectionResetError("the other side closed the link")
            at += size

    def _take(self, data: bytes) -> None:
        if self.tunnel is None:
            self.frames.feed(data)
            return
        try:
            self.frames.feed(self.tunnel.received(data))
        except ProtocolError:
            with suppress(OSError):
                self._answer(self.tunnel)  # an alert: it says why to the other side
            raise
        self._answer(self.tunnel)

    def _answer(self, tunnel: Tunnel) -> None:
        if reply := tunnel.answer():
            self.sock.settimeout(HANDSHAKE_S)
            self.sock.sendall(reply)
