"""How does a call go on where the ranks have nobody but one another? They meet in a store, and go on without who is gone.

    assigned ──▶ initialize ──▶ health check ──▶ the function, or waiting in reserve ──▶ all have returned ──▶ completion
        ▲                                            │ a rank fails, is late or dies
        └── ranks reassigned ◀── all have met ◀── health check ◀── finalize ◀── abort

A *life* is one round of it. Its store says who has failed; each rank's monitor says so for one that cannot.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.inprocess import abort as aborting
from holdfast.inprocess import store as stores
from holdfast.inprocess.attribution import Interruption, InterruptionRecord
from holdfast.inprocess.call import CallWrapper
from holdfast.inprocess.exception import in_words
from holdfast.inprocess.monitor_machine import Limits
from holdfast.inprocess.monitor_process import Monitor, MonitorProcess
from holdfast.inprocess.monitor_thread import MonitorThread, RankShouldRestart, reraise_if_unraisable
from holdfast.inprocess.progress_watchdog import ProgressWatchdog
from holdfast.inprocess.rank_assignment import RankAssignmentCtx
from holdfast.inprocess.state import Mode
from holdfast.inprocess.store import PrefixStore

log = logging.getLogger(__name__)

_calls = itertools.count()
"""Calls of this process: each has keys of its own, where the store outlives it."""


class AmongPeers(CallWrapper):
    """The lives of one call."""

    def __init__(self, wrapper: Any) -> None:
        """What the store's class raises: there is no store."""
        super().__init__(wrapper)
        self.lock = threading.RLock()
        self.result: Any = None  # The function's, in this life.
        self.monitor: MonitorProcess | None = None
        self.watchdog: ProgressWatchdog | None = None
        self.store: Any = None
        try:
            self._open()
        except BaseException:
            self.shutdown()
            raise

    def _open(self) -> None:
        wrapper, state = self.wrapper, self.state
        call = next(_calls)

        def make_store() -> Any:
            return PrefixStore(f"call_{call}", wrapper.store_factory(**wrapper.store_kwargs))

        seconds = [
            one.total_seconds()
            for one in (wrapper.soft_timeout, wrapper.hard_timeout, wrapper.heartbeat_interval, wrapper.heartbeat_timeout)
        ]
        self.monitor = MonitorProcess(
            Monitor(
                make_store=make_store,
                limits=Limits(*seconds),
                grace=wrapper.termination_grace_time,
                barrier_timeout=wrapper.barrier_timeout,
                initial_rank=state.initial_rank or 0,
                initial_world_size=state.world_size,
                logfile=wrapper.monitor_process_logfile,
                pidfile=wrapper.monitor_process_pidfile,
            )
        )
        self.monitor.await_store()
        with stores.served_elsewhere():
            self.store = make_store()
        self.store.barrier([state.rank], "initial", state.world_size, wrapper.barrier_timeout)
        self.watchdog = ProgressWatchdog(state.rank or 0, self.monitor, wrapper.progress_watchdog_interval)
        self.watchdog.start()
        if not gc.get_freeze_count():
            gc.freeze()  # what is imported stays: to look through torch's objects takes 0.1 s at each life's end

    def shutdown(self) -> None:
        """The call is over."""
        if self.watchdog is not None:
            self.watchdog.shutdown()
        if self.monitor is not None:
            self.monitor.shutdown()
        self.store = self.watchdog = self.monitor = None
        self.state = self.state.having(fn_exception=None)  # whose frames refer to this call

    def ping(self) -> None:
        """To the monitor."""
        if self.watchdog is not None:
            self.watchdog.ping()

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """By a lock that the thread takes, too, that cuts a life short."""
        while not self.lock.acquire(blocking=False):
            continue  # in Python, so that it can be interrupted
        try:
            yield
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def disable_hang_protection(self) -> Iterator[None]:
        """The monitor looks away."""
        assert self.monitor is not None and self.watchdog is not None
        self.monitor.disable_timeouts()
        try:
            yield
        finally:
            self.watchdog.reset()
            self.monitor.enable_timeouts()

    @reraise_if_unraisable(RankShouldRestart)
    def run(self, function: Callable[[], Any]) -> Any:
        """One life after the other."""
        try:
            return self._run(function)
        finally:
            self.shutdown()

    def _run(self, function: Callable[[], Any]) -> Any:
        store: Any = self.store
        assert self.monitor is not None
        try:
            self._assign(store, set())
            while True:
                store = PrefixStore(self.state.iteration, self.store)
                if self._live(store, function):
                    break
                aborting.forget(self.state.fn_exception)
                self.monitor.wait()
                store.barrier([self.state.rank], "iteration", self.state.world_size, self.wrapper.barrier_timeout)
                self._assign(store, store.get_terminated_ranks())
                self.state.advance()
        except BaseException as error:
            self._leave(store, error)
            raise
        self.monitor.wait()
        self._completed()
        return self.result

    def _assign(self, store: Any, terminated: set[int]) -> None:
        ctx = RankAssignmentCtx(self.state, store, terminated)
        self.state = self.wrapper.rank_assignment(ctx).state
        self.state.set_distributed_vars()

    def _live(self, store: Any, function: Callable[[], Any]) -> bool:
        """One life. Whether it was the last."""
        wrapper, state, monitor, watchdog = self.wrapper, self.state, self.monitor, self.watchdog
        assert state.rank is not None and monitor is not None and watchdog is not None
        log.debug("rank %s of %s: life %s begins", state.rank, state.world_size, state.iteration)
        store.set_initial_rank(state.rank, state.initial_rank)
        monitor.start_iteration(state.rank, state.world_size, state.iteration)
        watchdog.reset()
        aborting.life_begins()
        thread = MonitorThread(
            state=state.freeze(),
            store=store,
            abort=wrapper.abort,
            interval=wrapper.monitor_thread_interval,
            progress_watchdog=watchdog,
            last_call_wait=wrapper.last_call_wait,
            atomic_lock=self.lock,
        )
        self.result = None
        try:
            thread.start()
            try:
                self._attempt(store, function)
            except Exception as error:
                log.debug("rank %s: %s", state.rank, in_words(error))
                self.state = self.state.having(fn_exception=error)
                store.record_interrupted([InterruptionRecord(state.rank, Interruption.EXCEPTION)])
                self._out()
                while not thread.said.wait(stores.LOOK_S):
                    continue  # in Python: who waits for the others' last call makes progress
        except RankShouldRestart:
            pass
        finally:
            thread.shutdown()
            watchdog.resume()
            self._out()
        if self.state.fn_exception is None and store.is_open("completion"):
            return True
        if not store.is_interrupted():  # the function has raised it itself
            store.record_interrupted([InterruptionRecord(state.rank, Interruption.EXCEPTION)])
        aborting.life_ends()
        self._after()
        return False

    def _out(self) -> None:
        """Of the function."""
        assert self.watchdog is not None and self.monitor is not None
        self.watchdog.reset()
        self.monitor.leave()

    def _attempt(self, store: Any, function: Callable[[], Any]) -> None:
        """The stages before the function, the function, and the wait for all others'."""
        wrapper, state, watchdog = self.wrapper, self.state, self.watchdog
        assert watchdog is not None
        self._before()
        if state.mode is Mode.ACTIVE:
            self.result = function()
            store.record_completed()
        else:
            store.wait_for_completed()
        watchdog.reset()
        store.barrier([state.rank], "completion", state.world_size, wrapper.completion_timeout)

    def _leave(self, store: Any, error: BaseException) -> None:
        """This rank is not of the next life."""
        log.debug("rank %s leaves: %s", self.state.rank, in_words(error))
        rank, size = self.state.rank, self.state.world_size
        if rank is not None and store is not self.store:
            with contextlib.suppress(Exception):  # the store may be what has failed
                store.record_interrupted([InterruptionRecord(rank, Interruption.BASE_EXCEPTION)])
                store.record_terminated_ranks([rank])
                store.arrive([rank], "iteration", size)
        if self.monitor is not None:
            self.monitor.wait()
        if self.wrapper.terminate is not None:
            self.wrapper.terminate(self.state.freeze())
