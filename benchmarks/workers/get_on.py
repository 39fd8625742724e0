"""Gets on like a training script: ten steps a second, each with a heartbeat and two sections."""

import time

from note import note

from holdfast.client import progress, section

note("first")
for step in range(36_000):
    with section("load"):
        time.sleep(0.05)
    with section("step"):
        time.sleep(0.05)
    progress(step)
