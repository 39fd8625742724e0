"""Trains in lockstep with the other ranks and kills itself again and again; tells how many steps were lost each time."""

import os
import random
import sys

import torch
import torch.distributed as dist

from holdfast.client import stash

how, kills, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
ends = [random.Random(number).randrange(100, 200) + 200 * number for number in range(kills)]
weight, done = torch.zeros(1000), -1
if how == "stash":
    found = stash.latest(into={"weight": weight})
    done = found[0] if found else -1
elif os.path.exists(path):
    done = torch.load(path)["step"]
if life and not rank:
    os.write(1, f"lost {ends[life - 1] - done}\n".encode())
for step in range(done + 1, ends[life] + 1 if life < kills else 200 * kills):
    weight += 1
    dist.all_reduce(weight)
    if how == "stash":
        stash.save(step, {"weight": weight})
    elif step % 100 == 0 and not rank:
        torch.save({"step": step, "weight": weight}, path + ".new")
        os.replace(path + ".new", path)
    if life < kills and step == ends[life] and rank == life % 2:
        os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
