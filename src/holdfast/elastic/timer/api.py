"""What do timer clients and servers have in common, and what does `with expires(after=60):` do?"""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["RequestQueue", "TimerClient", "TimerRequest", "TimerServer", "configure", "expires"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TimerRequest:
    """Start the timer `scope_id` of a worker, to expire at `expiration_time` (epoch seconds); negative: release it."""

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(ABC):
    """Tells a server, from inside a worker, which timers run."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """The server ends this worker at `expiration_time`, unless `scope_id` is released before."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """`scope_id` has ended in time."""


class RequestQueue(ABC):
    """Where a server's requests come from."""

    @abstractmethod
    def size(self) -> int:
        """How many can be had at once without waiting; more may come at any time."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to `size` requests, waiting `timeout` seconds at most."""


class TimerServer(ABC):
    """Keeps workers' timers in a thread of its own and reaps those whose timers expire."""

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        super().__init__()
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stop_signaled = False

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Take in these requests, releases included."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Worker → its timers that expire at `deadline` or before."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """End the worker. False: try again at the next look. An exception counts as done."""

    def start(self) -> None:
        logger.info("%s looks every %s s (daemon: %s)", type(self).__name__, self._max_interval, self._daemon)
        self._watchdog_thread = threading.Thread(target=self._watchdog_loop, name="timer-watchdog", daemon=self._daemon)
        self._watchdog_thread.start()

    def stop(self) -> None:
        self._stop_signaled = True
        if self._watchdog_thread:
            self._watchdog_thread.join(self._max_interval)
            self._watchdog_thread = None

    def _watchdog_loop(self) -> None:
        while not self._stop_signaled:
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("the timer watchdog failed; it goes on")

    def _run_watchdog(self) -> None:
        batch_size = max(1, self._request_queue.size())
        self.register_timers(self._request_queue.get(batch_size, self._max_interval))
        reaped = set()
        for worker_id, expired in self.get_expired_timers(time.time()).items():
            logger.info("reaping worker %s: timers %s expired", worker_id, self._get_scopes(expired))
            if self._reap_worker_no_throw(worker_id):
                reaped.add(worker_id)
            else:
                logger.error("worker %s could not be reaped; trying again", worker_id)
        self.clear_timers(reaped)

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            logger.exception("_reap_worker(%s) raised; its timers are dropped", worker_id)
            return True

    def _get_scopes(self, timer_requests: list[TimerRequest]) -> list[str]:
        return [request.scope_id for request in timer_requests]


_timer_client: TimerClient | None = None


def configure(timer_client: TimerClient | None) -> None:
    """The client that `expires` uses from now on in this process."""
    global _timer_client
    _timer_client = timer_client


def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> AbstractContextManager[None]:
    """A block that must end within `after` seconds; else the server may kill this process.

    `scope` names the timer; by default it is the caller's file and line, so that nested blocks have timers of their own, and a
    recursion through the same line shares one. `RuntimeError` when no client is configured or given.
    """
    if scope is None:
        caller = sys._getframe(1)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    return _expires(after, scope, client)


@contextmanager
def _expires(after: float, scope: str, client: TimerClient | None) -> Iterator[None]:
    if client is None:
        client = _timer_client
    if client is None:
        raise RuntimeError("Configure timer client before using countdown timers.")
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)
