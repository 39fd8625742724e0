"""What must hold at every moment of every run? Each rule is one method; breaking it raises `Violation`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from holdfast.agent.group.hang_response import LOOK_S
from holdfast.agent.group.messages import Exit
from holdfast.agent.group.state import Phase
from holdfast.agent.leader.elected_node import shortened
from holdfast.agent.leader.peer_elected_node import PeerElectedNode
from holdfast.agent.node import Node
from holdfast.agent.own_lease import OwnLease
from holdfast.agent.spares.state import SlotState
from holdfast.core.config.own_options import Grow
from holdfast.core.job.events import Decided, Event, NodeLost
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import Assigned, Finish, Message, Refused, Stop
from holdfast.rendezvous.coordinator.admission import SAVED
from holdfast.rendezvous.coordinator.job import Phase as JobPhase
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.coordinator.membership import SeatState
from holdfast.runtime.process.guardian import SLACK_S, STRIKE_S
from holdfast.sim.checking import SimChecking
from holdfast.sim.monitoring import SimMonitoring
from holdfast.sim.network import SimLinks
from holdfast.sim.scene import DEADLINE_S, Scene
from holdfast.sim.spares import SimSpares
from holdfast.sim.store import SimStore
from holdfast.sim.world import KILL_S, SimHost, Worker

GUARDIAN_S, GUARDIAN_PATIENCE_S = STRIKE_S + 0.02, SLACK_S + 0.02
"""From the end of a lease to the guardian's SIGKILL: to the workers, and an agent that is stopped; and to one that is slow."""

SAME_FOR_ALL = ("world_size", "group_world_size", "master_addr", "master_port", "restart_count", "state", "state_step")
"""What every node of a round is told alike."""

ON_THEIR_WAY_OUT = (SeatState.STOPPING, SeatState.STOPPED, SeatState.LEAVING)

CONTINUED_S = 2 * KILL_S
"""For so long the ranks of a host that was frozen as a whole may live on beside their successors: a kill takes that. What they
commit meanwhile replaces nothing."""

IDLE_TURNS = 20
"""Turns in a row, at one moment, in which nothing was seen: a machine that asks to be woken for nothing."""

HANG_SLACK_S = 0.5  # How much longer than its limit, a look and a stop a rank that hangs may live.

DRIFT_S = 0.005  # What two clocks differ by after a promise: 4.5 s at a rate that is wrong by 200 ppm, each.

AFTERMATH_S = 1.5  # How long after its end a trouble may still show: retransmission, reconnection.


class Violation(Exception):
    """Something happened that never must."""


class Watched:
    """One life of an agent at a place, as far as the rules look at it."""

    world: SimHost
    links: SimLinks
    node: Node
    monitoring: SimMonitoring
    spares: SimSpares
    checking: SimChecking | None  # None: the job checks nothing.
    lease: OwnLease

    def __init__(self, scene: Scene, place: str) -> None:
        self.scene = scene
        self.place = place
        self.store: SimStore | None = None
        self.began_at = scene.timeline.now
        self.local_ranks: dict[int, int] = {}  # pid → local rank, of the workers of the round.
        self.paused = False
        self.busy_until = float("-inf")
        """It waits for its disk, and for nothing else, until then, in true time."""
        self.continued_at = float("-inf")  # When its workers, which had been stopped with it, were continued.
        self.resumed = False  # It stood still, and has had no turn since.
        self.resumed_at = float("-inf")
        self.ended = False
        self.exit: Exit | None = None
        self.leave_at = self.turn_at = NEVER
        self.code: int | None = None

    @property
    def shown(self) -> float | None:
        """End of the lease, as its guardian and its ranks know it."""
        return self.lease.shown

    @property
    def id(self) -> str:
        """Its name among the members, which no other life has."""
        return self.node.group.join.node

    @property
    def rendezvous(self) -> Rendezvous | None:
        """The coordinator that it hosts."""
        return self.node.server.rendezvous if self.node.server is not None else None

    @property
    def report(self) -> JobReport | None:
        """What it printed at the end."""
        return self.exit.report if self.exit else None

    @property
    def stands_still(self) -> bool:
        """It has no turn for now."""
        return self.paused or self.scene.timeline.now < self.busy_until

    def turn_over(self) -> None:
        self.resumed = self.stands_still

    def describe(self) -> str:
        """Its state, for a person."""
        group, job = self.node.group, self.rendezvous
        hosting = f", coordinator {job.phase} in round {job.round}" if job is not None else ""
        return f"{group.phase} in round {group.round}{', paused' if self.paused else ''}{hosting}"

    def workers_of(self, number: int) -> list[Worker]:
        """Those of a round, whether they live or not."""
        return [worker for worker in self.world.workers.values() if worker.round == number]


