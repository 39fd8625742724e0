"""A training script that carries on in its own process when it loses ranks, as in-process restart does: it makes its process
group anew with those that are left. `Team` is the other end of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit import LIGHT_TORCH

CARRIES_ON = LIGHT_TORCH + """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

folder, me, number = sys.argv[1], int(os.environ["RANK"]), os.environ["HOLDFAST_ROUND"]
team, generation, broken = list(range(int(os.environ["WORLD_SIZE"]))), 0, []

def note(name, text=""):
    open(f"{folder}/tmp.{me}", "w").write(str(text))
    os.rename(f"{folder}/tmp.{me}", f"{folder}/{number}.{generation}.{name}")

def wait_for(condition):
    deadline = time.time() + 120
    while not condition():
        if time.time() > deadline:
            sys.exit(f"rank {me} waits in vain in generation {generation}")
        time.sleep(0.01)

def here():
    names = os.listdir(folder)
    return sorted(int(name.rsplit(".", 1)[1]) for name in names if name.startswith(f"{number}.{generation}.here."))

def everyone(value):
    # The sum over this generation's ranks. ConnectionError: one of them is gone, as some rank has found out.
    total = torch.tensor(value)
    work = group.allreduce([total])
    while not work.is_completed():  # who is no neighbour of a dead rank would wait for the timeout
        if os.path.exists(f"{folder}/{number}.{generation}.broken"):
            raise ConnectionError
        time.sleep(0.001)
    if not work.is_success():
        note("broken")
        raise ConnectionError
    return total.tolist()

while True:
    store = dist.FileStore(f"{folder}/store.{number}.{generation}", len(team))
    try:
        group = dist.ProcessGroupGloo(store, team.index(me), len(team), timedelta(seconds=100))
        ranks, done = everyone([1.0, 0.0])
        note(f"sum.{me}", f"{os.getpid()} {int(ranks)}")
        while done < len(team):
            ranks, done = everyone([1.0, float(os.path.exists(f"{folder}/finish"))])
        os._exit(0)  # a broken group that is still there would keep us waiting
    except (ConnectionError, RuntimeError):  # who is left?
        broken.append(group)
        generation += 1
        note(f"here.{me}")
        expected = f"{folder}/left.{number}.{generation}"
        wait_for(lambda: os.path.exists(expected) and len(here()) == int(open(expected).read()))
        team = here()
"""
"""The program; its argument is the folder."""


class Team:
    """Such ranks, seen from outside."""

    def __init__(self, folder: Path, wait_until: Callable[..., Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.wait_until = folder, wait_until

    def sum_of(self, rank: int, *, round: int, generation: int) -> tuple[int, int]:
        """(pid, sum over all ranks of one) that a rank had first in that generation of its process group."""
        path = self.folder / f"{round}.{generation}.sum.{rank}"
        self.wait_until(path.exists, what=f"rank {rank} in round {round}, generation {generation}")
        pid, total = path.read_text().split()
        return int(pid), int(total)

    def left(self, ranks: int, *, round: int, generation: int) -> None:
        """Tell those that are left how many they are."""
        path = self.folder / f"left.{round}.{generation}"
        path.with_suffix(".tmp").write_text(str(ranks))
        path.with_suffix(".tmp").rename(path)

    def finish(self) -> None:
        """Let all of them exit with 0."""
        (self.folder / "finish").touch()
