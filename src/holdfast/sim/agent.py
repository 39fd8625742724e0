"""The loop of `agent.agent`, over a simulated World: the same turns, the same order, nothing of logs and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.agent.agent import FAREWELL_S
from holdfast.agent.group import messages
from holdfast.agent.group.state import Phase
from holdfast.agent.logs.log_files import NEXT_S as LOGS_S
from holdfast.agent.node import Node
from holdfast.agent.own_lease import OwnLease
from holdfast.core.config.own_options import Grow
from holdfast.core.errors import StartError
from holdfast.core.job.failure import Evidence, Position
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Signalled, Tick
from holdfast.core.processes import ProcessDying, ProcessGone, ProcessLives
from holdfast.core.value import replace
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.core.wire.messages import Assigned, Paced, Reply, ToImport
from holdfast.health.examiner import Answered
from holdfast.rendezvous.election.elector_memory import Remember
from holdfast.rendezvous.election.store_election import Await, Campaign, Keep, Persist, Resign
from holdfast.rendezvous.election.witness_claims import Claim
from holdfast.runtime.process.guardian import Lease
from holdfast.sim.checking import SimChecking
from holdfast.sim.checks import Checks, Watched
from holdfast.sim.monitoring import SimMonitoring
from holdfast.sim.network import SimLinks
from holdfast.sim.scene import Scene
from holdfast.sim.spares import Imported, SimSpares
from holdfast.sim.store import SimStore
from holdfast.sim.world import KILL_S, SimHost, Worker
from holdfast.telemetry.record.io_thread import PATIENCE_S

SCRIPT = ("train.py",)

SAVE_S = 0.3  # How long it takes to write a checkpoint.

SHOW_S = 0.004  # From a request for stacks to the stacks.


class SimAgent(Watched):
    """One life of an agent at a place."""

    def __init__(
        self,
        scene: Scene,
        place: str,
        checks: Checks,
        *,
        stalled: Callable[[SimAgent], None],
        claim: Callable[[SimAgent, Claim], None],
        remember: Callable[[SimAgent, Remember], None],
    ) -> None:
        """`stalled`: it waits for its disk. `claim`: it asks the witness. `remember`: it writes what it must not forget."""
        super().__init__(scene, place)
        self.checks, self.stalled, self.claim, self.remember = checks, stalled, claim, remember

    # --- the loop -------------------------------------------------------------------------------------------------------

    def begin(self, world: SimHost, links: SimLinks, node: Node, store: SimStore | None = None) -> None:
        """The agent's first turn. `store`: its hands in the store that elects."""
        self.world, self.links, self.node, self.store = world, links, node, store
        self.lease = OwnLease(world.as_host, node, Lease())
        job, group = self.scene.job, node.group
        config = job.config(group.join.nproc)
        self.monitoring = SimMonitoring(config, world, node=self.place, perform=self.perform)
        self.spares = SimSpares(
            self.scene, self.place, config, world, group, local_ranks=lambda: self.local_ranks, perform=self.perform
        )
        self.checking = SimChecking(self.scene, self.place, config, world, self.perform) if job.checks else None
        self.parts: list[SimMonitoring | SimSpares | SimChecking] = [self.monitoring, self.spares]
        if self.checking is not None:
            self.parts.append(self.checking)
        self._tell_the_time()
        self._hold_port()
        self.perform(self.node.begin(world.now()))
        self._after()

    def write(self, longest_s: float = float("inf")) -> None:
        """Wait for the disk, if it is slow, for so long at most."""
        if slow_s := self.scene.disks.get(self.place, 0.0):
            now = self.scene.timeline.now
            self.busy_until = max(self.busy_until, now + self.scene.rng.uniform(0.0, min(slow_s, longest_s)))
            self.resumed, self.resumed_at = True, self.busy_until
            self.stalled(self)

    def wake(self, when: float) -> None:
        """Have a turn at a true time, or earlier."""
        if when < self.turn_at and not self.ended:
            self.turn_at = when
            self.scene.timeline.at(when, lambda: self._woken(when))

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.paused, self.resumed, self.resumed_at = False, True, self.scene.timeline.now
        self.wake(self.resumed_at)

    def strike(self) -> None:
        """Its guardian ends its workers, and it learns that before it sees them end."""
        if self.lease.lease is not None:
            self.lease.lease.strike()
        self.world.strike()
        self.spares.strike()

    def signal(self, signum: int) -> None:
        """The agent's process gets a signal."""
        if not self.ended:
            self.world.see(Signalled(signum=signum))

    def end(self) -> None:
        """The process is gone."""
        self.ended = True
        self.checks.touched(self.place)
        self.world.close()
        self.spares.strike()
        self.scene.timeline.after(2 * KILL_S, lambda: self.checks.no_spare_is_left(self))
        self.links.close()

    def look_at(self, worker: Worker) -> None:
        """Its monitor looks at a rank, whose script has set a limit."""
        if not self.paused:
            for found in self.monitoring.look(worker.local_rank):
                self.world.see(found)
            self._after()

    def _woken(self, when: float) -> None:
        if when != self.turn_at or self.ended:
            return
        self.turn_at = NEVER
        if self.paused:
            return
        if when < self.busy_until:
            self.wake(self.busy_until)
            return
        self.world.wait_for(self._deadline())
        late = [Tick()] if self.world.now() >= self.node.deadline() else []
        seen = self.world.wait(NEVER)
        self.lease.enforce()
        seen = self.lease.explained(seen)
        self._tell_the_time()
        for what in [*seen, *(found for part in self.parts if self.world.now() >= part.due_at for found in part.due()), *late]:
            for part in self.parts:
                if isinstance(what, part.sees):
                    part.saw(what)
            self._observe(*self._understood(what))
        self.checks.after_turn(self, idle=not seen)
        self._after()

    def _after(self) -> None:
        """After a turn: end, or wait for the next."""
        self.lease.show()
        if self.exit is not None and (self.node.done or self.exit.code < 0 or self.world.now() >= self.leave_at):
            self.code = self.exit.code
            if self.store is not None:
                self.store.close(self.node.will(self.world.now()))
            self.end()
        elif self.world.seen:
            self.wake(self.scene.timeline.now)
        elif (deadline := self._deadline()) != NEVER:
            self.wake(max(self.scene.timeline.now, self.world.clock.true(deadline)))

    def _deadline(self) -> float:
        return min(self.node.deadline(), self.leave_at, *(part.due_at for part in self.parts))

    def _tell_the_time(self) -> None:
        self.node.set_clock(self.world.unix() - self.world.now())

    def _observe(self, *observations: Observation) -> None:
        for seen in observations:
            self.perform(self.node.observe(seen, self.world.now()))

    def _understood(self, seen: Observation) -> list[Observation]:
        match seen:
            case ProcessDying(pid=pid, exitcode=exitcode):
                return [self._end_of(pid, exitcode, gone=False)] if exitcode != 0 and pid in self.local_ranks else []
            case ProcessGone(pid=pid, exitcode=exitcode):
                if pid in self.local_ranks:
                    return [*self._in_memory(), self._end_of(pid, exitcode, gone=True)]
                self.spares.gone(pid, exitcode)
                return []
            case ProcessLives(pid=pid, in_place=in_place, let_go=let_go):
                mine = self.local_ranks.get(pid)
                news = [] if mine is None else [messages.Lives(local_rank=mine, pid=pid, in_place=in_place, let_go=let_go)]
                return [*(self._in_memory() if let_go and news else []), *news]
            case Imported(pid=pid):
                self.spares.heard(pid)
                return []
            case Answered() if self.checking is not None:
                return self.checking.answered(seen)
        return [seen]

    def _in_memory(self) -> list[Observation]:
        """As `agent.workers.workers.Workers._in_memory`."""
        workers = [self.world.workers[pid] for pid in self.local_ranks]
        if any(worker.alive and not worker.let_go for worker in workers):
            return []
        world_size = 0 if self.node.group.assigned is None else self.node.group.assigned.world_size
        known = [(worker, held) for worker in workers if (held := worker.held) is not None]
        said = [
            (worker.local_rank, worker.rank, world_size, *(held if worker.alive else (held[0], -1, *held[2:])))
            for worker, held in known
        ]
        return [messages.InMemory(in_memory=tuple(said))] if said else []

    def _end_of(self, pid: int, exitcode: int, *, gone: bool) -> messages.Ended:
        i, at_unix = self.local_ranks[pid], self.world.unix()
        return messages.Ended(local_rank=i, pid=pid, exitcode=exitcode, gone=gone, at_unix=at_unix, evidence=Evidence())

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order; what is seen of them at once is observed when all are done."""
        seen: list[Observation] = []
        for action in actions:
            seen += self._carry_out(action)
        self._observe(*seen)

    def _carry_out(self, action: Action) -> list[Observation]:
        """Do one thing; what is seen of it at once."""
        match action:
            case Transmit(message=message):
                self.checks.transmitted(self, message)
                return self.links.perform(action)
            case Connect() | HangUp():
                return self.links.perform(action)
            case Record() | Say() | messages.FromCoordinator(message=Reply()):
                self._tell(action)
            case Campaign() | Await() | Keep() | Persist() | Resign():
                assert self.store is not None, f"an agent without a store cannot do {action!r}"
                self.store.perform(action)
            case Claim():
                self.claim(self, action)
            case Remember():
                self.remember(self, action)
            case messages.Exit():
                self.exit, self.leave_at = action, self.world.now() + FAREWELL_S
                self.checks.exited(self, action)
            case messages.CheckNode(after_failure=after_failure):
                assert self.checking is not None
                return self.checking.before_join(after_failure)
            case messages.FromCoordinator(message=ToImport(modules=modules)):
                self.spares.stand_by(modules)
            case messages.FromCoordinator(message=Paced(longest_s=longest_s, busy_s=busy_s)):
                self.monitoring.heed(longest_s, busy_s)
            case _:
                return self._do_with_workers(action)
        return []

    def _do_with_workers(self, action: Action) -> list[Observation]:
        match action:
            case messages.OpenLogs(assigned=assigned):
                return self._open_logs(assigned.round)
            case messages.StartWorkers(assigned=assigned, kept=kept):
                self.lease.show()
                self._start_unless_still(assigned, kept, self.shown)
            case messages.RegroupWorkers(local_ranks=local_ranks):
                for pid in self._pids(local_ranks):
                    self.world.regroup(pid)
            case messages.SignalWorkers(local_ranks=local_ranks, signum=signum):
                for pid in self._pids(local_ranks):
                    self.world.signal_group(pid, signum)
            case messages.KillWorkers(local_ranks=local_ranks):
                self.world.kill(self._pids(local_ranks))
            case messages.LookAtWorkers():
                self.scene.timeline.after(SHOW_S, self._show)
            case messages.LookAtMemory():
                return self.world.look_at_memory()
            case messages.KeepStacks() | messages.Sweep():
                pass  # simulated workers leave nothing behind
            case _:
                raise AssertionError(f"an agent cannot do {action!r}")
        return []

    def _tell(self, action: Action) -> None:
        match action:
            case Record(event=event):
                self.write(PATIENCE_S)
                self.scene.note(self.place, event)
                self.checks.recorded(self, event)
                for part in self.parts:
                    if isinstance(event, part.notes):
                        part.recorded(event, self.world.unix())
            case Say(text=text, level=level) if level != "debug":
                self.scene.note(self.place, f"{level}: {text}")
            case messages.FromCoordinator(message=Reply(text=text)):
                self.scene.note(self.place, f"answers: {text}")

    def _open_logs(self, number: int) -> list[Observation]:
        """Make a round's files. The agent does not wait for their disk, and its workers not for long."""
        seen = messages.LogsOpened(round=number)
        if not (slow_s := self.scene.disks.get(self.place, 0.0)):
            return [seen]
        after_s = self.scene.rng.uniform(0.0, min(slow_s, LOGS_S))
        self.scene.timeline.after(after_s, lambda: None if self.ended else self.world.see(seen))
        return []

    def _start_unless_still(self, assigned: Assigned, kept: tuple[int, ...], lease_ends: float | None) -> None:
        """`lease_ends`: as it was when the start was decided."""
        if self.ended:
            return
        if self.stands_still:
            again_s = PATIENCE_S if self.paused else self.busy_until - self.scene.timeline.now
            self.scene.timeline.after(again_s, lambda: self._start_unless_still(assigned, kept, lease_ends))
            return
        started = self._start(assigned, kept, is_late=lease_ends is not None and self.world.now() >= lease_ends)
        self._observe(*started)
        for part in self.parts:
            for seen in part.begin_round(assigned, started):
                self.world.see(seen)
        self._hold_port()
        if self.scene.job.grow == Grow.AT_CHECKPOINT:
            self.scene.timeline.after(self.scene.job.save_every_s, lambda: self._save(assigned.round))

    def _start(self, assigned: Assigned, kept: tuple[int, ...], *, is_late: bool) -> list[Observation]:
        """Start a round's workers, unless the lease is over; what became of each."""
        if not is_late:
            self.checks.starting(self, assigned)
        before, self.local_ranks = {local: pid for pid, local in self.local_ranks.items()}, {}
        seen: list[Observation] = []
        for local_rank in range(self.node.group.join.nproc):
            env = {
                "RANK": str(assigned.base_rank + local_rank),
                "LOCAL_RANK": str(local_rank),
                "HOLDFAST_ROUND": str(assigned.round),
                "TORCHELASTIC_RESTART_COUNT": str(assigned.restart_count),
            }
            try:
                if is_late:
                    raise StartError(messages.TOO_LATE)
                if local_rank in kept and self.world.go_on(before[local_rank], env):
                    pid = before[local_rank]
                    self.local_ranks[pid] = local_rank
                    begun = messages.Started(local_rank=local_rank, pid=pid, argv=SCRIPT, log_dir=None)
                    seen.append(replace(begun, in_place=True, at_unix=self.world.unix()))
                    if self.world.workers[pid].life.begins_s == float("inf"):
                        self.checks.hangs(self, self.world.workers[pid], self.scene.job.regroup_s)
                    continue
                spare, cold_because = self.spares.become(local_rank, env)
                pid = spare or self.world.start(SCRIPT, env)
            except StartError as error:
                seen.append(messages.StartFailed(local_rank=local_rank, message=str(error), at_unix=self.world.unix()))
                break
            self.local_ranks[pid] = local_rank
            begun = messages.Started(local_rank=local_rank, pid=pid, argv=SCRIPT, log_dir=None)
            seen.append(replace(begun, spare=spare is not None, cold_because=cold_because))
        return seen

    def _save(self, number: int) -> None:
        """The ranks of that round write a checkpoint, if they still run, and another later."""
        if self.ended or self.node.group.round != number or self.node.group.phase is not Phase.RUNNING:
            return
        self.world.see(messages.SavesSeen(open=True))
        self.scene.timeline.after(SAVE_S, lambda: None if self.ended else self.world.see(messages.SavesSeen(open=False)))
        self.scene.timeline.after(self.scene.job.save_every_s, lambda: self._save(number))

    def _show(self) -> None:
        """Its workers have dumped their stacks."""
        if not self.ended:
            self.world.see(messages.Looked(positions=tuple(map(self._position, self.world.live))))

    def _position(self, worker: Worker) -> Position:
        return Position(
            rank=worker.rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            quiet_s=0.0 if worker.quiet_since is None else self.scene.timeline.now - worker.quiet_since,
            step=worker.step,
            state="S",
            where=worker.where,
            waits=worker.where.startswith("all_reduce"),
        )

    def _hold_port(self) -> None:
        self._observe(messages.PortHeld(master_port=self.scene.hold_port()))

    def _pids(self, local_ranks: Iterable[int]) -> list[int]:
        wanted = set(local_ranks)
        return [pid for pid, local_rank in self.local_ranks.items() if local_rank in wanted]
