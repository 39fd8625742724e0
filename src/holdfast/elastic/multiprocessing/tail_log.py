"""Follow log files while workers write them, and copy their lines, each with its prefix, to one place.

Lines of several workers never mix: one that has no end yet is held back for a while, and then shown as a line of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor
from threading import Event
from typing import TextIO

logger = logging.getLogger(__name__)

PARTIAL_S = 0.5  # seconds a line without an end is held back; then it is given one, and what follows is another line


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Copy the lines of `file`, once it is there, to `dst`, until `finished` is set and its end is reached."""
    while not os.path.exists(file):
        if finished.wait(interval_sec) and not os.path.exists(file):
            return
    with open(file, errors="replace") as source:
        held, held_since = "", 0.0
        while True:
            over = finished.is_set()  # asked before the last look: what was written until now is still to be read
            while piece := source.readline():
                if not held:
                    held_since = time.monotonic()
                held += piece
                if held.endswith("\n"):
                    _write(header, held, dst, log_line_filter)
                    held = ""
            if held and (over or time.monotonic() - held_since > PARTIAL_S):
                _write(header, held + "\n", dst, log_line_filter)
                held = ""
            if over:
                return
            finished.wait(interval_sec)


def _write(header: str, line: str, dst: TextIO, log_line_filter: Callable[[str], bool] | None) -> None:
    if log_line_filter is None or log_line_filter(line):
        dst.write(f"{header}{line}")  # one call, so that threads cannot come between prefix and line


class TailLog:
    """Follows `log_files` (local rank → path, which need not exist yet) into `dst`, a thread for each.

    A line is given the prefix of its rank in `log_line_prefixes`, else `[<name><local rank>]:`. Files are looked at every
    `interval_sec` seconds; `log_line_filter` says which lines are copied.
    """

    def __init__(
        self,
        name: str,
        log_files: dict[int, str],
        dst: TextIO,
        log_line_prefixes: dict[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._name = name
        self._dst = dst
        self._log_files = log_files
        self._log_line_prefixes = log_line_prefixes or {}
        self._log_line_filter = log_line_filter
        self._interval_sec = interval_sec
        self._finished_events = {local_rank: Event() for local_rank in log_files}
        self._futs: dict[int, Future[None]] = {}
        self._threadpool = ThreadPoolExecutor(len(log_files), thread_name_prefix=f"TailLog_{name}") if log_files else None
        self._stopped = False

    def start(self) -> TailLog:
        if self._threadpool and self._dst:
            for local_rank, file in self._log_files.items():
                self._futs[local_rank] = self._threadpool.submit(
                    tail_logfile,
                    header=self._log_line_prefixes.get(local_rank, f"[{self._name}{local_rank}]:"),
                    file=file,
                    dst=self._dst,
                    finished=self._finished_events[local_rank],
                    interval_sec=self._interval_sec,
                    log_line_filter=self._log_line_filter,
                )
        return self

    def stop(self) -> None:
        """Copy what is left, and end. What went wrong on the way is logged."""
        for finished in self._finished_events.values():
            finished.set()
        for local_rank, future in self._futs.items():
            try:
                future.result()
            except Exception as error:
                logger.exception("error in log tailer for %s%s. %s", self._name, local_rank, type(error).__qualname__)
        self._futs = {}
        if self._threadpool:
            self._threadpool.shutdown(wait=True)
        if self._dst and not self._dst.closed:
            self._dst.flush()
        self._stopped = True

    def stopped(self) -> bool:
        return self._stopped
