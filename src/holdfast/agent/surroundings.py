"""The objects that every component gets: configuration, host, record, the node's machines and its network."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.agent.node import Node
from holdfast.agent.reporting.agent_log import AgentLog
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import Action
from holdfast.core.value import Value
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.runtime.host import Host
from holdfast.telemetry.record.state_dir import JobDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.network import Network


class Surroundings(Value):
    """One agent's."""

    config: RunConfig
    host: Host
    agent_log: AgentLog
    node: Node
    network: Network | None  # None: a job of one node.
    job_dir: JobDir
    perform: Callable[[Iterable[Action]], None]  # Carries out what a part's machine wants of the agent.

    def rendezvous(self) -> Rendezvous | None:
        """The coordinator's machine. None: the coordinator is elsewhere."""
        return self.node.server.rendezvous if self.node.server is not None else None
