"""The failure box that torchrun prints last on stderr, for tools that look for it. Byte for byte, odd spaces included.

The text for people is `telemetry.report.report_text`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.core.job.failure import Cause, Failure
from holdfast.telemetry.report.phrasing import local_moment
from holdfast.telemetry.report.safe_text import plain

MAX_WIDTH = 60  # Columns of the rules at most; else they are as wide as the longest line.

EXPLAINED = (Cause.WATCHDOG, Cause.HUNG, Cause.STUCK, Cause.START, Cause.NODE_LOST, Cause.EARLY)
"""Causes whose message says more than an exit code."""

NOT_GIVEN = "<N/A>"
NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def failure_box(name: str, failures: Sequence[Failure]) -> str:
    """The box for the entry point `name`, of failures with the root cause first. Begins with a line end, ends without one."""
    if not failures:
        raise AssertionError("a failure box needs a failure")
    root, *others = (entry(index, failure) for index, failure in enumerate(failures))
    return frame(name, root, others)


def frame(name: str, root: str, others: Sequence[str], border: str = "=", section: str = "-") -> str:
    """The box around the root cause's entry and the others', its rules drawn with these characters."""
    title = f"{name} FAILED"
    width = max(len(line) for part in (title, root, *others) for line in part.split("\n"))
    width = min(width, MAX_WIDTH)
    return "\n".join(
        (
            "",
            border * width,
            title,
            section * width,
            "Failures:",
            *(others or ["  <NO_OTHER_FAILURES>"]),
            section * width,
            "Root Cause (first observed failure):",
            root,
            border * width,
        )
    )


def entrypoint_name(program: str, args: Sequence[str], interpreter: str | None = None) -> str:
    """What torchrun calls the job: the script or module for Python, else the program. `args` are the program's."""
    if program == (interpreter or sys.executable):
        return next((arg for arg in args if not arg.startswith("-")), program)
    return program


def entry(index: int, failure: Failure) -> str:
    """The lines about one failure, which stands at `index` among them."""
    # Not known (its node is gone): -1, since tools expect a number.
    exitcode = -1 if failure.exitcode is None else failure.exitcode
    name = _signal(failure)
    return "\n".join(
        (
            f"[{index}]:",
            f"  time      : {local_moment(failure.at_unix)}",
            f"  host      : {plain(failure.node, keep='')}",
            f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
            f"  exitcode  : {exitcode} (pid: {failure.pid}) {'' if name in ('', NOT_GIVEN) else f' ({name})'}",
            f"  error_file: {plain(failure.error_file or NOT_GIVEN, keep='')}",
            f"  traceback : {plain(traceback_of(failure))}",
        )
    )


def _signal(failure: Failure) -> str:
    """Name of the signal that ended it; empty: none did; `<N/A>`: it has no name."""
    name = failure.signal_name or ""
    return name if name.startswith("SIG") or not name else NOT_GIVEN


def traceback_of(failure: Failure) -> str:
    """What the box says of how it came to fail, over several lines where there is a traceback."""
    message = (failure.error_record or {}).get("message")
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        stack = extra.get("py_callstack") if isinstance(extra, dict) else None
        return _indented(str(message.get("message", NOT_GIVEN) if stack is None else stack))
    if message:
        return str(message)  # torchrun indents only what is inside an object
    if failure.traceback:
        return _indented(failure.traceback)
    if failure.cause in EXPLAINED and failure.message:
        return _indented(failure.message)
    if failure.exitcode is not None and failure.exitcode < 0:
        return f"Signal {-failure.exitcode} ({_signal(failure)}) received by PID {failure.pid}"
    return NO_TRACEBACK


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
