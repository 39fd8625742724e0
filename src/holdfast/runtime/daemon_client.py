"""How does Google's host daemon, or ours, hear of ranks without anybody waiting for it? By a thread that has one connection.

A reporting thread leaves the newest state of a rank and goes on: microseconds, whether the daemon is well, gone, or takes
connections and never answers. What waits is bounded: per rank its newest state, and before it a failure that has not been told,
since a restart may follow within milliseconds. On each connection the workloads are registered first, so a daemon that was
restarted knows them again. What a daemon does not take within CALL_S, or refuses, is told again over another connection, after
a pause that grows.

The wire is `core.wire.google_wire`'s, over `grpc_calls`.
"""

from __future__ import annotations

import _thread
import os
import socket
import time
from _queue import SimpleQueue

from holdfast.core.errors import ProtocolError
from holdfast.core.wire.google_wire import FAILED, OWN_SERVICE, SERVICE, Method, WorkerInfo, WorkloadInfo
from holdfast.runtime.hardware.gpus import addresses
from holdfast.runtime.net.grpc_calls import Calls

CALL_S = 2.0  # Longest wait for an answer; a connection that is late is given up.

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""After a failure, and at most; each is cut by up to a half at random, so that many who lost one thing do not come as one."""

GOODBYE_S = 0.25  # How long `close` waits at most for the last words to be taken up.

HOSTS = "127.0.0.1", "::1"

HEARTBEAT, REGISTER = f"/{SERVICE}/{Method.HEARTBEAT}", f"/{SERVICE}/{Method.REGISTER_WORKLOAD}"
LEAVE = f"/{OWN_SERVICE}/{Method.GOODBYE}"


def worker_at(address: str, local_rank: int, global_rank: int) -> WorkerInfo:
    """A rank of this host, with its GPU's bus address for its id; where there is none, host and local rank."""
    host, device = os.uname().nodename, _bus_id(local_rank)
    return WorkerInfo(
        worker_address=address,
        worker_id=device or f"{host}/{local_rank}",
        worker_name=f"{host}-{device or local_rank}",
        local_rank=local_rank,
        global_rank=global_rank,
    )


def _bus_id(local_rank: int) -> str:
    """As nvidia-smi writes it, but from the driver's files: a program may hang on a broken GPU. Empty: it cannot be told."""
    found = addresses("gpu", os.environ)
    address = found[local_rank] if local_rank < len(found) else ""
    domain, colon, rest = address.partition(":")
    return f"{domain:0>8}:{rest}".upper() if colon else ""


class Link:
    """One connection. OSError and ProtocolError: it is no good (any more)."""

    def __init__(self, port: int) -> None:
        self.socket = _connected(port)
        self.calls = Calls(f"localhost:{port}", f"{CALL_S * 1000:.0f}m")
        self.registered: set[WorkloadInfo] = set()

    def exchange(self, asked: list[tuple[str, bytes]]) -> list[bool]:
        """Make all these calls at once; whether each has succeeded. TimeoutError: CALL_S have passed without all answers."""
        try:
            return self._exchange(asked, time.monotonic() + CALL_S)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {CALL_S:g} s") from error

    def _exchange(self, asked: list[tuple[str, bytes]], until: float) -> list[bool]:
        numbers = [self.calls.call(path, message) for path, message in asked]
        open_calls, succeeded = set(numbers), set()
        while open_calls or self.calls.out:
            if self.calls.out:
                self.socket.settimeout(_left(until))
                self.socket.sendall(self.calls.out)
                self.calls.out.clear()
            if not open_calls:
                break
            self.socket.settimeout(_left(until))
            if not (data := self.socket.recv(1 << 16)):
                raise ConnectionResetError("the daemon has closed the connection")
            for number, went_well in self.calls.receive(data):
                open_calls.discard(number)
                if went_well:
                    succeeded.add(number)
        return [number in succeeded for number in numbers]

    def close(self) -> None:
        """Say so, and close."""
        self.calls.goodbye()
        try:
            self.socket.settimeout(0)
            self.socket.send(self.calls.out)
        except OSError:
            pass  # it has gone first
        self.socket.close()


