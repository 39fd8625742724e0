"""What may every part of an agent use? The configuration, this host, the record, the node's machines and its links."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.agent.node import Node
from holdfast.agent.reporting.record import Telling
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import Action
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.runtime.host import Host
from holdfast.telemetry.record.state_dir import JobDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.net import Network


class Surroundings:
    """One agent's."""

    def __init__(
        self,
        config: RunConfig,
        host: Host,
        telling: Telling,
        node: Node,
        network: Network | None,
        job_dir: JobDir,
        perform: Callable[[Iterable[Action]], None],
    ) -> None:
        """`network`: None in a job of one node. `perform`: carries out what a part's machine wants of the agent."""
        self.config, self.host, self.telling, self.node = config, host, telling, node
        self.network, self.job_dir, self.perform = network, job_dir, perform

    def rendezvous(self) -> Rendezvous | None:
        """The coordinator's machine. None: the coordinator is elsewhere."""
        return self.node.server.rendezvous if self.node.server is not None else None
