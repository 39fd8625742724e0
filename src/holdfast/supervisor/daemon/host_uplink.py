"""How does a host's daemon reach the supervisor? The links of its `supervisor.daemon.host_reports`, behind one descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.core.machine import Action, Observation, Say, Tick
from holdfast.core.wire.fleet import FLEET, FleetMessage
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.runtime.host import Host
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.net import Network
from holdfast.supervisor.daemon.host_reports import HostReports, ShowTable
from holdfast.supervisor.daemon.host_table import HostTable

if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Shelter


class HostUplink:
    """The way of a daemon to its supervisor, in its loop's thread."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        name: str,
        *,
        secret: bytes,
        shelter: Shelter | None,
        say: Callable[[str], None],
        see: Callable[[Observation], None],
    ) -> None:
        """`endpoints`: where the supervisor may be; `name`: the node's; `see` shows the table what it has ordered or heard."""
        self.say, self.see = say, see
        self.inner = Host(say)
        self.network = Network(self.inner, Identity(FLEET, secret), ("", 0), shelter=shelter, family=FleetMessage)
        life = f"{name}-daemon-{os.getpid()}-{os.urandom(4).hex()}"
        self.reports = HostReports(name, life, endpoints, haste=0.5 + os.urandom(1)[0] / 512)

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self.inner.epoll.fileno()

    def deadline(self) -> float:
        """When to call `due`."""
        return min(self.reports.deadline(), self.network.deadline())

    def shows(self, table: HostTable) -> None:
        """The table is so now."""
        self._carry_out(self.reports.shows(table, self.inner.now()))

    def due(self) -> None:
        """What has come, and what the passing of time has brought."""
        for seen in [*self.inner.heard(self.inner.epoll.poll(0)), *self.network.expire(self.inner.now()), Tick()]:
            self._carry_out(self.reports.observe(seen, self.inner.now()))

    def close(self) -> None:
        """The daemon ends; its host does not."""
        self._carry_out(self.reports.close(self.inner.now()))
        self.network.close()
        self.inner.close()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for one in self.network.perform(action):
                        self._carry_out(self.reports.observe(one, self.inner.now()))
                case Say(text=text):
                    self.say(text)
                case ShowTable(seen=seen):
                    self.see(seen)
