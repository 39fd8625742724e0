"""Timers between the agent and its workers, over a named pipe: one JSON line per request.

    {"version": 1, "pid": 123, "scope_id": "train.py#40", "expiration_time": 1795210116.24, "signal": 9}

`expiration_time` -1 releases. The line format is torch's, so its clients and ours may be mixed. An expired timer ends the
worker that set it, and no other: `log_event` tells the agent, which then sees that worker fail.
"""

from __future__ import annotations

import io
import json
import math
import os
import select
import signal as signals
import threading
import time
from collections.abc import Callable

from holdfast.elastic.timer.api import TimerClient, TimerRequest
from holdfast.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
from holdfast.elastic.timer.local_timer import expired_by_worker, kill, note
from holdfast.elastic.utils.logging import get_logger
from holdfast.elastic.utils.process_state import is_alive

logger = get_logger(__name__)

OPEN_TRIES = 10
OPEN_PAUSE_S = 0.1
"""A client waits about a second for its server, as torch's does: a restarted agent makes the pipe anew."""


class FileTimerRequest(TimerRequest):
    """A timer of the process `worker_pid`. `signal` is what ends it; 0 or less: expiry is only reported."""

    __slots__ = ["signal", "version"]

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0) -> None:
        super().__init__(worker_id=worker_pid, scope_id=scope_id, expiration_time=expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        return int(self.worker_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTimerRequest) and super().__eq__(other) and self.signal == other.signal

    def to_json(self) -> str:
        fields = {"version": self.version, "pid": self.worker_pid, "scope_id": self.scope_id}
        return json.dumps(fields | {"expiration_time": self.expiration_time, "signal": int(self.signal)})

    @staticmethod
    def from_json(line: str) -> FileTimerRequest:
        """`ValueError` when it is not a request."""
        try:
            fields = json.loads(line)
            pid, scope, expires = int(fields["pid"]), str(fields["scope_id"]), float(fields["expiration_time"])
            signum = int(fields["signal"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a timer request: {line[:80]!r}") from error
        if math.isnan(expires) or (signum > 0 and signum not in signals.valid_signals()):
            raise ValueError(f"invalid timer request: {line[:80]!r}")
        return FileTimerRequest(pid, scope, expires, signum)


class FileTimerClient(TimerClient):
    """Writes to the pipe at `file_path`; `signal` ends this process when a timer expires."""

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        super().__init__()
        self._file_path = file_path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send_request(FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        self._send_request(FileTimerRequest(os.getpid(), scope_id, -1))

    def _send_request(self, request: FileTimerRequest) -> None:
        """`BrokenPipeError` when no server reads the pipe."""
        line = request.to_json()
        if len(line) > select.PIPE_BUF:  # only up to this size does the kernel keep a write in one piece
            raise RuntimeError(f"FileTimerRequest larger than {select.PIPE_BUF} bytes is not supported: {line}")
        with self._open_non_blocking() as pipe:
            pipe.write(line + "\n")

    def _open_non_blocking(self) -> io.TextIOWrapper:
        tries = OPEN_TRIES
        while True:
            try:
                # Opened for each request, and without waiting: the server may have gone, and come back with a new pipe.
                return os.fdopen(os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), "w")
            except OSError as error:
                tries -= 1
                if not tries:
                    why = f"FileTimerServer is not available: nobody reads {self._file_path}"
                    raise BrokenPipeError(f"Could not send the FileTimerRequest because {why}") from error
                time.sleep(OPEN_PAUSE_S)


class FileTimerServer:
    """Reads the pipe at `file_path`, which it makes, in a thread, and ends workers whose timers have expired.

    It looks every `max_interval` seconds, and when the next known timer expires. `log_event(name, request)` is told of each
    step.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: Callable[[str, FileTimerRequest | None], None] | None = None,
    ) -> None:
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or (lambda name, request: None)
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._request_count = 0
        self._unfinished = ""  # a request of which only the beginning has been read
        self._stop_signaled = False
        self._run_once = False
        self._watchdog_thread: threading.Thread | None = None
        self._last_progress_time = int(time.time())
        if os.path.exists(file_path):
            os.remove(file_path)
        os.mkfifo(file_path, 0o600)  # a writer to this pipe can have our workers killed

    def __del__(self) -> None:
        os.close(self._wake)

    def start(self) -> None:
        logger.info("timer server for %s, every %s s (daemon: %s)", self._file_path, self._max_interval, self._daemon)
        # Opened before anybody may write, and for writing too: so there is no end of file between two clients.
        pipe = os.open(self._file_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._watchdog_thread = threading.Thread(target=self._watchdog_loop, args=(pipe,), daemon=self._daemon)
        self._watchdog_thread.start()
        self._log_event("watchdog started", None)

    def stop(self) -> None:
        """Stop looking, and remove the pipe. Timers that have not expired by now never will."""
        self._stop_signaled = True
        self._end_thread()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Take in all that has been written so far, look once, and stop."""
        self._run_once = True
        self._end_thread()

    def get_last_progress_time(self) -> int:
        """When the thread last looked (epoch seconds): an old time means that it hangs."""
        return self._last_progress_time if self._watchdog_thread else int(time.time())

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Is it there, and not a zombie?"""
        return is_alive(pid)

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Take in these requests, releases included."""
        for request in timer_requests:
            self._request_count += 1
            note(self._timers, request)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget the timers of these processes, and of those that have ended."""
        for pid, scope in list(self._timers):
            if pid in worker_pids or not FileTimerServer.is_process_running(pid):
                del self._timers[pid, scope]

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Pid → its timers that expire at `deadline` or before."""
        return expired_by_worker(self._timers.values(), deadline)

    def _end_thread(self) -> None:
        os.eventfd_write(self._wake, 1)
        if self._watchdog_thread:
            self._watchdog_thread.join()
            self._watchdog_thread = None
        if os.path.exists(self._file_path):
            os.remove(self._file_path)

    def _watchdog_loop(self, pipe: int) -> None:
        try:
            while not self._stop_signaled:
                last = self._run_once
                try:
                    self._run_watchdog(pipe)
                except Exception:
                    logger.exception("the timer watchdog failed; it goes on")
                self._last_progress_time = int(time.time())
                if last:
                    break
        finally:
            os.close(pipe)

    def _run_watchdog(self, pipe: int) -> None:
        self.register_timers(self._get_requests(pipe, self._max_interval))
        expired = self.get_expired_timers(time.time())
        shown = {pid: [timer.to_json() for timer in timers] for pid, timers in expired.items()}
        log_debug_info_for_expired_timers(self._run_id, shown)
        self.clear_timers({pid for pid, timers in expired.items() if self._expire(pid, timers)})

    def _expire(self, pid: int, timers: list[FileTimerRequest]) -> bool:
        """End one worker, for the first of its expired timers that names a signal. False: not ended, try again."""
        timers.sort(key=lambda timer: timer.expiration_time)
        logger.info("timers %s of worker %s expired", [timer.scope_id for timer in timers], pid)
        for timer in timers:
            self._log_event("timer expired", timer)
            if timer.signal > 0:
                # Reported before it is done, so that the agent knows why the worker ended.
                self._log_event("kill worker process", timer)
                return self._reap_worker(pid, timer.signal)
        return True

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        return kill(worker_pid, signal)

    def _get_requests(self, pipe: int, max_interval: float) -> list[FileTimerRequest]:
        """What is written within `max_interval` seconds, or until the next timer expires; at once what is there, to stop."""
        requests: list[FileTimerRequest] = []
        first = min((timer.expiration_time for timer in self._timers.values()), default=float("inf"))
        deadline = time.monotonic() + min(max_interval, max(0.0, first - time.time()))
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = [fd for fd, _ in poll.poll(left * 1000)]
            if pipe in ready:
                requests += self._read(pipe)
            elif self._wake in ready or not left:
                return requests

    def _read(self, pipe: int) -> list[FileTimerRequest]:
        *lines, self._unfinished = (self._unfinished + os.read(pipe, 65536).decode("utf-8", "replace")).split("\n")
        self._unfinished = self._unfinished[-select.PIPE_BUF :]  # no client writes a longer line
        requests = []
        for line in lines:
            try:
                requests.append(FileTimerRequest.from_json(line))
            except ValueError as error:
                logger.warning("%s: %s", self._file_path, error)
        return requests
