"""What a supervisor sees, simulated: hosts' agents, and the job that they run.

The jobs' own control plane has a simulator of its own (`sim.cluster`); here a job is as much as the supervisor can see of one:
it has a coordinator, which leaves out who is excluded and who is lost, and takes spares in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from holdfast.agent.reporting.supervisor_uplink import Obey, Uplink
from holdfast.core.machine import NEVER, Action, Tick
from holdfast.core.wire.fleet import Order, RankSaid, Standing, Trouble
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.sim.network import Ether, SimLinks
from holdfast.sim.timeline import Timeline
from holdfast.sim.world import Clock, Life, SimHost
from holdfast.supervisor.fleet.state import Gives, RepairRules

PLACE = "supervisor"

JOB_LEASE_S, REFORM_S = 3.0, 0.1  # Of the job; and from a change of members to the next round.


class Scene:
    """What every process of a fleet is in: time, chance, the network, and where the supervisors are."""

    def __init__(
        self, seed: int, crash_chance: float, supervisors: int, repair: RepairRules | None = None, said: Gives | None = None
    ) -> None:
        """`said`: what the supervisor is told of the orchestrator."""
        self.rng = random.Random(seed)
        self.timeline = Timeline()
        self.ether = Ether(self.timeline, self.rng)
        self.crash_chance, self.stop_chance = crash_chance, 0.0
        """How often a supervisor is killed, and stopped, between two actions."""
        self.endpoints = tuple(f"{PLACE}-{number}" for number in range(supervisors))
        self.repair, self.said = repair or RepairRules(), said or Gives()


class SimJob:
    """What is seen of a job: its members, who of them has ranks, and who must not have any."""

    def __init__(
        self, timeline: Timeline, size: int, least: int, hosts: dict[str, SimReporter], formed: Callable[[], None]
    ) -> None:
        """`hosts`: those whose agents notice a new round. `formed`: one begins."""
        self.timeline, self.size, self.least, self.hosts, self.formed = timeline, size, least, hosts, formed
        self.members: list[str] = []
        self.excluded: dict[str, str] = {}
        self.ranks: list[str] = []
        self.round = 0

    @property
    def coordinator(self) -> str:
        """The node on which it is."""
        return next((name for name in self.ranks if name in self.members), self.members[0] if self.members else "")

    def join(self, name: str) -> None:
        """A node is there."""
        if name not in self.members:
            self.members.append(name)
            self.timeline.after(REFORM_S, self.reform)

    def lose(self, name: str) -> None:
        """A node is not heard any more."""
        if name in self.members:
            self.members.remove(name)
            self.timeline.after(REFORM_S, self.reform)

    def exclude(self, name: str, reason: str) -> tuple[bool, str]:
        """As the coordinator does it, and answers."""
        if name in self.excluded:
            return True, f"{name} is excluded already"
        if name in self.ranks and len(self._free(without=name)) < self.least:
            return False, f"the job cannot go on without {name}"
        self.excluded[name] = reason
        self.timeline.after(REFORM_S, self.reform)
        return True, f"{name} is excluded"

    def readmit(self, name: str) -> None:
        """It may have ranks again."""
        self.excluded.pop(name, None)
        self.reform()

    def restart(self, number: int) -> None:
        """The ranks of that round start again."""
        self.round += self.round == number

    def reform(self) -> None:
        """Another round, if who should have ranks is not who has them."""
        free = self._free()
        kept = [name for name in self.ranks if name in free]
        wanted = (kept + [name for name in free if name not in kept])[: self.size]
        if set(wanted) == set(self.ranks):
            return
        self.ranks = wanted if len(wanted) >= self.least else []
        if self.ranks:
            self.round += 1
            self.formed()
        for host in self.hosts.values():
            host.news()

    def _free(self, without: str = "") -> list[str]:
        return [name for name in self.members if name not in self.excluded and name != without]


class Process:
    """Something with links and a machine, that takes turns while it lives."""

    def __init__(self, world: Scene, place: str, clock: Clock) -> None:
        self.world, self.place = world, place
        self.alive, self.paused = True, False
        self.host = SimHost(world.timeline, clock, _starts_nothing, self.soon, 0)
        self.links = SimLinks(world.ether, self.host, place, lambda: self.paused)
        self.turn_at = NEVER

    def soon(self) -> None:
        """Have a turn at this moment."""
        self.world.timeline.after(0.0, self.turn)

    def wake_at(self, deadline: float) -> None:
        """Have a turn when the machine's deadline has come."""
        if deadline >= NEVER:
            return
        at = self.host.clock.true(deadline) + 1e-6
        if self.world.timeline.now < self.turn_at <= at:
            return  # there will be one by then
        self.turn_at = at
        self.world.timeline.at(at, self.turn)

    def turn(self) -> None:
        """One turn of its loop."""
        raise NotImplementedError

    def perform(self, action: Action) -> None:
        """What every World can do; the rest is of no matter here."""
        if isinstance(action, (Connect, Transmit, HangUp)):
            self.links.perform(action)

    def die(self, *, power: bool = False) -> None:
        """Killed, or without power: then nobody is told."""
        self.alive = False
        if power:
            self.links.lose_power()
        self.links.close()


