"""A random run: from a seed to a job, a network, clocks, and everything that goes wrong.

Troubles come within the first `TROUBLE_S` seconds and all of them end; from then on the job must come to an end that
somebody can explain, within a time that follows from its own timeouts.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.core.config.own_options import Grow
from holdfast.core.machine import NEVER
from holdfast.core.value import Value, replace
from holdfast.rendezvous.election.leading import YIELD_S
from holdfast.rendezvous.election.store_election import STORE_FAILOVER_S
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.member import GIVE_UP_S
from holdfast.sim.agent import SimAgent
from holdfast.sim.checking import HANGS, always, flapping
from holdfast.sim.checks import Violation
from holdfast.sim.cluster import DIRECTORY_S, LOADING, RECLAIM_S, WAITING, Cluster
from holdfast.sim.scene import MEMORY_BYTES, Job, SpareLife
from holdfast.sim.world import Clock, Life, Worker

TROUBLE_S = 30.0
ENDS_AGENTS = ("agent", "power", "signal")  # Troubles after which an agent is often started again.
DELAYS = ((0.0001, 0.0005), (0.0002, 0.002), (0.005, 0.04), (0.0001, 0.15))
"""One rack, one building, two continents, a network with jitter."""


class Outcome(Value):
    """What became of a run."""

    seed: int
    violation: str = ""  # Empty: every rule was kept.
    seconds: float  # Simulated.
    digest: str
    lines: tuple[str, ...]
    ended: str
    """How the job ended, in a word: `succeeded`, `failed`, `stopped`, or `nobody` (no agent was told)."""


def run(seed: int, *, play: str = "all") -> Outcome:
    """Run one seed of the scenario of that name."""
    scenario = PLAYS[play](seed)
    violation = ""
    try:
        scenario.run()
    except Violation as error:
        violation = str(error)
    cluster = scenario.cluster
    reports = [agent.report for agent in cluster.lives if agent.report is not None]
    return Outcome(
        seed=seed,
        violation=violation,
        seconds=cluster.timeline.now,
        digest=cluster.transcript.digest(),
        lines=tuple(cluster.transcript.lines()),
        ended=reports[-1].outcome if reports else "nobody",
    )


class Scenario:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = self._dice("scenario")
        # Each of these has its own, so that what else happens does not depend on it.
        self.choices = self._dice("membership")  # For who leads and who takes part.
        self.hangs = self._dice("hangs")
        self.policies = self._dice("policy")  # For when all restart, and what workers ask for.
        self.hardships = self._dice("hardships")
        """For clocks that jump, messages that come late and twice, and slow disks."""
        self.deaths = self._dice("deaths")  # For agents that die together.
        self.ailments = self._dice("ailments")  # For nodes that are unfit.
        self.warmth = self._dice("spares")
        self.stops = self._dice("stops")  # For nodes that are stopped as a whole.
        self.in_place = self._dice("in place")  # For ranks that begin again in their own process.
        self.begins_again = self.in_place.random() < 0.4
        self.beginnings = self._dice("beginnings")  # For how long these take to call their script's code again.
        self.memory = self._dice("in memory")  # For what they keep from one life to the next.
        self.growth = self._dice("growth")  # For jobs that grow after a checkpoint.
        self.places = [chr(ord("a") + i) for i in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 8)))]
        self.job = self._job(len(self.places))
        self.work_s = rng.choice((2.0, 8.0, 20.0))
        self.fragile = rng.choice((0.0, 0.0, 0.02, 0.2))  # How likely a worker fails by itself.
        clocks = {
            place: Clock(origin=rng.uniform(0, 1e6), rate=1 + rng.uniform(-2e-4, 2e-4), wall_skew_s=rng.uniform(-100, 100))
            for place in self.places
        }
        self.cluster = Cluster(
            self.job,
            seed=str(seed),
            script=self._script,
            clocks=clocks,
            delay_s=rng.choice(DELAYS),
            reset_chance=rng.choice((0.0, 0.5)),
            spare_life=self._spare_life,
            on_worker_death=self._cascade,
        )
        self.calm_at = 0.0

    def _dice(self, what: str) -> random.Random:
        return random.Random(f"{what} {self.seed}")

    def _job(self, places: int) -> Job:
        rng = self.rng
        given = rng.random() < 0.15
        least = places if given else rng.randint(1, places)
        return Job(
            min_nodes=least,
            # With room for one only, an endpoint's host that is started again would begin at once, though others run elsewhere.
            max_nodes=least if given else max(min(places, 2), rng.randint(least, places + 1)),
            nproc=rng.randint(1, 3),
            max_restarts=rng.choice((0, 1, 3, 5)),
            restart_period_s=rng.choice((None, None, 10.0)),
            grace_s=rng.choice((0.2, 2.0, 6.0)),
            join_timeout_s=20.0,
            last_call_s=rng.choice((5.0, 8.0)),  # longer than a lease: see `coordinator restarts` in the stories
            ranks_given=given,
            elected=not given and self.choices.random() < 0.4,
            grow=self.choices.choice((Grow.AT_ONCE, Grow.AT_ONCE, Grow.NEXT_FAILURE, Grow.NEVER))
            if self.growth.random() < 0.75
            else Grow.AT_CHECKPOINT,
            grow_after_s=self.growth.choice((0.0, 0.0, 1.0, 5.0)),
            save_every_s=self.growth.choice((1.0, 2.0)),
            carries_on=self.policies.random() < 0.3,
            no_progress_cycles=self.policies.choice((0, 0, 0, 2)),
            exclude_after=self.choices.choice((0, 1, 1, 2)),
            readmit_after_s=self.choices.choice((NEVER, NEVER, 3.0, 15.0)),
            succession=self.choices.random() < 0.8,
            witness=self.choices.random() < 0.5,
            checks=self.ailments.random() < 0.4,
            check_every_s=self.ailments.choice((0.5, 2.0, 5.0)),
            bad_in_a_row=self.ailments.choice((1, 1, 2)),
            good_in_a_row=self.ailments.choice((1, 1, 3)),
            warm_spares=self.warmth.choice((0, None, None, 1, 2, 4)),
            warm_fork=self.warmth.random() < 0.25,
            parts=self.memory.choice((0, 1, 1, 2, 100)),
            memory_s=self._dice("memory").choice((0.0, 0.0, 0.01, 0.5, 4.0, NEVER)),
        )

    def _script(self, place: str, env: Mapping[str, str]) -> Life:
        rng = self.rng
        calm = self.cluster.timeline.now >= TROUBLE_S
        fails = not calm and rng.random() < self.fragile
        return Life(
            runs_s=rng.uniform(0.05, self.work_s) if fails else self.work_s + rng.uniform(0, 0.5),
            exitcode=rng.choice((1, 2, -signal.SIGSEGV, -signal.SIGKILL)) if fails else 0,
            on_sigterm=rng.choice((-signal.SIGTERM, -signal.SIGTERM, -signal.SIGTERM, 0, 1, None)),
            term_s=rng.choice((0.001, 0.05, 1.0)),
            teardown_s=rng.choice((0.001, 0.4)),
            let_go_s=self.in_place.choice((0.001, 0.05, 0.5, float("inf"), None)) if self.begins_again else None,
            part=int(env["RANK"]) % self.job.parts if self.job.parts else None,
            has_all=self.job.parts == 1,
            leaves=self.memory.choice(("whole", "whole", "whole", "torn", "before")),
            steps=self.memory.choice((7, 8)),
            begins_s=self.beginnings.choice((0.0, 0.001, 0.5, float("inf") if not calm else 0.0)),
            start_error="no such file" if not calm and rng.random() < self.fragile / 20 else "",
        )

    def _spare_life(self, place: str) -> SpareLife:
        rng = self.warmth
        return SpareLife(
            import_s=rng.choice((0.05, 0.5, 3.0)),
            fails=rng.random() < 0.15,
            lasts_s=rng.uniform(0.01, 10.0) if rng.random() < 0.3 else NEVER,
            reads_rank=rng.random() < 0.2,
        )

    def _cascade(self, agent: SimAgent, worker: Worker, exitcode: int) -> None:
        """A collective whose member dies fails on the others too."""
        if exitcode == 0:
            return
        for life in self.cluster.lives:
            for peer in life.world.live:
                if peer.round == worker.round and not peer.let_go and self.rng.random() < 0.3:
                    self.cluster.timeline.after(self.rng.uniform(0.001, 0.5), partial(life.world.end, peer, 1))

    # --- what happens ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it. Raises Violation."""
        rng, late = self.rng, len(self.places) > 1 and self.rng.random() < 0.2
        for number, place in enumerate(self.places):
            begin = rng.uniform(0, 2.0) + (rng.uniform(3, 12) if late and number else 0.0)
            self._at(begin, partial(self._start, place, number))
        self._plan()
        self._at(self.calm_at, self._calm)
        self.cluster.run(max(self.calm_at, 15.0))
        self.cluster.finish(within_s=self._patience_s())

    def _plan(self) -> None:
        """Plan what happens to the job: each kind of event by dice of its own, as often as one of these numbers says."""
        kinds = (
            (self._trouble, self.rng, 1.0, (0, 1, 1, 2, 3, 6)),
            (self._wish, self.choices, 1.0, (0, 0, 1, 1, 2, 4)),
            (self._hang, self.hangs, 1.0, (0, 0, 0, 1, 2)),
            (self._request, self.policies, 1.0, (0, 0, 0, 1, 2)),
            (self._hardship, self.hardships, 1.0, (0, 0, 1, 1, 2, 3)),
            (self._cull, self.deaths, 3.0, (0, 0, 0, 1) if len(self.places) > 2 else (0,)),
            (self._ail, self.ailments, 0.0, (0, 1, 1, 2) if self.job.checks else (0,)),
            (self._stop, self.stops, 1.0, (0, 0, 0, 1, 2)),
            (self._spare_trouble, self.warmth, 1.0, (0, 0, 1, 3) if self.job.warm_spares != 0 else (0,)),
            (self._store_trouble, self.choices, 1.0, (0, 0, 1, 1, 2) if self.job.elected else (0,)),
        )
        for plan, dice, earliest, numbers in kinds:
            for _ in range(dice.choice(numbers)):
                plan(dice.uniform(earliest, TROUBLE_S))

    def _patience_s(self) -> float:
        job = self.job
        lost = job.lease_s + FENCE_S + GIVE_UP_S
        if job.elected:  # one leader after the other, each with a lease in the store, and members as patient as at first
            lost += job.join_timeout_s + 2 * (job.lease_s + STORE_FAILOVER_S)
        rounds = 3 + job.max_restarts
        memory_s = min(job.memory_s, RECLAIM_S)
        return job.join_timeout_s + lost + rounds * (2 * job.grace_s + 2 + memory_s + self.work_s + 5) + 30.0

    def _start(self, place: str, number: int) -> None:
        before = self.cluster.agents.get(place)
        if before is None or before.ended:
            rank = number if self.job.ranks_given else None
            nproc = self.job.nproc if number % 3 else 1 + self.job.nproc % 3
            self.cluster.start(place, host=number == 0, rank=rank, nproc=nproc)

    def _trouble(self, at: float) -> None:
        """Plan one trouble, with its end."""
        rng = self.rng
        number = rng.choice((0, len(self.places) - 1, *[rng.randrange(len(self.places))] * 2))  # the endpoint's, more often
        place, lasts_s = self.places[number], rng.choice((0.3, 1.5, 2.9, 3.5, 6.0, 12.0))
        cluster, over_at = self.cluster, at + lasts_s
        trouble = rng.choice(("worker", "worker", "agent", "power", "pause", "cut", "half", "links", "signal", "storm"))
        match trouble:
            case "worker":
                code = rng.choice((1, -signal.SIGKILL))
                self._on(at, place, lambda: cluster.kill_worker(place, rng.randrange(self.job.nproc), code))
            case "agent":
                self._on(at, place, lambda: cluster.kill_agent(place))
            case "power":
                self._spell(at, over_at, lambda: cluster.power_off(place), lambda: cluster.power_on(place), place)
            case "pause":
                self._spell(at, over_at, lambda: cluster.pause(place), lambda: cluster.resume(place), place)
            case "cut":
                self._spell(at, over_at, lambda: cluster.partition(place), lambda: cluster.heal(place), place)
            case "half":
                out, into = rng.choice(((True, False), (False, True)))
                cut = partial(cluster.partition, place, out=out, into=into)
                self._spell(at, over_at, cut, lambda: cluster.heal(place), place)
            case "links":
                self._on(at, place, lambda: cluster.break_links(place, lag_s=rng.uniform(0, 2), other_lag_s=rng.uniform(0, 2)))
            case "signal":
                signum = rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
                for again in range(rng.choice((1, 1, 2, 3))):
                    self._on(at + again * rng.choice((0.01, 1.0)), place, lambda: cluster.signal(place, signum))
            case "storm":
                calm = partial(cluster.slow_network, cluster.ether.delay_s)
                self._spell(at, over_at, lambda: cluster.slow_network((0.05, 0.8), lasts_s), calm)
        if trouble in ENDS_AGENTS and rng.random() < 0.7:
            self._at(over_at + 0.5, partial(self._start, place, number))

    def _hang(self, at: float) -> None:
        """Plan a rank that hangs, and often all others of its round with it."""
        rng, cluster = self.hangs, self.cluster
        place, local_rank, limit_s = rng.choice(self.places), rng.randrange(self.job.nproc), rng.choice((0.5, 2.0, 4.0))
        others = rng.random() < 0.6

        def hang() -> None:
            for number, other in enumerate(self.places if others else (place,)):
                if (agent := cluster.agents.get(other)) is None or agent.ended:
                    continue
                for seat in range(agent.node.group.join.nproc):
                    culprit = other == place and seat == local_rank
                    if culprit or others:
                        cluster.hang(other, seat, limit_s=limit_s + 0.01 * number, where=LOADING if culprit else WAITING)

        self._on(at, place, hang)

    def _stop(self, at: float) -> None:
        """Plan that all of a node is stopped, or its host frozen, and goes on."""
        rng, cluster, any_place = self.stops, self.cluster, self.stops.choice(self.places)
        lasts_s, frozen, writes = rng.choice((0.3, 2.0, 3.2, 3.6, 6.0, 12.0)), rng.random() < 0.7, rng.random() < 0.7

        def stop() -> None:
            place = cluster.place_of(0) if writes else any_place  # most often the one that writes checkpoints
            if place is not None and not cluster.agents[place].ended:
                cluster.stop_node(place, frozen=frozen)
                self._at(cluster.timeline.now + lasts_s, lambda: cluster.resume(place))

        self._on(at, any_place, stop)
        self._at(at + lasts_s, lambda: None)

    def _wish(self, at: float) -> None:
        """Plan an operator's wish about a node, and often that it be taken back."""
        rng, cluster = self.choices, self.cluster
        name, through = rng.choice((*self.places, "nobody")), rng.choice(self.places)
        self._on(at, through, lambda: cluster.exclude(name, through=through))
        if rng.random() < 0.6:
            later = at + rng.choice((0.001, 0.5, 4.0, 12.0))
            self._on(later, through, lambda: cluster.exclude(name, through=through, readmit=True))

    def _request(self, at: float) -> None:
        """Plan a worker's wish, and let its node say how far the job is, or has got again."""
        rng, cluster, place = self.policies, self.cluster, self.policies.choice(self.places)
        kind = rng.choice(("exclude", "exclude", "restart", "restart", "stop", "continue"))
        reached = rng.choice((None, 0, 5, 900))
        self._on(at, place, lambda: cluster.ask(place, kind))
        self._on(rng.uniform(1.0, at), place, lambda: cluster.reach(place, reached))

    def _hardship(self, at: float) -> None:
        """Plan what costs nothing by itself, but comes between."""
        rng, cluster, place = self.hardships, self.cluster, self.hardships.choice(self.places)
        lasts_s = rng.choice((0.3, 2.0, 6.0, 12.0))
        match rng.choice(("clock", "stray", "stray", "disk", "disk", "directory")):
            case "clock":
                self._at(at, lambda: cluster.step_clock(place, rng.choice((-3600.0, -2.0, 0.5, 30.0, 1e6))))
            case "stray":
                lag_s = rng.choice((0.001, 0.05, 0.5, 2.0))
                late_s = lag_s + rng.choice((0.001, 0.1, 1.0, 4.0))
                self._on(at, place, lambda: cluster.let_stray(place, lag_s=lag_s, late_s=late_s))
            case "disk":
                longest_s = rng.choice((0.05, 0.5, 3.0, 10.0))
                slow = lambda: cluster.slow_disk(place, longest_s)
                self._spell(at, at + lasts_s, slow, lambda: cluster.slow_disk(place, 0.0))
            case "directory":
                slow = lambda: cluster.slow_directory(rng.choice((1.0, 5.0)))
                self._spell(at, at + lasts_s, slow, lambda: cluster.slow_directory(DIRECTORY_S))

    def _cull(self, at: float) -> None:
        """Plan the death of several agents within two seconds, which are all started again; sometimes without their state."""
        rng, cluster = self.deaths, self.cluster
        for place in rng.sample(self.places, rng.randint(2, len(self.places))):
            dies_at, number = at + rng.uniform(0, 2.0), self.places.index(place)
            self._on(dies_at, place, partial(cluster.kill_agent, place))
            if rng.random() < 0.1:
                self._at(dies_at + 0.1, partial(cluster.forget, place))
            self._at(dies_at + rng.choice((0.2, 0.2, 1.0, 4.0, 9.0)), partial(self._start, place, number))

    def _ail(self, at: float) -> None:
        """Plan a node's illness, and its cure."""
        rng, cluster, place = self.ailments, self.cluster, self.ailments.choice(self.places)
        lasts_s, half_s = rng.choice((0.3, 3.0, 12.0)), rng.choice((0.4, 2.0, 6.0))
        kind = rng.choice(("ill", "ill", "hangs", "flaps"))
        what = {"ill": always("GPU 3 is lost"), "hangs": always(HANGS), "flaps": flapping("its link flaps", half_s)}[kind]
        self._spell(at, at + lasts_s, lambda: cluster.ail(place, what, kind), lambda: cluster.mend(place))

    def _spare_trouble(self, at: float) -> None:
        """Plan the death of a spare, often in the moment in which it is to be a worker; or memory that runs short."""
        rng, cluster, place = self.warmth, self.cluster, self.warmth.choice(self.places)
        match rng.choice(("spare", "both", "both", "memory", "memory")):
            case "spare":
                self._on(at, place, lambda: cluster.kill_spare(place))
            case "both":
                self._on(at, place, lambda: cluster.kill_worker(place, 0))
                self._on(at + rng.uniform(0.0, 0.05), place, lambda: cluster.kill_spare(place))
            case "memory":
                cluster.leave_memory(rng.choice((0, MEMORY_BYTES // 12)))
                self._at(at, lambda: cluster.leave_memory(MEMORY_BYTES))

    def _store_trouble(self, at: float) -> None:
        """Plan a trouble of the store that elects, with its end."""
        rng, keys = self.choices, self.cluster.keys
        lasts_s = rng.choice((0.3, 2.0, 4.0, 6.0, 12.0))
        kind = rng.choice(("restart", "restart", "empty", "slow", "cut", "deposed"))
        place = rng.choice(self.places)
        self._at(at, lambda: self.cluster.note("", f"* the store: {kind}"))
        begin, end = {
            "restart": (keys.stop, keys.restart),
            "empty": (keys.stop, lambda: keys.restart(empty=True)),
            "slow": (lambda: keys.slow(rng.uniform(0.1, 2.0)), lambda: keys.slow(0.0)),
            "cut": (lambda: keys.cut(place), lambda: keys.heal(place)),
            "deposed": (keys.depose, None),
        }[kind]
        self._spell(at, at + lasts_s, begin, end)

    def _calm(self) -> None:
        for place in self.places:
            self.cluster.heal(place)
            self.cluster.resume(place)
            self.cluster.mend(place)
        if self.cluster.keys.down:
            self.cluster.keys.restart()
        self.cluster.note("", "* the troubles are over")

    def _on(self, at: float, place: str, what: Callable[[], None]) -> None:
        """Plan something that needs a live agent."""
        self._at(at, lambda: what() if (agent := self.cluster.agents.get(place)) and not agent.ended else None)

    def _spell(
        self, at: float, over_at: float, begin: Callable[[], None], end: Callable[[], None] | None, place: str = ""
    ) -> None:
        """Plan something with its end. `place`: it needs a live agent there."""
        if place:
            self._on(at, place, begin)
        else:
            self._at(at, begin)
        if end is not None:
            self._at(over_at, end)

    def _at(self, at: float, what: Callable[[], None]) -> None:
        self.calm_at = max(self.calm_at, at)
        self.cluster.timeline.at(at, what)


BACK_S, BACK_MANY_S = 5.0, 15.0
"""With a lease: how long after the last agent is back every rank runs again, where nothing else is wrong; of two or three
nodes, and of more, of which each has to find the others."""


class LostTogether(Scenario):
    """Some agents die within two seconds, the coordinator's or not, and all are started again, on the same hosts.

    In half of the runs nothing else happens, and the job must train again soon. In the others links are cut, clocks are wrong
    and agents stop meanwhile: never do two nodes lead.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.fragile, self.work_s = 0.0, 60.0
        self.is_calm = self.deaths.random() < 0.5
        self.back_at = 0.0  # When the last of them is started again.

    def _job(self, places: int) -> Job:
        dice = self._dice("deaths' job")
        self.places = [chr(ord("a") + i) for i in range(dice.choice((2, 3, 3, 3, 4, 5, 7)))]
        size = len(self.places)
        return Job(
            min_nodes=dice.choice((1, 2, size)),
            max_nodes=size,
            nproc=1,
            grace_s=0.2,
            join_timeout_s=120.0,
            last_call_s=1.0,
            witness=dice.random() < 0.3,
            warm_spares=0,
        )

    def _plan(self) -> None:
        dice, at = self.deaths, 18.0  # by then all have come
        culled = dice.sample(self.places, dice.randint(1, len(self.places)))
        waits_s = YIELD_S if len(culled) == len(self.places) else 0.0  # if nobody is left who knows how the job stands
        for place in culled:
            dies_at = at + dice.uniform(0, 2.0)
            back_at = dies_at + dice.choice((0.1, 0.5, 3.0, 5.0, 20.0))
            self.back_at = max(self.back_at, back_at)
            self._on(dies_at, place, partial(self.cluster.kill_agent, place))
            self._at(back_at, partial(self._start, place, self.places.index(place)))
        if self.is_calm:
            self._at(self.back_at + self._patience_for_all_s() + waits_s, self._all_run)
            return
        for _ in range(dice.randint(1, 4)):
            place, lasts_s = dice.choice(self.places), dice.choice((0.5, 3.0, 6.0, 12.0))
            begin, end = dice.choice(((self.cluster.partition, self.cluster.heal), (self.cluster.pause, self.cluster.resume)))
            begins_at = at + dice.uniform(-3.0, 8.0)
            self._spell(begins_at, begins_at + lasts_s, partial(begin, place), partial(end, place), place)

    def _all_run(self) -> None:
        """Violation: a place has no rank."""
        for place in self.places:
            if not self.cluster.agents[place].world.live:
                raise Violation(f"{place} has no rank {self._patience_for_all_s():g} s after the last agent was started again")

    def _patience_for_all_s(self) -> float:
        return self.job.lease_s + (BACK_S if len(self.places) < 4 else BACK_MANY_S)

    def _script(self, place: str, env: Mapping[str, str]) -> Life:
        """One that is to begin again in place does: no restart is spent on one that does not."""
        life = super()._script(place, env)
        return replace(life, begins_s=min(life.begins_s, self.job.regroup_s / 4))

    def _cascade(self, agent: SimAgent, worker: Worker, exitcode: int) -> None:
        """No rank fails of another's death: the agents tell."""


PLAYS: dict[str, type[Scenario]] = {"all": Scenario, "lost-together": LostTogether}
"""What can be played, by name: `holdfast simulate --play`."""
