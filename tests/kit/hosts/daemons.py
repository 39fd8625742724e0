"""`holdfast daemon`, started, asked and killed by tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class DaemonHere:
    """The daemon of the test's own state directory, at a port of its own."""

    def __init__(self, holdfast: Any, port: int, wait_until: Callable[..., Any]) -> None:
        self.holdfast, self.port, self.wait_until = holdfast, port, wait_until
        self.running: Any = None

    def start(self, *options: object) -> Any:
        """Start it, and wait until it listens."""
        self.running = self.holdfast.start("daemon", "--port", self.port, *options)
        self.running.wait_for_output("listening at")
        return self.running

    def kill(self) -> None:
        """kill -9."""
        self.running.kill()
        self.running.process.wait()

    def told(self) -> dict[str, Any]:
        """Its table, as `--json` shows it."""
        done = self.holdfast.run("daemon", "--json")
        assert done.returncode == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)["table"]
        return found

    def ranks(self) -> list[dict[str, Any]]:
        """Rows of its table, of all workloads."""
        return [rank for workload in self.told()["workloads"] for rank in workload["workers"]]

    def states(self) -> dict[str, list[str]]:
        """By workload, in the order of ranks."""
        told = self.told()["workloads"]
        return {workload["workload_name"]: [worker["state"] for worker in workload["workers"]] for workload in told}

    def history(self, rank: int = 0) -> list[str]:
        """What this life of the daemon has said of a rank's states."""
        said = [line for line in self.running.stderr.splitlines() if f": rank {rank} (" in line and " is " in line]
        return [line.rpartition(" ")[2] for line in said if line.rpartition(" ")[2].isupper()]

    def wait_for(self, rank: int, *states: str) -> None:
        """Until that is the rank's history."""
        self.wait_until(lambda: self.history(rank) == list(states), what=f"rank {rank}: {states}")
