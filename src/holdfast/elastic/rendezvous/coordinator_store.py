"""A round's store that the job's coordinator keeps: for the agents of several nodes, with or without torch.

Each thread that asks has a link of its own while it asks; idle ones are kept for the next. A link that breaks is made anew,
for `PATIENCE_S` at most, where asking twice does no harm. After `add`, `append`, a queue and the like nobody can know whether
it was done: that is a StoreUnreachable, as with torch's stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from holdfast.core.errors import ProtocolError
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.rendezvous.kvstore.client import StoreLink
from holdfast.runtime.net.frames import Identity

from .store import Each, Operation, Store, StoreError, StoreUnreachable, understood

if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Shelter  # `ssl` is heavy, and most jobs use none

ANSWER_S = 30.0
"""How long an answer may take, beyond its wait for keys."""
PATIENCE_S = 10.0
"""How long to try to reach a coordinator that does not answer: it may have moved, or be busy with thousands."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5
REPEATABLE = ("set", "get", "wait", "check", "count", "list", "length")
"""Operations of which it does not matter if they are done twice."""


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

    def _perform(self, wanted: Operation) -> StoreAnswer:
        deadline = time.monotonic() + wanted.wait_s
        patience_s, pause_s = PATIENCE_S, FIRST_PAUSE_S
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            ask = wanted._replace(wait_s=left_s).ask(node=self._node, ask=next(self._numbers), round=self._round)
            sent = False
            try:
                link, at = self._link()
                sent = True
                return understood(self._asked(link, at, ask, wanted.each))
            except OSError as error:
                patience_s -= pause_s
                if patience_s <= 0 or (sent and wanted.op not in REPEATABLE):
                    raise self._out_of_reach(error) from error
            if wanted.each is not None:
                wanted.each()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _out_of_reach(self, error: OSError) -> StoreUnreachable:
        host, port = self._where()
        return StoreUnreachable(f"the coordinator's store at {host}:{port} is out of reach: {error}")

    def _link(self) -> tuple[StoreLink, tuple[str, int]]:
        where = self._where()
        with self._lock:
            while self._idle:
                at, link = self._idle.pop()
                if at == where:
                    return link, at
                link.close()
        try:
            return StoreLink(where, self._identity, self._shelter), where
        except ProtocolError as error:
            raise StoreError(f"the coordinator at {where[0]}:{where[1]} turned us away: {error}") from error

    def _asked(self, link: StoreLink, at: tuple[str, int], ask: StoreAsk, each: Each | None) -> StoreAnswer:
        try:
            answer = link.ask(ask, time.monotonic() + ask.wait_s + ANSWER_S, each)
        except ValueError as error:
            link.close()
            raise StoreError(str(error)) from error
        except ProtocolError as error:
            link.close()
            raise StoreError(f"the coordinator's store is not understood: {error}") from error
        except BaseException:
            link.close()
            raise
        with self._lock:
            self._idle.append((at, link))
        return answer

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            for _, link in self._idle:
                link.close()
            self._idle.clear()
