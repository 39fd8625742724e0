"""How does a host's daemon reach the supervisor? By the links of its `host_reports`, in the daemon's loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from holdfast.core.job.xid import DeviceFault
from holdfast.core.machine import Action, Observation, Say, Tick
from holdfast.core.value import Value
from holdfast.core.wire.fleet import FLEET, FleetMessage, TroubleKind
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.runtime.host import Host
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network
from holdfast.runtime.secrets import Shelter
from holdfast.supervisor.daemon.host_reports import HostReports, ShowTable
from holdfast.supervisor.daemon.host_table import HostTable


class Supervisor(Value):
    """Where the supervisor may be, and how it is spoken to."""

    endpoints: tuple[str, ...]
    node_name: str
    """What it is to call this host."""
    secret: bytes = b""
    shelter: Shelter | None = None


class HostUplink:
    """The daemon's links. What its `host` sees is to be shown to `observe`."""

    def __init__(
        self, host: Host, supervisor: Supervisor, say: Callable[[str], None], see: Callable[[Observation], None],
        offers: tuple[str, ...] = (), boot: str = ""
    ) -> None:
        """`see` shows the table what the supervisor has ordered or heard; `offers`, `boot`: as of `HostReports`."""
        self.host, self.say, self.see = host, say, see
        identity, name = Identity(FLEET, supervisor.secret), supervisor.node_name
        self.network = Network(host, identity, ("", 0), shelter=supervisor.shelter, family=FleetMessage)
        life = f"{name}-daemon-{os.getpid()}-{os.urandom(4).hex()}"
        self.reports = HostReports(name, life, supervisor.endpoints, 0.5 + os.urandom(1)[0] / 512, offers, boot)

    def deadline(self) -> float:
        return min(self.reports.deadline(), self.network.deadline())

    def shows(self, table: HostTable) -> None:
        self._carry_out(self.reports.shows(table, self.host.now()))

    def suffers(self, fault: DeviceFault) -> None:
        """Tell what is wrong with the host."""
        kind = TroubleKind.DEVICE if fault.xid else TroubleKind.UNFIT
        self._carry_out(self.reports.suffers(kind, fault.what, self.host.now(), xid=fault.xid, device=fault.device))

    def observe(self, seen: Observation) -> None:
        self._carry_out(self.reports.observe(seen, self.host.now()))

    def due(self) -> None:
        for seen in [*self.network.expire(self.host.now()), Tick()]:
            self.observe(seen)

    def close(self) -> None:
        self._carry_out(self.reports.close(self.host.now()))
        self.network.close()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for seen in self.network.perform(action):
                        self.observe(seen)
                case Say(text=text):
                    self.say(text)
                case ShowTable(seen=seen):
                    self.see(seen)
