"""Is one of the others' nodes down, by Slurm's word? A program of its own: `agent.leader.tie_breaker` runs it for `--witness
slurm`.

Its arguments: seconds that it may take, our endpoint, and those of the nodes that are missing. It prints
`speaks for` us; or `silent`, and how they are; or `trouble`, and why Slurm can never speak for us.
Slurm speaks for us when one of those that are missing is on a node that is down, and ours is not: then the others, where they
are as many as we are, are one too few with its vote too. A node that is only drained or does not respond yet is not down.
"""

from __future__ import annotations

import signal
import socket
import subprocess

DOWN = frozenset(("DOWN", "POWERED_DOWN"))
FLAGS = "*~#!%$@^-"
"""Marks that Slurm puts behind a state (`scontrol` 22.05)."""


class Nodes:
    """What `scontrol --oneliner show node` says."""

    def __init__(self, said: str) -> None:
        found = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in said.splitlines()]
        self.nodes = [node for node in found if node.get("NodeName")]

    def states(self, endpoint: str) -> list[str]:
        """Of the node that has `endpoint`'s address. None: no node has it, or several have."""
        host = endpoint.rpartition(":")[0].strip("[]")
        found = [node for node in self.nodes if host in (node["NodeName"], node.get("NodeHostName"), node.get("NodeAddr"))]
        if not found:
            where = _addresses(host)
            found = [node for node in self.nodes if where & _addresses(node.get("NodeAddr", node["NodeName"]))]
        words = found[0].get("State", "").split("+") if len(found) == 1 else []
        return [word.rstrip(FLAGS) for word in words]

    def speak_for(self, us: str, missing: list[str]) -> bool:
        """Whether one of `missing` is down, and we are not."""
        ours = self.states(us)
        return bool(ours) and not DOWN & set(ours) and any(DOWN & set(self.states(one)) for one in missing)


def _addresses(name: str) -> set[object]:
    try:
        return {found[4][0] for found in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def main(deadline_s: str, us: str, *missing: str) -> None:
    """Ask, and say what came of it."""
    signal.alarm(int(deadline_s))
    try:
        asked = subprocess.run(["scontrol", "show", "--oneliner", "node"], capture_output=True, text=True)
    except OSError as error:
        return print("trouble", error.strerror)
    if asked.returncode != 0:
        return print("trouble", asked.stderr.strip().replace("\n", " "))
    nodes = Nodes(asked.stdout)
    if nodes.speak_for(us, list(missing)):
        return print("speaks for", us)
    told = (one + " " + ("+".join(nodes.states(one)) or "is none of its nodes") for one in (us, *missing))
    print("silent" if nodes.states(us) else "trouble", ", ".join(told))
