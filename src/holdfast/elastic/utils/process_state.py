"""The state of a process: running, asleep, a zombie, or in uninterruptible sleep."""

from __future__ import annotations


def read_proc_state(pid: int) -> str | None:
    """The letter of `/proc/<pid>/stat` (`R`, `S`, `D`, `Z`, …); None when it cannot be read, as of a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
    except OSError:
        return None
    # The name before it stands in parentheses, and may itself hold parentheses and blanks.
    fields = stat.rpartition(")")[2].split()
    return fields[0] if fields and ")" in stat else None


def is_uninterruptible_state(state: str | None) -> bool:
    """Is it asleep in the kernel, where not even SIGKILL reaches it (`D`)?"""
    return state is not None and state.startswith("D")
