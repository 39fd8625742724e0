"""A script that tells what it does. In its first life rank 1 hangs in step 3, as the argument says, while rank 0 goes on; where
it is a deadlock, rank 0 waits."""

from __future__ import annotations

import itertools
import os
import sys
import time

import hanging

from holdfast import client

KIND, RANK, FIRST = sys.argv[1], int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

if KIND == "deadlocked":
    from torch import distributed

    distributed.init_process_group("gloo")

for step in itertools.count() if FIRST else range(6):
    with client.section("data"):
        if FIRST and step == 3 and RANK == 1:
            getattr(hanging, KIND)()
        if FIRST and step == 3 and KIND == "deadlocked":
            distributed.barrier()
        time.sleep(0.01)
    client.progress(step)
    client.heartbeat()
os.write(1, f"rank {RANK} is done\n".encode())
