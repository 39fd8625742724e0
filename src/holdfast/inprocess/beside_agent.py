"""What is a life beside an agent of Holdfast's? One of `client.lives`: the agent knows who has failed, and replaces it.

No store, no monitor and no reserve of ours: world size and ranks stay what they are, and who waits is a spare of the job's. An
exception of the function's own ends this process; a new one takes its rank, and the others begin again in theirs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast import client
from holdfast.client.in_place.channel import SIGNAL
from holdfast.inprocess.call import CallWrapper
from holdfast.inprocess.state import Mode, State

NO_LIMIT_S = float("inf")


class BesideAgent(CallWrapper):
    """The lives of one call."""

    def ping(self) -> None:
        """A heartbeat."""
        client.heartbeat()

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """The agent's signal waits."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @contextlib.contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """No heartbeat is awaited meanwhile."""
        client.set_limits(NO_LIMIT_S, NO_LIMIT_S, NO_LIMIT_S)
        try:
            yield
        finally:
            client.heartbeat()
            client.set_limits()

    def run(self, function: Callable[[], Any]) -> Any:
        """One of `client.lives` after the other."""
        result = None
        for life in client.lives(tear_down=self._tear_down):
            state = State.from_env()
            ranks = {"active_rank": state.rank, "active_world_size": state.world_size}
            self.state = state.having(iteration=_iteration(), mode=Mode.ACTIVE, **ranks)
            with life:
                self._before()
                result = function()
        self._completed()
        return result

    def _check_after(self) -> Any:
        """The agent looks at its node's GPUs and NICs itself."""
        return self.wrapper.health_check

    def _tear_down(self) -> None:
        """A life is cut short. What a stage raises ends this process, and a new one takes its rank."""
        if self.wrapper.abort is not None:
            self.wrapper.abort(self.state.freeze())
        self._after()


def _iteration() -> int:
    """The same in all ranks, as in NVRx: who is new counts the lives before its own, too."""
    return int(os.environ.get("HOLDFAST_ROUND") or 1) - 1


def is_here() -> bool:
    """Whether this process has an agent that can begin it again in place."""
    bootstrap = sys.modules.get("_holdfast_bootstrap")
    return bootstrap is not None and bootstrap.words is not None
