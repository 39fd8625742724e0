"""What does a failing worker write down? The error record: torch elastic's JSON, in $TORCHELASTIC_ERROR_FILE.

    {"message": {"message": "RuntimeError: boom",
                 "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1795209654"}}}

The bootstrap writes one when an uncaught exception ends a worker; `record` is for code that runs under torchrun as well. A
worker's first record stays: it is nearest to the cause.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from time import monotonic, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MOST_CHARS = 100_000  # Of a message, and of a call stack: an agent reads no error file that is larger than its reports may be.
SHOW_S = 1.0  # To show a traceback: milliseconds, unless the terminal stands still.
_SHOWN = b" shown"


def record(fn: Callable[P, R]) -> Callable[P, R]:
    """Decorate a main function so that an exception leaving it is recorded. SystemExit and KeyboardInterrupt are not."""
    from functools import wraps  # 2 ms, which scripts without this decorator do not pay

    @wraps(fn)
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            path = os.environ.get(ERROR_FILE)
            if path:
                write(path, error, time_ns())
            raise

    return recorded


def describe(error: BaseException, at_unix_ns: int) -> dict[str, Any]:
    """The record of `error`, ready for JSON."""
    import traceback  # only a failure needs it

    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": _shortened(callstack), "timestamp": str(at_unix_ns // 1_000_000_000)}
    return {"message": {"message": _shortened(f"{type(error).__name__}: {_text(error)}"), "extraInfo": extra}}


def write(path: str, error: BaseException, at_unix_ns: int) -> bool:
    """Write the record of `error` to `path`, whole or not at all. False: there is one already, and it stays."""
    import json  # only a failure needs it

    if os.path.exists(path) and os.path.getsize(path):
        return False
    text = json.dumps(describe(error, at_unix_ns)).encode("utf-8", "replace")
    is_memory = path.startswith("/proc/")  # the agent's, where the disk for such files is full: it has no name beside it
    unfinished = path if is_memory else f"{path}.{os.getpid()}"
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while text:
            text = text[os.write(fd, text) :]
    finally:
        os.close(fd)
    if not is_memory:
        os.replace(unfinished, path)
    return True


def claim(path: str, error: BaseException) -> Callable[[], None] | None:
    """Ask to show the error for all ranks of the attempt on this node that fail alike: of the same kind, from the same lines.

    None: another rank has shown it. Else the caller shows it, then calls what is returned: until then the others wait, since
    the agent may end this rank before it has shown anything, and one of them shows it instead. `path`: of this rank's record,
    which lies in a folder of its own beside the other ranks'. Where nothing can be agreed on, each rank shows it.
    """
    from binascii import crc32  # only a failure needs it

    if not os.path.exists(path) or path.startswith("/proc/"):
        return lambda: None
    mark = os.path.join(os.path.dirname(path), os.pardir, f".shown-{crc32(_shape(error).encode('utf-8', 'replace')):08x}")
    me = b"%d" % os.getpid()
    try:
        while True:
            try:
                _put(mark, os.O_EXCL, me)
            except FileExistsError:
                if _is_shown(mark):
                    return None
                mark += "-"  # nobody shows it any more: the next one's mark
            else:
                return lambda: _put(mark, os.O_TRUNC, me + _SHOWN)
    except OSError:
        return lambda: None


def _put(path: str, flag: int, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, 0o600)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def _is_shown(mark: str) -> bool:
    """Wait until the rank whose mark this is has shown its error, or is no more; SHOW_S at most."""
    nobody, late_at = allocate_lock(), monotonic() + SHOW_S
    nobody.acquire()
    while monotonic() < late_at:
        with open(mark, "rb") as file:
            text = file.read()
        if text.endswith(_SHOWN):
            return True
        if text.isdigit() and not os.path.exists(f"/proc/{int(text)}"):
            return False
        nobody.acquire(timeout=0.002)
    return False


def _shape(error: BaseException | None) -> str:
    """What is equal in ranks that fail alike, though their texts name the rank or its file: kinds and lines."""
    shape = []
    for _ in range(10):  # of an error and its causes
        if error is None:
            break
        shape.append(type(error).__qualname__)
        trace = error.__traceback__
        while trace is not None and len(shape) < 1000:
            shape.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
            trace = trace.tb_next
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(shape)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception without a text>"


def _shortened(text: str) -> str:
    """Without its middle, if it is too long: a kind of exception stands at the beginning, and what it says at the end."""
    left_out = len(text) - MOST_CHARS
    if left_out <= 0:
        return text
    return f"{text[: MOST_CHARS // 2]}\n[{left_out} characters left out]\n{text[-(MOST_CHARS // 2) :]}"
