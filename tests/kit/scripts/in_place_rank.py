"""A rank that begins again in its own process whenever another is killed: `tests/tools/in_place.py` plays it.

    in_place_rank.py FOLDER train      trains with DDP until FOLDER/over is there, or for as many steps as FOLDER/steps says
    in_place_rank.py FOLDER PLACE      the first rank waits in PLACE until another is killed

What it has seen is a line of FOLDER/notes: a word, its round, its rank, its pid, and more. FOLDER/kill-ROUND names a rank and a
share of a step: the kernel sends that rank SIGKILL so long after its next step has begun.
"""

import ctypes
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from holdfast import client

FOLDER, PLACE = sys.argv[1:]
UPDATE_S = float(os.environ.get("UPDATE_S", "0"))
"""So long each update is torn, between the optimizer's step and that of the copy."""
torch.set_num_threads(1)
NOTES = os.open(f"{FOLDER}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what, *more):
    """One line, written at once."""
    line = [what, os.environ["HOLDFAST_ROUND"], os.environ["RANK"], os.getpid(), *more]
    os.write(NOTES, (" ".join(map(str, line)) + "\n").encode())


def read(name):
    """What a file says; empty: it is not there."""
    if not os.path.exists(f"{FOLDER}/{name}"):
        return ""
    with open(f"{FOLDER}/{name}") as file:
        return file.read()


def kill_after(seconds):
    """SIGKILL from the kernel, to the microsecond: no thread of Python's has to run for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    event, timer = (ctypes.c_int * 16)(), ctypes.c_void_p()
    event[2], event[3] = 9, 0  # sigev_signo, sigev_notify: SIGKILL, SIGEV_SIGNAL
    libc.timer_create(1, event, ctypes.byref(timer))
    when = (ctypes.c_long * 4)(0, 0, *divmod(max(1, int(seconds * 1e9)), 10**9))
    libc.timer_settime(timer, 0, when, None)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)], torch.nn.Linear(32, 1))


def loss(model, step, rank):
    torch.manual_seed(step * 100 + rank)
    return (model(torch.randn(8, 32)) - 1).pow(2).mean()


def digest(*those):
    found = hashlib.sha256()
    for one in those:
        for value in one if isinstance(one, list) else one.state_dict().values():
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def train(life):
    note("began")
    dist.init_process_group("gloo")
    rank, number, state = dist.get_rank(), os.environ["HOLDFAST_ROUND"], life.state
    model = state.keep("model", network)
    copy = state.keep("copy", network)
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam(model.parameters(), 0.001))
    first = state.begin()
    steps = int(read("steps") or -1)
    # With this, DDP's bucket stays as it is. Else its order changes after a life's first step, and with it sums of three.
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    is_over, took_s = torch.zeros(1), [0.001]
    step = first
    while not is_over:
        begun = time.monotonic()
        victim, _, share = read(f"kill-{number}").partition(" ")
        if victim == str(rank):
            kill_after(float(share) * sorted(took_s)[len(took_s) // 2])
        optimizer.zero_grad()
        loss(ddp, step, rank).backward()
        with life.update():
            optimizer.step()
            if UPDATE_S:
                time.sleep(UPDATE_S)
            with torch.no_grad():
                for one, other in zip(copy.parameters(), model.parameters()):
                    one.lerp_(other, 0.1)
            state["seen"] = state.get("seen", 0) + 1
        step += 1
        if step == first + 1:
            note("trains", time.monotonic(), first, state.came_from.replace(" ", "_"))
        is_over += step == steps or (steps < 0 and rank == 0 and os.path.exists(f"{FOLDER}/over"))
        dist.all_reduce(is_over)
        took_s = [*took_s[-20:], time.monotonic() - begun]
    moments = [value for one in optimizer.state_dict()["state"].values() for value in one.values()]
    note("ended", step, state["seen"], digest(model, copy, moments))
    dist.barrier()
    dist.destroy_process_group()


class Slow(Dataset):
    """Whose items take their time."""

    def __len__(self):
        return 1000

    def __getitem__(self, at):
        time.sleep(0.01)
        while PLACE == "loader-stuck" and not os.path.exists(f"{FOLDER}/over"):
            time.sleep(0.1)
        return torch.zeros(1)


def wait(life):
    """Be there until another rank is killed."""
    note("began")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    living = dist.new_group([0, 2])
    dist.barrier()
    try:
        note("waits")
        while not os.path.exists(f"{FOLDER}/over"):
            if rank or PLACE == "sleep":
                time.sleep(0.01 if rank else 1)
            elif PLACE == "python":
                sum(range(1000))
            elif PLACE == "gloo":
                dist.all_reduce(torch.zeros(1))
            elif PLACE == "gloo-alive":
                dist.all_reduce(torch.zeros(1), group=living)
            else:
                for _ in DataLoader(Slow(), num_workers=1):
                    if os.path.exists(f"{FOLDER}/over"):
                        break
    finally:
        note("out", time.monotonic())
    if rank and PLACE == "gloo":
        dist.all_reduce(torch.zeros(1))
    if rank == 2 and PLACE == "gloo-alive":
        dist.all_reduce(torch.zeros(1), group=living)
    dist.barrier()


client.run_in_place(train if PLACE == "train" else wait)
