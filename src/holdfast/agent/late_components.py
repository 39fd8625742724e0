"""Which parts does an agent get once its first workers run? The monitor, warm spares, stacks, the link to a supervisor.

They take time to load, and no worker needs them at its start.
"""

from __future__ import annotations

from holdfast.agent.component import Component
from holdfast.agent.control.control_handler import ControlHandler
from holdfast.agent.spares.pool import SparePool
from holdfast.agent.surroundings import Surroundings
from holdfast.agent.workers.monitor_driver import Monitoring
from holdfast.agent.workers.rank_stacks import STACKS_S
from holdfast.agent.workers.stacks import Stacks
from holdfast.agent.workers.workers import Workers


class LateComponents:
    """One agent's."""

    def __init__(
        self, around: Surroundings, workers: Workers, control: ControlHandler, *, supervisor_secrets: tuple[bytes, bytes]
    ) -> None:
        """`supervisor_secrets`: the one that the supervisor knows, and the job's own."""
        config, host = around.config, around.host
        others_s = STACKS_S if around.network is not None else 0.0
        self.stacks = Stacks(workers, around.job_dir.incident_path, others_s=others_s)
        """Where the ranks are, once one has hung."""
        self.monitoring: Monitoring | None = None  # None: the ranks are not watched.
        self.spares: SparePool | None = None  # None: no warm spare is made.
        self.parts: list[Component] = [self.stacks]
        if config.supervisors:
            from holdfast.agent.reporting.supervisor_link import SupervisorLink  # loads the network

            secret, own = supervisor_secrets
            self.parts.append(SupervisorLink(around, control, secret=secret, own=own, progress=self.progress))
        if config.ft.monitor != "off":
            name, complain = around.agent_log.name, around.agent_log.degraded
            self.monitoring = Monitoring(config, host, workers, node=name, perform=around.perform, complain=complain)
            self.parts.append(self.monitoring)
        if config.warm_spares != 0:
            group = around.node.group
            self.spares = SparePool(
                config,
                host,
                workers.given,
                workers.hook,
                lambda: workers.local_ranks,
                perform=around.perform,
                between=lambda: group.state.is_between,
            )
            workers.use_spares(self.spares.take)
            self.parts.append(self.spares)

    def progress(self, local_rank: int) -> dict[str, object]:
        """What is known of a local rank's progress."""
        return self.monitoring.shown(local_rank) if self.monitoring is not None else {}