class Checks:
    """The rules, and what they have to remember."""

    def __init__(self, scene: Scene, lives: Sequence[Watched], is_out: Callable[[str], bool]) -> None:
        """`is_out`: whether a place is cut off, or its agent is stopped."""
        self.scene, self.lives, self.is_out = scene, lives, is_out
        self.hosts: list[Rendezvous] = []
        self.rounds: dict[tuple[int, int], dict[str, Assigned]] = {}
        """(life of the coordinator, round) → node → what it was assigned"""
        self.troubled: dict[str, float] = {}  # place → until when what happens there has a cause
        self.is_vouched = False  # An operator has said that nodes are dead which may live: two sides may lead until they meet.
        self.stormy_until = 0.0  # Until when everything has a cause.
        self.anew: set[int] = set()  # Lives of the coordinator that began another job, unawares.
        self.cut_at: dict[str, float] = {}  # place → when it was cut off last
        self.hosted: dict[str, int] = {}  # node → the coordinator's life that its last round is from
        self.reports: dict[float, JobReport] = {}
        self.unfit_since: dict[str, float] = {}
        """node → since when it holds ranks though it knows itself to be unfit and the job can do without it"""
        self.idle: dict[str, tuple[float, int]] = {}
        self.runs: dict[str, str] = {}  # node → the run of the job that its ranks belong to: each counts its own rounds
        self.newest_round: dict[str, int] = {}  # run → its newest round of which a node has begun
        self.newest_checkpoint: dict[str, int] = {}  # run → round of the rank that wrote it last

    # --- what is done to them -------------------------------------------------------------------------------------------

    def touched(self, place: str) -> None:
        """Something was done to a place that may cost it its membership."""
        known, calm_at = self.troubled.get(place, 0.0), self.scene.timeline.now + self.scene.job.lease_s + AFTERMATH_S
        is_over = known == NEVER and not self.is_out(place)
        self.troubled[place] = calm_at if is_over else max(known, calm_at)  # it may still wait for its disk, for longer

    def stalled(self, place: str, until: float) -> None:
        """An agent does nothing until then."""
        self.troubled[place] = max(self.troubled.get(place, 0.0), until + self.scene.job.lease_s + AFTERMATH_S)

    def stopped(self, place: str) -> None:
        """An agent does nothing until it is continued."""
        self.troubled[place] = NEVER

    def cut_off(self, place: str) -> None:
        """A place is out of reach until it is healed."""
        self.troubled[place], self.cut_at[place] = NEVER, self.scene.timeline.now

    def stormy(self, lasts_s: float) -> None:
        """The network is slow everywhere for so long."""
        until = self.scene.timeline.now + lasts_s + self.scene.job.lease_s + 2 * AFTERMATH_S
        self.stormy_until = max(self.stormy_until, until)

    def _is_calm(self, *places: str, for_s: float = 0.0) -> bool:
        """Nothing was done to these that may still show, nor might have `for_s` seconds ago."""
        over_at = max(self.stormy_until, *(self.troubled.get(place, 0.0) for place in places))
        return over_at < self.scene.timeline.now - for_s

    # --- rounds ---------------------------------------------------------------------------------------------------------

    def starting(self, agent: Watched, assigned: Assigned) -> None:
        """A node is about to start its workers."""
        self._ranks_are_whole(agent, assigned)
        self._state_is_where_it_is_said(agent, assigned)
        self._one_round_lives(agent, assigned)
        self.runs[agent.id] = assigned.life
        self.newest_round[assigned.life] = max(assigned.round, self.newest_round.get(assigned.life, 0))

    def _ranks_are_whole(self, agent: Watched, assigned: Assigned) -> None:
        """The ranks of a round are exactly 0…W−1, each on one node; no node is in a round twice."""
        node, number, nproc = agent.id, assigned.round, agent.node.group.join.nproc
        members = self.rounds.setdefault((self._life(node, assigned), number), {})
        if node in members:
            raise Violation(f"{node} starts round {number} twice")
        mine = set(range(assigned.base_rank, assigned.base_rank + nproc))
        if not mine <= set(range(assigned.world_size)):
            raise Violation(f"{node} has ranks {sorted(mine)} of {assigned.world_size}")
        for other, theirs in members.items():
            if any(getattr(theirs, field) != getattr(assigned, field) for field in SAME_FOR_ALL):
                raise Violation(f"round {number} is not the same for {node} and {other}: {assigned} and {theirs}")
            if theirs.group_rank == assigned.group_rank:
                raise Violation(f"{node} and {other} both have group rank {assigned.group_rank} in round {number}")
        members[node] = assigned
        if len(members) == assigned.group_world_size:
            spans = sorted((one.base_rank, self._nproc(name)) for name, one in members.items())
            ranks = [rank for base, count in spans for rank in range(base, base + count)]
            if ranks != list(range(assigned.world_size)):
                raise Violation(f"round {number} has ranks {ranks}, not 0 to {assigned.world_size - 1}")

    def _life(self, node: str, assigned: Assigned) -> int:
        """Which life of the coordinator said so."""
        for number, host in enumerate(self.hosts):
            if (seat := host.seats.get(node)) and seat.assigned is assigned:
                return number
        raise Violation(f"{node} starts round {assigned.round} though it has no seat in it")

    def _state_is_where_it_is_said(self, agent: Watched, assigned: Assigned) -> None:
        """Who is to go on with what it has in memory has what was agreed on, and who is given that has not. No newer one would
        have been enough."""
        kept = {worker.local_rank: worker for worker in agent.world.live if worker.let_go}
        for rank, came_from in enumerate(assigned.state_from, assigned.base_rank):
            word, _, giver = came_from.partition(" ")
            if word == "rank" and (int(giver) - rank) % self.scene.job.parts:
                raise Violation(f"rank {rank} on {agent.place} is given another part of the state, by {came_from}")
        for i, came_from in enumerate(assigned.state_from):
            if i not in kept or assigned.state is None:
                continue  # a new process: if another was counted on, it has died since
            if (came_from == "memory") != (kept[i].has == assigned.state):
                has = f"has {kept[i].has} and is to go on from {assigned.state} by {came_from}"
                raise Violation(f"rank {assigned.base_rank + i} on {agent.place} {has}")
        host = self.hosts[self._life(agent.id, assigned)]
        begins = len(self.rounds[self._life(agent.id, assigned), assigned.round]) == 1
        if begins and self.scene.job.parts:
            self._newest_is_taken(assigned, [name for name, seat in host.seats.items() if seat.state is SeatState.RUNNING])

    def _newest_is_taken(self, assigned: Assigned, nodes: Collection[str]) -> None:
        """Of what the ranks of a round have in memory, before the first of them begins."""
        waiting = [worker for life in self.lives if life.id in nodes for worker in life.world.live if worker.let_go]
        parts = {has: {one.life.part for one in waiting if one.has == has} for one in waiting if (has := one.has) is not None}
        needed = {rank % self.scene.job.parts for rank in range(assigned.world_size)}
        best = max((has for has, held in parts.items() if needed <= held), default=None)
        is_settled = bool(assigned.state_from)
        if best is not None and is_settled and (assigned.state is None or assigned.state < best):
            raise Violation(f"round {assigned.round} goes on from {assigned.state}, and its ranks have {best}")
        if parts and not is_settled and self.scene.job.parts == 1:
            raise Violation(f"round {assigned.round} begins, and nobody has said what its ranks go on from")

    def _nproc(self, node: str) -> int:
        return next(life.node.group.join.nproc for life in self.lives if life.id == node)

    def _one_round_lives(self, agent: Watched, assigned: Assigned) -> None:
        """No worker of another round, or of another coordinator's, is alive anywhere when one is started."""
        number, host = assigned.round, self._life(agent.id, assigned)
        self.hosted[agent.id] = host
        if self.is_vouched:
            return
        self._note_whoever_began_anew(host)
        for life in self.lives:
            other = self.hosted.get(life.id, host)
            for worker in life.world.live:
                same = worker.round == number and other == host
                if worker.asleep or self.scene.timeline.now < life.continued_at + CONTINUED_S:
                    continue  # its agent acts first when it wakes
                if not same and not worker.let_go and worker.life.killable and not {host, other} & self.anew:
                    left = f"rank {worker.rank} of round {worker.round} still lives on {life.place}"
                    raise Violation(f"{agent.place} starts round {number} while {left}")

    # --- checkpoints ----------------------------------------------------------------------------------------------------

    def may_commit(self, agent: Watched, worker: Worker) -> None:
        """A rank has looked at its lease, and may replace the checkpoint: nobody else holds its rank."""
        newest = self.newest_round.get(self.runs[agent.id], 0)
        if newest > worker.round and worker.life.killable and self.hosted.get(agent.id) not in self.anew:
            left = f"rank {worker.rank} of round {worker.round}, which is none any more"
            raise Violation(f"{left}, may replace the checkpoint from {agent.place}: round {newest} has begun")

    def committed(self, agent: Watched, worker: Worker) -> None:
        """A rank has replaced the checkpoint: never a newer one."""
        if self.hosted.get(agent.id) in self.anew or not worker.life.killable:
            return
        run = self.runs[agent.id]
        if worker.round < self.newest_checkpoint.get(run, 0):
            newer = f"that of round {self.newest_checkpoint[run]}"
            raise Violation(f"rank {worker.rank} of round {worker.round} on {agent.place} replaces {newer} by its checkpoint")
        self.newest_checkpoint[run] = worker.round

    def _note_whoever_began_anew(self, host: int) -> None:
        """No coordinator knows of a job whose nodes it has never heard: an agent that is started at the endpoint, and then cut
        off until it has gathered enough for a first round, begins another (docs/explanation/succession.md)."""
        for life in self.lives[1:]:
            job = life.rendezvous
            if job is self.hosts[host] and job.round == 1 and self.cut_at.get(life.place, -1.0) >= life.began_at:
                self.anew.add(host)

    # --- decisions ------------------------------------------------------------------------------------------------------

    def recorded(self, agent: Watched, event: Event) -> None:
        match event:
            case Decided(decision=decision, reason=reason):
                if not reason:
                    raise Violation(f"{agent.place} decides to {decision} without a reason")
                self._growth_is_allowed(agent, decision, reason)
                if (job := agent.rendezvous) is None:
                    return
                self._budget_is_kept(agent, job)
                if self.scene.job.carries_on:
                    self._nobody_restarts_for_a_few(agent, job, decision, reason)
                    self._enough_have_succeeded(agent, job, decision, reason)
            case NodeLost(name=name, silent_s=silent_s):
                self._loss_has_a_cause(agent, name, silent_s)

    def _budget_is_kept(self, agent: Watched, job: Rendezvous) -> None:
        """A restart is spent by a failure and by nothing else, and never more than there are."""
        allowed = self.scene.job.max_restarts
        if self.scene.job.restart_period_s is not None:
            return
        spent = allowed - job.policy.restarts_left(agent.world.now())
        if not 0 <= job.restarts <= allowed or job.restarts != spent:
            raise Violation(f"{job.restarts} restarts, {spent} spent, {allowed} allowed")

    def _growth_is_allowed(self, agent: Watched, decision: str, reason: str) -> None:
        """Nobody is made to start again for a newcomer where the job does not grow at once; or only when a checkpoint has been
        written, and the ranks have run for long enough."""
        rules, job = self.scene.job, agent.rendezvous
        if decision != Verdict.REJOIN or " joined" not in reason:
            return
        if rules.grow == Grow.AT_CHECKPOINT and reason.endswith(SAVED) and job is not None:
            now = agent.world.now()
            if not rules.is_due(job.formed_at, now):
                raise Violation(f"{agent.place} restarts all because {reason}, {now - job.formed_at:.1f} s after they began")
        elif rules.grow != Grow.AT_ONCE:
            raise Violation(f"{agent.place} restarts all because {reason}, with --grow {rules.grow}")

    def _excluded_are_left_out(self, job: Rendezvous) -> None:
        """No node that must not take part is in a round that runs, unless somebody has finished its part in it already."""
        if not job.excluded or job.phase is not JobPhase.RUNNING or _some_are_done(job):
            return
        for seat in job.seats.members:
            if (self.scene.job.carries_on or job.inquiry is not None) and seat.state in ON_THEIR_WAY_OUT:
                continue  # alone, while the others carry on, or until it is known which hang is to blame
            if sum(one.name == seat.name for one in job.seats.values()) > 1:
                continue  # the lease of its earlier life runs out
            if why := job.excluded.why(seat.name):
                raise Violation(f"{seat.name} takes part in round {job.round} though it is excluded: {why}")

    def _unfit_hold_no_ranks(self, agent: Watched) -> None:
        """A node that knows itself to be unfit runs no ranks for longer than it takes to say so, if others can."""
        checking, now = agent.checking, self.scene.timeline.now
        if checking is None:
            return
        if not checking.examiner.unfit or not self._could_be_replaced(agent):
            self.unfit_since.pop(agent.id, None)
        elif now - self.unfit_since.setdefault(agent.id, now) > self.scene.job.check_every_s + DEADLINE_S + AFTERMATH_S:
            raise Violation(f"{agent.place} is unfit ({checking.examiner.unfit}) and holds ranks that others could have")

    def _could_be_replaced(self, agent: Watched) -> bool:
        """It runs in a round of a coordinator that could make another one without it, and nothing keeps the two apart."""
        if agent.node.group.phase is not Phase.RUNNING or agent.stands_still:
            return False
        if self.scene.timeline.now < agent.resumed_at + AFTERMATH_S:
            return False
        for life in self.lives:
            job = life.rendezvous
            if job is None or life.ended or job.phase is not JobPhase.RUNNING:
                continue
            seat = job.seats.get(agent.id)
            if seat is None or seat.state is not SeatState.RUNNING:
                continue
            calm = self._is_calm(agent.place, life.place) and not life.stands_still
            return calm and not _some_are_done(job) and not job.seats.lacking(agent.place, job.round)
        return False

    def _nobody_restarts_for_a_few(self, agent: Watched, job: Rendezvous, decision: str, reason: str) -> None:
        """As long as enough nodes are well in truth, the ranks are not restarted, unless one of them asked for it."""
        needed = self.scene.job.min_nodes
        if not job.seats.size or decision not in (Verdict.RESTART, Verdict.REJOIN):
            return  # it has just taken the lead: every round ends with its coordinator
        if "asked for a restart" in reason or not self._is_calm(agent.place):
            return
        well = [life.place for life in self.lives if self._is_well(life, job)]
        if len(well) >= needed:
            raise Violation(f"{agent.place} restarts all ({reason}), though {well} are well and {needed} are enough")

    def _is_well(self, life: Watched, job: Rendezvous) -> bool:
        """Its node takes part in the running round, nothing was done to it, and its ranks get on or are done."""
        group, is_calm = life.node.group, self.troubled.get(life.place, 0.0) < self.scene.timeline.now
        if life.ended or life.id not in job.seats or job.excluded.why(life.place) or not is_calm or group.state.leaving:
            return False
        at_work = group.round == job.round and group.phase in (Phase.RUNNING, Phase.SUCCEEDED)
        return at_work and all(worker.is_well for worker in life.workers_of(job.round))

    def _enough_have_succeeded(self, agent: Watched, job: Rendezvous, decision: str, reason: str) -> None:
        """A job that carried on succeeds only if as many nodes have as a round needs."""
        if decision != Verdict.FINISH:
            return
        crews = [life.workers_of(job.round) for life in self.lives]
        done = sum(bool(crew) and all(worker.exitcode == 0 for worker in crew) for crew in crews)
        if done < self.scene.job.min_nodes:
            raise Violation(f"{agent.place} ends it well ({reason}), though only {done} nodes have succeeded")

    def _enough_carry_on(self, agent: Watched, job: Rendezvous) -> None:
        """A round that has lost some of its nodes does not run on with too few."""
        if job.phase is not JobPhase.RUNNING or not job.has_lost_some:
            return
        if job.inquiry is not None and job.inquiry.held:
            return  # it is still being found out who hung
        health = job.seats.health
        if self.scene.job.carries_on and health.healthy + health.succeeded < health.needed:
            raise Violation(f"{agent.place} lets round {job.round} go on with too few: {health}")

    def _loss_has_a_cause(self, agent: Watched, name: str, silent_s: float) -> None:
        """No node is given up that has been well all the time: when it fell silent, and since."""
        if self._is_calm(name, agent.place, for_s=silent_s):
            raise Violation(f"{agent.place} gave up {name}, with which nothing was wrong")

    def transmitted(self, agent: Watched, message: Message) -> None:
        """A message was sent: the coordinator's word always has a reason."""
        match message:
            case Assigned(reason="") | Stop(reason="") | Refused(reason=""):
                raise Violation(f"{agent.place} says {message} without a reason")
            case Finish(report=report) if not report.reason:
                raise Violation(f"{agent.place} ends the job without a reason")

    # --- hangs ----------------------------------------------------------------------------------------------------------

    def hangs(self, agent: Watched, worker: Worker, limit_s: float) -> None:
        """A rank hangs, and its limit has begun to run: it outlives that by no more than a look takes, or a stop."""
        due_s = limit_s + LOOK_S + max(self.scene.job.grace_s, self.scene.job.regroup_s) + HANG_SLACK_S

        def see() -> None:
            if agent.ended or agent.exit is not None or not worker.alive or worker.let_go:
                return
            if agent.stands_still or self.scene.timeline.now < agent.resumed_at + due_s:
                self.scene.timeline.after(due_s, see)
            elif worker.life.killable:
                raise Violation(f"rank {worker.rank} on {agent.place} hangs, and nobody has ended it")

        self.scene.timeline.after(due_s, see)

    # --- ends -----------------------------------------------------------------------------------------------------------

    def exited(self, agent: Watched, end: Exit) -> None:
        """An agent ends: with a code, and with something to show for it."""
        if agent.exit is not None and agent.exit is not end:
            raise Violation(f"{agent.place} ends twice")
        report = end.report
        if report is None and not end.complaint and end.code >= 0:
            raise Violation(f"{agent.place} ends with {end.code} and not a word")
        if report is None:
            return
        if end.code != report.exit_code:
            raise Violation(f"{agent.place} ends with {end.code}, its report says {report.exit_code}")
        told = shortened(report)  # a node that missed the end has it from what a successor keeps
        if self.reports.setdefault(report.started_at_unix, told) != told:
            raise Violation(f"{agent.place} prints another report than the others")

    def after_turn(self, agent: Watched, *, idle: bool) -> None:
        """A machine is never woken for nothing again and again."""
        if (job := agent.rendezvous) is not None:
            self._excluded_are_left_out(job)
            self._enough_carry_on(agent, job)
        self._one_leads(agent)
        self._spares_are_no_workers(agent)
        self._unfit_hold_no_ranks(agent)
        now = self.scene.timeline.now
        at, count = self.idle.get(agent.place, (-1.0, 0))
        count = count + 1 if idle and at == now else 0
        self.idle[agent.place] = now, count
        if count > IDLE_TURNS:
            raise Violation(f"{agent.place} wants to be woken at {agent.node.deadline()} again and again: {agent.describe()}")
        if agent.exit is not None and agent.node.deadline() != NEVER and agent.node.group.deadline() != NEVER:
            raise Violation(f"{agent.place} has ended and still waits for time to pass")
        if (ends := agent.node.lease_ends) is not None and agent.world.now() > ends + SLACK_S and not agent.resumed:
            raise Violation(f"{agent.place} has overdrawn its lease and does its duty: its guardian would have ended it")
        agent.turn_over()

    # --- who leads ------------------------------------------------------------------------------------------------------

    def _one_leads(self, agent: Watched) -> None:
        """No two nodes have a mandate at the same time for the same run of the job."""
        if self.is_vouched or (life := self._led_by(agent)) is None:
            return
        for other in self.lives:
            if other is not agent and not other.ended and self._led_by(other) == life:
                raise Violation(f"{agent.place} and {other.place} both lead the job")

    def vouched(self) -> None:
        """An operator has vouched for it that nodes are dead."""
        self.is_vouched = True

    def _led_by(self, agent: Watched) -> str | None:
        """The run of the job in which it has a mandate that others could end. None: it has none."""
        if not isinstance(agent.node, PeerElectedNode) or (mandate := agent.node.election.mandate) is None:
            return None
        is_over = mandate.is_over(agent.world.now() + DRIFT_S)
        return None if is_over or not mandate.bodies else agent.node.election.life

    # --- warm spares ----------------------------------------------------------------------------------------------------

    def _spares_are_no_workers(self, agent: Watched) -> None:
        """No spare is a worker, none more is kept than was wanted, and the machine knows of each."""
        if agent.ended or not agent.spares.on:
            return
        spares, slots = agent.spares, agent.spares.machine.state.slots
        if both := {one.pid for one in spares.living} & {worker.pid for worker in agent.world.live}:
            raise Violation(f"{agent.place} has spares that are workers: {both}")
        if counted := set(spares.parked) & set(agent.local_ranks):
            raise Violation(f"{agent.place} counts spares as workers: {counted}")
        known = sorted(slot.pid for slot in slots if slot.state is not SlotState.NONE)
        wanted = self.scene.job.warm_spares
        most = 1 if spares.fork else agent.node.group.join.nproc if wanted is None else wanted
        if known != sorted(spares.parked) or len(known) > most:
            raise Violation(f"{agent.place} has the spares {sorted(spares.parked)}, {most} are wanted, and {known} are known")

    def no_spare_is_left(self, agent: Watched) -> None:
        """An agent has ended a moment ago."""
        if left := [one.pid for one in agent.spares.living]:
            raise Violation(f"{agent.place} has ended, and its spares {left} have not")

    # --- the end --------------------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        """An agent that ended by itself has a code."""
        for agent in self.lives:
            if agent.exit is not None and agent.code is None and not agent.ended:
                raise Violation(f"{agent.place} has no exit code")


def _some_are_done(job: Rendezvous) -> bool:
    """Whether a node has finished its part in the running round."""
    return any(seat.state is SeatState.SUCCEEDED for seat in job.seats.values())
