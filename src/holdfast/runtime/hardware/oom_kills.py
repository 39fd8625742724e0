"""Has the kernel killed a process because memory ran out? By what it counts, and by its log.

Both counts are raised before the signal is sent: the whole host's (/proc/vmstat), and that of our own control group, which is
a container's. The log names the process by its pid in the host's eyes, which is ours only outside of a container.
"""

from __future__ import annotations

import os
import re
from signal import SIGKILL

from holdfast.core.job.failure import NO_OOM_KILL
from holdfast.runtime.hardware import cgroups
from holdfast.runtime.hardware.gpus import text
from holdfast.runtime.hardware.kmsg import parsed, records

FIRST_PID_NAMESPACE = "pid:[4026531836]"  # The kernel gives it this number (PROC_PID_INIT_INO).

OF_GROUP = "the kernel has killed a process of its control group, whose memory ran out"


class OomKills:
    """Those since it was made."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.host, self.group = self._host(), self._group()

    def of(self, pid: int, exitcode: int) -> str:
        """What the kernel says of it having killed that process, which has ended so; NO_OOM_KILL: it has not. Empty: nothing
        is known. Of a process that ended otherwise: NO_OOM_KILL where it has killed none that this one may have started."""
        host, group = self._host(), self._group()
        if host is not None and host == self.host:
            return NO_OOM_KILL
        if exitcode != -SIGKILL:
            return NO_OOM_KILL if group is not None and group == self.group else ""
        if os.readlink(os.path.join(self.root, "proc/self/ns/pid")) == FIRST_PID_NAMESPACE:
            try:
                return self._line(pid) or NO_OOM_KILL
            except OSError:
                pass  # the log may not be read
        if group is None or self.group is None:
            return ""
        return OF_GROUP if group > self.group else NO_OOM_KILL

    def _line(self, pid: int) -> str:
        """The last line of the kernel's log that tells of it. OSError: it may not be read."""
        told = re.compile(rf"Killed process {pid} \(|oom-kill:.*,pid={pid},")
        said = (one for one in map(parsed, records(os.path.join(self.root, "dev/kmsg"))) if one is not None)
        return next((line for line in reversed([words for _, _, words in said]) if told.search(line)), "")

    def _host(self) -> int | None:
        return _count(text(self.root, "proc/vmstat"))

    def _group(self) -> int | None:
        """Of the innermost group with a count, which counts those of the groups within it."""
        files = [f"{folder}/memory.events" for folder in cgroups.folders(self.root)]
        files += [f"{folder}/memory.oom_control" for folder in cgroups.version_1(self.root, "memory")]
        return next((count for file in files if (count := _count(text(self.root, file))) is not None), None)


def _count(lines: str) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", lines, re.MULTILINE)
    return int(found[1]) if found else None