class DaemonClient:
    """What the ranks of this process, or of this agent, have to say to the daemon at `port` of this host. It never raises."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.trouble = ""  # Why the daemon was not reached last; empty: it was, or nothing has been said.
        self.told: dict[str, int] = {}  # By address: the state that the daemon has taken up last.
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()
        self._news: SimpleQueue[bool] = SimpleQueue()  # One entry wakes the thread; False ends it.
        self._end, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        """Free when the thread is to end, and when it has ended."""
        self._end.acquire()
        self._done.acquire()
        self._has_thread = False
        self._workloads: dict[str, WorkloadInfo] = {}  # By worker's address.
        self._unsaid: dict[str, list[WorkerInfo]] = {}
        self._leaving: dict[str, WorkerInfo] = {}

    def register(self, address: str, workload: WorkloadInfo) -> None:
        """The worker at that address is part of that workload; told before the worker's next state."""
        with self._safe():
            self._workloads[address] = workload
        self._wake()

    def say(self, worker: WorkerInfo) -> None:
        """This is how the worker is now: a heartbeat."""
        address = worker.worker_address
        with self._safe():
            self._leaving.pop(address, None)
            waiting = self._unsaid.get(address)
            told_first = waiting is not None and waiting[0].state == FAILED != worker.state
            self._unsaid[address] = [waiting[0], worker] if waiting is not None and told_first else [worker]
        self._wake()

    def leave(self, worker: WorkerInfo) -> None:
        """The worker will say no more."""
        with self._safe():
            self._leaving[worker.worker_address] = worker
            self._workloads.pop(worker.worker_address, None)
        self._wake()

    def close(self, wait_s: float = GOODBYE_S) -> None:
        """Tell what is left and end the thread; wait for that, but no longer, and not while the daemon is out of reach."""
        if not self._has_thread or self._pid != os.getpid():
            return
        self._news.put(False)
        self._end.release()
        self._has_thread = False
        if not self.trouble:
            self._done.acquire(timeout=wait_s)

    def _safe(self) -> _thread.LockType:
        """The lock; a new one after a fork, whose child has neither the thread nor the parent's news."""
        if self._pid != os.getpid():
            self._fresh()
        return self._lock

    def _wake(self) -> None:
        if self._has_thread:
            if self._news.empty():
                self._news.put(True)
            return
        with self._lock:
            begins, self._has_thread = not self._has_thread, True
        if begins:
            try:
                _thread.start_new_thread(self._work, (self._news, self._end, self._done))
            except RuntimeError as error:
                self.trouble = str(error)

    # --- in the thread ----------------------------------------------------------------------------------------------------

    def _work(self, news: SimpleQueue[bool], end: _thread.LockType, done: _thread.LockType) -> None:
        link: Link | None = None
        pause_s, goes_on, is_first = FIRST_PAUSE_S, True, True
        while goes_on:
            goes_on = is_first or news.get()
            is_first = False
            while self._has_news(link):
                was_there = link is not None
                try:
                    link = self._open(link)
                    self._tell(link)
                    self.trouble, pause_s = "", FIRST_PAUSE_S
                except (OSError, ProtocolError) as error:
                    if link is not None:
                        link.socket.close()
                        link = None
                    if was_there:
                        continue  # the daemon was restarted while nothing was said, perhaps
                    self.trouble = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    if news.empty():
                        news.put(True)  # so that nobody wakes us meanwhile, and waits for the interpreter's lock beside us
                    if not goes_on or end.acquire(timeout=pause_s * (0.5 + os.urandom(1)[0] / 512)):
                        goes_on = False
                        break
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if link is not None:
            link.close()
        done.release()

    def _open(self, link: Link | None) -> Link:
        if link is not None and not link.calls.is_over:
            return link
        if link is not None:
            link.close()
        return Link(self.port)

    def _has_news(self, link: Link | None) -> bool:
        with self._lock:
            known = link.registered if link is not None else set()
            return bool(self._unsaid or self._leaving) or not known.issuperset(self._workloads.values())

    def _tell(self, link: Link) -> None:
        """One exchange. Workloads go first, alone: beats before them would belong to none."""
        with self._lock:
            workloads = [one for one in dict.fromkeys(self._workloads.values()) if one not in link.registered]
            first = [waiting[0] for waiting in self._unsaid.values()] if not workloads else []
            leaving = [one for address, one in self._leaving.items() if address not in self._unsaid] if not workloads else []
        beats = [(HEARTBEAT, one.encode()) for one in first] + [(LEAVE, one.encode()) for one in leaving]
        answers = link.exchange([(REGISTER, one.encode()) for one in workloads] + beats)
        link.registered.update(one for one, taken in zip(workloads, answers) if taken)
        with self._lock:
            for worker, taken in zip(first, answers[len(workloads) :]):
                if taken:
                    self._taken(worker)
            for one in leaving:  # a daemon of Google's knows no goodbye: asked once is enough
                self._leaving.pop(one.worker_address, None)
        if not all(answers[: len(workloads) + len(first)]):
            raise ProtocolError("the daemon answers with an error")

    def _taken(self, worker: WorkerInfo) -> None:
        address = worker.worker_address
        self.told[address] = worker.state
        left = [one for one in self._unsaid.get(address, ()) if one is not worker]
        if left:
            self._unsaid[address] = left
        else:
            self._unsaid.pop(address, None)


def _left(until: float) -> float:
    if (left := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left


def _connected(port: int) -> socket.socket:
    """OSError: nobody listens there."""
    for host in HOSTS:
        # Not `create_connection`, which imports a codec: a child forked in the middle of that finds half of it.
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        made.settimeout(CALL_S)
        try:
            made.connect((host, port))
        except OSError:
            made.close()
            if host == HOSTS[-1]:
                raise
            continue
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    raise AssertionError
