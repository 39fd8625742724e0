"""A worker's death, as a value: which worker, how, when, with what evidence. Policies judge it, reports show it."""

from __future__ import annotations

import signal

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class Evidence(Value):
    """What a worker left behind when it ended: its error record, its last words."""

    at_unix: float | None = None
    """Time in the error record. None: it has none."""
    message: str = ""
    traceback: str | None = None
    error_file: str | None = None
    error_record: dict[str, Any] | None = None
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None


class Failure(Value):
    """One worker's end that was not a success, or a node's loss (`rank` -1)."""

    node: str
    """Host name of the node, as a person knows it."""
    rank: int
    """Global rank; -1 when a whole node was lost."""
    local_rank: int = -1
    """Its place on its node, from 0; -1 when a whole node was lost."""
    role: str = "default"
    """As given by `--role`."""
    pid: int = -1
    """Its process; -1: it had none, or a whole node was lost."""
    exitcode: int | None = None
    """As `Popen.returncode`: negative for a signal. None: not known (the node is gone)."""
    at_unix: float
    """When: from the error record, else when the agent saw it (seconds since the epoch)."""
    cause: str = "exit"
    """exit · signal · exception · watchdog · stuck · start · node_lost · stopped (by us, after another's failure)"""
    message: str = ""
    """One line: the exception's type and text, or what happened."""
    traceback: str | None = None
    """Python traceback, where the worker could write one."""
    error_file: str | None = None
    """Where its error record is. None: it wrote none."""
    error_record: dict[str, Any] | None = None
    """Content of the error file (torch's JSON)."""
    log_tail: tuple[str, ...] = ()
    """The last lines of its log, oldest first; empty: it has none, or its output is not kept."""
    log_path: str | None = None
    """Where its whole log is, on its own host. None: it is not kept."""
    round: int = 0
    """In which round it happened."""
    attempt: int = 0
    """Restarts of the job before that."""

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL` and so on; None when no signal ended it."""
        return signal_name(self.exitcode)

    @property
    def innocent(self) -> bool:
        """True when we stopped this worker because another had failed."""
        return self.cause == "stopped"


def signal_name(exitcode: int | None) -> str | None:
    """Name of the signal behind a negative exit code."""
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Earliest first; those we stopped ourselves last; then by rank."""
    return sorted(failures, key=lambda failure: (failure.innocent, failure.at_unix, failure.rank))


def describe(failure: Failure) -> str:
    """One sentence: who, where, how. `rank 3 (local 1) on gpu-07 died: SIGKILL (pid 4711)`."""
    if failure.rank < 0:
        return f"node {failure.node} was lost: {failure.message or 'no longer heard from'}"
    who = f"rank {failure.rank} (local {failure.local_rank}) on {failure.node}"
    if failure.cause in ("watchdog", "stuck"):
        how = failure.message
    elif failure.signal_name:
        how = f"was killed by {failure.signal_name}"
    elif failure.exitcode is not None:
        how = f"exited with code {failure.exitcode}"
    else:
        how = "ended"
    if failure.cause in ("exception", "start") and failure.message:
        how += f": {failure.message}"
    return f"{who} {how}"
