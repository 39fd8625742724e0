"""Hosts on which stock torchrun runs, simulated: workers that speak to their host's daemon, and the daemon's lives.

A daemon is killed between any two of its actions; its journal is what it had kept by then. Workers fail, are started again by
their own launcher, and fall silent, whether a daemon hears it or not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kit.simulated.hosts import Process

from holdfast.core.machine import Action, Observation, Tick
from holdfast.core.wire.fleet import NodeState
from holdfast.core.wire.google_wire import FAILED, RUNNING, Method, WorkerInfo, WorkloadInfo
from holdfast.core.wire.protobuf import Message
from holdfast.sim.world import EPOCH, Clock
from holdfast.supervisor.daemon.host_repairs import resumed
from holdfast.supervisor.daemon.host_reports import HostReports, ShowTable
from holdfast.supervisor.daemon.host_table import HostRepair, HostTable, Keep, RpcHeard, StartRepair

if TYPE_CHECKING:
    from kit.simulated.fleet import FleetWorld

JOB = "stock"
BEAT_S, SILENCE_S = 1.0, 5.0  # Between two words of a worker; and in which one has to be heard.

BACK_S = 1.5
"""A daemon is started again by then: one that is away for longer than the supervisor's lease is a lost host."""


class StockHost:
    """One of them: its workers, its daemon's journal, and the daemon, if it lives."""

    def __init__(self, world: FleetWorld, name: str, ranks: range, crash_chance: float = 0.0) -> None:
        """`crash_chance`: how often the daemon is killed between two actions."""
        self.world, self.name, self.crash_chance = world, name, crash_chance
        self.states = dict.fromkeys(ranks, RUNNING)
        self.silent: set[int] = set()  # Ranks that say nothing.
        self.rows: dict[str, dict[str, Any]] = {}
        self.noted: list[str] = []  # What has gone wrong, in words, as the journal had it.
        self.daemon: SimDaemon | None = None
        self.lives = self.boots = 0
        self.offers: tuple[str, ...] = ()
        self.start()
        for rank in ranks:
            self._call(rank, Method.REGISTER_WORKLOAD, WorkloadInfo(workload_name=JOB))
            self._beat(rank)

    # --- what happens ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The daemon, unless it lives."""
        if self.daemon is None:
            self.lives += 1
            self.daemon = SimDaemon(self)

    def kill(self, back_s: float | None = None) -> None:
        """kill -9, of the daemon; it is started again."""
        if self.daemon is not None:
            self.daemon.die()
            self.daemon = None
            self.world.timeline.after(self.world.rng.uniform(0.05, BACK_S) if back_s is None else back_s, self.start)

    def fail(self, rank: int, back_s: float) -> None:
        """A rank fails, and says so at once; its launcher starts it again."""
        self.states[rank] = FAILED
        self._say(rank)
        self.world.timeline.after(back_s, partial(self.states.__setitem__, rank, RUNNING))

    def hang(self, rank: int, seconds: float) -> None:
        """A rank falls silent for a while."""
        self.silent.add(rank)
        self.world.timeline.after(seconds, partial(self.silent.discard, rank))

    def _beat(self, rank: int) -> None:
        self._say(rank)
        self.world.timeline.after(BEAT_S * self.world.rng.uniform(0.9, 1.1), partial(self._beat, rank))

    def _say(self, rank: int) -> None:
        if rank not in self.silent:
            worker = WorkerInfo(
                worker_address=f"{self.name}-{rank}", worker_name=f"worker-{rank}", global_rank=rank, state=self.states[rank]
            )
            self._call(rank, Method.HEARTBEAT, worker)

    def _call(self, rank: int, method: str, message: Message) -> None:
        """A client makes another connection when its daemon is another, and does not tell of its workload again."""
        if self.daemon is not None:
            at_unix = EPOCH + self.world.timeline.now
            self.daemon.see(RpcHeard(peer=f"{rank} of {self.lives}", method=method, message=message, at_unix=at_unix))

    def keep(self, keep: Keep) -> None:
        """A line of the journal."""
        owed = str((keep.row or {}).get("owed") or "")
        if owed and owed != self.rows.get(keep.key, {}).get("owed"):
            self.noted.append(owed)
        self.rows.pop(keep.key, None)
        if keep.row is not None:
            self.rows[keep.key] = keep.row

    def carry_out(self, repair: HostRepair) -> None:
        """An order to repair the host. One that can be repaired has a class of its own."""

    # --- what is seen ---------------------------------------------------------------------------------------------------

    def check_at_rest(self) -> list[str]:
        """What is wrong, when nothing has happened for a long while."""
        told = [deed.seen for deed in self.world.deeds() if f"({self.name}-" in deed.seen]
        is_out = self.world.node(self.name).standing != NodeState.FIT
        wrong = []
        for what in () if is_out else {*told, *self.noted}:  # of a node that is being taken out nothing is decided any more
            times, noted = told.count(what), self.noted.count(what)
            if not 0 < noted <= times:
                wrong.append(f"{what}: noted {noted} times by {self.lives} lives of the daemon, and acted on {times} times")
        if self.daemon is None:
            return [*wrong, f"{self.name} has no daemon"]
        known = {worker.info.global_rank: worker for worker in self.daemon.table.workers.values()}
        if set(known) != set(self.states):
            wrong.append(f"the daemon of {self.name} knows the ranks {sorted(known)}, and there are {sorted(self.states)}")
        wrong += [f"{one.owed}: is still owed" for one in known.values() if one.owed]
        wrong += [f"rank {rank} of {self.name} runs, and is not known to" for rank, one in known.items() if one.is_silent]
        return wrong


class SimDaemon(Process):
    """One life of a daemon."""

    def __init__(self, at: StockHost) -> None:
        super().__init__(at.world, f"{at.name}-daemon", Clock(origin=at.world.rng.uniform(0, 1e5)))
        self.at, now = at, self.host.now()
        self.table = HostTable.of(dict(at.rows), SILENCE_S, now)
        life, haste = f"{at.name}-daemon-{at.lives}", at.world.rng.uniform(0.5, 1.0)
        self.reports = HostReports(at.name, life, at.world.endpoints, haste, at.offers, str(at.boots))
        self.is_news = True
        self.soon()
        if self.table.repair is not None and not self.table.repair.is_over:
            self.see(resumed(self.table.repair, str(at.boots)))

    def see(self, seen: Observation) -> None:
        """Something is said to it."""
        self.is_news |= self._carry_out(self.table.observe(seen, self.host.now()))
        self.soon()

    def turn(self) -> None:
        if not self.alive:
            return
        for seen in [*self.host.wait(0.0), Tick()]:
            self._carry_out(self.reports.observe(seen, self.host.now()))
        if self.alive and self.host.now() >= self.table.deadline():
            self.see(Tick())
        if self.alive and self.is_news:
            self.is_news = False
            self._carry_out(self.reports.shows(self.table.copy(), self.host.now()))
        if self.alive:
            self.wake_at(min(self.table.deadline(), self.reports.deadline()))

    def _carry_out(self, actions: list[Action]) -> bool:
        """In order; it may die between any two. Whether there were any."""
        for action in actions:
            if self.alive and self.world.rng.random() < self.at.crash_chance:
                self.at.kill()
            if not self.alive:
                return False
            match action:
                case Keep():
                    self.at.keep(action)
                case ShowTable(seen=seen):
                    self.see(seen)
                case StartRepair(repair=repair):
                    self.at.carry_out(repair)
                case _:
                    self.perform(action)
        return bool(actions)
