"""A round's store that the job's coordinator keeps: for the agents of several nodes, with or without torch.

Each thread that asks has a link of its own while it asks; idle ones are kept for the next. A link that breaks is made anew,
for `PATIENCE_S` at most, where asking twice does no harm. After `add`, `append`, a queue and the like nobody can know whether
it was done: that is a StoreUnreachable, as with torch's stores.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from itertools import count

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import ProtocolError
from holdfast.core.value import replace
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.runtime.net.blocking_link import HANDSHAKE_S, BlockingLink
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import FRAME_BYTES, SEAL_BYTES, Identity
from holdfast.runtime.secrets import Shelter

from .store import Each, Store, StoreError, StoreUnreachable, understood

ANSWER_S = 30.0  # how long an answer may take, beyond its wait for keys
PATIENCE_S = 10.0
"""How long to try to reach a coordinator that does not answer: it may have moved, or be busy with thousands."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
REPEATABLE = ("set", "get", "wait", "check", "count", "list", "length")
"""Operations of which it does not matter if they are done twice."""


class StoreLink(BlockingLink):
    """A link to the coordinator at `endpoint`, made at once: the same port, handshake, seals and TLS as a member's. For one
    thread at a time; after any exception it is good for nothing but `close`: what was asked may or may not have been done.
    OSError: it is out of reach. ProtocolError: it turned us away."""

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


class CoordinatorStore(Store):
    """The store of `round`. `where` says at which endpoint the coordinator is now; `node` names who asks."""

    def __init__(
        self, where: Callable[[], tuple[str, int]], identity: Identity, node: str, round: int, shelter: Shelter | None = None
    ) -> None:
        self._where, self._identity, self._shelter = where, identity, shelter
        self._node, self._round = node, round
        self._numbers = count(1)
        self._idle: list[tuple[tuple[str, int], StoreLink]] = []
        self._lock = threading.Lock()

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        deadline = time.monotonic() + ask.wait_s
        patience_s, pause_s = PATIENCE_S, FIRST_PAUSE_S
        while True:
            ask = replace(ask, node=self._node, ask=next(self._numbers), round=self._round)
            at, link = self._where(), None
            try:
                link = self._link(at)
                return understood(self._asked(link, at, ask, each))
            except OSError as error:
                patience_s -= pause_s
                if patience_s <= 0 or (link is not None and ask.op not in REPEATABLE):
                    raise StoreUnreachable(
                        f"the coordinator's store at {shown_endpoint(*at)} is out of reach: {error}"
                    ) from error
            if each is not None:
                each()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            ask = replace(ask, wait_s=max(0.0, deadline - time.monotonic()))

    def _link(self, at: tuple[str, int]) -> StoreLink:
        with self._lock:
            while self._idle:
                to, link = self._idle.pop()
                if to == at:
                    return link
                link.close()
        try:
            return StoreLink(at, self._identity, self._shelter)
        except ProtocolError as error:
            raise StoreError(f"the coordinator at {shown_endpoint(*at)} refused this node: {error}") from error

    def _asked(self, link: StoreLink, at: tuple[str, int], ask: StoreAsk, each: Each | None) -> StoreAnswer:
        try:
            answer = link.ask(ask, time.monotonic() + ask.wait_s + ANSWER_S, each)
        except BaseException as error:
            link.close()
            match error:
                case ValueError():
                    raise StoreError(str(error)) from error
                case ProtocolError():
                    raise StoreError(f"the coordinator's store sent an invalid answer: {error}") from error
            raise
        with self._lock:
            self._idle.append((at, link))
        return answer

    def close(self) -> None:
        with self._lock:
            for _, link in self._idle:
                link.close()
            self._idle.clear()
