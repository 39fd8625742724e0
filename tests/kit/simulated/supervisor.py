"""A supervisor, simulated: its machine, and the store by which it leads. It dies, is stopped or loses the lead between any two
of its actions.

Alone it has a file, and leads as long as it lives. Of a pair each stands by until nobody's lease holds in the store, which may
be away; who leads renews its own, and gives the lead up when it could not, or cannot write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kit.simulated.hosts import Process, Scene

from holdfast.core.machine import NEVER, Action, Say, Tick
from holdfast.sim.world import EPOCH, Clock
from holdfast.supervisor.connections import Connections
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Call, Keep
from holdfast.supervisor.fleet.policies.default import Default
from holdfast.supervisor.fleet.state import Kept
from holdfast.supervisor.store import TABLES

LEASE_S = 5.0  # In which a host has to be heard.

TTL_S, MARGIN, LOOK_S = 5.0, 0.9, 1.0
"""The leader's lease, how much of it the leader itself uses, and how often one looks that stands by."""


class SimStore:
    """What is kept, and who may write there."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, object]] = {table: {} for table in TABLES}
        self.generation = 0
        self.leader: SimSupervisor | None = None
        self.until = 0.0  # When the leader's lease ends, in true time.
        self.away = False

    def go_away(self) -> None:
        """It answers nobody."""
        self.away = True

    def come_back(self) -> None:
        """It answers again."""
        self.away = False

    def seek(self, who: SimSupervisor, now: float) -> bool:
        """Let it lead, if nobody does."""
        if self.away or (self.leader is not None and now < self.until):
            return False
        self.leader = who
        self.renew(who, now)
        self.generation += 1
        return True

    def renew(self, who: SimSupervisor, now: float) -> bool:
        """Lengthen the leader's lease."""
        if self.away or self.leader is not who:
            return False
        self.until = NEVER if who.is_alone else now + TTL_S
        return True

    def keep(self, who: SimSupervisor, batch: Iterable[Keep]) -> bool:
        """Write, all or nothing. False: it is not for that one to write any more, or the store is away."""
        if self.away or self.leader is not who:
            return False
        for keep in batch:
            if keep.value is None:
                self.tables[keep.table].pop(keep.key, None)
            else:
                self.tables[keep.table][keep.key] = keep.value
        return True

    def release(self, who: SimSupervisor) -> None:
        """A file's lock goes with its process. A lease does not."""
        if self.leader is who and who.is_alone:
            self.leader = None

    def kept(self) -> Kept:
        """All of it."""
        tables: dict[str, Any] = {name: tuple(table.values()) for name, table in self.tables.items()}
        return Kept(**tables)


class SimSupervisor(Process):
    """One life of a supervisor."""

    def __init__(
        self,
        world: Scene,
        store: SimStore,
        endpoint: str,
        *,
        end: Callable[[SimSupervisor, float | None], None],
        call: Callable[[SimSupervisor, Call], None],
    ) -> None:
        """`end`: it is no more, and another life of it begins after so many seconds; None: any. `call`: of the orchestrator."""
        super().__init__(world, endpoint, Clock(origin=world.rng.uniform(0, 1e5)))
        self.store, self.end, self.call = store, end, call
        self.is_alone = len(world.endpoints) == 1
        self.leads_until = 0.0  # As it reckons itself, in true time.
        self.connections: Connections | None = None  # None: it stands by.
        self.pending: deque[Action] = deque()
        self.batch: list[Keep] = []
        self.begins = False  # It takes the lead: it is not killed in that.
        self.is_sure = False
        """It has just made sure that it leads, and then been stopped: what it was about to do it does when it goes on."""
        self._look()

    # --- who leads ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Try to lead; else, later."""
        store, timeline = self.store, self.world.timeline
        if not self.alive or self.connections is not None:
            return
        if self.paused or not store.seek(self, timeline.now):
            timeline.after(LOOK_S * self.world.rng.uniform(0.5, 1.0), self._look)
            return
        self._leads_for_now()
        now, at_unix = self.host.now(), EPOCH + timeline.now
        fleet = Fleet(
            Default(), generation=store.generation, lease_s=LEASE_S, now=now, now_unix=at_unix, kept=store.kept(),
            repair=self.world.repair, gives=self.world.said,
        )  # fmt: skip
        self.connections = Connections(fleet)
        self.links.listen(self.place)
        self.begins = True
        self.carry_out(self.connections.begin(now))
        self.begins = False
        self.soon()

    def _leads_for_now(self) -> None:
        now = self.world.timeline.now
        self.leads_until = NEVER if self.is_alone else now + MARGIN * TTL_S
        if not self.is_alone:
            self.world.timeline.after(TTL_S / 4, self._renew)

    def _renew(self) -> None:
        if not self.alive or self.connections is None:
            return
        if not self.paused and self.store.renew(self, self.world.timeline.now):
            self._leads_for_now()
            return
        self.world.timeline.after(TTL_S / 20, self._renew)
        self.soon()

    def _leads(self) -> bool:
        """Whether it may act. If not, it stands by from now on: another life of it begins."""
        if self.world.timeline.now < self.leads_until:
            return True
        self.end(self, 0.0)
        return False

    # --- its loop -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        if not self.alive or self.paused or self.connections is None or not self._leads():
            return
        self._go()
        for seen in self.host.wait(0.0):
            if self.alive:
                self.carry_out(self.connections.observe(seen, self.host.now()))
        while self.alive and not self.paused and self.host.now() >= self.connections.deadline():
            self.carry_out(self.connections.observe(Tick(), self.host.now()))
        self.wake_at(self.connections.deadline())

    def pause(self, seconds: float) -> None:
        """It is stopped for a while: what goes on is its lease."""
        self.paused = True
        self.world.timeline.after(seconds, self.go_on)

    def go_on(self) -> None:
        """It runs again, right where it was."""
        self.paused = False
        if self.is_sure:
            self._go()
        self.turn()

    def carry_out(self, actions: Iterable[Action]) -> None:
        """In order; it may die or be stopped between any two. What follows in one go of what is kept is kept whole or not at
        all."""
        self.pending.extend(actions)
        self._go()

    def _go(self) -> None:
        while self.alive and not self.paused and self.pending:
            action = self.pending.popleft()
            if isinstance(action, Keep):
                self.batch.append(action)
            elif not isinstance(action, Say):
                self._act(action)
        if self.alive and not self.pending and not self.paused:
            self._keep()

    def _act(self, action: Action) -> None:
        if not self.is_sure:
            if not self._keep() or self._dies() or not self._leads():
                return
            if self.world.rng.random() < self.world.stop_chance:
                self.is_sure = True
                self.pending.appendleft(action)
                self.pause(self.world.rng.uniform(0.5, 20.0))
                return
        self.is_sure = False
        if isinstance(action, Call):
            self.call(self, action)
        else:
            self.perform(action)

    def _keep(self) -> bool:
        batch, self.batch = self.batch, []
        if not batch:
            return True
        if self._dies():
            return False
        if self.store.keep(self, batch):
            return True
        self.end(self, 0.0)
        return False

    def _dies(self) -> bool:
        if self.alive and self.world.rng.random() < (0.0 if self.begins else self.world.crash_chance):
            self.end(self, None)
        return not self.alive
