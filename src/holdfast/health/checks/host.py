"""Does the host have what any job needs: memory, file descriptors, processes, a clock that is right?"""

from __future__ import annotations

import re
import subprocess

from holdfast.health.check import Look
from holdfast.health.verdict import Findings, Verdict, degraded
from holdfast.runtime.hardware import cgroups
from holdfast.runtime.hardware.memory import groups

LEAST_MEMORY, LEAST_FILES = 2.0, 5.0
"""Per cent that are free. Below 2 % of memory the kernel already reclaims page cache under every allocation, and a worker that
starts now is what the OOM killer takes; file descriptors run out all at once."""

MOST_OFF_S = 1.0  # Logs of several nodes cannot be read together beyond that, and certificates and tokens begin to fail.

NOT_SET = "is chronyd or ntpd running there? logs of nodes cannot be compared"

PAGE_KIB = 1024.0


def memory(look: Look) -> Verdict:
    """Free memory of the host, and of the cgroup that the agent and the workers run in."""
    least = float(look.argument or LEAST_MEMORY)
    told = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", look.text("proc/meminfo"), re.M)}
    if not told.get("MemTotal"):
        return degraded("not known: /proc/meminfo says nothing")
    found = Findings()
    share = 100.0 * told.get("MemAvailable", told.get("MemFree", 0)) / told["MemTotal"]
    text = f"{share:.0f} % of {told['MemTotal'] / PAGE_KIB**2:.0f} GiB free"
    if share < least:
        found.unfit(f"memory: only {text}", "see what holds it: `ps aux --sort -rss`, /dev/shm, huge pages")
    limits = [(limit, used) for limit, used in groups(look.root) if 0 < limit < told["MemTotal"] * 1024]
    if limits:
        limit, used = max(limits, key=lambda one: one[1] / one[0])
        left = 100.0 * (limit - used) / limit
        text += f"; {left:.0f} % of our cgroup's {limit / PAGE_KIB**3:.1f} GiB"
        if left < least:
            found.unfit(f"memory: only {left:.0f} % of our cgroup's {limit / PAGE_KIB**3:.1f} GiB are free", "raise its limit")
    return found.verdict(text)


def files(look: Look) -> Verdict:
    """File descriptors of the host; processes of the host, and of the cgroups that the agent and the workers run in."""
    least = float(look.argument or LEAST_FILES)
    found, told = Findings(), []
    handles = look.text("proc/sys/fs/file-nr").split()
    if len(handles) == 3 and int(handles[2]):
        free = 100.0 * (int(handles[2]) - int(handles[0]) + int(handles[1])) / int(handles[2])
        told.append(f"{free:.0f} % of file handles free")
        if free < least:
            found.unfit(f"only {free:.1f} % of the host's {handles[2]} file handles are free", "sysctl fs.file-max")
    running, most = look.text("proc/loadavg").split(), look.text("proc/sys/kernel/pid_max")
    if len(running) >= 4 and "/" in running[3] and most.isdigit():
        tasks = int(running[3].partition("/")[2])
        free = 100.0 * (int(most) - tasks) / int(most)
        told.append(f"{tasks} of {most} processes and threads")
        if free < least:
            found.unfit(f"{tasks} processes and threads of at most {most}", "sysctl kernel.pid_max; what has forked so many?")
    for folder in cgroups.folders(look.root):
        now, limit = look.text(f"{folder}/pids.current"), look.text(f"{folder}/pids.max")
        if now.isdigit() and limit.isdigit() and 100.0 * (int(limit) - int(now)) < least * int(limit):
            found.unfit(f"{now} processes and threads of at most {limit} in our cgroup /{folder}", "raise its pids.max")
    return found.verdict(", ".join(told) or "the host does not say")


def clock(look: Look) -> Verdict:
    """How far the clock is off, from chrony, and in a job also from the other nodes' clocks."""
    most = float(look.argument or MOST_OFF_S)
    found, told = Findings(), []
    offset = _offset_s(look)
    if offset is not None:
        told.append(text := f"the clock is {_off(offset)}")
        if abs(offset) > most:
            found.degraded(text, NOT_SET)
    if look.clock:
        ahead, error = look.clock["ahead_s"], look.clock["error_s"]
        told.append(text := f"{_off(ahead)}{' of' * (ahead >= 0)} {look.clock['of']} (± {error * 1000:.1f} ms)")
        if abs(ahead) - error > most:
            found.degraded(f"the clock is {text}", NOT_SET)
    return found.verdict(", ".join(told) or "clock offset not known (no chronyc)")


def _off(seconds: float) -> str:
    return f"{abs(seconds) * 1000:.1f} ms {'behind' if seconds < 0 else 'ahead'}"


def _offset_s(look: Look) -> float | None:
    """Seconds by which the clock is ahead of its source, as `chronyc -c tracking` prints it (field 5 of its CSV: the system
    time's offset). A made-up host has the answer in a file."""
    if look.root != "/":
        text = look.text("run/chrony-tracking.csv")
    else:
        try:
            asked = subprocess.run(["chronyc", "-c", "tracking"], capture_output=True, text=True, timeout=5, check=False)
            text = asked.stdout if asked.returncode == 0 else ""
        except (OSError, subprocess.TimeoutExpired):
            text = ""
    fields = text.strip().split(",")
    try:
        return -float(fields[4]) if len(fields) > 4 else None
    except ValueError:
        return None
