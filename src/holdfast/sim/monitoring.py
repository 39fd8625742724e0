"""As `agent.workers.monitor_driver`, over simulated workers: the same machine, which sees pages that are worked out when it
looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.agent.group.messages import Ended, Hung, PaceKnown, Started
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER, Observation, Record, Say, Tick
from holdfast.core.page.signs import Limits, Signs
from holdfast.core.value import fields_of
from holdfast.monitor.machine import Monitor
from holdfast.monitor.messages import (
    AskGpus,
    GpusSeen,
    Inform,
    MeasureRanks,
    Overdue,
    RankGone,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    SeeRanks,
)

if TYPE_CHECKING:
    from holdfast.core.machine import Action
    from holdfast.core.wire.messages import Assigned
    from holdfast.sim.world import SimHost, Worker

BEATS_PER_S = 10.0
"""What a simulated script does as long as it gets on."""


class SimMonitoring:
    """The monitor of one agent."""

    def __init__(self, place: str, world: SimHost, perform: Callable[[Iterable[Action]], None]) -> None:
        self.world, self.perform = world, perform
        self.monitor = Monitor(FaultTolerance(), node=place)
        self.workers: dict[int, Worker] = {}

    def begin_round(self, assigned: Assigned, started: Iterable[Observation]) -> list[Observation]:
        """Ranks have been started."""
        now = self.world.now()
        self.monitor.begin_round(assigned.longest_s, now)
        pids = {seen.local_rank: seen.pid for seen in started if isinstance(seen, Started)}
        self.workers = {local_rank: self.world.workers[pid] for local_rank, pid in pids.items()}
        return [
            found
            for local_rank in pids
            for found in self._show(RankStarted(local_rank=local_rank, rank=assigned.base_rank + local_rank, started_at=now))
        ]

    def saw(self, seen: Observation) -> None:
        """What the group is shown: some ranks end."""
        if isinstance(seen, Ended) and seen.local_rank in self.workers:
            del self.workers[seen.local_rank]
            self._show(RankGone(local_rank=seen.local_rank))

    def deadline(self) -> float:
        """When to call `due`."""
        return self.monitor.deadline() if self.workers else NEVER

    def due(self) -> list[Observation]:
        """What the passing of time has brought."""
        return self._show(Tick()) if self.world.now() >= self.deadline() else []

    def look(self, local_rank: int) -> list[Observation]:
        """Look at one rank now: its script has set a limit."""
        return self._show(self._see(local_rank))

    def _show(self, seen: Observation) -> list[Observation]:
        found: list[Observation] = []
        world = self.world
        for action in self.monitor.observe(seen, world.now()):
            match action:
                case SeeRanks(local_ranks=local_ranks):
                    for local_rank in local_ranks:
                        found += self._show(self._see(local_rank))
                case MeasureRanks(local_ranks=local_ranks):
                    found += self._show(RanksMeasured(ranks=tuple(map(self._measure, local_ranks))))
                case AskGpus():
                    found += self._show(GpusSeen(busy=None))
                case Overdue(local_rank=local_rank, reason=reason, silent_s=quiet_s):
                    found.append(Hung(local_rank=local_rank, reason=reason, at_unix=world.unix(), quiet_s=quiet_s))
                case Inform():
                    found.append(PaceKnown(**fields_of(action)))
                case Record() | Say():
                    self.perform([action])
                case _:
                    raise AssertionError(f"a simulated monitor cannot do {action!r}")
        return found

    def _see(self, local_rank: int) -> RankSeen:
        worker, true = self.workers[local_rank], self.world.timeline.now
        beat_at = true if worker.quiet_since is None else worker.quiet_since
        at = self.world.clock.monotonic
        signs = Signs(
            first_beat_at=at(worker.born_at),
            beat_at=at(beat_at),
            beats=1 + int((beat_at - worker.born_at) * BEATS_PER_S),
            limits=Limits(beat_s=worker.limit_s, count=1 if worker.limit_s is not None else 0),
        )
        return RankSeen(local_rank=local_rank, signs=signs)

    def _measure(self, local_rank: int) -> RankMeasured:
        worker = self.workers[local_rank]
        works = worker.quiet_since is None or worker.spins
        return RankMeasured(
            local_rank=local_rank, cpu_s=self.world.timeline.now if works else 0.0, io_bytes=0, state="S"
        )
