"""How does what happened get onto disk? One event, one JSON line, one write; nothing here reads it back (`reader`).

    {"seq": 7, "at_unix": 1790000000.125, "node": "gpu-07", "round": 1, "attempt": 0, "event": "WorkerExited", "rank": 3, …}

The envelope comes first, then the event's own fields. An event that carries its own `round` (a round that was formed, or
is asked for) belongs to that round: its own wins. The environment is never recorded: it holds people's secrets.

Records are kept in memory until the next `flush`, so that the way to the first worker, and the way from a failure to those who
must hear of it, touch no disk. Each then is one write() to a file opened for appending: lines of several writers
never mix. The agent flushes whenever it is about to rest. Where the file has been removed or moved, the record goes on in a new
one at its place, where `status` and `why` look. A disk that is full or gone costs one line on stderr and the events of that
time, never the job; one that hangs costs a tenth of a second, once (`io_thread`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast.core.job.events import Event
from holdfast.core.machine import NEVER
from holdfast.core.value import as_json, to_plain
from holdfast.telemetry.record import locks
from holdfast.telemetry.record.io_thread import IoThread

HELD_LIMIT = 10_000  # Records kept in memory before a flush comes by itself. A start of 1,000 ranks makes some 1,010.
LATE_S = 2.0  # After so long without an event on disk, the next one says so: a busy host is no reason to alarm anybody.

TAIL_BYTES = 1 << 20
"""How far back to look for the last whole line of an earlier agent. A failure with its log tail is some 100 kB."""


class Recorder:
    """Writes one node's events to `path`. `complain` is told, once for each stretch of trouble, when it cannot."""

    def __init__(
        self, path: str, node: str, *, complain: Callable[[str], None] | None = None, io_thread: IoThread | None = None
    ) -> None:
        self.path = path
        self.node = node
        self._complain = complain or (lambda line: print(f"holdfast: {line}", file=sys.stderr))
        self._held: list[dict[str, Any]] = []
        self.io_thread = io_thread or IoThread()
        self._late_since: float | None = None  # time of the event that was first to wait; None: none waits
        self._fd = -1
        self._seq = 0
        self._is_torn = False
        self._gap = ""  # Why the file does not begin with the first event. Empty: it does, or says so.
        self._missed = 0
        self._refused = 0

    def record(self, event: Event, *, at_unix: float, round: int, attempt: int) -> None:
        """Note `event`, at a time given in seconds since the epoch, for the next `flush`."""
        line: dict[str, Any] = {"at_unix": at_unix, "node": self.node, "round": round, "attempt": attempt}
        line["event"] = type(event).__name__
        for field in event.__fields__:
            line[field] = getattr(event, field)
        self._held.append(line)
        if len(self._held) >= HELD_LIMIT:
            self.flush()

    def flush(self) -> None:
        """Write what was held. A bad disk never raises."""
        held, self._held = self._held, []
        if held:
            refused = self._refused
            if self.io_thread.do(lambda: self._write_all(held, refused)):
                self._refused = 0
            else:
                self._refused += len(held)
            self._tell_if_late(held[-1]["at_unix"])

    def close(self) -> None:
        """Write what is left. A record after this opens the file again."""
        self.flush()
        self.io_thread.do(self._close_file)
        if not self.io_thread.close():
            self._complain(f"events were not recorded in {self.path}, which took none to the end")

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _tell_if_late(self, now_unix: float) -> None:
        if not self.io_thread.is_late:
            self._late_since = None
        elif self._late_since is None:
            self._late_since = now_unix
        elif now_unix - self._late_since >= LATE_S:
            self._late_since = NEVER
            what = "takes no events (a file server that does not answer?)"
            self._complain(f"{self.path} {what}. The job goes on; they are kept for it.")

    def _write_all(self, lines: list[dict[str, Any]], refused: int) -> None:
        """In the thread. `refused`: so many before them found no room to wait."""
        self._missed += refused
        if self._fd >= 0 and not self._is_in_place():
            self._close_file()
            self._gap = "the record before this is not here: its file was removed, or moved, while the job ran"
            self._complain(f"{self.path} was removed or moved. The job goes on; its record goes on in a new file there.")
        for line in lines:
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if self._fd < 0:
                self._open()
            missed = f"{self._missed} events before this could not be recorded" if self._missed else ""
            for what in filter(None, (self._gap, missed)):
                envelope = {key: line[key] for key in ("at_unix", "node", "round", "attempt")}
                self._append(envelope | {"event": "Degraded", "what": what, "instead": ""})
            self._gap, self._missed = "", 0
            self._append(line)
        except OSError as error:
            if not self._missed:
                self._complain(f"cannot record events in {self.path}: {error.strerror or error}. The job goes on without.")
            self._missed += 1

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False
        except OSError:  # a mount that is in trouble: nothing says that it is gone
            return True

    def _append(self, line: dict[str, Any]) -> None:
        text = as_json({"seq": self._seq + 1} | to_plain(line)) + "\n"
        encoded = (("\n" if self._is_torn else "") + text).encode()
        written = os.write(self._fd, encoded)
        self._is_torn = written < len(encoded)
        if self._is_torn:
            raise OSError(28, "no space left on device")
        self._seq += 1

    def _open(self) -> None:
        """Open the file; where an earlier agent of this node wrote in it, go on with its numbers."""
        if self._gap:
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._gap:
            locks.take(self._fd)  # as the agent has the one that is gone: by that it is known to live
        size = os.fstat(self._fd).st_size
        if size == 0 or self._seq:
            return
        tail = os.pread(self._fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
        self._is_torn = not tail.endswith(b"\n")
        self._seq = _last_seq(tail)


def _last_seq(tail: bytes) -> int:
    """The highest number among the whole lines of `tail`; 0: none."""
    for line in reversed(tail.split(b"\n")):
        try:
            return int(json.loads(line)["seq"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0
