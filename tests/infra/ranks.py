"""Ranks that say who they are and then wait to be told to finish, for tests that do things to a job meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

WAITS = """
import os, signal, sys, time
folder = sys.argv[1]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
name = f"{folder}/{rank}.{attempt}.{os.environ['HOLDFAST_ROUND']}"
open(name + ".tmp", "w").write(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
os.rename(name + ".tmp", name)
deadline = time.time() + 120
while not os.path.exists(f"{folder}/finish") and time.time() < deadline:
    time.sleep(0.02)
"""
"""The program; its argument is the folder."""


class Ranks:
    """The other end of such ranks. `folder` is theirs alone."""

    def __init__(self, folder: Path, wait_until: Callable[..., Any]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.wait_until = folder, wait_until

    def rank(self, rank: int, attempt: int, round: int) -> tuple[int, int, int]:
        """(pid, world size, master port) of a worker, once it runs."""
        path = self.folder / f"{rank}.{attempt}.{round}"
        self.wait_until(path.exists, what=f"rank {rank} in attempt {attempt}, round {round}")
        pid, world, port = path.read_text().split()
        return int(pid), int(world), int(port)

    def finish(self) -> None:
        """Let all of them exit with 0."""
        (self.folder / "finish").touch()


def agent_pid(holdfast: Any, name: str) -> int:
    """Of the node's agent, once it has written its first line."""
    return next(int(event["pid"]) for event in holdfast.events("AgentStarted") if event["node"] == name)
