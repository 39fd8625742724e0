"""What is wrong with this host, which works for jobs that no agent of ours watches? A thread of the daemon makes the checks
that its operator has named, again and again, and tells what each look finds that the one before did not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.core.job.xid import DeviceFault
from holdfast.health.check import Wanted
from holdfast.health.runner import Examination
from holdfast.health.verdict import UNFIT, Verdict

EVERY_S = 10.0
"""Seconds between two looks: to read the kernel's log takes some 50 ms of a processor."""


class HostWatch:
    """Of one host."""

    def __init__(self, checks: Sequence[Wanted], every_s: float, root: str = "/") -> None:
        """No `checks`: nothing is looked at."""
        self.examination, self.every_s = Examination(checks, root=root), every_s
        self.closed = threading.Event()

    def start(self, tell: Callable[[Sequence[DeviceFault]], None]) -> None:
        """From now on `tell` is called in a thread of its own; of what was away meanwhile, again."""
        if self.examination.wanted:
            threading.Thread(target=self._run, args=(tell,), name="watch", daemon=True).start()

    def close(self) -> None:
        """Nothing is told any more."""
        self.closed.set()

    def _run(self, tell: Callable[[Sequence[DeviceFault]], None]) -> None:
        known: Collection[tuple[str, int | str]] = ()
        while not self.closed.is_set():
            found = faults(self.examination.take())
            if (new := [one for key, one in found.items() if key not in known]) and not self.closed.is_set():
                tell(new)
            known = found
            self.closed.wait(self.every_s)


def faults(verdicts: Iterable[Verdict]) -> dict[tuple[str, int | str], DeviceFault]:
    """What these hold against devices, by device and Xid; and against the host, where one finds it unfit and names none."""
    return {(one.device, one.xid or one.what): one for verdict in verdicts for one in _of_one(verdict)}


def _of_one(verdict: Verdict) -> Iterable[DeviceFault]:
    is_unfit = verdict.state == UNFIT
    if is_unfit and not verdict.devices:
        return [DeviceFault(device="", what=f"{verdict.check}: {verdict.reason}")]
    return [one for one in verdict.devices if one.xid or is_unfit]
