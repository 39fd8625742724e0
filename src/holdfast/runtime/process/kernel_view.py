"""What does the kernel say of a process that does not say anything itself? Evidence for people, read from /proc.

None of these files waits for the process or for its memory map: it may be stuck in the kernel. (`cmdline` and `maps` do.)
"""

from __future__ import annotations

import os

MOST_THREADS = 64  # Those that hang are among the first.

MOST_BYTES = 1 << 16

STATUS = ("State", "TracerPid", "Threads", "SigQ", "SigPnd", "ShdPnd", "SigBlk", "VmRSS", "voluntary_ctxt_switches")
"""Lines of /proc/<pid>/status that tell a stop, a debugger, blocked signals, and whether it has run at all."""


def kernel_view(pid: int) -> str:
    """Its state and what it waits for in the kernel, thread by thread. As much as this user may see."""
    lines = [line for line in _read(f"/proc/{pid}/status").splitlines() if line.partition(":")[0] in STATUS]
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return "\n".join([*lines, "gone"])
    for thread in threads[:MOST_THREADS]:
        lines.append(_thread(f"/proc/{pid}/task/{thread}", thread))
        if stack := _read(f"/proc/{pid}/task/{thread}/stack"):  # root only
            lines += [f"    {line.split('] ', 1)[-1]}" for line in stack.splitlines()]
    return "\n".join([*lines, *([f"… and {more} threads more"] if (more := len(threads) - MOST_THREADS) > 0 else [])])


def _thread(folder: str, thread: int) -> str:
    name, waits_in, call = (_read(f"{folder}/{file}").strip() for file in ("comm", "wchan", "syscall"))
    state = _read(f"{folder}/stat").rpartition(")")[2].split()[:1]
    number = call.split()[0] if call else ""
    said = [f"in {waits_in}" if waits_in not in ("", "0") else "", f"system call {number}" if number.isdigit() else number]
    return f"  thread {thread} {name}: {''.join(state) or '?'} {', '.join(filter(None, said))}".rstrip()


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
