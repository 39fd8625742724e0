"""A trivial script: notes when its first line ran, and ends."""

import time

now = time.monotonic()

from note import note  # noqa: E402

note("first", now)
