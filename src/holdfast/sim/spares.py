"""The warm spares of a simulated agent: the real part (`agent.spares.pool`), over processes that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import SIGKILL
from typing import Any

from holdfast.agent.group.machine import Group
from holdfast.agent.logs.attempt_logs import RankLogs
from holdfast.agent.spares.machine import MiB
from holdfast.agent.spares.messages import Lost, Made, Ready, RoundOver, StandingBy, Surveyed
from holdfast.agent.spares.pool import ParkedSpare, SparePool
from holdfast.agent.spares.state import Phase
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Event
from holdfast.core.machine import NEVER, Action, Observation
from holdfast.core.processes import ProcessGone
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.shm.pages import Page
from holdfast.sim.scene import MEMORY_BYTES, Scene, SpareLife
from holdfast.sim.world import KILL_S, SimHost

BEATS_AFTER_S = 0.4  # From a worker's start to its first heartbeat.

MODULES = ("os", "torch")  # What the script imports.

SPARE_BYTES = 200 * MiB

TEARDOWN_S = 0.01  # From a spare's death to its being reaped: it may be chosen meanwhile.


class Imported(Observation):
    """A spare has something to say."""

    pid: int


class SimSpare(ParkedSpare):
    """A spare's process."""

    def __init__(self, pid: int, local_rank: int, env: Mapping[str, str], life: SpareLife) -> None:
        link: Any = None
        super().__init__(local_rank, [], env, link)
        self.pid, self.life = pid, life
        self.alive = True

    def end(self) -> None:
        """It lives no longer."""
        self.alive = False


class SimSpares(SparePool):
    """The spares of one agent."""

    parked: dict[int, SimSpare]  # type: ignore[assignment]
    """Those that are neither given up nor a worker, by pid. One that has died is here until the agent has seen it."""

    def __init__(
        self,
        scene: Scene,
        place: str,
        config: RunConfig,
        world: SimHost,
        group: Group,
        *,
        local_ranks: Callable[[], Mapping[int, int]],
        perform: Callable[[Iterable[Action]], None],
    ) -> None:
        between = lambda: group.state.is_between
        super().__init__(config, world.as_host, {}, 0, local_ranks, perform=perform, between=between)
        self.scene, self.place, self.world, self.group = scene, place, world, group
        self.on = config.warm_spares != 0
        self.living: list[SimSpare] = []  # Processes that are no workers.
        self.opened = False
        """There have been workers, or somebody has told what to import: from now on a real agent has this part."""

    # --- what the agent tells -------------------------------------------------------------------------------------------

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        self.opened = self.on
        return super().begin_round(assigned, started) if self.on else []

    def recorded(self, event: Event, at_unix: float) -> None:
        if self.opened:
            super().recorded(event, at_unix)

    def stand_by(self, modules: Iterable[str]) -> None:
        self.loaded, self.opened = {0: list(modules)}, self.on
        if self.on:
            self._show(StandingBy())

    def heard(self, pid: int) -> None:
        """A spare has imported, or could not."""
        if (one := self.parked.get(pid)) is None:
            return
        if one.life.fails:
            self._end(pid, "importing torch failed")
            return
        reads = frozenset({"RANK"} if one.life.reads_rank else ())
        self._show(Ready(pid=pid, import_s=one.life.import_s, reads=reads, size_bytes=SPARE_BYTES))

    def gone(self, pid: int, exitcode: int) -> None:
        """The agent has seen one end."""
        if self.parked.pop(pid, None) is not None:
            self._show(Lost(pid=pid, reason=f"it ended with {exitcode}"))

    def strike(self) -> None:
        """Everything below the agent is being killed, or the agent is gone, or its host."""
        for one in self.living:
            self.kill(one)

    # --- handing over ---------------------------------------------------------------------------------------------------

    def become(self, local_rank: int, env: Mapping[str, str]) -> tuple[int | None, str]:
        """As `take`, of which the worker gets its life."""
        files: Any = None
        pid, why = self.take(local_rank, [], env, None, files) if self.opened else (None, "")
        if pid is not None:
            self.world.begin_life(pid, env)
        return pid, why

    def _orders(self, one: ParkedSpare, argv: list[str], page: Page | None, files: RankLogs) -> tuple[str, list[int], str]:
        return "", [], ""

    def _hand_over(self, pid: int, one: ParkedSpare, order: bytes, fds: list[int]) -> tuple[int, str]:
        assert isinstance(one, SimSpare)
        if not one.alive:  # which has not been seen yet
            return -1, "it has ended"
        if self.fork:
            return self.world.take_pid(), ""
        self.living.remove(one)
        return one.pid, ""

    def _forget(self, pid: int) -> None:
        self.parked.pop(pid, None)

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def _survey(self) -> Observation:
        world, nproc = self.world, self.group.join.nproc
        stands_by = self.machine.state.phase is Phase.STANDING_BY
        between = self.between() and not stands_by
        workers = [worker for worker in world.live if worker.pid in self.local_ranks()]
        if len(workers) < nproc and not stands_by and not between:
            return RoundOver()
        self.loaded = self.loaded or {0: list(MODULES)}
        return Surveyed(
            reached=True,
            between=between,
            beating=all(world.timeline.now - worker.born_at >= BEATS_AFTER_S for worker in workers),
            modules=nproc * len(MODULES),
            room_bytes=self.scene.room_bytes,
            total_bytes=MEMORY_BYTES,
            sizes={pid: SPARE_BYTES for pid in self.parked},
        )

    def _make(self, slot: int, local_rank: int) -> None:
        timeline, world, seats = self.scene.timeline, self.world, self.group.workers
        rank = str(seats[local_rank].rank) if local_rank in seats else "0"
        pid = world.take_pid()
        one = self.parked[pid] = SimSpare(pid, local_rank, {"RANK": rank}, self.scene.spare_life(self.place))
        self.living.append(one)
        self._show(Made(slot=slot, pid=pid))
        timeline.after(one.life.import_s, lambda: world.see(Imported(pid=pid)) if one in self.living else None)
        if one.life.lasts_s != NEVER:
            timeline.after(one.life.lasts_s, lambda: self._dies(one))

    def _dies(self, one: SimSpare) -> None:
        if one in self.living:
            self.kill(one)
        elif (worker := self.world.workers.get(one.pid)) is not None:
            self.world.end(worker, -SIGKILL)

    def _drop(self, pid: int) -> None:
        self.kill(self.parked.pop(pid))

    def kill(self, one: SimSpare) -> None:
        """SIGKILL to it."""

        def end() -> None:
            if one.alive and one in self.living:
                one.end()
                self.living.remove(one)
                gone = ProcessGone(pid=one.pid, exitcode=-SIGKILL)
                self.scene.timeline.after(TEARDOWN_S, lambda: self.world.see(gone))

        self.scene.timeline.after(KILL_S, end)
