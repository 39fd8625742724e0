"""What does a script do that does not go with beginning again in place? It is told so on stderr, as it is seen."""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def caught(frame: FrameType, times: int) -> None:
    """It has caught `Regroup` so often, and runs on in `frame`."""
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    said = f"Regroup was raised {times} times, and the script runs on ({where}): one of its functions catches everything"
    _say(f"{said}; let BaseException through, or this rank is ended at --regroup-timeout")


def handled(signum: int) -> None:
    """It has taken the signal by which `Regroup` is raised."""
    said = f"the script handles signal {signum} since its life began, so that Regroup cannot be raised in it"
    _say(f"{said}; leave that signal alone, or this rank is ended at --regroup-timeout")


class Children:
    """Processes that lives leave: each leaves one more, where a script starts one and only ends it as it ends by itself."""

    def __init__(self) -> None:
        self.counts: list[int] = []  # At the end of each life.
        self.is_told = False

    def look(self) -> None:
        """A life has ended. What it has in common with the one before, as a kept loader's processes, is well."""
        names = _children()
        self.counts.append(len(names))
        if not self.is_told and len(self.counts) > 2 and self.counts[-1] > self.counts[-2] > self.counts[-3]:
            self.is_told = True
            said = f"each life leaves processes that the script has started: {len(names)} run on (the newest: {names[-1]})"
            _say(f"{said}; end them in a `finally`, or in tear_down=")


def _children() -> list[str]:
    """This process's that run, the newest last. None where the kernel does not say."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            pids = []
            with suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
                pids = file.read().split()
            for pid in pids:
                with suppress(OSError), open(f"/proc/{pid}/stat") as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(") ")
                    if rest[0] not in "ZX":
                        found[int(pid)] = f"{name}, pid {pid}"
    return [found[pid] for pid in sorted(found)]


def _say(said: str) -> None:
    """The script may be in a write of its own to `sys.stderr`, which takes no second at the same time."""
    with suppress(OSError):
        os.write(2, f"holdfast: {said}\n".encode())
