"""A worker's death, as a value: which worker, how, when, with what evidence. Policies judge it, reports show it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from holdfast.core.signals import name_of
from holdfast.core.value import Value

DEEPEST_RECORD = 100
"""Levels of an error record. Deeper ones come near the limits of whatever walks through them, which differ between Pythons."""


def is_too_deep(record: Any) -> bool:
    """Whether a record is nested deeper than that. Walks it level by level: no depth is too much for it."""
    level, depth = [record], 0
    while level and depth <= DEEPEST_RECORD:
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level, depth = [inner for items in nested for inner in items], depth + 1
    return bool(level)


class Cause(StrEnum):
    """How a worker failed, by what its node saw of it."""

    EXIT = "exit"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    EARLY = "early"  # It exited with 0, or began to, while others of its round were training.
    WATCHDOG = "watchdog"
    HUNG = "hung"
    STUCK = "stuck"
    START = "start"
    NODE_LOST = "node_lost"
    STOPPED = "stopped"  # By us, after another's failure.


NO_OOM_KILL = "no"  # The kernel says that it has not killed that process, or one of its, because memory ran out.


class Evidence(Value):
    """What a worker left behind when it ended: its error record, its last words."""

    at_unix: float | None = None  # Time in the error record. None: it has none.
    message: str = ""
    trouble: str = ""  # Why its error record could not be read, or is of no use.
    traceback: str | None = None
    error_file: str | None = None
    error_record: dict[str, Any] | None = None
    log_tail: tuple[str, ...] = ()
    log_path: str | None = None
    last_words: str = ""  # The exception that ended its script, as its page has it: no disk or descriptor was needed for that.
    last_line: str = ""  # What it wrote to stderr last, where its interpreter ended without an exception.
    ending: bool = False  # Its interpreter had begun to end in good order.
    became: str = ""  # The program that it had become by exec. Empty: it had not.
    booted: bool = False  # It was a Python that ran our bootstrap.
    oom: str = ""  # As `Failure.oom`.
    injected: str = ""  # As `Failure.injected`.


class Reached(Value):
    """How far one rank has come in the collectives of one process group."""

    group: str
    seq: int  # Number of its last one in that group, from 1.
    what: str  # `all_reduce [[4]] Float`
    waits: bool  # Whether that or another before it has not ended.


class Position(Value):
    """Where one rank was when all of them were looked at, because some rank had hung."""

    rank: int  # Global rank.
    local_rank: int  # Its place on its node, from 0.
    pid: int  # Its process.
    overdue: str = ""  # Which limit it has exceeded, in words. Empty: none.
    step: int | None = None  # The last step that it has reported. None: it reports none.
    sections: int = 0  # Sections that it has been through.
    section: str = ""  # The section that it was in: of several, the one that it entered last. Empty: none.
    quiet_s: float | None = None  # Seconds since its last sign of life. None: it has given none.
    state: str = ""  # Its state in the kernel's eyes: R S D T t Z. Empty: not known.
    where: str = ""  # Innermost frame of its main thread, `load (data.py:88)`. Empty: not known.
    waits: bool | None = None  # It waited for other ranks, in a collective. None: not known.
    reached: tuple[Reached, ...] = ()  # Its last collectives by torch's record. Empty: not known.
    injected: str = ""  # What is played on it for practice, as `Failure.injected`.
    stacks_path: str | None = None  # Where its stacks are, on its own host. None: they are not kept.


class Failure(Value):
    """The end of one worker that did not succeed, or the loss of a node (`rank` -1)."""

    node: str  # Name of the node.
    rank: int  # Global rank; -1 if a whole node was lost.
    local_rank: int = -1  # Rank among the workers of its node, from 0; -1 if a whole node was lost.
    role: str = "default"  # Value of `--role`.
    pid: int = -1  # Process id; -1: it had no process, or a whole node was lost.
    exitcode: int | None = None  # Exit code; negative for a signal. None: not known (the node is gone).
    at_unix: float  # Time from the error record, else when the agent saw it (seconds since the epoch).
    cause: Cause = Cause.EXIT
    """exit · signal · exception · early (exited with 0 while others were training) · watchdog · hung · stuck · start ·
    node_lost · stopped (by us, after another failure)"""
    message: str = ""  # One line: the exception's type and text, or what happened.
    trouble: str = ""  # Why its error record could not be read, or is of no use. Empty: it was, or there is none.
    traceback: str | None = None  # Python traceback, if the worker could write one.
    error_file: str | None = None  # Path of its error record. None: it wrote none.
    error_record: dict[str, Any] | None = None  # Content of the error file (torch's JSON).
    log_tail: tuple[str, ...] = ()  # The last lines of its log, oldest first. Empty: it has no log.
    log_path: str | None = None  # Path of its whole log, on its own host. None: the log is not kept.
    stacks_path: str | None = None
    """Folder with the stacks of its node's ranks, on its own host. None: it did not hang, or nothing is kept."""
    follows: bool = False  # True: by its own words it failed because another rank was gone (`core.job.ends`).
    undecided: bool = False  # True: all ranks hung, and nothing shows which rank caused it. It does not count against its node.
    oom: str = ""
    """What the kernel says of having killed it because memory ran out; NO_OOM_KILL: it has not, nor a process of its own.
    Empty: nothing is known."""
    injected: str = ""  # Who injected it for practice, in words (`holdfast inject`). Empty: nobody, or SIGKILL did not end it.
    round: int = 0  # Round in which it happened.
    attempt: int = 0  # Restarts of the job before it.

    @property
    def signal_name(self) -> str | None:
        """`SIGKILL` and so on; None when no signal ended it."""
        return signal_name(self.exitcode)

    @property
    def innocent(self) -> bool:
        """True when we stopped this worker because another had failed."""
        return self.cause == Cause.STOPPED

    @property
    def distance(self) -> tuple[bool, bool]:
        """How far from the beginning of a round's trouble: of two failures the smaller is nearer, whichever was seen first."""
        return self.innocent, self.follows


