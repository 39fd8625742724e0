"""What is known of a failed worker, and of a group with failed workers? The box they are printed in is
`telemetry.report.failure_box`'s.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.core.job.failure import Failure
from holdfast.core.value import replace
from holdfast.elastic.utils.logging import get_logger
from holdfast.telemetry.report import failure_box

logger = get_logger(__name__)

NOT_AVAILABLE = failure_box.NOT_GIVEN

about_signals: list[Callable[[str, str], str]] = []
"""What may add to the message of a first failure by a signal, given its error file: the package says, where torch's users
replace things."""


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

    def explained(self, message: str) -> ProcessFailure:
        """This failure, with a reason that its exit code does not tell."""
        self.message = message
        return self

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
            if isinstance(message, str):
                return message, int(error_file_data.get("timestamp", 0))
            return message, int(message["extraInfo"]["timestamp"])
        except (KeyError, TypeError, ValueError):
            logger.exception("%s is no error record", self.error_file)
            raise

    def _from_exit_code(self) -> str:
        if self.exitcode < 0:
            return f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
        self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        return failure_box.NO_TRACEBACK


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
        root, _ = self.get_first_failure()
        values = {rank: _as_value(rank, failure) for rank, failure in self.failures.items()}
        values[root] = _explained(values[root])
        entries = {rank: failure_box.entry(index, value) for index, (rank, value) in enumerate(values.items())}
        return failure_box.frame(self.name, entries.pop(root), list(entries.values()), boarder_delim, section_delim)


def _explained(root: Failure) -> Failure:
    """The first failure, with what is known besides of the signal that ended it, if one did."""
    if root.exitcode is None or root.exitcode >= 0:
        return root
    message = failure_box.traceback_of(root)
    for add in about_signals:
        try:
            message = add(message, root.error_file or NOT_AVAILABLE)
        except Exception:  # the failure itself is what must be told
            logger.exception("nothing is added to the message of rank %s", root.rank)
    return replace(root, error_record={"message": message})


def _as_value(rank: int, failure: ProcessFailure) -> Failure:
    return Failure(
        node=socket.getfqdn(),
        rank=rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=failure.exitcode,
        at_unix=failure.timestamp,
        error_file=failure.error_file,
        error_record={"message": failure.message},
    )
