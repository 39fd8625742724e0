"""How does a program without an event loop ask the coordinator's store? Over a link of its own, and it waits for each answer.

The link is one of the coordinator's: the same port, handshake, seals and TLS as a member's. It may be used by one thread at a
time, and after any exception it is good for nothing but `close`: what was asked may or may not have been done.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from holdfast.core.errors import ProtocolError
from holdfast.core.messages import StoreAnswer, StoreAsk
from holdfast.runtime.codec import decode, encode
from holdfast.runtime.frames import FRAME_BYTES, NONCE_BYTES, SEAL_BYTES, Frames, Handshake, Identity, Seal, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net import Shelter
    from holdfast.runtime.tls import Tunnel

SLICE_S = 0.05
"""Between two looks at whether the one who waits still wants to. Nothing is sent meanwhile."""
HANDSHAKE_S = 10.0
"""As long as the coordinator gives."""
RECEIVE_BYTES = 1 << 18


class StoreLink:
    """A link to the coordinator at `endpoint`, made at once. OSError: it is out of reach. ProtocolError: it turned us away."""

    def __init__(self, endpoint: tuple[str, int], identity: Identity, shelter: Shelter | None = None) -> None:
        until = time.monotonic() + HANDSHAKE_S
        self.sock = socket.create_connection(endpoint, timeout=HANDSHAKE_S)
        self.frames = Frames()
        self.seals: tuple[Seal, Seal] | None = None
        self.tunnel: Tunnel | None = None
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if shelter is not None:
                self.tunnel = shelter(True)
                self.sock.sendall(self.tunnel.begin())
            self._shake_hands(Handshake(identity, os.urandom(NONCE_BYTES).hex(), ours=True), until)
        except BaseException:
            self.sock.close()
            raise

    def _shake_hands(self, handshake: Handshake, until: float) -> None:
        for payload in handshake.opening():
            self._send(payload)
        while not handshake.done:
            for payload in handshake.take(self._next(until, None)):
                self._send(payload)
        self.frames.limit = FRAME_BYTES
        self.seals = handshake.seals()

    def ask(self, ask: StoreAsk, until: float, each: Callable[[], None] | None = None) -> StoreAnswer:
        """The answer. TimeoutError: none came before `until` (monotonic seconds). `each` is called again and again meanwhile,
        and may end the wait by an exception."""
        assert self.seals is not None, "a link without a handshake"
        payload = encode(ask)
        if len(payload) > FRAME_BYTES - SEAL_BYTES:
            raise ValueError(f"{ask.op}: {len(payload)} bytes at once (at most {FRAME_BYTES - SEAL_BYTES} are allowed)")
        self._send(payload)
        while True:
            answer = decode(self.seals[1].take(self._next(until, each)))
            if not isinstance(answer, StoreAnswer):
                raise ProtocolError(f"the store says {type(answer).__name__}")
            if answer.ask == ask.ask:
                return answer

    def close(self) -> None:
        """Let go of it; the coordinator forgets who was waiting over it."""
        self.sock.close()

    def _send(self, payload: bytes) -> None:
        framed = frame(payload if self.seals is None else self.seals[0].put(payload))
        self.sock.settimeout(HANDSHAKE_S)
        self.sock.sendall(framed if self.tunnel is None else self.tunnel.send(framed))

    def _next(self, until: float, each: Callable[[], None] | None) -> bytes:
        while (payload := self.frames.next()) is None:
            if each is not None:
                each()
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the coordinator does not answer")
            self.sock.settimeout(min(left_s, SLICE_S) if each is not None else left_s)
            try:
                data = self.sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                continue
            if not data:
                raise ConnectionResetError("the coordinator closed the link")
            self._take(data)
        return payload

    def _take(self, data: bytes) -> None:
        if self.tunnel is None:
            self.frames.feed(data)
            return
        self.frames.feed(self.tunnel.received(data))
        if reply := self.tunnel.answer():
            self.sock.settimeout(HANDSHAKE_S)
            self.sock.sendall(reply)
