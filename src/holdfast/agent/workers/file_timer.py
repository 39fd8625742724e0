"""Which timers have expired? The agent's end of the named pipe that `torch.distributed.elastic.timer.expires` writes to.

One line per request, as torch's clients write it:

    {"version": 1, "pid": 123, "scope_id": "train.py#40", "expiration_time": 1795210116.24, "signal": 9}

`expiration_time` is in seconds since the epoch, on this host's clock; negative releases the scope. An expired timer is a
failure of the worker that set it (torchrun's watchdog takes the launcher down with it).
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, MutableMapping

from holdfast.agent.component import Component
from holdfast.agent.group.messages import TimerExpired
from holdfast.core.machine import NEVER, Observation
from holdfast.core.signals import signal
from holdfast.runtime.host import Host

CHUNK = 1 << 16
LONGEST_LINE = 4096  # PIPE_BUF: up to this the kernel keeps a client's write in one piece.


class Timers:
    """The timers that are set. No clock: `now_unix` is an argument."""

    def __init__(self) -> None:
        self.armed: dict[tuple[int, str], tuple[float, int]] = {}  # (pid, scope) → (expiration, signal)

    def take(self, line: bytes) -> None:
        """One request. ValueError when it is none."""
        try:
            said = json.loads(line)
            key = int(said["pid"]), str(said["scope_id"])
            expires, signum = float(said["expiration_time"]), int(said["signal"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a timer request: {line[:80]!r}") from error
        if expires != expires or (signum > 0 and signum not in signal.valid_signals()):  # NaN: a time that never comes
            raise ValueError(f"invalid timer request: {line[:80]!r}")
        if expires < 0:
            self.armed.pop(key, None)
        else:
            self.armed[key] = expires, signum

    def next_unix(self) -> float:
        """When the next timer expires; NEVER if none is set."""
        return min((expires for expires, _ in self.armed.values()), default=NEVER)

    def expired(self, now_unix: float) -> list[TimerExpired]:
        """Timers that have run out by `now_unix`, earliest first; each is told once."""
        over = sorted((expires, key, signum) for key, (expires, signum) in self.armed.items() if expires <= now_unix)
        for _, key, _ in over:
            del self.armed[key]
        return [
            TimerExpired(pid=pid, scope=scope, signum=signum, late_s=now_unix - expires)
            for expires, (pid, scope), signum in over
        ]


class Watchdog(Component):
    """The pipe and its timers."""

    def __init__(self, path: str, host: Host) -> None:
        """Make the pipe; whatever lies at `path` is replaced. OSError where it cannot be made."""
        self.path, self.host = path, host
        self.timers = Timers()
        self.rest = b""
        if os.path.lexists(path):
            os.unlink(path)
        os.mkfifo(path, 0o600)  # only this user: a line written here can have workers killed
        # For writing too, so that there is no end of file between two clients.
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        host.watch(self.fd, select.EPOLLIN, self._readable)

    @property
    def due_at(self) -> float:
        return self.host.now() + self.timers.next_unix() - self.host.unix()

    def due(self) -> list[Observation]:
        return list(self.timers.expired(self.host.unix()))

    def _readable(self, events: int) -> list[Observation]:
        try:
            data = self.rest + os.read(self.fd, CHUNK)
        except BlockingIOError:
            return []
        *lines, self.rest = data.split(b"\n")
        self.rest = self.rest[-LONGEST_LINE:]
        for line in lines:
            try:
                self.timers.take(line)
            except ValueError:
                continue  # a worker can write anything here: such a line sets no timer, and touches no other
        return []

    def forget_timers(self) -> None:
        """The workers that set timers are gone."""
        self.timers.armed.clear()

    def close(self) -> None:
        os.close(self.fd)
        if os.path.lexists(self.path):
            os.unlink(self.path)


def open_watchdog(path: str, host: Host, environ: MutableMapping[str, str], degraded: Callable[[str], None]) -> Watchdog | None:
    """The watchdog, whose pipe workers find by `environ`. None: its pipe cannot be made, as `degraded` is told."""
    try:
        watchdog = Watchdog(path, host)
    except OSError as error:
        degraded(f"no watchdog: cannot make the pipe {path}: {error.strerror}")
        return None
    environ["TORCHELASTIC_TIMER_FILE"] = path
    return watchdog
