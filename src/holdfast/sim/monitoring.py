"""The monitor of a simulated agent: the real part (`agent.workers.monitor_driver`), with eyes for simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from holdfast.agent.workers.monitor_driver import Monitoring
from holdfast.core.config.config import RunConfig
from holdfast.core.machine import Action, Observation
from holdfast.core.page.signs import Limits, Signs
from holdfast.monitor.messages import RankMeasured, RankSeen
from holdfast.sim.world import SimHost

BEATS_PER_S = 10.0  # What a simulated script does as long as it gets on.


class SimMonitoring(Monitoring):
    """The monitor of one agent."""

    def __init__(self, config: RunConfig, world: SimHost, *, node: str, perform: Callable[[Iterable[Action]], None]) -> None:
        workers: Any = None  # it would look there for logs
        super().__init__(config, world.as_host, workers, node=node, perform=perform, complain=_complain)
        self.world = world

    def look(self, local_rank: int) -> list[Observation]:
        """Look at one rank now: its script has set a limit."""
        return self._guarded(lambda: self._show(self._see(local_rank))) if local_rank in self.ranks else []

    def _log(self, local_rank: int) -> None:
        return None

    def _see(self, local_rank: int) -> RankSeen:
        worker, at = self.world.workers[self.ranks[local_rank].pid], self.world.clock.monotonic
        beat_at = self.world.timeline.now if worker.quiet_since is None else worker.quiet_since
        signs = Signs(
            first_beat_at=at(worker.born_at),
            beat_at=at(beat_at),
            beats=1 + int((beat_at - worker.born_at) * BEATS_PER_S),
            limits=Limits(beat_s=worker.limit_s, count=1 if worker.limit_s is not None else 0),
        )
        return RankSeen(local_rank=local_rank, signs=signs)

    def _measure(self, local_rank: int) -> RankMeasured:
        worker = self.world.workers[self.ranks[local_rank].pid]
        works = worker.quiet_since is None or worker.spins
        return RankMeasured(
            local_rank=local_rank, cpu_s=self.world.timeline.now if works else 0.0, io_bytes=0, state="S"
        )

    def _ask_gpus(self) -> None:
        self.gpus, self.gpus_at = [None], self.world.now()


def _complain(text: str) -> NoReturn:
    raise AssertionError(text)
