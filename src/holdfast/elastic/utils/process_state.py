"""The state of a process: running, asleep, a zombie, or in uninterruptible sleep."""

from __future__ import annotations

from holdfast.runtime.process import process


def read_proc_state(pid: int) -> str | None:
    """The letter of `/proc/<pid>/stat` (`R`, `S`, `D`, `Z`, …); None when it cannot be read, as of a process that is gone."""
    return process.state(pid)


def is_alive(pid: int) -> bool:
    """Is it there, and not a zombie?"""
    return read_proc_state(pid) not in (None, "Z", "X")


def is_uninterruptible_state(state: str | None) -> bool:
    """Is it asleep in the kernel, where not even SIGKILL reaches it (`D`)?"""
    return state is not None and state.startswith("D")