def signal_name(exitcode: int | None) -> str | None:
    """Name of the signal behind a negative exit code."""
    if exitcode is None or exitcode >= 0:
        return None
    return name_of(-exitcode)


ASLEEP = {"T": "stopped (SIGSTOP)", "t": "held by a debugger", "D": "uninterruptible in the kernel"}
"""States of a process that explain why it does not get on."""


def hung(overdue: str, position: Position | None = None) -> str:
    """How a rank hung, in words: which limit it has exceeded, and where it was."""
    where: list[str] = []
    if position is not None:
        if position.step is not None:
            where.append(f"at step {position.step}")
        if position.section and f"section {position.section}" not in overdue:
            where.append(f"in section {position.section}")
        if position.where:
            where.append(f"in {position.where}")
        if position.state in ASLEEP:
            where.append(ASLEEP[position.state])
    return "; ".join(filter(None, (f"hung: {overdue}", ", ".join(where))))


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Earliest first; after them those that followed from another's end, then those we stopped ourselves; then by rank."""
    return sorted(failures, key=lambda failure: (*failure.distance, failure.at_unix, failure.rank))


def guilty(failures: Iterable[Failure]) -> list[Failure]:
    """Those that failed by themselves, in the same order: not those that we stopped after them."""
    return [failure for failure in failures if not failure.innocent]


def describe(failure: Failure) -> str:
    """One sentence: who, where, how. `rank 3 (local 1) on gpu-07 died: SIGKILL (pid 4711)`."""
    if failure.rank < 0:
        return f"node {failure.node} was lost: {failure.message or 'no longer heard from'}"
    who = f"rank {failure.rank} (local {failure.local_rank}) on {failure.node}"
    if failure.cause in (Cause.WATCHDOG, Cause.HUNG, Cause.STUCK, Cause.EARLY):
        how = failure.message
    elif failure.signal_name:
        how = f"was killed by {failure.signal_name}"
    elif failure.exitcode is not None:
        how = f"exited with code {failure.exitcode}"
    elif failure.cause is Cause.START:
        how = "did not start"
    else:
        how = "ended"
    if failure.cause in (Cause.EXCEPTION, Cause.START, Cause.EXIT, Cause.SIGNAL) and failure.message:
        how += f": {failure.message}"
    if failure.injected:
        how += f"; {failure.injected}"
    if failure.stacks_path:
        how += f"; stacks: {failure.stacks_path}"
    return f"{who} {how}"
