"""Where was a rank, by the stacks that it has dumped? Reads what faulthandler or py-spy wrote; touches nothing.

Both put the innermost frame of each thread first. Threads come newest first from faulthandler, so the main thread is the last;
py-spy numbers them, and names them where it can.
"""

from __future__ import annotations

import re

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) (.*)$")
_FAULTHANDLER = re.compile(r'^  File "(.*)", line (\d+|\?+) in (.*)$')
_PY_SPY = re.compile(r"^    (.+) \((.+?)(?::(\d+))?\)$")

OUTERMOST = ("<module>", "_run_module_as_main", "_shutdown")
"""The outermost frame of a main thread, and of no other; the last one's script has ended, and Python waits for its threads."""

WAITING = (
    ("/torch/distributed/distributed_c10d.py", ()),
    ("/torch/distributed/c10d_logger.py", ()),
    ("/torch/distributed/rendezvous.py", ()),
    ("/torch/distributed/_functional_collectives.py", ()),
    ("/torch/distributed/nn/functional.py", ()),
    ("/torch/autograd/graph.py", ("_engine_run_backward",)),  # the all-reduce of DistributedDataParallel
    ("/torch/autograd/__init__.py", ("backward",)),
    ("/torch/cuda/__init__.py", ("synchronize",)),
    ("/torch/cuda/streams.py", ("synchronize", "wait")),
    ("/deepspeed/comm/", ()),
    ("/horovod/", ()),
    ("/jax/_src/array.py", ()),
    ("/jax/_src/api.py", ("block_until_ready",)),
    ("/jax/experimental/multihost_utils.py", ()),
)
"""(part of a path, functions; none: all): a rank whose innermost Python frame is there waits in native code for other ranks,
or for its device, which does."""

LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")


class Frame(Value):
    """One line of a stack."""

    file: str
    line: str
    function: str

    @property
    def shown(self) -> str:
        """`load (data.py:88)`"""
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


def main_thread(text: str) -> tuple[Frame, ...]:
    """Frames of the main thread, the innermost first; empty: there are none in `text`."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            threads.append((found[1], []))
        elif threads and (found := _FAULTHANDLER.match(line)):
            threads[-1][1].append(Frame(file=found[1], line=found[2], function=found[3]))
        elif threads and (found := _PY_SPY.match(line)):
            threads[-1][1].append(Frame(file=found[2], line=found[3] or "?", function=found[1]))
    main = f"{text.split(':', 1)[0].removeprefix('Process ')} "  # py-spy's first line; that thread has the process's number
    named = [frames for title, frames in threads if "MainThread" in title or title.startswith(main)]
    return tuple((named or [frames for _, frames in threads] or [[]])[-1])


def is_whole(text: str) -> bool:
    """Whether faulthandler has come to its end: it writes frame by frame, and who reads meanwhile has the beginning only."""
    last = text[-1000:].rstrip("\n").rpartition("\n")[2]
    frame = _FAULTHANDLER.match(last) if text.endswith("\n") else None
    return text.endswith("  ...\n") or (frame is not None and frame[3] in OUTERMOST)


def where(frames: Sequence[Frame]) -> str:
    """The innermost frame, and where that is in a library the innermost of the script's own. Empty: there is none."""
    if not frames:
        return ""
    own = next((frame for frame in frames if not any(part in frame.file for part in LIBRARIES)), None)
    called = f", called in {own.shown}" if own is not None and own != frames[0] else ""
    ended = ": its script has ended, and a thread of it has not" if frames[-1].function == "_shutdown" else ""
    return f"{frames[0].shown}{called}{ended}"


def waits(frames: Sequence[Frame]) -> bool | None:
    """Whether it waits for other ranks there. None: not known."""
    if not frames:
        return None
    inner = frames[0]
    return any(part in inner.file and (not functions or inner.function in functions) for part, functions in WAITING)
