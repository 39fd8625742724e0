"""Gives one heartbeat and then none, where the other rank goes on; notes when, and in a second life its first line."""

import os
import time

now = time.monotonic()

from note import note  # noqa: E402

if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    note("again", now)
    raise SystemExit

from holdfast import client  # noqa: E402

time.sleep(0.2)  # until both are up
client.heartbeat()
note("beat")
while os.environ["RANK"] == "0":
    time.sleep(0.05)
    client.heartbeat()
time.sleep(1000)
