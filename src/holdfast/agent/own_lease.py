"""Until when may this node's ranks act, and who is told? The guardian, the ranks, and a timer that wakes a stopped agent.

A node that was stopped (SIGSTOP to all of it, a Ctrl-Z, a frozen container) may go on when others hold its ranks. So its agent
is the first to act: the kernel wakes it a moment after its guardian would have ended it (`runtime.process.wake_up`), and on
waking it kills its ranks before it hears anything else. They are still stopped then. Where all of a host is frozen, no timer
helps: agent and ranks wake in one moment, and the ranks live on for as long as a kill takes.
"""

from __future__ import annotations

from holdfast.agent.group.messages import LeaseOver
from holdfast.agent.node import Node
from holdfast.core.machine import Observation
from holdfast.runtime.host import Host
from holdfast.runtime.process.guardian import STRIKE_S, Lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.process.wake_up import WakeUp

WAKE_S = STRIKE_S + 0.05
"""Seconds from the end of the lease until a stopped agent wakes. An awake guardian has ended it by then; the fence is 0.5 s."""

STRUCK = "the lease expired while this agent did not run: its workers were killed, since others may hold their ranks"


class OwnLease:
    """The lease of this node, as others are shown it."""

    def __init__(self, host: Host, node: Node, lease: Lease | None) -> None:
        """`lease`: what the guardian looks at. None: there is no guardian."""
        self.host, self.node, self.lease = host, node, lease
        self.shown: float | None = None  # Until when; None: nobody counts on it.
        self.turned_at = host.now()  # When the agent had its last turn.
        self.timer: WakeUp | None = None  # None: not yet, or it cannot be had.

    def arm(self) -> None:
        """Make the timer: while the link to the coordinator is being made, and before there is a lease."""
        if self.node.member is None:
            return
        from holdfast.runtime.process.wake_up import WakeUp  # loads ctypes, and only an agent with a lease needs it

        try:
            self.timer = WakeUp()
            self.timer.at(0.0 if self.shown is None else self.shown + WAKE_S)
        except OSError as error:
            self.timer = None
            self.host.complain(f"no timer ({error}): if this whole node is stopped and continued, its ranks go on for a moment")

    def show(self) -> None:
        """Tell everybody, if it has changed."""
        if self.node.member is None or (until := self.node.lease_ends) == self.shown:
            return
        self.shown = until
        self.host.show_lease(until)
        if self.lease is not None:
            self.lease.none() if until is None else self.lease.renew(until)
        if self.timer is not None:
            self.timer.at(0.0 if until is None else until + WAKE_S)

    def enforce(self) -> None:
        """After each wait: if the agent has slept through the end of the lease, end the ranks before anything else is done.

        What came meanwhile may have renewed the lease, but for a lease from the last turn on at most."""
        before, self.turned_at = self.turned_at, self.host.now()
        lease, member = self.lease, self.node.member
        if lease is None or member is None or self.shown is None or self.turned_at < self.shown:
            return
        if not lease.suspended and self.turned_at - before < member.lease_s:
            return
        lease.strike()  # before it: their ends are not to be taken for failures
        self.host.strike()
        if lease.suspended:
            self.host.stop()  # the user has stopped the job (Ctrl-Z): this agent goes on with `fg`

    def explained(self, seen: list[Observation]) -> list[Observation]:
        """What this host saw; and before it, if the workers were ended since the lease is over, why: they have not failed."""
        if self.lease is None or not self.lease.struck or not self.node.group.has_workers:
            return seen
        return [LeaseOver(reason=STRUCK, until=self.host.now()), *seen]
