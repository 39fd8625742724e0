"""Who watches a rank from outside, so that one that hangs or dies holds up nobody? NVRx's name.

A process beside each rank, forked from it before the call begins. The first rank's serves the store. It hears from its rank
over a socket, sees the end of its process, and carries out what `monitor_machine.Watch` decides. It outlives its rank for as
long as others need it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.inprocess import monitor_machine as machine
from holdfast.inprocess.attribution import InterruptionRecord
from holdfast.inprocess.progress_watchdog import Timestamp
from holdfast.inprocess.store import BarrierOverflow, PrefixStore

log = logging.getLogger(__name__)

LONGEST = 1 << 12
"""Bytes of a message between the two."""


class MonitorProcess:
    """The rank's side of it."""

    def __init__(self, monitor: Monitor) -> None:
        """Forks it. OSError: it cannot be."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that are not there in the child: it uses none
            child = os.fork()
        if child == 0:
            monitor.become(its)
        its.close()
        os.waitpid(child, 0)

    def await_store(self) -> None:
        """Return once it has its store, or has failed to make one."""
        self._socket.recv(LONGEST)

    def start_iteration(self, rank: int, world_size: int, iteration: int) -> None:
        """A life begins."""
        self._tell("began", rank, world_size, iteration)

    def leave(self) -> None:
        """The rank is out of the function."""
        self._tell("left")

    def wait(self) -> None:
        """It is done with this life."""
        self._tell("waiting")

    def send_timestamp(self, timestamp: Timestamp) -> None:
        """It makes progress."""
        self._tell("progress", timestamp.auto, timestamp.manual)

    def disable_timeouts(self) -> None:
        """It is never late."""
        self._tell("protection", 0)

    def enable_timeouts(self) -> None:
        """It may be late again."""
        self._tell("protection", 1)

    def shutdown(self) -> None:
        """The call is over: wait until it has ended, which for the first rank's is when all have."""
        self._tell("end")
        with contextlib.suppress(OSError):
            while self._socket.recv(LONGEST):
                continue
        self._socket.close()

    def _tell(self, *words: object) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._socket.send(" ".join(map(str, words)).encode())


class Monitor:
    """The process's own side."""

    def __init__(
        self,
        *,
        make_store: Callable[[], Any],
        limits: machine.Limits,
        grace: timedelta,
        barrier_timeout: timedelta,
        initial_rank: int,
        initial_world_size: int,
        logfile: str | None,
        pidfile: str | None,
    ) -> None:
        self.make_store, self.watch, self.grace_s = make_store, machine.Watch(limits), grace.total_seconds()
        self.abandoned_s = limits.silent_s + barrier_timeout.total_seconds()
        self.rank, self.world_size = initial_rank, initial_world_size
        self.logfile, self.pidfile = logfile, pidfile
        self.target = os.getpid()
        self.store: Any = None
        self.life: Any = None  # The store of the rank's present life.
        self.socket: socket.socket
        self.is_over = False

    def become(self, its: socket.socket) -> None:
        """Be that process, and end. In a child of the rank's, which is left behind: it has a child of its own."""
        try:
            os.setsid()
            if os.fork():
                os._exit(0)
            self.socket = its
            self._part()
            self._run()
            self.life = self.store = None  # its port is free before the rank hears that this process ends
        except BaseException:
            log.exception("monitor_process failed")
        finally:
            os._exit(0)

    def _part(self) -> None:
        """From all that the rank has open, and handles."""
        keep = self.socket.fileno()
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.closerange(3, keep)
        os.closerange(keep + 1, 1 << 16)
        os.chdir("/")
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, signal.SIG_IGN)
        root = logging.getLogger()
        root.handlers.clear()
        if self.logfile is not None:
            root.addHandler(logging.FileHandler(self.logfile.format(rank=self.rank)))
            root.handlers[0].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            log.setLevel(logging.DEBUG)
        if self.pidfile is not None:
            with open(self.pidfile.format(rank=self.rank), "w") as file:
                file.write(str(os.getpid()))
        log.info("monitor_process %d of rank %d watches target_pid=%d", os.getpid(), self.rank, self.target)

    def _run(self) -> None:
        target = os.pidfd_open(self.target)
        try:
            self.store = self.make_store()
        finally:
            self.socket.send(b"ready")
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(target, select.POLLIN)
        while not self.is_over:
            wait_s = min(max(self.watch.deadline() - time.monotonic(), 0.0), 3600.0)
            ready = {fd for fd, _ in poll.poll(wait_s * 1000 + 1)}
            if self.socket.fileno() in ready:
                if said := self.socket.recv(LONGEST).decode():
                    self._heard(said)
                else:
                    poll.unregister(self.socket)
            elif target in ready:
                self._show(machine.Gone())
                self.is_over = True
            self._show(machine.Tick())
        self._last()

    def _heard(self, said: str) -> None:
        match said.split():
            case ["began", rank, world_size, iteration]:
                self.life = PrefixStore(iteration, self.store)
                self._show(machine.Began(int(rank), int(world_size)))
            case ["left"]:
                self._show(machine.Left())
            case ["waiting"]:
                self._show(machine.Waiting())
            case ["progress", auto, manual]:
                self._show(machine.Progress(float(auto), None if manual == "None" else float(manual)))
            case ["protection", is_on]:
                self._show(machine.Protection(is_on == "1"))
            case ["end"]:
                self.is_over = True

    def _show(self, seen: machine.Seen) -> None:
        for action in self.watch.observe(seen, time.monotonic()):
            self._do(action)

    def _do(self, action: machine.Action) -> None:
        log.debug("monitor_process of rank %d: %s", self.rank, action)
        match action:
            case machine.Interrupt(rank=rank, why=why):
                self.life.record_interrupted([InterruptionRecord(rank, why)])
            case machine.StandIn(rank=rank):
                self._stand_in(rank)
            case machine.EndRank():
                self._end_rank()
            case machine.Beat(rank=rank, neighbour=neighbour):
                self.life.send_heartbeat(rank)
                self.store.set("alive", str(time.time()))
                if neighbour is not None:
                    self._show(machine.Heard(self.life.get_heartbeat(neighbour)))

    def _stand_in(self, rank: int) -> None:
        assert self.watch.life is not None
        self.life.record_terminated_ranks([rank])
        with contextlib.suppress(BarrierOverflow):
            self.life.arrive([rank], "iteration", self.watch.life.world_size)
        initial_rank = self.life.get_initial_rank(rank)
        if initial_rank is not None:
            self.store.arrive([initial_rank], "termination", self.world_size)

    def _end_rank(self) -> None:
        """It is stopped, or hangs: SIGTERM, and SIGKILL after the grace."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.target, signal.SIGCONT)
            os.kill(self.target, signal.SIGTERM)
            ended = os.pidfd_open(self.target)
            if not select.select([ended], [], [], self.grace_s)[0]:
                os.kill(self.target, signal.SIGKILL)
            os.close(ended)

    def _last(self) -> None:
        """The first rank's serves the store until all have ended, or nobody has been heard of for too long."""
        self.store.arrive([self.rank], "termination", self.world_size)
        if self.rank not in self.store.critical_ranks:
            return
        alive, since = b"", time.monotonic()
        while not self.store.is_open("termination") and time.monotonic() - since < self.abandoned_s:
            self.store.look_for("barrier_termination_open", timedelta(seconds=1))
            if (said := self.store.get("alive") if self.store.check(["alive"]) else b"") != alive:
                alive, since = said, time.monotonic()
