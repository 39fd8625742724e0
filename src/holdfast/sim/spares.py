"""As `agent.spares.pool`, over simulated processes: the same machine, whose spares fail to import, die, and become workers."""

from __future__ import annotations

from signal import SIGKILL
from typing import TYPE_CHECKING

from holdfast.agent.group.messages import ImportsKnown, SparesAwaited
from holdfast.agent.spares.machine import MiB, Spares
from holdfast.agent.spares.messages import (
    EndSpare,
    Lost,
    MakeSpare,
    Ready,
    RoundBegan,
    RoundEnds,
    RoundOver,
    StandingBy,
    Survey,
    Surveyed,
)
from holdfast.core.machine import NEVER, Observation, Record, Say, Tick
from holdfast.core.processes import ProcessGone
from holdfast.sim.scene import MEMORY_BYTES, SpareLife
from holdfast.sim.world import KILL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from holdfast.agent.group.machine import Group
    from holdfast.agent.spares.machine import Changes
    from holdfast.core.machine import Action
    from holdfast.sim.scene import Scene
    from holdfast.sim.world import SimHost

BEATS_AFTER_S = 0.4
"""From a worker's start to its first heartbeat."""

MODULES = ("os", "torch")
"""What the script imports."""

SPARE_BYTES = 200 * MiB

TEARDOWN_S = 0.01
"""From a spare's death to its being reaped: it may be chosen meanwhile."""


class Imported(Observation):
    """A spare has something to say."""

    pid: int


class SimSpare:
    """A spare's process."""

    def __init__(self, pid: int, rank: str, life: SpareLife) -> None:
        self.pid, self.rank, self.life = pid, rank, life
        self.alive = True


class SimSpares:
    """The spares of one agent."""

    def __init__(
        self,
        scene: Scene,
        place: str,
        world: SimHost,
        group: Group,
        *,
        is_worker: Callable[[int], bool],
        perform: Callable[[Iterable[Action]], None],
    ) -> None:
        """`is_worker`: whether that pid is one of the round's."""
        self.scene, self.place, self.world, self.group = scene, place, world, group
        self.is_worker, self.perform, self.fork = is_worker, perform, scene.job.warm_fork
        self.machine = Spares(group.join.nproc, scene.job.warm_spares, fork=self.fork)
        self.on = scene.job.warm_spares != 0
        self.parked: dict[int, SimSpare] = {}
        """Those that are neither given up nor a worker, by pid. One that has died is here until the agent has seen it."""
        self.living: list[SimSpare] = []
        """Processes that are no workers."""
        self.modules: tuple[str, ...] = ()
        self.standing_by, self.told, self.awaited_until = False, 0, -NEVER
        self.opened = False
        """There have been workers, or somebody has told what to import."""

    # --- what the agent tells -------------------------------------------------------------------------------------------

    def round_began(self) -> None:
        """The workers of a round have been started."""
        self.standing_by, self.told, self.opened = False, 0, self.on
        if self.on:
            self._show(RoundBegan())

    def round_ends(self) -> None:
        """They are being ended, or end by themselves."""
        if self.opened:
            self._show(RoundEnds())

    def stand_by(self, modules: tuple[str, ...]) -> None:
        """This node waits, and has been told what to import."""
        self.standing_by, self.modules, self.opened = True, modules, self.on
        if self.on:
            self._show(StandingBy())

    def deadline(self) -> float:
        """When to call `due`."""
        return self.machine.deadline()

    def due(self) -> list[Observation]:
        """As `Parking.due`."""
        seen = self._imports_known() if self.world.now() >= self.machine.deadline() else []
        if (until := self.machine.awaited_until()) != self.awaited_until:
            self.awaited_until = until
            seen.append(SparesAwaited(until=until))
        return seen

    def _imports_known(self) -> list[Observation]:
        self._show(Tick())
        if self.standing_by or not self.machine.training or len(self.modules) <= self.told:
            return []
        self.told = len(self.modules)
        return [ImportsKnown(modules=self.modules)]

    def heard(self, pid: int) -> None:
        """A spare has imported, or could not."""
        if (one := self.parked.get(pid)) is None:
            return
        if one.life.fails:
            self._give_up(pid)
            self._show(Lost(pid=pid, reason="importing torch failed"))
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

    def take(self, local_rank: int, env: Mapping[str, str]) -> tuple[int | None, str]:
        """As `Parking.take`."""
        if not self.opened:
            return None, ""
        rank = env["RANK"]
        changed: dict[int, Changes] = {
            pid: {"RANK": (one.rank, rank)} if one.rank != rank else {} for pid, one in self.parked.items()
        }
        pid, why = self.machine.choose(local_rank, changed)
        if pid < 0:
            return None, why
        one = self.parked[pid]
        if not one.alive:  # which has not been seen yet
            self.machine.used(pid, "it has ended")
            self._give_up(pid)
            return None, "it has ended"
        self.machine.used(pid)
        if self.fork:
            return self.world.adopt(self.world.take_pid(), env), ""
        del self.parked[pid]
        self.living.remove(one)
        self.world.adopt(pid, env)
        return pid, ""

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def _show(self, seen: Observation) -> None:
        for action in self.machine.observe(seen, self.world.now()):
            match action:
                case Survey():
                    self._show(self._survey())
                case MakeSpare(slot=slot, local_rank=local_rank):
                    self._make(slot, local_rank)
                case EndSpare(pid=pid):
                    self._give_up(pid)
                case Record() | Say():
                    self.perform([action])
                case _:
                    raise AssertionError(f"simulated spares cannot do {action!r}")

    def _survey(self) -> Observation:
        world, nproc = self.world, self.group.join.nproc
        workers = [worker for worker in world.live if self.is_worker(worker.pid)]
        between = self.group.state.is_between
        if len(workers) < nproc and not self.standing_by and not between:
            return RoundOver()
        self.modules = self.modules or MODULES
        now = self.scene.timeline.now
        return Surveyed(
            reached=True,
            between=between and not self.standing_by,
            beating=all(now - worker.born_at >= BEATS_AFTER_S for worker in workers),
            modules=nproc * len(MODULES),
            room_bytes=self.scene.room_bytes,
            total_bytes=MEMORY_BYTES,
            sizes={pid: SPARE_BYTES for pid in self.parked},
        )

    def _make(self, slot: int, local_rank: int) -> None:
        timeline, world = self.scene.timeline, self.world
        seats = self.group.workers
        rank = str(seats[local_rank].rank) if local_rank in seats else "0"
        life = self.scene.spare_life(self.place)
        pid = world.take_pid()
        one = self.parked[pid] = SimSpare(pid, rank, life)
        self.living.append(one)
        self.machine.made(slot, pid, world.now())
        timeline.after(life.import_s, lambda: world.see(Imported(pid=pid)) if one in self.living else None)
        if life.lasts_s != NEVER:
            timeline.after(life.lasts_s, lambda: self._dies(one))

    def _dies(self, one: SimSpare) -> None:
        if one in self.living:
            self.kill(one)
        elif (worker := self.world.workers.get(one.pid)) is not None:
            self.world.end(worker, -SIGKILL)

    def _give_up(self, pid: int) -> None:
        self.kill(self.parked.pop(pid))

    def kill(self, one: SimSpare) -> None:
        """SIGKILL to it."""
        def end() -> None:
            if one.alive and one in self.living:
                one.alive = False
                self.living.remove(one)
                gone = ProcessGone(pid=one.pid, exitcode=-SIGKILL)
                self.scene.timeline.after(TEARDOWN_S, lambda: self.world.see(gone))

        self.scene.timeline.after(KILL_S, end)
