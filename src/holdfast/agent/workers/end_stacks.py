"""Where was each rank when it was asked to end? A worker shows its stack as it goes, and the record keeps it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.agent.component import Component
from holdfast.agent.group.machine import Group
from holdfast.agent.workers.workers import Workers
from holdfast.core.machine import Observation
from holdfast.core.processes import ProcessGone


class EndStacks(Component):
    """Those of this node's workers."""

    sees = (ProcessGone,)

    def __init__(self, group: Group, workers: Workers, keep: Callable[[int, int, str], None]) -> None:
        """`keep`: takes rank, local rank and stack."""
        self.group, self.workers, self.keep = group, workers, keep

    def saw(self, seen: Observation) -> None:
        assigned = self.group.assigned
        # A process that is not known is of an earlier round: the kernel has let go of it only now.
        if isinstance(seen, ProcessGone) and seen.stack and assigned is not None and seen.pid in self.workers.local_ranks:
            local_rank = self.workers.local_ranks[seen.pid]
            self.keep(assigned.base_rank + local_rank, local_rank, seen.stack)
