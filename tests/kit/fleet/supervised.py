"""A supervisor and the agents of a job that know it, as real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kit.jobs.ranks import Cluster


class Supervised:
    """A supervisor, and the agents of a job that know it."""

    def __init__(self, holdfast: Any, job: Cluster, where: str, folder: Path, wait_until: Any) -> None:
        self.holdfast, self.job, self.where, self.state, self.wait_until = holdfast, job, where, folder / "fleet", wait_until
        self.running: Any = None

    def start(self, *flags: str) -> Any:
        """The supervisor, once it listens."""
        listen = ("--listen", self.where, "--state", self.state)
        self.running = self.holdfast.start("supervisor", *listen, "--lease", "2", "--http", "off", *flags)
        self.running.wait_for_output("listening at")
        return self.running

    def kill(self) -> None:
        """kill -9."""
        self.running.kill()
        self.running.process.wait()

    def agents(self, *names: str, flags: tuple[object, ...] = ()) -> list[Any]:
        """Agents of a job of two nodes, of which those beyond wait as spares."""
        where = ("--supervisor", self.where, "--max-restarts", "3")
        started = []
        for name in names:
            started.append(self.job.agent(name, "2", *where, *flags, nproc=1))
            if len(started) == 2:  # so that it is known who waits
                self.job.rank(1, 0, 1)
        return started

    def nodes(self) -> dict[str, Any]:
        """By name, as `holdfast nodes` tells."""
        told = self.holdfast.run("nodes", "--json", "--state", self.state)
        assert told.returncode == 0, told.output
        return {node["name"]: node for node in json.loads(told.stdout)}

    def states(self) -> dict[str, str]:
        return {name: node["state"] for name, node in self.nodes().items()}

    def why(self, name: str) -> list[dict[str, Any]]:
        """What was done about a node."""
        told = self.holdfast.run("why", name, "--json", "--state", self.state)
        assert told.returncode == 0, told.output
        deeds: list[dict[str, Any]] = json.loads(told.stdout)["deeds"]
        return deeds

    def over(self, name: str) -> dict[str, Any]:
        """The newest of them, once it is known what came of it."""
        return self.wait_until(lambda: next(iter([deed for deed in self.why(name)[-1:] if deed["outcome"]]), None))

    def drain(self, name: str) -> Any:
        while "has just started" in (told := self._drain(name)).stderr:
            pass
        return told

    def _drain(self, name: str) -> Any:
        return self.holdfast.run("drain", name, "--reason", "its fan is loud", "--state", self.state)
