"""Timers between a process and its own children, over a `multiprocessing.Queue`. A worker is its pid; reaping is SIGKILL."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Iterable
from queue import Empty
from typing import Any, TypeVar

from .api import RequestQueue, TimerClient, TimerRequest, TimerServer

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=TimerRequest)


class LocalTimerClient(TimerClient):
    """Puts its requests into the queue that the server reads."""

    def __init__(self, mp_queue: mp.Queue[TimerRequest]) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """A `multiprocessing.Queue` as a server reads it."""

    def __init__(self, mp_queue: mp.Queue[TimerRequest]) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def size(self) -> int:
        return self._mp_queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        requests: list[TimerRequest] = []
        deadline = time.monotonic() + timeout
        while len(requests) < size:
            left = deadline - time.monotonic()
            if requests and left <= 0:
                break
            try:
                requests.append(self._mp_queue.get(timeout=max(left, 0)))
            except Empty:
                break
        return requests


class LocalTimerServer(TimerServer):
    """Reads requests from `mp_queue`, and looks for expired timers every `max_interval` seconds at the latest."""

    def __init__(self, mp_queue: mp.Queue[TimerRequest], max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._timers: dict[tuple[Any, str], TimerRequest] = {}

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            note(self._timers, request)

    def clear_timers(self, worker_ids: set[Any]) -> None:
        for worker, scope in list(self._timers):
            if worker in worker_ids:
                del self._timers[worker, scope]

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        return expired_by_worker(self._timers.values(), deadline)

    def _reap_worker(self, worker_id: int) -> bool:
        return kill(worker_id, signal.SIGKILL)


def note(timers: dict[tuple[Any, str], R], request: R) -> None:
    """Keep the request by worker and scope, or drop what it releases."""
    key = request.worker_id, request.scope_id
    if request.expiration_time < 0:
        timers.pop(key, None)
    else:
        timers[key] = request


def expired_by_worker(requests: Iterable[R], deadline: float) -> dict[Any, list[R]]:
    """Worker → those of its requests that expire at `deadline` or before."""
    found: dict[Any, list[R]] = {}
    for request in requests:
        if request.expiration_time <= deadline:
            found.setdefault(request.worker_id, []).append(request)
    return found


def kill(pid: int, signum: int) -> bool:
    """Signal a worker. True when it has been sent or the worker is gone already."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        logger.info("worker %s is gone already", pid)
    except OSError:
        logger.exception("worker %s cannot be signalled", pid)
        return False
    return True
