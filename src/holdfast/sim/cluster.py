"""Many nodes, one job: starts agents, lets things happen to them, and shows everything to the checkers.

A *place* is a host that keeps its name; an agent that is started there again is another life with another identity.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from signal import SIGKILL

from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import ControlAsked, Reached, ToCoordinator
from holdfast.agent.group.state import State, WorkerState
from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.agent.leader.store_elected_node import StoreElectedNode
from holdfast.agent.node import Node
from holdfast.agent.own_lease import WAKE_S
from holdfast.core.config.own_options import CONTINUE
from holdfast.core.job.events import ControlKind
from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.messages import Join, Request, RequestKind
from holdfast.recovery.policy import Progress, RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.election.elector_memory import ElectorMemory, Remember, Remembered
from holdfast.rendezvous.election.messages import ForceAsked
from holdfast.rendezvous.election.store_election import STORE_FAILOVER_S, Election
from holdfast.rendezvous.election.succession import Succession
from holdfast.rendezvous.election.succession_state import Setup
from holdfast.rendezvous.election.voting import PROPOSE_S
from holdfast.rendezvous.election.witness_claims import Claim, Claimed
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.sim.agent import SimAgent
from holdfast.sim.checks import GUARDIAN_PATIENCE_S, GUARDIAN_S, Checks, Violation
from holdfast.sim.network import ENDPOINT, Ether, Side, SimLinks
from holdfast.sim.scene import Ailment, Job, Scene, SpareLife
from holdfast.sim.storage.commits import Commits
from holdfast.sim.store import Keys, SimStore
from holdfast.sim.world import KILL_S, Clock, Life, SimHost, Worker

RECLAIM_S = 10.0  # How long a start waits for the GPUs' memory.

DIRECTORY_S = 0.1  # How long the witness's directory may take to answer, unless it is slow.

LOADING, WAITING = "load (data.py:88)", "all_reduce (distributed_c10d.py:2830)"  # Where workers hang.

Script = Callable[[str, Mapping[str, str]], Life]  # place, environment of a worker → what it does


class Cluster(Scene):
    """The simulated world as a whole."""

    def __init__(
        self,
        job: Job,
        *,
        seed: str = "0",
        script: Script = lambda place, env: Life(),
        clocks: Mapping[str, Clock] | None = None,
        delay_s: tuple[float, float] = (0.0002, 0.001),
        reset_chance: float = 0.0,
        spare_life: Callable[[str], SpareLife] = lambda place: SpareLife(),
        on_worker_death: Callable[[SimAgent, Worker, int], None] = lambda agent, worker, exitcode: None,
    ) -> None:
        """`delay_s`, `reset_chance`: see `Ether`. `spare_life`: what the next spare at a place is going to do."""
        super().__init__(job, seed, spare_life)
        self.ether = Ether(self.timeline, random.Random(f"network {seed}"), delay_s, reset_chance)
        self.script = script
        self.clocks = dict(clocks or {})
        self.directory_s = DIRECTORY_S
        self.agents: dict[str, SimAgent] = {}  # place → the newest life of its agent
        self.lives: list[SimAgent] = []
        self.checks = Checks(self, self.lives, self.is_out)
        self.commits = Commits(self.timeline, self.checks, seed)
        self.on_worker_death = on_worker_death
        self.asks = 0
        self.keys = Keys(self.timeline, random.Random(f"store {seed}"), self.ether)
        self.witnessed: dict[tuple[str, int], str] = {}
        """What stands in the witness's directory: (life of the job, electorate) → who was first."""
        self.memories: dict[str, dict[str, ElectorMemory]] = {}  # place → endpoint → what its elector has written

    # --- agents ---------------------------------------------------------------------------------------------------------

    def start(
        self, place: str, *, host: bool = False, rank: int | None = None, nproc: int | None = None, group: str | None = None
    ) -> SimAgent:
        """Start an agent; with `host`, one that would serve the rendezvous, and does unless another serves already."""
        number = len(self.lives)
        agent = SimAgent(self, place, self.checks, stalled=self.stalled, claim=self.claim, remember=self.remember)
        world = SimHost(
            self.timeline,
            self.clocks.get(place, Clock()),
            lambda env: self.script(place, env),
            lambda: agent.wake(self.timeline.now + self.rng.uniform(0.00005, 0.0003)),
            first_pid=1000 * (number + 1),
            memory_s=self.job.memory_s,
            died=lambda worker, exitcode: self.on_worker_death(agent, worker, exitcode),
            born=lambda worker: self.commits.begin(agent, worker),
        )
        links = SimLinks(self.ether, world, place, lambda: agent.paused)
        join = Join(
            node=f"{place}#{number}",
            name=place,
            addr=place,
            master_port=0,
            nproc=self.job.nproc if nproc is None else nproc,
            role="default",
            wanted_rank=rank,
            group=group,
            warm="python" if self.job.warm_spares != 0 else "",
        )
        hosting = host and not self.job.elected and links.listen()
        state = State(
            join=join,
            regroup_s=self.job.regroup_s,
            grace_s=self.job.grace_s,
            hosting=hosting,
            endpoint=ENDPOINT,
            backend="embedded",
            memory=MemoryWait(timeout_s=RECLAIM_S),
            checks=self.job.checks,
        )
        self.agents[place] = agent
        self.lives.append(agent)
        self.checks.touched(place)
        if place in self.ether.blocked:
            self.checks.cut_off(place)
        self.note(place, "starts" + (", hosts the coordinator" if hosting else ""))
        store = SimStore(self.keys, world, place) if self.job.elected else None
        agent.begin(world, links, self._node(Group(state), world, links, host=host), store)
        return agent

    def _node(self, group: Group, world: SimHost, links: SimLinks, *, host: bool) -> Node:
        """The machines of a node, as the job has its coordinator elected."""
        job, join, own = self.job, group.join, group.join.node.replace("#", ":")
        if job.elected:
            own = f"{group.join.name}:{group.join.node}"
            links.listen(own)
            return self._elected(group, world, own)
        if job.succession and not job.ranks_given and job.max_nodes > 1:
            own = ENDPOINT if group.state.hosting else self._listen(join.name, links, own)
            return self._heir(group, world, own, host=host)
        if group.state.hosting:
            return Node(group, server=self._found(group, world)[0])
        member = self._member(join, world, host=host)
        return Node(group, member=member, found=lambda now: self._found(group, world))

    def _member(self, join: Join, world: SimHost, *, host: bool, had_ranks: bool = False) -> Member:
        wait_s, now = self.job.join_timeout_s, world.now()
        return Member(join.node, endpoint=ENDPOINT, join_timeout_s=wait_s, may_serve=host, had_ranks=had_ranks, now=now)

    def _listen(self, place: str, links: SimLinks, other: str) -> str:
        """Serve where an earlier life at that place did, unless that is there still; else at `other`."""
        earlier = self.memories.get(place, dict[str, ElectorMemory]())
        return next(endpoint for endpoint in (*earlier, other) if links.listen(endpoint))

    def _elected(self, group: Group, world: SimHost, endpoint: str) -> StoreElectedNode:
        """A candidate, as `agent.leader.build` would make it."""
        node, wait_s = group.join.node, self.job.join_timeout_s
        ttl_s = float(math.ceil(self.job.lease_s + STORE_FAILOVER_S))
        election = Election(endpoint, store="the store", fresh_life=node, ttl_s=ttl_s, now=world.now())
        member = Member(node, endpoint=ENDPOINT, join_timeout_s=wait_s, is_told_where=True, give_up_s=wait_s, now=world.now())
        return StoreElectedNode(group, member, election, lambda now: self._found(group, world))

    def _heir(self, group: Group, world: SimHost, endpoint: str, *, host: bool) -> PeerElectedNode:
        """A possible successor, as `agent.leader.build` would make it."""
        job, join = self.job, group.join
        before = self.memories.get(join.name, {}).get(endpoint)
        unfinished = [life for life in self.lives[:-1] if life.place == join.name and life.report is None]
        setup = Setup(
            endpoint=endpoint,
            origin=ENDPOINT,
            job="job",
            lease_s=job.lease_s,
            began_at=world.now(),
            witness=job.witness,
            goes_on=job.on_split == CONTINUE,
            known_round=max((life.node.group.round for life in unfinished), default=0) if host or before else 0,
            ended=self._ended(join.name),
            is_remembered=True,
            before=before,
            loyal_at=world.now() + PROPOSE_S if before is not None or group.state.hosting else -NEVER,
        )
        succession = Succession(setup, founder=group.state.hosting, fresh_life=join.node)
        member = self._member(join, world, host=host, had_ranks=before is not None)
        found = lambda now: self._found(group, world)
        return PeerElectedNode(group, member, succession, found, patience_s=job.join_timeout_s)

    def _ended(self, place: str) -> dict[str, JobReport]:
        """How runs of the job have ended, as the records on that place's disk tell."""
        reports = [life.report for life in self.lives if life.place == place and life.report is not None]
        return {report.life: report for report in reports if report.life}

    def _found(self, group: Group, world: SimHost) -> tuple[LinkRouter, RestartOnFailure]:
        job = self.job
        policy = RestartOnFailure(
            max_restarts=job.max_restarts,
            period_s=job.restart_period_s,
            exclude_after=job.exclude_after,
            carries_on=job.carries_on,
            progress=Progress(cycles=job.no_progress_cycles),
        )
        rendezvous = Rendezvous(job.rules(), policy, life=group.join.node, now=world.now(), now_unix=world.unix())
        self.checks.hosts.append(rendezvous)
        return LinkRouter(rendezvous, ended=self._ended(group.join.name)), policy

    def claim(self, agent: SimAgent, wish: Claim) -> None:
        """Somebody asks the witness, a directory that everybody reaches in its own time."""

        def answer() -> None:
            first = self.witnessed.setdefault((wish.life, wish.id), wish.endpoint)
            reason = "" if first == wish.endpoint else f"it speaks for {first}"
            agent.world.see(Claimed(id=wish.id, granted=not reason, reason=reason))

        self.timeline.after(self.rng.uniform(0.001, self.directory_s), answer)

    def remember(self, agent: SimAgent, wish: Remember) -> None:
        """An elector writes what it must not forget: it is kept when the disk says so."""

        def kept() -> None:
            if not agent.ended:
                self.memories.setdefault(agent.place, {})[wish.endpoint] = wish.memory
                agent.world.see(Remembered(memory=wish.memory))

        self.timeline.after(self.rng.uniform(0.0001, 0.005 + self.disks.get(agent.place, 0.0)), kept)

    def forget(self, place: str) -> None:
        """Its state directory is deleted."""
        self._happens(place, "its state is deleted")
        self.memories.pop(place, None)

    # --- what happens to them -------------------------------------------------------------------------------------------

    def exclude(self, place: str, *, through: str, readmit: bool = False) -> None:
        """An operator wants a node left out, or taken again, and says so to an agent."""
        self.asks += 1
        agent, kind = self.agents[through], RequestKind.READMIT if readmit else RequestKind.EXCLUDE
        node, reason = agent.node.group.join.node, "its fan is broken"
        wanted = Request(node=node, kind=kind, target=place, ask=self.asks, reason=reason)
        agent.world.see(ToCoordinator(message=wanted))

    def ask(self, place: str, kind: str, local_rank: int = 0) -> None:
        """A worker asks for something, if it lives."""
        workers = self.agents[place].node.group.workers
        if local_rank in workers and workers[local_rank].state is WorkerState.RUNNING:
            asked = ControlAsked(local_rank=local_rank, kind=ControlKind(kind), reason="uncorrectable ECC error")
            self.agents[place].world.see(asked)

    def reach(self, place: str, iteration: int | None) -> None:
        """A node can tell how far the job is."""
        self.agents[place].world.see(Reached(reached=iteration))

    def signal(self, place: str, signum: int) -> None:
        self.agents[place].signal(signum)

    def kill_agent(self, place: str) -> None:
        """SIGKILL to an agent; its guardian ends the workers, the kernel its links."""
        self._happens(place, "agent killed (SIGKILL)")
        self.agents[place].end()

    def power_off(self, place: str) -> None:
        """A host goes without a word."""
        self._happens(place, "host loses its power")
        agent = self.agents[place]
        agent.links.lose_power()
        agent.world.lose_power()
        agent.end()

    def power_on(self, place: str) -> None:
        """Its kernel answers again (that there is nobody)."""
        if (agent := self.agents.get(place)) is not None:
            self._happens(place, "host is back")
            agent.links.regain_power()

    def pause(self, place: str) -> None:
        """SIGSTOP to an agent; if its lease runs out meanwhile, its guardian ends it."""
        self._happens(place, "agent stopped (SIGSTOP)")
        agent = self.agents[place]
        agent.pause()
        self.checks.stopped(place)
        if (ends := agent.shown) is not None:
            self._guard(agent, ends)

    def stop_node(self, place: str, *, frozen: bool = False) -> None:
        """SIGSTOP to all processes of a node; the kernel wakes its agent when its lease is over. `frozen`: all of the host
        stands still, and no timer runs."""
        self._happens(place, "host freezes" if frozen else "node stopped (SIGSTOP to all of it)")
        agent = self.agents[place]
        agent.pause()
        agent.world.fall_asleep()
        self.checks.stopped(place)
        if not frozen and (ends := agent.shown) is not None:
            wakes_at = max(agent.world.clock.true(ends + WAKE_S), self.timeline.now)
            self.timeline.at(wakes_at, lambda: self._wake(agent, ends))

    def _wake(self, agent: SimAgent, lease_ends: float) -> None:
        if agent.paused and not agent.ended and agent.shown == lease_ends:
            agent.go_on()
            self._happens(agent.place, "the kernel wakes the agent, whose lease is over")

    def stalled(self, agent: SimAgent) -> None:
        """An agent waits for its disk, and for nothing else."""
        self.checks.stalled(agent.place, agent.busy_until)
        if (ends := agent.shown) is not None and agent.world.clock.true(ends) + GUARDIAN_S < agent.busy_until:
            self._guard(agent, ends)

    def _guard(self, agent: SimAgent, lease_ends: float) -> None:
        """What the guardian of an agent that stands still does when its lease is over."""
        over_at = agent.world.clock.true(lease_ends)
        now = self.timeline.now
        self.timeline.at(max(over_at + GUARDIAN_S, now), lambda: self._overdue(agent, lease_ends, patient=True))
        self.timeline.at(max(over_at + GUARDIAN_PATIENCE_S, now), lambda: self._overdue(agent, lease_ends, patient=False))

    def _overdue(self, agent: SimAgent, lease_ends: float, *, patient: bool) -> None:
        if not agent.stands_still or agent.ended or agent.shown != lease_ends:
            return
        if agent.paused or not patient:
            self._happens(agent.place, "guardian ends the stopped agent, whose lease is over")
            agent.end()
        else:
            self._happens(agent.place, "guardian ends the workers of the slow agent, whose lease is over")
            agent.strike()

    def resume(self, place: str) -> None:
        """SIGCONT."""
        agent = self.agents.get(place)
        if agent is None:
            return
        if any(worker.asleep for worker in agent.world.live):  # the ranks first: the worst case
            agent.continued_at = self.timeline.now
            agent.world.wake_up(lambda: self.rng.uniform(0.0, KILL_S))
        if agent.paused:
            agent.go_on()
            self._happens(place, "agent continued (SIGCONT)")

    def place_of(self, rank: int) -> str | None:
        """Where that rank runs. None: nowhere."""
        return next((place for place, agent in self.agents.items() for one in agent.world.live if one.rank == rank), None)

    def is_out(self, place: str) -> bool:
        """Whether it is cut off, or its agent is stopped."""
        return place in self.ether.blocked or (place in self.agents and self.agents[place].paused)

    def partition(self, place: str, *, out: bool = True, into: bool = True) -> None:
        """Cut a host off, in one direction or both."""
        self._happens(place, f"cut off ({'both ways' if out and into else 'nothing gets out' if out else 'nothing gets in'})")
        self.checks.cut_off(place)
        self.ether.partition(place, out=out, into=into)

    def force(self, place: str, *lost: str, powered_off: bool = False) -> None:
        """An operator says on that node that others are gone for good, and vouches for it, rightly or not."""
        if powered_off:
            self.checks.vouched()
        self.agents[place].world.see(ForceAsked(ask=1, lost=lost, powered_off=powered_off))

    def heal(self, place: str) -> None:
        """It can be reached again."""
        if place in self.ether.blocked:
            self.ether.heal(place)
            self._happens(place, "reachable again")

    def break_links(self, place: str, *, lag_s: float = 0.001, other_lag_s: float = 0.001) -> None:
        """All links of a place break; its own end notices after `lag_s`, the other after `other_lag_s`."""
        self._happens(place, "its links break")
        for side in self._sides(place):
            side.cut(lag_s, other_lag_s)

    def let_stray(self, place: str, *, lag_s: float, late_s: float) -> None:
        """What a place says goes astray; it makes new links after `lag_s`, and what it said over the old ones comes later."""
        self._happens(place, "what it says goes astray")
        for side in self._sides(place):
            side.stray(lag_s, late_s)

    def slow_network(self, delay_s: tuple[float, float], lasts_s: float = 0.0) -> None:
        """From now on a packet takes from so long to so long, everywhere; for `lasts_s` that explains any loss."""
        self.ether.slow(delay_s)
        self.checks.stormy(lasts_s)

    def slow_directory(self, longest_s: float) -> None:
        """From now on the witness's directory may take so long to answer."""
        self.directory_s = longest_s

    def step_clock(self, place: str, by_s: float) -> None:
        self._happens(place, f"its wall clock jumps by {by_s:.1f} s")
        clock = self.clocks.get(place, Clock())
        self.clocks[place] = replace(clock, wall_skew_s=clock.wall_skew_s + by_s)
        if place in self.agents:
            self.agents[place].world.set_clock(self.clocks[place])

    def slow_disk(self, place: str, longest_s: float) -> None:
        """From now on a write may take so long there; 0: it does not."""
        self._happens(place, f"a write takes up to {longest_s:.1f} s" if longest_s else "its disk is quick again")
        self.disks[place] = longest_s

    def ail(self, place: str, ailment: Ailment, why: str) -> None:
        """From now on a place's check finds what `ailment` says."""
        self._happens(place, f"ails: {why}")
        self.ailments[place] = ailment

    def mend(self, place: str) -> None:
        """Its check finds nothing any more."""
        if self.ailments.pop(place, None) is not None:
            self._happens(place, "is mended")

    def kill_worker(self, place: str, local_rank: int, exitcode: int = -SIGKILL) -> None:
        for worker in self._live(place, local_rank):
            self.agents[place].world.end(worker, exitcode)

    def hang(self, place: str, local_rank: int, *, limit_s: float = 5.0, where: str = LOADING, step: int = 1) -> None:
        """A worker hangs from now on, deaf to SIGTERM unless it waits for others; its monitor notices after `limit_s`."""
        agent = self.agents[place]
        for worker in self._live(place, local_rank):
            self._happens(place, f"rank {worker.rank} hangs")
            worker.hang(self.timeline.now, limit_s, where, step, deaf=where != WAITING)
            self.checks.hangs(agent, worker, limit_s)
            agent.look_at(worker)

    def _live(self, place: str, local_rank: int) -> list[Worker]:
        return [worker for worker in self.agents[place].world.live if worker.local_rank == local_rank]

    def _sides(self, place: str) -> list[Side]:
        return list(self.agents[place].links.sides.values())

    def _happens(self, place: str, what: str) -> None:
        self.checks.touched(place)
        self.note(place, f"* {what}")

    def kill_spare(self, place: str) -> None:
        """SIGKILL to a warm spare, if there is one."""
        for one in self.agents[place].spares.living[:1]:
            self.note(place, f"* a warm spare is killed ({one.pid})")
            self.agents[place].spares.kill(one)

    # --- running --------------------------------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Let time pass up to `until`."""
        self.timeline.run(until)

    def run_for(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run(self.timeline.now + seconds)

    def finish(self, within_s: float = 600.0) -> None:
        """Run to the end of every agent. Violation when it does not come in time."""
        until = self.timeline.now + within_s
        while self.running and self.timeline.step(until):
            pass
        if stuck := self.running:
            states = "; ".join(f"{agent.place}: {agent.describe()}" for agent in stuck)
            raise Violation(f"after {within_s:.0f} s there are still agents that have not ended: {states}")
        self.checks.at_the_end()

    @property
    def running(self) -> list[SimAgent]:
        """Agents that have not ended."""
        return [agent for agent in self.lives if not agent.ended]

    @property
    def codes(self) -> dict[str, int | None]:
        """place → exit code of its newest agent; None: it has not ended by itself."""
        return {place: agent.code for place, agent in self.agents.items()}
