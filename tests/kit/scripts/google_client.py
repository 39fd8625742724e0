"""Google's own client, unmodified, run by a Python that has it: a line of stdin is a state and a rank, or `beats` and how many,
or `beating`: from then on each beats twice a second, as its launcher would have it.

    python google_client.py PORT RANKS

It asks `nvidia-smi` at a fixed path for each GPU's bus id, where only root could put one: that function is replaced.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from supervisor.client.python import utils

utils.launch_sync_proc = lambda command: f"00000000:{int(command[-1]):02X}:00.0\n"

import supervisor  # noqa: E402

port, ranks = int(sys.argv[1]), int(sys.argv[2])


def beat(client: supervisor.GoogleCloudResiliencyClient, times: int) -> None:
    """So many heartbeats."""
    for _ in range(times):
        client.send_heartbeat()


def beat_on() -> None:
    """Until the process ends."""
    while True:
        for client in clients:
            client.send_heartbeat()
        time.sleep(0.5)


clients = [supervisor.GoogleCloudResiliencyClient(port + rank + 1, port, rank, rank, "train") for rank in range(ranks)]
print("ready", flush=True)
for line in sys.stdin:
    what, _, count = line.strip().partition(" ")
    if what == "beating":
        threading.Thread(target=beat_on, daemon=True).start()
    elif what == "beats":
        with ThreadPoolExecutor(ranks) as threads:
            list(threads.map(beat, clients, [int(count)] * ranks))
    else:
        rank = int(count or 0)
        clients[rank].update_state(supervisor.DeviceState[what])
    print("told", flush=True)
