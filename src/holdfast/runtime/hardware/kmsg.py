"""What is in the kernel's log? Its records, as they are, from /dev/kmsg or from a file of a made-up host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

RECORD = 8192  # Bytes of the longest record (the kernel's CONSOLE_EXT_LOG_MAX).


def now_s() -> float:
    """Seconds since the host's start as the kernel's log counts them, to within the seconds that the start took.

    The kernel stamps its records by the processor's own counter (sched_clock), which no time server corrects. CLOCK_MONOTONIC
    is corrected by up to 500 ppm: 43 s a day. CLOCK_MONOTONIC_RAW is not, and like the log it stands still in a suspend."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def records(path: str) -> Iterator[str]:
    """All records the kernel still holds, oldest first: `6,1,4711123456,-;text` and its continuation lines. OSError: not
    allowed (kernel.dmesg_restrict, a container).

    The device gives a record a read, then EAGAIN; a file has one in each line."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.path.isfile(path):
            with open(fd, errors="replace", closefd=False) as file:
                yield from file
            return
        while True:
            try:
                record = os.read(fd, RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # it was overwritten before we came to it; the next read goes on after the gap
            if not record:
                return
            yield record.decode(errors="replace")
    finally:
        os.close(fd)


def parsed(record: str) -> tuple[int, float, str] | None:
    """Sequence number, seconds since the host's start, and first line of `6,1234,4711123456,-;text`. None: it is no record."""
    head, semicolon, text = record.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return None
    return int(fields[1]), int(fields[2]) / 1e6, text.partition("\n")[0]
