"""The loop of `agent.agent`, over a simulated World: the same turns, the same order, nothing of logs and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.agent.agent import FAREWELL_S
from holdfast.agent.group.messages import (
    TOO_LATE,
    CheckNode,
    Ended,
    Exit,
    FromCoordinator,
    HeedPace,
    KeepStacks,
    KillWorkers,
    LearnImports,
    LeaseOver,
    LookAtMemory,
    LookAtWorkers,
    Looked,
    PortHeld,
    SavesSeen,
    SignalWorkers,
    Started,
    StartFailed,
    StartWorkers,
    Sweep,
)
from holdfast.agent.group.state import Phase
from holdfast.agent.node import Node
from holdfast.core.config.own_options import Grow
from holdfast.core.errors import StartError
from holdfast.core.job.events import FailureSeen, StopSent
from holdfast.core.job.failure import Evidence, Position
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Signalled, Tick
from holdfast.core.processes import ProcessDying, ProcessGone
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.core.wire.messages import Assigned, Reply
from holdfast.health.examiner import Answered
from holdfast.rendezvous.election.store_election import Await, Campaign, Keep, Persist, Resign
from holdfast.rendezvous.election.witness_claims import Claim
from holdfast.sim.checking import SimChecking
from holdfast.sim.checks import Checks, Watched
from holdfast.sim.monitoring import SimMonitoring
from holdfast.sim.network import SimLinks
from holdfast.sim.spares import Imported, SimSpares
from holdfast.sim.world import KILL_S, SimHost, Worker
from holdfast.telemetry.record.io_thread import PATIENCE_S

if TYPE_CHECKING:
    from holdfast.sim.scene import Scene


SAVE_S = 0.3
"""How long it takes to write a checkpoint."""

SHOW_S = 0.004
"""From a request for stacks to the stacks."""


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
    ) -> None:
        """`stalled`: it waits for its disk. `claim`: it asks the witness."""
        super().__init__(scene, place)
        self.checks, self.stalled, self.claim = checks, stalled, claim

    # --- the loop -------------------------------------------------------------------------------------------------------

    def begin(self, world: SimHost, links: SimLinks, node: Node) -> None:
        """The agent's first turn."""
        self.world, self.links, self.node = world, links, node
        self.monitoring = SimMonitoring(self.place, world, self.perform)
        self.checking = SimChecking(self.scene, self.place, world, self.perform) if node.group.state.checks else None
        self._tell_the_time()
        is_worker = lambda pid: pid in self.local_ranks
        self.spares = SimSpares(self.scene, self.place, world, node.group, is_worker=is_worker, perform=self.perform)
        self._hold_port()
        self.perform(node.begin(world.now()))
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

    def strike(self) -> None:
        """Its guardian ends its workers, and it learns that before it sees them end."""
        if self.node.group.has_workers:
            self.world.seen.insert(0, LeaseOver(reason="struck by the guardian", until=self.world.now()))
        self.world.kill([worker.pid for worker in self.world.live])
        self.spares.strike()

    def signal(self, signum: int) -> None:
        """The agent's process gets a signal."""
        if not self.ended:
            self.world.see(Signalled(signum=signum))

    def _woken(self, when: float) -> None:
        if when != self.turn_at or self.ended:
            return
        self.turn_at = NEVER
        if self.paused:
            return
        if when < self.busy_until:
            self.wake(self.busy_until)
            return
        due = self.node.deadline()
        deadline = min(due, self._deadline_of_helpers(), self.leave_at)
        if self.world.clock.true(deadline) <= self.scene.timeline.now:
            self.world.floor = max(self.world.floor, deadline)
        late = self.world.now() >= due
        seen = self.world.wait(deadline)
        self._tell_the_time()
        checked = self.checking.due() if self.checking is not None else []
        for what in [*seen, *self.monitoring.due(), *self.spares.due(), *checked, *([Tick()] if late else [])]:
            for understood in self._understood(what):
                self.monitoring.saw(understood)
                self.perform(self.node.observe(understood, self.world.now()))
        self.checks.after_turn(self, idle=not seen)
        self._after()

    def _after(self) -> None:
        self.shown = self.node.lease_ends
        if self.exit is not None and (self.node.done or self.exit.code < 0 or self.world.now() >= self.leave_at):
            self.code = self.exit.code
            if self.store is not None:
                self.store.close(self.node.will(self.world.now()))
            self.end()
            return
        deadline = min(self.node.deadline(), self._deadline_of_helpers(), self.leave_at)
        if self.world.seen:
            self.wake(self.scene.timeline.now)
        elif deadline != NEVER:
            self.wake(max(self.scene.timeline.now, self.world.clock.true(deadline)))

    def _deadline_of_helpers(self) -> float:
        checks_at = self.checking.deadline() if self.checking is not None else NEVER
        return min(self.monitoring.deadline(), self.spares.deadline(), checks_at)

    def _tell_the_time(self) -> None:
        self.node.set_clock(self.world.unix() - self.world.now())

    def end(self) -> None:
        """The process is gone."""
        self.ended = True
        self.checks.touched(self.place)
        self.world.close()
        self.spares.strike()
        self.scene.timeline.after(2 * KILL_S, lambda: self.checks.no_spare_is_left(self))
        self.links.close()

    def hang(self, local_rank: int, limit_s: float) -> None:
        """A worker gives no sign of life from now on, and its script had allowed `limit_s` at most."""
        pid = self._pids([local_rank])[0]
        worker = self.world.workers[pid]
        if worker.quiet_since is None:  # else it hangs already, and does not begin to hang again
            worker.quiet_since = self.scene.timeline.now
        worker.limit_s = limit_s if worker.limit_s is None else min(limit_s, worker.limit_s)
        self.checks.hangs(self, worker, limit_s)
        if not self.paused and local_rank in self.monitoring.workers:
            for found in self.monitoring.look(local_rank):
                self.world.see(found)
            self._after()

    def _understood(self, seen: Observation) -> list[Observation]:
        match seen:
            case ProcessDying(pid=pid, exitcode=exitcode) if exitcode != 0 and pid in self.local_ranks:
                return [self._end_of(pid, exitcode, gone=False)]
            case ProcessGone(pid=pid, exitcode=exitcode) if pid in self.local_ranks:
                return [self._end_of(pid, exitcode, gone=True)]
            case ProcessGone(pid=pid, exitcode=exitcode):
                self.spares.gone(pid, exitcode)
                return []
            case Imported(pid=pid):
                self.spares.heard(pid)
                return []
            case ProcessDying():
                return []
            case Answered():
                return self.checking.answered(seen) if self.checking is not None else []
        return [seen]

    def _end_of(self, pid: int, exitcode: int, *, gone: bool) -> Ended:
        at_unix = self.world.unix()
        return Ended(local_rank=self.local_ranks[pid], exitcode=exitcode, gone=gone, at_unix=at_unix, evidence=Evidence())

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order; what is seen of them at once is observed when all are done."""
        seen: list[Observation] = []
        for action in actions:
            match action:
                case Record(event=event):
                    self.write(PATIENCE_S)
                    self.scene.transcript.note(self.scene.timeline.now, self.place, event)
                    self.checks.recorded(self, event)
                    if isinstance(event, (FailureSeen, StopSent)):
                        self.spares.round_ends()
                case Say(level="debug"):
                    pass
                case Say(text=text, level=level):
                    self.scene.transcript.note(self.scene.timeline.now, self.place, f"{level}: {text}")
                case StartWorkers(assigned=assigned):
                    self.shown = self.node.lease_ends
                    self.write()  # it makes the attempt's directories
                    self._start_when_written(assigned, self.shown)
                case LearnImports(modules=modules):
                    self.spares.stand_by(modules)
                case SignalWorkers(local_ranks=local_ranks, signum=signum):
                    for pid in self._pids(local_ranks):
                        self.world.signal_group(pid, signum)
                case KillWorkers(local_ranks=local_ranks):
                    self.world.kill(self._pids(local_ranks))
                case CheckNode():
                    assert self.checking is not None
                    seen += self.checking.before_join()
                case LookAtWorkers():
                    self.scene.timeline.after(SHOW_S, lambda wanted=action: self._show(wanted))  # type: ignore[misc]
                case KeepStacks():
                    pass
                case Sweep():
                    self.world.sweep()
                case LookAtMemory():
                    seen += self.world.look_at_memory()
                case HeedPace(longest_s=longest_s, busy_s=busy_s):
                    self.monitoring.monitor.heed(longest_s, busy_s, self.world.now())
                case FromCoordinator(message=Reply(text=text)):
                    self.scene.transcript.note(self.scene.timeline.now, self.place, f"answers: {text}")
                case Exit():
                    self.exit, self.leave_at = action, self.world.now() + FAREWELL_S
                    self.checks.exited(self, action)
                case Connect(link=link, endpoint=endpoint):
                    seen += self.links.connect(link, endpoint)
                case Transmit(link=link, message=message):
                    self.checks.transmitted(self, message)
                    self.links.transmit(link, message)
                case HangUp(link=link):
                    self.links.hang_up(link)
                case Campaign() | Await() | Keep() | Persist() | Resign():
                    assert self.store is not None, f"an agent without a store cannot do {action!r}"
                    self.store.perform(action)
                case Claim():
                    self.claim(self, action)
                case _:
                    raise AssertionError(f"an agent cannot do {action!r}")
        for one in seen:
            self.perform(self.node.observe(one, self.world.now()))

    def _start_when_written(self, assigned: Assigned, lease_ends: float | None) -> None:
        if self.ended:
            return
        if not self.stands_still:
            self._start(assigned, lease_ends)
            return
        again_s = PATIENCE_S if self.paused else self.busy_until - self.scene.timeline.now
        self.scene.timeline.after(again_s, lambda: self._start_when_written(assigned, lease_ends))

    def _start(self, assigned: Assigned, lease_ends: float | None) -> None:
        """`lease_ends`: as it was when the start was decided, whatever has been heard meanwhile."""
        is_late = lease_ends is not None and self.world.now() >= lease_ends
        if not is_late:
            self.checks.starting(self, assigned)
        self.local_ranks = {}
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
                    raise StartError(TOO_LATE)
                spare, cold_because = self.spares.take(local_rank, env)
                pid = spare or self.world.start(("train.py",), env)
            except StartError as error:
                seen.append(StartFailed(local_rank=local_rank, message=str(error), at_unix=self.world.unix()))
                break
            self.local_ranks[pid] = local_rank
            warm = spare is not None
            started = Started(
                local_rank=local_rank, pid=pid, argv=("train.py",), log_dir=None, spare=warm, cold_because=cold_because
            )
            seen.append(started)
        for what in seen:
            self.perform(self.node.observe(what, self.world.now()))
        for found in self.monitoring.begin_round(assigned, seen):
            self.world.see(found)
        if self.checking is not None:
            self.checking.begin_round()
        self._hold_port()
        self.spares.round_began()
        if self.scene.job.grow == Grow.AT_CHECKPOINT:
            self.scene.timeline.after(self.scene.job.save_every_s, lambda: self._save(assigned.round))

    def _save(self, number: int) -> None:
        """The ranks of that round write a checkpoint, if they still run, and another later."""
        if self.ended or self.node.group.round != number or self.node.group.phase is not Phase.RUNNING:
            return
        self.world.see(SavesSeen(open=True))
        self.scene.timeline.after(SAVE_S, lambda: None if self.ended else self.world.see(SavesSeen(open=False)))
        self.scene.timeline.after(self.scene.job.save_every_s, lambda: self._save(number))

    def _show(self, wanted: LookAtWorkers) -> None:
        """Its workers have dumped their stacks."""
        if not self.ended:
            self.world.see(Looked(positions=tuple(self._position(wanted, worker) for worker in self.world.live)))

    def _position(self, wanted: LookAtWorkers, worker: Worker) -> Position:
        quiet = worker.quiet_since is not None
        return Position(
            rank=int(worker.env["RANK"]),
            local_rank=int(worker.env["LOCAL_RANK"]),
            pid=worker.pid,
            quiet_s=self.scene.timeline.now - (worker.quiet_since or 0.0) if quiet else 0.0,
            step=worker.step,
            state="S",
            where=worker.where,
            waits=worker.where.startswith("all_reduce"),
        )

    def _hold_port(self) -> None:
        self.perform(self.node.observe(PortHeld(port=self.scene.hold_port()), self.world.now()))

    def _pids(self, local_ranks: Iterable[int]) -> list[int]:
        wanted = set(local_ranks)
        return [pid for pid, local_rank in self.local_ranks.items() if local_rank in wanted]
