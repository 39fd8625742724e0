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

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import ProtocolError
from holdfast.core.value import replace
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.rendezvous.kvstore.client import StoreLink
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.secrets import Shelter

from .store import Each, Store, StoreError, StoreUnreachable, understood

ANSWER_S = 30.0  # how long an answer may take, beyond its wait for keys
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

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        deadline = time.monotonic() + ask.wait_s
        patience_s, pause_s = PATIENCE_S, FIRST_PAUSE_S
        while True:
            wait_s = max(0.0, deadline - time.monotonic())
            ask = replace(ask, node=self._node, ask=next(self._numbers), round=self._round, wait_s=wait_s)
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
        """See `Store.close`."""
        with self._lock:
            for _, link in self._idle:
                link.close()
            self._idle.clear()
