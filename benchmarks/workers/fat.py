"""Rank 1 holds BENCH_BYTES of touched memory; the other ranks note SIGTERM. Once `over` is noted, a new life ends at once."""

import mmap
import os
import signal
import sys

from note import has_been, note


def stopped(signum: int, frame: object) -> None:
    note("term")
    sys.exit(0)


if has_been("over"):
    note("again")
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
if os.environ["RANK"] == "1":
    size = int(os.environ["BENCH_BYTES"])
    held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)  # a page is there only once it has been written to
note("ready" if os.environ["RANK"] == "1" else "waiting")
while True:
    signal.pause()
