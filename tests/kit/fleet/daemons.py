"""A supervisor, and the daemons of some hosts, all of which are this one; and ranks that report to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kit.ports import port_of

from holdfast.google import DeviceState, GoogleCloudResiliencyClient, client


class Fleet:
    """`holdfast`: the command that starts them."""

    def __init__(self, holdfast: Any, tmp_path: Path, wait_until: Any) -> None:
        self.holdfast, self.wait_until, self.folder = holdfast, wait_until, tmp_path
        self.state, self.port = tmp_path / "fleet", 0
        self.daemons: dict[str, Any] = {}
        self.ports: dict[str, int] = {}

    def start(self, *flags: object) -> None:
        """The supervisor, with its own lease: two seconds are lost where a processor of a busy machine stands still."""
        where = "--listen", f"127.0.0.1:{self.port}", "--http", "off", "--state", self.state
        self.port = port_of(self.holdfast.start("supervisor", *where, *flags))

    def daemon(self, name: str, *flags: object, **how: Any) -> int:
        """Of a host of that name; its port. `how`: it is started."""
        where = "--port", 0, "--state-dir", self.folder / name, "--node-name", name
        told = "--supervisor", f"127.0.0.1:{self.port}"
        self.daemons[name] = self.holdfast.start("daemon", *where, *told, *flags, **how)
        self.ports[name] = port_of(self.daemons[name])
        return self.ports[name]

    def rank(self, name: str, rank: int, **more: Any) -> GoogleCloudResiliencyClient:
        """One that runs on that host."""
        port = self.ports[name]
        made = GoogleCloudResiliencyClient(port + 1, port, 0, rank, "train", **more)
        made.update_state(DeviceState.RUNNING)
        return made

    def nodes(self) -> dict[str, Any]:
        told = self.holdfast.run("nodes", "--json", "--state", self.state)
        return {node["name"]: node for node in json.loads(told.stdout)}

    def states(self) -> dict[str, str]:
        return {name: node["state"] for name, node in self.nodes().items()}

    def becomes(self, expected: dict[str, str]) -> None:
        """Wait until the nodes' states are these."""

        def awaited() -> str:
            return f"{expected}: {self.states()}\n" + "\n".join(map(self.why, expected))

        self.wait_until(lambda: self.states() == expected, what=awaited)

    def jobs(self, name: str) -> list[tuple[str, list[int]]]:
        """Of a host: each job, and its ranks there; none as long as the supervisor has not heard of it."""
        known = self.nodes().get(name, {"jobs": []})
        return [(one["job"], [rank["rank"] for rank in one["ranks"]]) for one in known["jobs"]]

    def why(self, name: str) -> str:
        """What is kept of a host, for people."""
        return str(self.holdfast.run("why", name, "--state", self.state).stdout)

    def deeds(self, name: str) -> list[tuple[str, str, str]]:
        """What was done about a host, as far as it is over."""
        told = self.holdfast.run("why", name, "--json", "--state", self.state)
        deeds = json.loads(told.stdout)["deeds"]
        return [(deed["trouble"], deed["act"], deed["outcome"]) for deed in deeds if deed["outcome"]]


def end_clients() -> None:
    """Those of this process that `Fleet.rank` has made."""
    for reports in client._shared.values():
        reports.close()
    client._shared.clear()
