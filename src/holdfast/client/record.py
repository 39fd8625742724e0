"""What does a failing worker write down? The error record: torch elastic's JSON, in $TORCHELASTIC_ERROR_FILE.

    {"message": {"message": "RuntimeError: boom",
                 "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1795209654"}}}

The bootstrap writes one when an uncaught exception ends a worker; `record` is for code that runs under torchrun as well. A
worker's first record stays: it is nearest to the cause.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock
from io import IOBase
from time import monotonic, time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MOST_CHARS = 100_000  # Of a message, and of a call stack: an agent reads no error file that is larger than its reports may be.
SHOW_S = 1.0  # To show a traceback: milliseconds, unless the terminal stands still.
_SHOWN = b" shown"

NO_SPACE = errno.ENOSPC, errno.EDQUOT
OF_NO_SPACE = "No space left on device", "inline_container.cc", "PytorchStreamWriter failed", " requested and "
"""What errors that come of it say: those of C++, of torch's checkpoints, of numpy's `tofile`."""
FREE_BYTES = 1 << 20  # Less is nothing for a checkpoint: one that did not fit as a whole leaves some.


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


def describe(error: BaseException, at_unix_ns: int, more: str = "") -> dict[str, Any]:
    """The record of `error`, ready for JSON. `more`: what its text leaves out."""
    import traceback  # only a failure needs it

    callstack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": _shortened(callstack), "timestamp": str(at_unix_ns // 1_000_000_000)}
    text = _text(error).rstrip() + more if more else _text(error)
    return {"message": {"message": _shortened(f"{type(error).__name__}: {text}"), "extraInfo": extra}}


def write(path: str, error: BaseException, at_unix_ns: int, more: str = "") -> bool:
    """Write the record of `error` to `path`, whole or not at all. False: there is one already, and it stays."""
    import json  # only a failure needs it

    if os.path.exists(path) and os.path.getsize(path):
        return False
    text = json.dumps(describe(error, at_unix_ns, more)).encode("utf-8", "replace")
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


def claim(path: str, error: BaseException, follows: bool) -> Callable[[], None] | None:
    """Ask to show the error for all ranks of the attempt on this node that fail alike: of the same kind, from the same lines.

    None: another rank has shown it; or has shown any, and this one only tells of another rank's end (`follows`). Else the
    caller shows it, then calls what is returned: until then the others wait, since the agent may end this rank before it has
    shown anything, and one of them shows it instead. `path`: of this rank's record, which lies in a folder of its own beside
    the other ranks'. Where nothing can be agreed on, each rank shows it.
    """
    from binascii import crc32  # only a failure needs it

    if not os.path.exists(path) or path.startswith("/proc/"):
        return lambda: None
    mark = os.path.join(os.path.dirname(path), os.pardir, f".shown-{crc32(_shape(error).encode('utf-8', 'replace')):08x}")
    me, folder = b"%d" % os.getpid(), os.path.dirname(mark)
    try:
        if follows and any(_is_shown(os.path.join(folder, name)) for name in os.listdir(folder) if name.startswith(".shown-")):
            return None
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


def left_out(error: BaseException) -> str:
    """What an error for want of space does not say: `: '/ckpt/7.pt'`. Empty: it says so, nothing is known, or it is another.

    Python tells no name of a file that it cannot write to, and torch none at all. The functions that the error left have it in
    their variables, the innermost first; else it is one that the process has open, as its output is.
    """
    chain = list(_chain(error))
    failed = [one for one in chain if isinstance(one, OSError) and one.errno in NO_SPACE]
    is_said = any(one is error and one.filename is not None for one in failed)
    if is_said or not (failed or any(said in _text(one) for one in chain for said in OF_NO_SPACE)):
        return ""
    named = (os.fsdecode(one.filename) for one in failed if one.filename is not None)
    if not (path := next(named, "") or next(_on_full_disks(chain), "")):
        return ""
    return f": {'' if error in failed else 'no space is left for '}'{os.path.abspath(path)}'"


def _on_full_disks(chain: list[BaseException]) -> Iterator[str]:
    """Files that these errors may be about, and then those that the process has open."""
    yield from (path for one in reversed(chain) for path in _variables(one) if _is_full(path))
    opened = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in sorted(map(int, os.listdir("/proc/self/fd")))[:1000])
    yield from (path for path in opened if os.path.isfile(path) and _is_full(path))


def _variables(error: BaseException) -> Iterator[str]:
    """Names of files that are open, and texts that may be names, in the variables of each function that it left."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in frames[:-20:-1]:
        values = list(frame.f_locals.values())
        names = [getattr(one, "name", None) for one in values if isinstance(one, IOBase)]
        names += [os.fspath(one) if isinstance(one, os.PathLike) else one for one in values]
        yield from (name for name in names if type(name) is str and 0 < len(name) < 4096 and "\0" not in name)


def _is_full(path: str) -> bool:
    try:
        there = os.statvfs(path)
    except OSError:
        return False
    return there.f_bavail * there.f_frsize < FREE_BYTES or (there.f_files > 0 and there.f_favail == 0)


def _shape(error: BaseException) -> str:
    """What is equal in ranks that fail alike, though their texts name the rank or its file: kinds and lines."""
    shape = []
    for one in _chain(error):
        shape.append(type(one).__qualname__)
        trace = one.__traceback__
        while trace is not None and len(shape) < 1000:
            shape.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
            trace = trace.tb_next
    return "\n".join(shape)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


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
