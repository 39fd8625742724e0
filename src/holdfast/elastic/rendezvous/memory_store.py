"""A key-value store inside this process: enough for the agent of a one-node job. Threads may share it."""

from __future__ import annotations

import threading
import time
from itertools import count

from holdfast.core.machine import Observation, Tick
from holdfast.core.wire.links import Arrived, LinkDown, Transmit
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.rendezvous.kvstore.machine import KeyValues
from holdfast.runtime.net.blocking_link import SLICE_S

from .store import Each, PrefixedStore, Store, StoreTimeout, understood

__all__ = ["MemoryStore", "PrefixMemoryStore", "StoreTimeout"]

PrefixMemoryStore = PrefixedStore

AGAIN_S = 3600.0  # longest sleep: the platform's clocks know no times without end


class MemoryStore(Store):
    """The coordinator's own store machine, with a lock around it instead of links: each call is a link of its own."""

    def __init__(self) -> None:
        self._machine = KeyValues()
        self._changed = threading.Condition()
        self._calls = count()
        self._answers: dict[int, StoreAnswer] = {}  # by call, until it has taken its own

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        with self._changed:
            call = next(self._calls)
            self._show(Arrived(link=call, message=ask))
            try:
                while call not in self._answers:
                    if each is not None:
                        each()
                    longest_s = AGAIN_S if each is None else SLICE_S
                    self._changed.wait(min(max(0.0, self._machine.deadline() - time.monotonic()), longest_s))
                    self._show(Tick())
            except BaseException:
                self._show(LinkDown(link=call, reason=""))
                raise
            return understood(self._answers.pop(call))

    def _show(self, seen: Observation) -> None:
        for action in self._machine.observe(seen, time.monotonic()):
            assert isinstance(action, Transmit) and isinstance(action.message, StoreAnswer)
            self._answers[action.link] = action.message
            self._changed.notify_all()
