"""Ranks that say who they are and then wait to be told to finish, for tests that do things to a job meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.waiting import wait_for

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

FAILS_ONCE = """
import os, sys, time
rank = os.environ["RANK"]
lives = [f"{sys.argv[1]}.{each}" for each in (0, 1)]
if os.path.exists(lives[int(rank)]):
    sys.exit(0)  # the second life
open(lives[int(rank)], "w").close()
while not all(map(os.path.exists, lives)):
    time.sleep(0.01)
if rank == "1":
    sys.exit(1)
time.sleep(60)  # until it is stopped, since the other has failed
"""
"""Of two ranks the second fails once, when both run; in their second life they end with 0. The argument is a path of theirs."""


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


class Cluster(Ranks):
    """Agents of one job that meet at one endpoint."""

    def __init__(self, holdfast: Any, port: int, folder: Path, program: Path, wait_until: Callable[..., Any]) -> None:
        super().__init__(folder, wait_until)
        self.holdfast, self.port, self.program = holdfast, port, program

    def agent(
        self, name: str, nnodes: str = "2", *options: object, nproc: int = 2, env: dict[str, str] | None = None
    ) -> Any:
        return self.holdfast.start(
            "run",
            *("--nnodes", nnodes, "--nproc-per-node", nproc, "--node-name", name),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "several"),
            *options,
            *(self.program, self.folder),
            env=env or {},
        )

    def host(self) -> str:
        """The node whose agent holds the coordinator: it alone records who joined."""
        return str(self.wait_until(lambda: self.holdfast.events("NodeJoined"))[0]["node"])

    def started(self, ranks: int) -> list[dict[str, Any]]:
        """The records of that many workers' starts; a worker may run before its agent has written its own."""
        found = lambda: self.holdfast.events("WorkerStarted")
        return list(self.wait_until(lambda: len(found()) >= ranks and found(), what=f"the records of {ranks} starts"))


def agent_pid(holdfast: Any, name: str) -> int:
    """Of the node's agent, once it has written its first line."""
    found = lambda: [event["pid"] for event in holdfast.events("AgentStarted") if event["node"] == name]
    return int(wait_for(found, what=f"the first line of {name}'s agent")[0])  # its first worker may run before that
