"""Saves a state of so many MB that another node is to have as well. Prints the seconds of each part, as JSON, from rank 0."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

import holdfast.client.stash as stash

size_mb, rounds = int(sys.argv[1]), int(sys.argv[2])
PARTS, FIRST = 50, 3
dist.init_process_group("gloo")
state = {f"part {part}": torch.rand(size_mb * 1_000_000 // 4 // PARTS) for part in range(PARTS)}
seen: dict[str, list[float]] = {"save": [], "partner": []}
for step in range(FIRST + rounds):  # in the first of them memory is made for all that is kept
    dist.all_reduce(torch.ones(1))
    begun = time.perf_counter()
    assert stash.save(step, state)
    saved = time.perf_counter()
    stash.wait()
    if step >= FIRST:
        seen["save"].append(saved - begun)
        seen["partner"].append(time.perf_counter() - saved)
if dist.get_rank() == 0:
    os.write(1, (json.dumps(seen) + "\n").encode())
dist.barrier()
dist.destroy_process_group()
