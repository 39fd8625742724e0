"""Notes its first line and stays until a signal comes. Once the benchmark has noted `over`, a new life ends at once."""

import time

now = time.monotonic()

import signal  # noqa: E402

from note import has_been, note  # noqa: E402

note("first", now)
while not has_been("over"):
    signal.pause()