def _starts_nothing(env: Mapping[str, str]) -> Life:
    raise AssertionError("this process starts no workers")


class SimReporter(Process):
    """The agent of one host, for the job."""

    def __init__(self, world: Scene, job: SimJob, name: str, life: int) -> None:
        super().__init__(world, name, Clock(origin=world.rng.uniform(0, 1e5), rate=1 + world.rng.uniform(-1e-4, 1e-4)))
        self.job, self.name = job, name
        self.uplink = Uplink(f"{name}-{life}", *world.endpoints, now=self.host.now(), haste=world.rng.uniform(0.5, 1.0))
        self.news()

    def news(self) -> None:
        """Something has changed here."""
        self.is_news = True
        self.soon()

    def turn(self) -> None:
        if not self.alive or self.paused:
            return
        now = self.host.now()
        for seen in self.host.wait(now):
            self._do(self.uplink.observe(seen, now))
        if self.is_news:
            self.is_news = False
            self._do(self.uplink.stands(self._standing(), now))
        if now >= self.uplink.deadline():
            self._do(self.uplink.observe(Tick(), now))
        self.wake_at(self.uplink.deadline())

    def trouble(self, kind: str, what: str, xid: int = 0) -> None:
        """Something goes wrong here."""
        if self.alive and not self.paused:
            said = Trouble(node=self.uplink.reporter, number=0, kind=kind, what=what, device="gpu0" if xid else "", xid=xid)
            self._do(self.uplink.trouble(said, self.host.now()))

    def pause(self, seconds: float) -> None:
        """It hangs."""
        self.paused = True
        if seconds > JOB_LEASE_S:
            self.world.timeline.after(JOB_LEASE_S, lambda: self.job.lose(self.name) if self.alive else None)
        self.world.timeline.after(seconds, self.go_on)

    def go_on(self) -> None:
        """It hangs no more."""
        self.paused = False
        if self.alive:
            self.job.join(self.name)
            self.news()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Obey):
                self.world.timeline.after(self.world.rng.uniform(0.0, 0.05), partial(self._obey, action.order))
            else:
                self.perform(action)

    def _obey(self, order: Order) -> None:
        if not self.alive or self.paused:
            return
        job = self.job
        ok, text = True, "done"
        match order.verb:
            case "exclude":
                ok, text = job.exclude(order.target, order.reason)
            case "readmit":
                job.readmit(order.target)
            case "restart":
                job.restart(order.round)
                self.news()
        self._do(self.uplink.did(order.order, ok, text))

    def _standing(self) -> Standing:
        job = self.job
        place = job.ranks.index(self.name) if self.name in job.ranks else -1
        return Standing(
            node=self.uplink.reporter,
            number=0,
            name=self.name,
            job="train",
            life="one",
            state="running" if place >= 0 else "joining",
            round=job.round,
            ranks=(RankSaid(rank=place, local_rank=0, state="running"),) if place >= 0 else (),
            spare_because="there are enough" if place < 0 and job.ranks else "",
            least=job.least,
            members=tuple(job.members) if job.coordinator == self.name else None,
        )
