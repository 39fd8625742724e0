"""What is known of a worker that failed, and how is the failure of a group printed?

The box keeps torchrun's form to the letter, odd blanks included: people's tools read it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.elastic.utils.logging import get_logger

__all__ = ["NOT_AVAILABLE", "ChildFailedError", "ProcessFailure"]

logger = get_logger(__name__)

NOT_AVAILABLE = "<N/A>"
NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
BOX_WIDTH = 60
"""Rules are as wide as the longest line, and no wider than this."""


@dataclass
class ProcessFailure:
    """One worker's failure: what its error file says, or what its exit code does.

    `timestamp` is the epoch second in the error file, else of now. `message` is the file's (a dict where it holds a
    traceback), else made from the exit code. A file that is JSON, but no error record, raises.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: str | dict[str, Any] = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        data = _read_record(self.error_file)
        if data is None:
            self.error_file = NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            self.message, self.timestamp = "", int(time.time())
        else:
            self.error_file_data = data
            self.message, self.timestamp = self._get_error_data(data)
        if not self.message:
            self.message = self._from_exit_code()

    def signal_name(self) -> str:
        """`SIGSEGV` and so on; `<N/A>` when no signal, or none with a name, ended it."""
        try:
            return signal.Signals(-self.exitcode).name if self.exitcode < 0 else NOT_AVAILABLE
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """Local time, `YYYY-MM-DD_HH:MM:SS`."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")

    def _get_error_data(self, error_file_data: dict[str, Any]) -> tuple[str | dict[str, Any], int]:
        try:
            message = error_file_data["message"]
            source = error_file_data if isinstance(message, str) else message["extraInfo"]
            return message, int(source.get("timestamp", 0) if source is error_file_data else source["timestamp"])
        except (KeyError, TypeError, ValueError):
            logger.exception("%s is no error record", self.error_file)
            raise

    def _from_exit_code(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        return NO_TRACEBACK


def _read_record(path: str) -> dict[str, Any] | None:
    """The error file's content; None when there is none, or a worker was killed while it wrote."""
    if not os.path.isfile(path):
        return None
    with open(path, errors="replace") as file:
        try:
            record: dict[str, Any] = json.load(file)
        except ValueError:
            logger.exception("%s cannot be read: going by the exit code", path)
            return None
    return record


class ChildFailedError(Exception):
    """Workers failed: `name` is what ran, `failures` go by global rank. As text: torchrun's failure box."""

    def __init__(self, name: str, failures: dict[int, ProcessFailure]) -> None:
        assert failures, "a ChildFailedError needs a failure"
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Global rank and failure with the earliest timestamp; of several, the one that comes first."""
        return min(self.failures.items(), key=lambda item: item[1].timestamp)

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The box, its rules drawn with these characters."""
        title = f"{self.name} FAILED"
        root, _ = self.get_first_failure()
        entries = {rank: _entry(index, rank, failure) for index, (rank, failure) in enumerate(self.failures.items())}
        others = [entry for rank, entry in entries.items() if rank != root]
        width = min(BOX_WIDTH, max(len(line) for text in (title, *entries.values()) for line in text.split("\n")))
        border, section = boarder_delim * width, section_delim * width
        return "\n".join(
            [
                "",
                border,
                title,
                section,
                "Failures:",
                *(others or ["  <NO_OTHER_FAILURES>"]),
                section,
                "Root Cause (first observed failure):",
                entries[root],
                border,
            ]
        )


def _entry(index: int, rank: int, failure: ProcessFailure) -> str:
    name = failure.signal_name()
    return "\n".join(
        [
            f"[{index}]:",
            f"  time      : {failure.timestamp_isoformat()}",
            f"  host      : {socket.getfqdn()}",
            f"  rank      : {rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {'' if name == NOT_AVAILABLE else f' ({name})'}",
            f"  error_file: {failure.error_file}",
            f"  traceback : {_told(failure.message)}",
        ]
    )


def _told(message: str | dict[str, Any]) -> str:
    """The traceback where there is one, its lines indented; else the message."""
    if isinstance(message, str):
        return message
    text: str = message.get("extraInfo", {}).get("py_callstack", message.get("message", NOT_AVAILABLE))
    return text.replace("\n", "\n  ")
