"""Reads a worker's error.json, and copies the root cause to an outer launcher.

A worker that dies of an exception leaves `error.json`. torch's `@record`, function entry points and our own bootstrap write

    {"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1795209654"}}}

`message` may also be plain text, with `timestamp` beside it. The file is the worker's, so anything may be in it: what cannot be
read is noted in the failure's message and never stops us. When we have a TORCHELASTIC_ERROR_FILE ourselves, the root cause's
record is copied there with its exit code, so that launchers can be nested.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from holdfast.core.job.ends import in_one_line
from holdfast.core.job.failure import DEEPEST_RECORD, Failure, is_too_deep
from holdfast.core.value import Value, replace
from holdfast.runtime.private_files import private

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

MAX_BYTES = 4 * 1024 * 1024  # Larger than any traceback; a report travels to every node.

BELIEVABLE_S = 3600.0  # Seconds between a record's time and its file's: more than clocks of hosts and file servers differ by.


class ErrorRecord(Value):
    """What an error file says."""

    message: str = ""  # One line: the exception's type and text.
    traceback: str | None = None
    at_unix: float | None = None  # When it was written; None: it does not say, or nothing believable.
    content: dict[str, Any] | None = None  # As read; None: it could not be.
    trouble: str = ""  # Why it could not be read, or is of no use.


def read(path: str) -> ErrorRecord | None:
    """What the error file says; None when there is none. Never raises."""
    if not path:
        return None
    try:
        if path.startswith("/proc/") and not os.stat(path).st_size:
            return None  # the worker has written nothing into memory
        content, written_at = _content(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ErrorRecord(trouble=f"error file {path} cannot be read: {error.strerror}")
    except ValueError as error:
        return ErrorRecord(trouble=f"error file {path} {error}")
    record = _understood(content, written_at)
    if is_too_deep(content):
        deep = f"error file {path} is nested deeper than {DEEPEST_RECORD} levels: only what it says of the error is kept"
        record = replace(record, content=None, trouble=deep)
    if not record.message and not record.traceback:
        return replace(record, trouble=f"error file {path} holds no message")
    return record


def hand_on(root: Failure, path: str | None = None) -> bool:
    """Write the root cause's record to our own error file (`path`, by default TORCHELASTIC_ERROR_FILE), with `errorCode`.

    False: there is no such file, or the worker wrote no record (then nothing is written, as with torchrun), or it cannot be
    written. An older file is replaced in one step.
    """
    path = os.environ.get(ERROR_FILE) if path is None else path
    if not path or root.error_record is None:
        return False
    record = dict(root.error_record)
    if isinstance(record.get("message"), dict) and root.exitcode:
        record["message"] = record["message"] | {"errorCode": root.exitcode}
    draft = f"{path}.{os.urandom(4).hex()}"
    try:
        with open(draft, "w", encoding="utf-8", opener=private) as file:
            json.dump(record, file)
        os.replace(draft, path)
    except OSError:
        return False
    return True


def _content(path: str) -> tuple[dict[str, Any], float]:
    # Not blocking: a worker may have made its error file a pipe.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is not a regular file")
        if found.st_size > MAX_BYTES:
            raise ValueError(f"is too large to be one: {found.st_size} bytes")
        text = b""
        while piece := os.read(fd, MAX_BYTES):
            text += piece
    finally:
        os.close(fd)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("holds no JSON object")
    return content, found.st_mtime


def _understood(content: dict[str, Any], written_at: float) -> ErrorRecord:
    message = content.get("message", "")
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        extra = extra if isinstance(extra, dict) else {}
        stack = extra.get("py_callstack")
        return ErrorRecord(
            message=_one_line(message.get("message", "")),
            traceback=stack if isinstance(stack, str) and stack else None,
            at_unix=_moment(extra.get("timestamp"), written_at),
            content=content,
        )
    return ErrorRecord(message=_one_line(message), at_unix=_moment(content.get("timestamp"), written_at), content=content)


def _one_line(text: object) -> str:
    return "" if text is None else in_one_line(str(text))


def _moment(stamp: object, written_at: float) -> float | None:
    """The record's time. torch writes whole seconds, too coarse to tell which rank was first: then the file's own says more.

    A time far from the file's own is none (zero, milliseconds): it would make this failure the first of all, or the last.
    """
    try:
        told = float(stamp)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not told > 0 or not abs(told - written_at) < BELIEVABLE_S:
        return None
    return written_at if told.is_integer() and told <= written_at < told + 2 else told
