"""What does this node do now? The machine that runs one node's workers through the rounds of a job.

    joining ──Assigned──▶ running ──all exited 0──▶ succeeded ──Finish──▶ ended
       ▲                     │ a worker failed · Stop · a signal            ▲
       │                     ▼                                              │
       └───Stop(rejoin)── stopping ──all gone──▶ stopped ──────Finish───────┘

The first failure stops the siblings at once, without asking: every policy that restarts or ends the group needs that,
and it saves a round trip. Where the coordinator has said that the round may carry on without some, they are left alone until it
says otherwise, and when the last has ended the node is `stopped` and waits. What comes next is the coordinator's decision
(`rendezvous.coordinator.machine`), and heard in `agent.group.coordinator_messages`. A restart may have to wait for the GPUs'
memory (`agent.group.gpu_memory_wait`): the node is running then, with workers that are about to start. How they are brought to
their end is for `agent.group.stopping` to know, how the node leaves before the job's end for `agent.group.shutdown`.
"""

from __future__ import annotations

from holdfast.agent.group.coordinator_messages import Orders
from holdfast.agent.group.gpu_memory_wait import Reclaim
from holdfast.agent.group.messages import (
    ChecksRun,
    ControlAsked,
    Ended,
    ExaminationAsked,
    ExclusionAsked,
    Exit,
    FaultPlayed,
    Hung,
    ImportsKnown,
    InjectionAsked,
    LeaseOver,
    LimitsKnown,
    LogsTaken,
    Looked,
    MemorySeen,
    NodeChecked,
    PaceKnown,
    PortHeld,
    Reached,
    RestartAsked,
    SavesSeen,
    Send,
    SignalWorkers,
    SparesAwaited,
    Started,
    StartFailed,
    StartWorkers,
    Stashed,
    StopAsked,
    Stuck,
    Sweep,
    TimerExpired,
    Told,
    Unguarded,
)
from holdfast.agent.group.signal_forwarding import ForScript
from holdfast.agent.group.worker_table import Crew, WorkerSeat
from holdfast.core.job.events import (
    ControlRequested,
    FailureSeen,
    JobEnded,
    JoinRequested,
    RoundFormed,
    SignalReceived,
    WorkerDying,
    WorkerExited,
    WorkersStopped,
    WorkerStarted,
)
from holdfast.core.job.failure import Cause, Evidence
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Signalled, Tick
from holdfast.core.signals import name_of, signal
from holdfast.core.value import fields_of, replace
from holdfast.core.wire.messages import (
    Assigned,
    Calculated,
    Examine,
    Examined,
    Exclude,
    Failed,
    Imports,
    Inject,
    InjectionHeard,
    Join,
    Pace,
    Readmit,
    Requested,
    Saving,
    StopJob,
    Stopped,
    Succeeded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agent.group.hang_response import Look
    from holdfast.agent.group.node_health import Fitness
    from holdfast.agent.group.shutdown import Leaving
    from holdfast.agent.group.stopping import Stopping
    from holdfast.core.job.failure import Position


class Group:
    """The machine."""

    def __init__(
        self,
        join: Join,
        *,
        grace_s: float,
        hosting: bool,
        endpoint: str = "",
        backend: str = "memory",
        stop_signals: Sequence[int] = (),
        echoing: bool = False,
        term_grace_s: float | None = None,
        clean_stop_is_success: bool = False,
        memory: Reclaim | None = None,
        hang_signal: int = signal.SIGKILL,
        checks: bool = False,
    ) -> None:
        self.join = join
        self.grace_s = grace_s
        self.term_grace_s = grace_s if term_grace_s is None else term_grace_s
        """From the moment that a signal tells this agent to go."""
        self.clean_stop_is_success = clean_stop_is_success
        """Exit with 0 where a signal ended the job and every worker here ended with 0 (ft_launcher)."""
        self.hosting = hosting
        """This agent's process also holds the coordinator: when it goes, the job ends."""
        self.endpoint, self.backend = endpoint, backend
        self.for_script = ForScript(stop_signals, echoing=echoing)
        self.memory = memory or Reclaim()
        self.held = False
        """The round's workers wait for the GPUs' memory, or for warm spares: they are counted among those that start, though
        none has a process."""
        self.spares_until = -NEVER
        """Until when warm spares are worth waiting for."""
        self.hang_signal = hang_signal
        self._look: Look | None = None
        """None: no rank has hung yet, here or elsewhere."""
        self.checks, self.checking = checks, False
        """Whether its health is checked before each round; and whether that is under way, so that nothing is asked for yet."""
        self._fitness: Fitness | None = None
        """None: nobody has looked how the node is."""
        self.state = "new"
        self.assigned: Assigned | None = None
        self.spare_because = ""
        """Why there is no place for this node, as far as it has been told."""
        self.workers = Crew(join)
        self.joined_at = 0.0
        self.orders = Orders(self)
        self.rejoin: bool | None = None  # None: the coordinator has not said yet
        self.regrouped = False
        """They are stopped, or were last, for a node that has come: nothing has failed."""
        self.stopping: Stopping | None = None
        """None: no workers are being stopped."""
        self._leaving: Leaving | None = None
        """None: nothing has told this node to go."""
        self.stop_after_look = ""
        """Why they are to be stopped as soon as they have been looked at. Empty: they are not."""

    def reached_at(self, endpoint: str) -> None:
        """Where others reach this node, should it lead: part of its `Join`."""
        self.join = replace(self.join, endpoint=endpoint)

    def host(self, is_here: bool) -> None:
        """The coordinator is in this process from now on, or is no longer."""
        self.hosting = is_here

    @property
    def round(self) -> int:
        """The round of the workers we have or had; 0 before the first."""
        return self.assigned.round if self.assigned else 0

    @property
    def has_workers(self) -> bool:
        """Whether workers run here that we have not killed."""
        return self.workers.can_work

    @property
    def is_early(self) -> bool:
        """No round has had workers of ours yet."""
        return self.state in ("new", "joining") and self.round == 0

    @property
    def is_between(self) -> bool:
        """Our workers of one round are being ended, or gone, and there is to be another round."""
        return (self.state == "stopping" and self.rejoin is True) or (self.state == "joining" and self.round > 0)

    @property
    def is_leaving(self) -> bool:
        """Something has told this node to go, while its workers run or since."""
        return self._leaving is not None and self._leaving.by != 0

    @property
    def leaving(self) -> Leaving:
        """Made when it is needed for the first time: no job's start waits for what may never happen."""
        if self._leaving is None:
            from holdfast.agent.group.shutdown import Leaving

            self._leaving = Leaving(self)
        return self._leaving

    @property
    def fitness(self) -> Fitness:
        """The same, for the node's health."""
        if self._fitness is None:
            from holdfast.agent.group.node_health import Fitness

            self._fitness = Fitness(self)
        return self._fitness

    @property
    def look(self) -> Look:
        """The same, for a rank that hangs."""
        if self._look is None:
            from holdfast.agent.group.hang_response import Look

            self._look = Look(self.join, signum=self.hang_signal)
        return self._look

    @property
    def look_until(self) -> float:
        """While the ranks are being looked at: until when at the latest."""
        return NEVER if self._look is None else self._look.until

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match seen:
            case Told(message=message):
                return self.orders.told(message, now)
            case Ended():
                return self._ended(seen, now)
            case Started(local_rank=local_rank, pid=pid):
                worker = self.workers[local_rank]
                worker.pid, worker.state = pid, "running"
                return [Record(event=_started(worker.rank, seen))]
            case StartFailed(local_rank=local_rank):
                return self._start_failed(self.workers[local_rank], seen, now)
            case Signalled(signum=signum):
                return self._signalled(signum, now)
            case TimerExpired():
                return self.workers.timer_expired(seen)
            case MemorySeen():
                return self.memory.seen(seen, now) + self._let_go(now)
            case SparesAwaited(until=until):
                self.spares_until = until
                return self._let_go(now)
            case ExaminationAsked(ask=ask, checks=checks):
                return [Send(message=Examine(node=self.join.node, ask=ask, checks=checks))]
            case ChecksRun(ask=ask, verdicts=verdicts, trouble=trouble):
                return [Send(message=Examined(node=self.join.node, ask=ask, verdicts=verdicts, trouble=trouble))]
            case InjectionAsked(ask=ask, name=name, injection=wanted):
                return [Send(message=Inject(node=self.join.node, ask=ask, name=name, injection=wanted))]
            case FaultPlayed(ask=ask, ok=ok, text=text):
                return [Send(message=InjectionHeard(node=self.join.node, ask=ask, ok=ok, text=text))]
            case NodeChecked():
                return self.fitness.checked(seen)
            case Hung(local_rank=local_rank):
                return self._hung(self.workers[local_rank], seen, now)
            case Looked(positions=positions):
                return self._looked(positions, now)
            case Stuck(local_rank=local_rank):
                return self._stuck(self.workers[local_rank], seen, now)
            case LeaseOver():
                return self.orders.lease_over(seen, now)
            case StopAsked(reason=reason, grace_s=grace_s):
                if grace_s is not None:
                    self.grace_s = self.term_grace_s = grace_s
                return [Send(message=StopJob(node=self.join.node, reason=reason))]
            case RestartAsked(reason=reason):
                wish = Requested(node=self.join.node, round=self.round, kind="restart", rank=-1, reason=reason)
                return [Send(message=wish)] if self.state == "running" else []
            case ExclusionAsked(ask=ask, name=name, reason=reason):
                asked = Readmit if seen.readmit else Exclude
                return [Send(message=asked(node=self.join.node, ask=ask, name=name, reason=reason))]
            case PaceKnown():
                return self._pace_known(seen)
            case SavesSeen(open=is_open):
                saving = Saving(node=self.join.node, round=self.round, open=is_open)
                return [Send(message=saving)] if self.state == "running" else []
            case LimitsKnown(limits_s=limits_s):
                return self._limits_known(limits_s)
            case ControlAsked(local_rank=local_rank, kind=kind, reason=reason):
                return self._asked(self.workers[local_rank], kind, reason, now)
            case ImportsKnown(modules=modules):
                return self._imports_known(modules)
            case Reached(iteration=iteration):
                self.join = replace(self.join, reached=iteration)
                return []
            case Stashed(held=held, kept=kept, at=at):
                self.join = replace(self.join, stash=held, kept=kept, stash_at=at)
                return []
            case LogsTaken(at=at):
                self.join = replace(self.join, logs_at=at)
                return []
            case Unguarded():
                return self.leaving.unguarded(now)
            case PortHeld(port=port):
                self.join = replace(self.join, master_port=port)
                return []
            case Tick():
                return self._late(now)
        raise AssertionError(f"a group is never shown {seen!r}")

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        ends = NEVER if self.stopping is None else self.stopping.deadline()
        spares = self.spares_until if self.held and not self.memory.pending else NEVER
        return min(ends, self.memory.deadline(), spares, self.look_until, self.for_script.deadline())

    # --- joining and running --------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """Ask for a round: the first, or another."""
        self.state, self.joined_at, self.rejoin = "joining", now, None
        rank = self.assigned.group_rank if self.assigned else None
        self.join = replace(self.join, round=self.round, group_rank=rank)
        return [
            Record(event=JoinRequested(round=self.round + 1, backend=self.backend, endpoint=self.endpoint)),
            self.fitness.check() if self.checks or self.join.unhealthy else Send(message=self.join),
            *(self.memory.begin(now) if self.round else ()),
        ]

    def start(self, assigned: Assigned, now: float) -> list[Action]:
        """There is a round, with a place for this node."""
        self.assigned, self.state, self.spare_because = assigned, "running", ""
        self.join = replace(self.join, life=assigned.life, calculated_s=assigned.calculated_s)
        self._look, self.regrouped = None, False
        self.workers = Crew(self.join, assigned)
        formed = RoundFormed(
            round=assigned.round,
            nodes=assigned.nodes,
            group_rank=assigned.group_rank,
            world_size=assigned.world_size,
            master_addr=assigned.master_addr,
            master_port=assigned.master_port,
            waited_s=now - self.joined_at,
            reason=assigned.reason,
        )
        self.held = True
        return [Record(event=formed), *self._let_go(now)]

    def _let_go(self, now: float) -> list[Action]:
        """Start the round's workers, unless they wait for the GPUs' memory or for warm spares."""
        if not self.held or self.memory.pending or now < self.spares_until or self.assigned is None:
            return []
        self.held = False
        return [StartWorkers(assigned=self.assigned)]

    def _start_failed(self, worker: WorkerSeat, seen: StartFailed, now: float) -> list[Action]:
        for other in self.workers.values():
            if other.state == "starting":
                other.state = "gone"  # it is not even tried
        return self._fail(worker, seen.at_unix, Cause.START, Evidence(message=seen.message), now)

    def _ended(self, seen: Ended, now: float) -> list[Action]:
        worker = self.workers[seen.local_rank]
        worker.exitcode = seen.exitcode if seen.exitcode is not None else worker.exitcode
        actions: list[Action] = []
        if seen.gone and seen.exitcode is not None:
            worker.state = "gone"
            actions.append(Record(event=WorkerExited(exitcode=seen.exitcode, **worker.ids)))
        elif worker.state == "running":
            worker.state = "dying"
            actions.append(Record(event=WorkerDying(exitcode=seen.exitcode, **worker.ids)))
        if worker.exitcode != 0:
            return actions + self._fail(worker, seen.at_unix, self.workers.cause(worker, seen.evidence), seen.evidence, now)
        return actions + self._settle(now)

    def _fail(self, worker: WorkerSeat, at_unix: float, cause: Cause, evidence: Evidence, now: float) -> list[Action]:
        news = worker.local_rank not in self.workers.failures
        failure = self.workers.fail(worker, at_unix, cause, evidence)
        actions: list[Action] = [Record(event=FailureSeen(failure=failure))] if news else []
        if self.state == "running":
            actions.append(Send(message=Failed(node=self.join.node, round=self.round, failure=failure)))
            if self.assigned is not None and self.assigned.carries_on:
                return actions + self._settle(now)
            return actions + self.stop_once_seen(f"rank {worker.rank} failed", now)
        return actions + self._settle(now)

    def _settle(self, now: float) -> list[Action]:
        """See whether the workers' ends add up to something."""
        if self.workers.alive:
            return []
        if self.state == "running" and not self.workers.failures:
            self.state = "succeeded"
            return [Send(message=Succeeded(node=self.join.node, round=self.round))]
        return self.all_gone(now) if self.state in ("running", "stopping") else []

    def _asked(self, worker: WorkerSeat, kind: str, reason: str, now: float) -> list[Action]:
        """What a worker wishes is the coordinator's to decide, also if the worker is gone by then."""
        rank, worker.asked_at = worker.rank, now
        noted = Record(event=ControlRequested(rank=rank, local_rank=worker.local_rank, kind=kind, reason=reason))
        if kind == "continue" or self.state == "ended":
            return [noted]
        return [noted, Send(message=Requested(node=self.join.node, round=self.round, kind=kind, rank=rank, reason=reason))]

    def _pace_known(self, seen: PaceKnown) -> list[Action]:
        """What is known here is told now, and again with the next `Join`: a coordinator's successor may have missed it."""
        if self.state != "running":
            return []
        self.join = replace(self.join, longest_s={**self.join.longest_s, **seen.longest_s})
        pace = Pace(node=self.join.node, round=self.round, **fields_of(seen))
        return [Send(message=pace)]

    def _limits_known(self, limits_s: dict[str, float]) -> list[Action]:
        """One node tells, since all calculate the same; with the next `Join` all do."""
        self.join = replace(self.join, calculated_s=limits_s)
        if self.state == "ended" or self.assigned is None or self.assigned.group_rank != 0:
            return []
        return [Send(message=Calculated(node=self.join.node, round=self.round, limits_s=limits_s))]

    def _imports_known(self, modules: tuple[str, ...]) -> list[Action]:
        """One node's word is enough: all run the same script."""
        if self.state != "running" or self.assigned is None or self.assigned.group_rank != 0 or not self.join.warm:
            return []
        return [Send(message=Imports(node=self.join.node, python=self.join.warm, modules=modules))]

    # --- stopping -------------------------------------------------------------------------------------------------------

    def stop(self, signum: int, reason: str, now: float) -> list[Action]:
        """Bring the running workers to their end, by `signum` first."""
        from holdfast.agent.group.stopping import Stopping

        if self.held:
            self.held = False
            for worker in self.workers.values():
                worker.state = "gone"  # it was not even tried
        self.state, self.stop_after_look = "stopping", ""
        self.stopping = Stopping(self.workers, signum, grace_s=self.grace_s, now=now)
        return self.stopping.begin(reason, self.grace_s) + self._settle(now)

    def stop_once_seen(self, reason: str, now: float) -> list[Action]:
        """Ask the running workers to end; if they are being looked at, as soon as they have shown where they are."""
        if self.look_until == NEVER:
            return self.stop(signal.SIGTERM, reason, now)
        self.stop_after_look = self.stop_after_look or reason
        return self._settle(now)

    def _late(self, now: float) -> list[Action]:
        if due := self.for_script.due(now):
            return self._pass_on(due)
        if now >= self.memory.deadline():
            return self.memory.late(now) + self._let_go(now)
        if now >= self.look_until:
            return self._looked((), now)
        if self.held and not self.memory.pending and now >= self.spares_until:
            return self._let_go(now)
        if self.stopping is not None:
            return self.stopping.late(self.grace_s, now) + self._settle(now)
        return []

    def all_gone(self, now: float) -> list[Action]:
        """The round's workers are no more: clean up behind them, and say so."""
        took_s = 0.0 if self.stopping is None else now - self.stopping.since
        killed = self.workers.ranks(tuple(sorted(self.workers.killed)))
        self.stopping = None
        actions: list[Action] = [Sweep(), Record(event=WorkersStopped(took_s=took_s, killed=killed))]
        failures = tuple(self.workers.failures.values())
        actions.append(Send(message=Stopped(node=self.join.node, round=self.round, failures=failures)))
        self.state = "stopped"
        if self.rejoin:
            return actions + self.begin(now)
        if self.is_leaving and not self.hosting:
            return [*actions, *self.exit(1, complaint=self.leaving.complaint)]
        return actions

    # --- signals and timers ---------------------------------------------------------------------------------------------

    def _signalled(self, signum: int, now: float) -> list[Action]:
        name = name_of(signum)
        noted: list[Action] = [Record(event=SignalReceived(signal=name))]
        is_for_script = signum in self.for_script.signums
        if self.state == "ended":
            if not is_for_script:
                self.leaving.signalled_late(signum, now)
            return noted
        if is_for_script:
            return noted + self._pass_on(self.for_script.came(signum, now))
        return noted + self.leaving.signalled(signum, now)

    def _pass_on(self, signums: tuple[int, ...]) -> list[Action]:
        return [SignalWorkers(local_ranks=self.workers.alive, signum=signum) for signum in signums]

    def _stuck(self, worker: WorkerSeat, seen: Stuck, now: float) -> list[Action]:
        if self.state != "running" or worker.state != "running":
            return []  # it is being stopped; that it does not die will show
        asleep = f"uninterruptible sleep for {seen.asleep_s:.1f} s: a driver, a dead mount?"
        worker.charge = Cause.STUCK, f"is stuck in the kernel ({asleep})"
        text = f"rank {worker.rank} (pid {worker.pid}) {worker.charge[1]}"
        return [Say(text=text, level="error"), *self._fail(worker, seen.at_unix, Cause.STUCK, Evidence(), now)]

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    def _hung(self, worker: WorkerSeat, seen: Hung, now: float) -> list[Action]:
        if self.state != "running" or worker.state != "running" or worker.charge:
            return []
        assert self.assigned is not None
        return self.look.found(worker, seen, self.assigned, now)

    def _looked(self, positions: tuple[Position, ...], now: float) -> list[Action]:
        """They have shown where they are, or had their time: those that hang end."""
        actions, hanging = self.look.end(positions, self.workers, self.round)
        for worker in hanging:
            actions += self._fail(worker, worker.overdue_at_unix, Cause.HUNG, Evidence(), now)
        reason, self.stop_after_look = self.stop_after_look, ""
        if reason and self.state == "running":
            return actions + self.stop(signal.SIGTERM, reason, now)
        return actions + (self.all_gone(now) if reason and self.state == "succeeded" else [])

    # --- the end --------------------------------------------------------------------------------------------------------

    def exit(
        self,
        code: int,
        *,
        report: JobReport | None = None,
        outcome: Outcome = Outcome.STOPPED,
        reason: str = "",
        complaint: str = "",
    ) -> list[Action]:
        """This agent's part is over."""
        self.state, self.held, self.stopping, self._look = "ended", False, None, None
        if self.clean_stop_is_success and self.is_leaving and all(one.exitcode == 0 for one in self.workers.values()):
            code = 0
        self.memory.end()
        outcome = report.outcome if report else outcome
        reason = report.reason if report else complaint or reason
        return [
            Record(event=JobEnded(outcome=outcome, exit_code=code, reason=reason)),
            Exit(code=code, report=report, complaint=complaint),
        ]


def _started(rank: int, seen: Started) -> WorkerStarted:
    return WorkerStarted(rank=rank, **fields_of(seen))
