"""Two supervisors over one store, and the agents of a job that know both, as real processes."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

from kit.fleet.supervised import Supervised
from kit.jobs.ranks import Cluster
from kit.ports import ports

ASKS = """
import os
try:
    os.close(os.open(os.path.join({folder!r}, os.environ["HOLDFAST_REPLACES_KEY"]), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
"""
"""What `--replace-with` starts: whoever asks for the same key again has asked for nothing."""


class Pair(Supervised):
    """Two of them, of which `self.state` is the one that leads."""

    def __init__(self, holdfast: Any, job: Cluster, folder: Path, wait_until: Any, store: str, **env: str) -> None:
        """`env`: what is in their environments."""
        self.ports = ports(2)
        super().__init__(holdfast, job, f"127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[1]}", folder, wait_until)
        self.folder, self.store, self.env = folder, store, env
        self.both: list[Any] = [None, None]

    def start(self, which: int, *flags: str) -> Any:
        state = self.folder / f"fleet-{which}"
        listen = ("--listen", f"127.0.0.1:{self.ports[which]}", "--state", state, "--store", self.store)
        self.both[which] = self.holdfast.start("supervisor", *listen, "--lease", "2", *flags, env=self.env)
        return self.both[which]

    def leads(self, which: int, times: int = 1) -> None:
        """Wait until it has begun to lead so often, and look at it from now on."""
        self.wait_until(lambda: self.both[which].stdout.count("listening at") >= times, what=self.both[which].stderr)
        self.state = self.folder / f"fleet-{which}"

    def begin(self, *flags: str) -> list[Any]:
        """Both, the first of which leads, and a job of two nodes with a spare."""
        self.start(0, *flags)
        self.leads(0)
        self.start(1, *flags).wait_for_output("standing by: ")
        agents = self.agents("a", "b", "c")
        self.wait_until(lambda: self.states() == {"a": "fit", "b": "fit", "c": "spare"})
        return agents

    def swapped_once(self, agents: list[Any]) -> None:
        """The swap of b has been done, and the job ends well."""
        deed = self.over("b")
        assert deed["outcome"] == "c has taken over in round 2" and len(self.why("b")) == 1
        self.wait_until(lambda: self.states() == {"a": "fit", "b": "unfit", "c": "fit"})
        assert [event["name"] for event in self.holdfast.events("NodeExcluded")] == ["b"]
        assert self.job.rank(0, 0, 2) and self.job.rank(1, 0, 2)
        self.job.finish()
        assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def hanging(pair: Pair, which: int) -> Any:
    """An orchestrator that hangs, for as long as what is returned is open: a swap stays where it is."""
    folder = pair.folder / f"fleet-{which}" / "local"
    folder.mkdir(parents=True, exist_ok=True)
    held = (folder / "nodes.json.lock").open("w")
    fcntl.flock(held, fcntl.LOCK_EX)
    return held
