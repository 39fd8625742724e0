"""Which of two halves goes on? A directory that both can reach says: whoever is the first to put its name there. Or Slurm does.

For each electorate there is one file, made by `link`, which is atomic on NFS too and fails for the second. It holds the
endpoint of the node that the witness speaks for, and it stays: the next electorate has another. A file system that is gone
blocks whoever touches it, so a throw-away child does (an agent that waited would lose its lease), and it gives up by itself.

Slurm speaks for us when one of those that are missing is on a node that is down, and ours is not: then the others, where they
are as many as we are, are one too few with its vote too. A node that is only drained or does not respond yet is not down.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from holdfast.core.flags import SLURM
from holdfast.core.machine import Action, Observation
from holdfast.rendezvous.succession import Claim, Claimed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.runtime.host import Host

DEADLINE_S = 5
"""For one question. A directory that answers does so within milliseconds, Slurm's controller within tenths of a second."""

ASKS = """
import os, signal, sys
signal.alarm(int(sys.argv[4]))
folder, name, endpoint = sys.argv[1:4]
mine, ours = os.path.join(folder, f".{name}-{os.getpid()}-{endpoint.replace('/', '_')}"), os.path.join(folder, name)
try:
    with open(mine, "x") as file:
        file.write(endpoint)
    try:
        os.link(mine, ours)
    except OSError:
        pass  # it is there; or NFS says so of a link that it has just made: who is in it tells
    os.unlink(mine)
    with open(ours) as file:
        print("speaks for", file.read())
except OSError as error:
    print("trouble", error.strerror)
"""

ASKS_SLURM = """
import signal, socket, subprocess, sys
signal.alarm(int(sys.argv[1]))
us, *missing = sys.argv[2:]
def addresses(name):
    try:
        return {found[4][0] for found in socket.getaddrinfo(name, None)}
    except OSError:
        return set()
try:
    asked = subprocess.run(["scontrol", "show", "--oneliner", "node"], capture_output=True, text=True)
    said = asked.stdout if asked.returncode == 0 else ""
    trouble = asked.stderr.strip().replace(chr(10), " ")
except OSError as error:
    said, trouble = "", error.strerror
nodes = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in said.splitlines()]
nodes = [node for node in nodes if node.get("NodeName")]
def states(endpoint):
    host = endpoint.rpartition(":")[0].strip("[]")
    named = [node for node in nodes if host in (node["NodeName"], node.get("NodeHostName"), node.get("NodeAddr"))]
    where = addresses(host) if not named else ()
    found = named or [node for node in nodes if where & addresses(node.get("NodeAddr", node["NodeName"]))]
    words = found[0].get("State", "").split("+") if len(found) == 1 else []
    return [word.rstrip("*~#!%$@^-") for word in words]
def down(endpoint):
    return bool({"DOWN", "POWERED_DOWN"} & set(states(endpoint)))
told = ", ".join(one + " " + ("+".join(states(one)) or "is none of its nodes") for one in (us, *missing))
if states(us) and not down(us) and any(map(down, missing)):
    print("speaks for", us)
else:
    print("trouble", trouble or told)
"""


class Witness:
    """The hands; see `agent.candidate.Store`."""

    def __init__(self, folder: str, host: Host) -> None:
        self.folder, self.host = folder, host
        self.asked: dict[int, tuple[subprocess.Popen[bytes], Claim]] = {}
        """Descriptor of a child's answer → the child, and what it asks."""

    def perform(self, action: Action) -> None:
        """Begin to ask; `Claimed` follows."""
        assert isinstance(action, Claim), f"a witness cannot do {action!r}"
        if self.folder == SLURM:
            words = [ASKS_SLURM, str(DEADLINE_S), action.endpoint, *action.missing]
        else:
            words = [ASKS, self.folder, f"holdfast-{action.life}-{action.id}", action.endpoint, str(DEADLINE_S)]
        argv = [sys.executable, "-I", "-S", "-c", *words]
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        fd = child.stdout.fileno()
        self.asked[fd] = child, action
        self.host.watch(fd, select.EPOLLIN, lambda events: self._answered(fd))

    def _answered(self, fd: int) -> list[Observation]:
        child, claim = self.asked.pop(fd)
        said = os.read(fd, 4096).decode(errors="replace").strip()
        self.host.unwatch(fd)
        assert child.stdout is not None
        child.stdout.close()
        os.killpg(child.pid, signal.SIGKILL)  # and whom it asks
        child.wait()
        kind, _, what = said.partition(" for " if said.startswith("speaks") else " ")
        if kind == "speaks" and what == claim.endpoint:
            return [Claimed(id=claim.id, granted=True)]
        reason = f"it speaks for {what}" if kind == "speaks" else f"{self.folder}: {what or 'no answer'}"
        return [Claimed(id=claim.id, granted=False, reason=reason)]

    def close(self, last: Iterable[Action]) -> None:
        """Give up asking."""
        for fd, (child, _) in self.asked.items():
            self.host.unwatch(fd)
            os.killpg(child.pid, signal.SIGKILL)
