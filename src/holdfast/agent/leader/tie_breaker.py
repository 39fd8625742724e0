"""Asks a shared directory, Slurm or Kubernetes which half goes on when the network splits a job in two.

In a directory that both can reach, the first to put its name there goes on. For each electorate there is one file, made by
`link`, which is atomic on NFS too and fails for the second. It holds the endpoint of the node that the witness speaks for, and
it stays: the next electorate has another. A file system that is gone blocks each process that touches it: a throw-away child
asks, and gives up by itself. An agent that waited would lose its lease.

Slurm and Kubernetes know of nodes that are dead; the programs that ask them are `integrations.slurm.witness` and
`integrations.kubernetes.witness`. Whose word it is, speaks for us when one of those that are missing is dead, and we are not.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterable

from holdfast.agent.reporting.child_program import program
from holdfast.core.config.own_options import SCHEDULERS
from holdfast.core.machine import Action, Observation
from holdfast.core.signals import signal
from holdfast.rendezvous.election.witness_claims import Claim, Claimed
from holdfast.runtime.host import Host

DEADLINE_S = 5
"""For one question. A directory that answers does so within milliseconds, Slurm's controller within tenths of a second."""

REHEARSAL = 0  # No electorate has that number.

SPEAKS_FOR, SILENT = "speaks for ", "silent"  # What an answer begins with. Any other first word is a trouble.

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
    owner = os.stat(mine).st_uid
    os.unlink(mine)
    with open(ours) as file:
        is_ours = os.fstat(file.fileno()).st_uid == owner
        print("speaks for " + file.read() if is_ours else f"trouble {name} in it belongs to another user")
except OSError as error:
    print("trouble", error.strerror)
"""


class Witness:
    """The hands; see `agent.leader.build.Store`."""

    def __init__(self, folder: str, host: Host) -> None:
        self.folder, self.host = folder, host
        self.asks = program(f"{folder}.witness") if folder in SCHEDULERS else []
        self.asked: dict[int, tuple[subprocess.Popen[bytes], Claim]] = {}
        """Descriptor of a child's answer → the child, and what it asks."""

    def rehearse(self, endpoint: str) -> None:
        """Ask a scheduler at the start, when nobody is lost yet: somebody can still mend what would keep it from answering."""
        if self.folder in SCHEDULERS:
            self.perform(Claim(life="", id=REHEARSAL, endpoint=endpoint))

    def perform(self, action: Action) -> list[Observation]:
        """Begin to ask; `Claimed` follows. Told at once: nobody could be asked."""
        assert isinstance(action, Claim), f"a witness cannot do {action!r}"
        if self.asks:
            argv = [*self.asks, str(DEADLINE_S), action.endpoint, *action.missing]
        else:
            words = [self.folder, f"holdfast-{action.life}-{action.id}", action.endpoint, str(DEADLINE_S)]
            argv = [sys.executable, "-I", "-S", "-c", ASKS, *words]
        try:
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as error:  # no process or descriptor is left: there may be one when it is asked again
            return self._told(action, f"trouble it could not be asked: {error.strerror}")
        assert child.stdout is not None
        fd = child.stdout.fileno()
        self.asked[fd] = child, action
        self.host.others.add(child.pid)
        self.host.watch(fd, select.EPOLLIN, lambda events: self._answered(fd))
        return []

    def _answered(self, fd: int) -> list[Observation]:
        child, claim = self.asked.pop(fd)
        said = os.read(fd, 4096).decode(errors="replace").strip()
        self.host.unwatch(fd)
        assert child.stdout is not None
        child.stdout.close()
        os.killpg(child.pid, signal.SIGKILL)  # and whom it asks
        child.wait()
        self.host.others.discard(child.pid)
        return self._told(claim, said)

    def _told(self, claim: Claim, said: str) -> list[Observation]:
        """`said`: one line, `speaks for ENDPOINT`, `silent WHY` (there is nobody to decide about) or `trouble WHY`."""
        word, _, why = said.partition(" ")
        if claim.id == REHEARSAL:
            if word != SILENT:
                self.host.complain(f"the witness cannot help: {self.folder}: {why or 'no answer'}")
            return []
        if not said.startswith(SPEAKS_FOR):
            return [Claimed(id=claim.id, granted=False, reason=f"{self.folder}: {why or 'no answer'}")]
        whom = said.removeprefix(SPEAKS_FOR)
        if whom == claim.endpoint:
            return [Claimed(id=claim.id, granted=True)]
        return [Claimed(id=claim.id, granted=False, reason=f"it speaks for {whom}")]

    def close(self, last: Iterable[Action]) -> None:
        """Give up asking."""
        for fd, (child, _) in self.asked.items():
            self.host.unwatch(fd)
            os.killpg(child.pid, signal.SIGKILL)
