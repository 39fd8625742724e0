"""How a worker tells the benchmark when something happened: one small file per event, on the clock that all processes share."""

import os
import time

FOLDER = os.environ.get("BENCH_NOTES", "")


def note(event: str, at: float | None = None) -> None:
    """Note that `event` happened at `at` (monotonic seconds; now if not given)."""
    at = time.monotonic() if at is None else at
    name = f"{event}.{os.environ.get('RANK', '0')}.{os.getpid()}"
    with open(f"{FOLDER}/.{name}", "w") as file:
        file.write(repr(at))
    os.rename(f"{FOLDER}/.{name}", f"{FOLDER}/{name}")  # so that no reader sees it half written


def has_been(event: str) -> bool:
    """Has any worker noted `event`?"""
    return any(name.startswith(f"{event}.") for name in os.listdir(FOLDER))
