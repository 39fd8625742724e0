"""How does this node leave the job before its end? At a signal to its agent, or when its guardian is gone. Loaded by then.

Where the coordinator is in this process, the job ends with it, unless the node has made way for another
(`agent.leader.peer_elected_node`); else the others are told, and go on without this node. Workers get the agent's signal and
their grace; a second signal ends both at once.
"""

from __future__ import annotations

from holdfast.agent.group.messages import Send
from holdfast.core.job.events import GuardianLost
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of, signal
from holdfast.core.wire.messages import Leave, StopJob, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.machine import Group

ECHO_S = 1.0
"""The same signal within this time is the same request: whoever signals a whole cgroup (Slurm, systemd) reaches us twice, once
directly and once through our guardian. A person who is in a hurry presses again."""


class Leaving:
    """What has told this node to go, and what it does then. `group`: see `agent.group.machine`."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.by = 0
        """The signal; 0: none. A lost guardian counts as SIGTERM."""
        self.since = NEVER
        self.why = ""
        self.in_a_hurry = False
        """It has been told so twice, or once after the job's end."""

    @property
    def complaint(self) -> str:
        """Of an agent that goes."""
        return f"stopped: it {self.why}"

    def signalled(self, signum: int, now: float) -> list[Action]:
        """The agent got a signal that is its own."""
        if self.by:
            return [] if self._is_echo(signum, now) else self._hurry(now)
        name, group = name_of(signum), self.group
        group.grace_s = group.term_grace_s
        text = f"received {name}; stopping the workers, SIGKILL in {group.grace_s:g} s, or at another signal"
        said: list[Action] = [] if group.is_early else [Say(text=text, level="warning")]
        return said + self._go(signum, f"received {name}", now)

    def signalled_late(self, signum: int, now: float) -> None:
        """The agent got one after the job's end, when there are only last lines to wait for."""
        self.in_a_hurry = self.in_a_hurry or not self._is_echo(signum, now)

    def _is_echo(self, signum: int, now: float) -> bool:
        """It says no more than what has been said."""
        return signum == self.by and now - self.since < ECHO_S

    def unguarded(self, now: float) -> list[Action]:
        """The guardian was killed: whoever did that may kill the agent next, and nobody would be left to end the workers."""
        text = "the process that was started (our guardian) was killed; stopping everything at once"
        actions: list[Action] = [Record(event=GuardianLost()), Say(text=text, level="error")]
        if not self.by and self.group.state != "ended":
            actions += self._go(signal.SIGTERM, "lost its guardian: the process that was started was killed", now)
        return actions + (self._hurry(now) if self.group.state != "ended" else [])

    def _go(self, signum: int, why: str, now: float) -> list[Action]:
        """This node's part ends: workers get `signum`."""
        group, goodbye = self.group, self._goodbye(why)
        if group.is_early:
            return [*goodbye, *group.exit(-signum, reason=why)]
        self.by, self.since, self.why, group.rejoin = signum, now, why, False
        if group.state == "running":
            return goodbye + group.stop(signum, f"the agent {why}", now)
        if group.state == "succeeded":
            return goodbye + group.all_gone(now)
        if group.state in ("joining", "stopped") and not group.hosting:
            return [*goodbye, *group.exit(1, complaint=self.complaint)]
        return goodbye

    def _hurry(self, now: float) -> list[Action]:
        """A second signal: no more grace."""
        group, self.in_a_hurry = self.group, True
        if group.stopping is not None:
            return group.stopping.kill(group.grace_s, now)
        return group.exit(1, complaint="stopped by a second signal, without waiting for the other nodes")

    def _goodbye(self, why: str) -> list[Action]:
        group, node = self.group, self.group.join.node
        if group.hosting:
            return [Send(message=StopJob(node=node, reason=f"{group.join.name} {why}"))]
        goodbye: list[Action] = [Send(message=Leave(node=node, round=group.round, reason=why))]
        if not group.workers.alive:
            # Said at once, because an assignment may be on its way to us that makes others wait for our workers.
            goodbye.append(Send(message=Stopped(node=node, round=group.round)))
        return goodbye
