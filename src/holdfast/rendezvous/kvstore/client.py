"""How does a program without an event loop ask the coordinator's store? Over a link of its own, and it waits for each answer.

The link is one of the coordinator's: the same port, handshake, seals and TLS as a member's. It may be used by one thread at a
time, and after any exception it is good for nothing but `close`: what was asked may or may not have been done.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from holdfast.core.errors import ProtocolError
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.runtime.net.blocking_link import HANDSHAKE_S, BlockingLink
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import FRAME_BYTES, SEAL_BYTES, Identity
from holdfast.runtime.secrets import Shelter


class StoreLink(BlockingLink):
    """A link to the coordinator at `endpoint`, made at once. OSError: it is out of reach. ProtocolError: it turned us away."""

    def __init__(self, endpoint: tuple[str, int], identity: Identity, shelter: Shelter | None = None) -> None:
        super().__init__(socket.create_connection(endpoint, timeout=HANDSHAKE_S), identity, shelter, ours=True)

    def ask(self, ask: StoreAsk, until: float, each: Callable[[], None] | None = None) -> StoreAnswer:
        """The answer. TimeoutError: none came before `until` (monotonic seconds). `each` is called again and again meanwhile,
        and may end the wait by an exception."""
        payload = encode(ask)
        if len(payload) > FRAME_BYTES - SEAL_BYTES:
            raise ValueError(f"{ask.op}: {len(payload)} bytes at once (at most {FRAME_BYTES - SEAL_BYTES} are allowed)")
        self.send(payload)
        while True:
            answer = decode(self.next(until, each))
            if not isinstance(answer, StoreAnswer):
                raise ProtocolError(f"unexpected answer from the store: {type(answer).__name__}")
            if answer.ask == ask.ask:
                return answer
