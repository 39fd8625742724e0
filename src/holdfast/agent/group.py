"""What does this node do now? The machine that runs one node's workers through the rounds of a job.

    joining ──Assigned──▶ running ──all exited 0──▶ succeeded ──Finish──▶ ended
       ▲                     │ a worker failed · Stop · a signal            ▲
       │                     ▼                                              │
       └───Stop(rejoin)── stopping ──all gone──▶ stopped ──────Finish───────┘

The first failure stops the siblings at once, without asking: every policy that restarts or ends the group needs that,
and it saves a round trip. Where the coordinator has said that the round may carry on without some, they are left alone until it
says otherwise, and when the last has ended the node is `stopped` and waits. What comes next is the coordinator's decision
(`rendezvous.round`). A restart's start may have to wait for the GPUs' memory (`agent.reclaim`): the node is running then, with
workers that are about to start.
"""

from __future__ import annotations

import signal

from holdfast.agent.crew import Crew, WorkerSeat
from holdfast.agent.look import Look
from holdfast.agent.reclaim import Reclaim
from holdfast.agent.signals import ForScript
from holdfast.agent.words import (
    Answer,
    ControlAsked,
    Ended,
    ExclusionAsked,
    Exit,
    HeedPace,
    Hung,
    KillWorkers,
    LeaseOver,
    Looked,
    MemorySeen,
    PaceKnown,
    PortHeld,
    Reached,
    Send,
    SignalWorkers,
    Started,
    StartFailed,
    StartWorkers,
    StopAsked,
    Stuck,
    Sweep,
    TimerExpired,
    Told,
    Unguarded,
)
from holdfast.core.events import (
    ControlRequested,
    Decided,
    FailureSeen,
    GuardianLost,
    JobEnded,
    JoinRequested,
    RoundFormed,
    SignalReceived,
    StopSent,
    WatchdogExpired,
    WorkerDying,
    WorkerExited,
    WorkersStopped,
    WorkerStarted,
)
from holdfast.core.failure import Evidence
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Signalled, Tick
from holdfast.core.messages import (
    Assigned,
    Exclude,
    Failed,
    Finish,
    Join,
    Leave,
    LookAround,
    Message,
    Noted,
    Pace,
    Paced,
    Positions,
    Readmit,
    Refused,
    Requested,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.core.value import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.core.failure import Position
    from holdfast.core.report import JobReport

ECHO_S = 1.0
"""The same signal within this time is the same request: whoever signals a whole cgroup (Slurm, systemd) reaches us twice, once
directly and once through our guardian. A person who is in a hurry presses again."""

LAST_WORDS_S = 1.0
"""A worker that has just asked for something is asked to stop so much later than the others: most that ask end by themselves,
with a traceback that says more than their wish, and SIGTERM would cut it short."""


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
        """The round's workers wait for the GPUs' memory: they are counted among those that start, though none has a process."""
        self.look = Look(join, signum=hang_signal)
        self.state = "new"
        self.assigned: Assigned | None = None
        self.spare_because = ""
        """Why there is no place for this node, as far as it has been told."""
        self.workers = Crew(join)
        self.joined_at = 0.0
        self.rejoin: bool | None = None  # None: the coordinator has not said yet
        self.leaving_by = 0  # signal that told us to go; 0: none
        self.leaving_since = NEVER
        self.leaving_why = ""
        self.stopping_since = NEVER
        self.speaking: tuple[int, ...] = ()
        """Workers that have just asked for something: they may end by themselves until then."""
        self.last_words_until = NEVER
        self.kill_at = NEVER
        self.abandon_at = NEVER
        self.stop_after_look = ""
        """Why they are to be stopped as soon as they have been looked at. Empty: they are not."""

    @property
    def round(self) -> int:
        """The round of the workers we have or had; 0 before the first."""
        return self.assigned.round if self.assigned else 0

    @property
    def has_workers(self) -> bool:
        """Whether workers run here that we have not killed."""
        return self.workers.can_work

    # --- the machine's face ---------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match seen:
            case Told(message=message):
                return self._told(message, now)
            case Ended():
                return self._ended(seen, now)
            case Started(local_rank=local_rank, pid=pid):
                worker = self.workers[local_rank]
                worker.pid, worker.state = pid, "running"
                return [Record(event=WorkerStarted(**worker.ids, argv=seen.argv, log_dir=seen.log_dir))]
            case StartFailed(local_rank=local_rank):
                return self._start_failed(self.workers[local_rank], seen, now)
            case Signalled(signum=signum):
                return self._signalled(signum, now)
            case TimerExpired():
                return self._timer_expired(seen)
            case MemorySeen():
                return self.memory.seen(seen, now) + self._let_go()
            case Hung(local_rank=local_rank):
                return self._hung(self.workers[local_rank], seen, now)
            case Looked(positions=positions):
                return self._looked(positions, now)
            case Stuck(local_rank=local_rank):
                return self._stuck(self.workers[local_rank], seen, now)
            case LeaseOver(reason=reason, until=until):
                return self._lease_over(reason, until, now)
            case StopAsked(reason=reason, grace_s=grace_s):
                if grace_s is not None:
                    self.grace_s = self.term_grace_s = grace_s
                return [Send(message=StopJob(node=self.join.node, reason=reason))]
            case ExclusionAsked(ask=ask, name=name, reason=reason):
                asked = Readmit if seen.readmit else Exclude
                return [Send(message=asked(node=self.join.node, ask=ask, name=name, reason=reason))]
            case PaceKnown():
                return self._pace_known(seen)
            case ControlAsked(local_rank=local_rank, kind=kind, reason=reason):
                return self._asked(self.workers[local_rank], kind, reason, now)
            case Reached(iteration=iteration):
                self.join = replace(self.join, reached=iteration)
                return []
            case Unguarded():
                return self._unguarded(now)
            case PortHeld(port=port):
                self.join = replace(self.join, master_port=port)
                return []
            case Tick():
                return self._late(now)
        raise AssertionError(f"a group is never shown {seen!r}")

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        ends = min(self.last_words_until, self.kill_at, self.abandon_at)
        return min(ends, self.memory.deadline(), self.look.until, self.for_script.deadline())

    def begin(self, now: float) -> list[Action]:
        """Ask for the first round."""
        return self._join(now)

    # --- joining and running --------------------------------------------------------------------------------------------

    def _join(self, now: float) -> list[Action]:
        self.state, self.joined_at, self.rejoin = "joining", now, None
        rank = self.assigned.group_rank if self.assigned else None
        self.join = replace(self.join, round=self.round, group_rank=rank)
        return [
            Record(event=JoinRequested(round=self.round + 1, backend=self.backend, endpoint=self.endpoint)),
            Send(message=self.join),
            *(self.memory.begin(now) if self.round else ()),
        ]

    def _told(self, message: Message, now: float) -> list[Action]:
        match message:
            case Assigned(round=number) if self.state == "joining" and number > self.round:
                return self._start(message, now)
            case Stop(round=number) if number == self.round:
                return self._told_to_stop(message, now)
            case LookAround(round=number, reason=reason) if number == self.round:
                return self._told_to_look(reason, now)
            case Waiting(round=number, reason=reason) if self.state == "joining" and number >= self.join.known_round:
                self.spare_because = reason
                if number > self.join.known_round:  # said at once: it is to be known to whoever hears the Join again
                    self.join = replace(self.join, known_round=number)
                    return [Send(message=self.join)]
            case Noted(ask=ask, ok=ok, text=text):
                return [Answer(ask=ask, ok=ok, text=text)]
            case Paced(round=number, longest_s=longest_s, busy_s=busy_s) if number == self.round:
                self.join = replace(self.join, longest_s=longest_s)
                return [HeedPace(longest_s=longest_s, busy_s=busy_s)]
            case Finish(report=report):
                return self._finish(report, now)
            case Refused(reason=reason, hint=hint):
                return self._refused(reason, hint, now)
        return []

    def _start(self, assigned: Assigned, now: float) -> list[Action]:
        self.assigned, self.state, self.spare_because = assigned, "running", ""
        self.stopping_since = self.kill_at = self.abandon_at = self.look.until = NEVER
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
        return [Record(event=formed), *self._let_go()]

    def _let_go(self) -> list[Action]:
        """Start the round's workers if they were only waiting for the GPUs' memory, and it is free."""
        if not self.held or self.memory.pending or self.assigned is None:
            return []
        self.held = False
        return [StartWorkers(assigned=self.assigned)]

    def _start_failed(self, worker: WorkerSeat, seen: StartFailed, now: float) -> list[Action]:
        for other in self.workers.values():
            if other.state == "starting":
                other.state = "gone"  # it is not even tried
        return self._fail(worker, seen.at_unix, "start", Evidence(message=seen.message), now)

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

    def _fail(self, worker: WorkerSeat, at_unix: float, cause: str, evidence: Evidence, now: float) -> list[Action]:
        news = worker.local_rank not in self.workers.failures
        failure = self.workers.fail(worker, at_unix, cause, evidence)
        actions: list[Action] = [Record(event=FailureSeen(failure=failure))] if news else []
        if self.state == "running":
            actions.append(Send(message=Failed(node=self.join.node, round=self.round, failure=failure)))
            if self.assigned is not None and self.assigned.carries_on:
                return actions + self._settle(now)
            return actions + self._stop(signal.SIGTERM, f"rank {worker.rank} failed", now)
        return actions + self._settle(now)

    def _settle(self, now: float) -> list[Action]:
        """See whether the workers' ends add up to something."""
        if self.workers.alive:
            return []
        if self.state == "running" and not self.workers.failures:
            self.state = "succeeded"
            return [Send(message=Succeeded(node=self.join.node, round=self.round))]
        return self._all_gone(now) if self.state in ("running", "stopping") else []

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
        pace = Pace(node=self.join.node, round=self.round, **{field: getattr(seen, field) for field in seen.__fields__})
        return [Send(message=pace)]

    # --- stopping -------------------------------------------------------------------------------------------------------

    def _told_to_stop(self, stop: Stop, now: float) -> list[Action]:
        if self.state == "joining":
            return [Send(message=self.join)] if stop.rejoin else []
        if self.rejoin is not None or self.state == "ended":
            return []
        self.rejoin = stop.rejoin
        # The last word is the report's, which says the same.
        heard: list[Action] = [Say(text=stop.reason, level="warning")] if stop.rejoin else []
        if self.state == "stopped":
            return heard + (self._join(now) if self.rejoin else [])
        if stop.hung is not None and stop.hung in self.workers:
            heard += self.look.condemn(self.workers[stop.hung])
        if self.state == "running" and self.look.until != NEVER:
            self.stop_after_look = stop.reason
        elif self.state == "running":
            return heard + self._stop(signal.SIGTERM, stop.reason, now)
        if self.state == "succeeded":
            return heard + self._all_gone(now)
        return heard

    def _stop(self, signum: int, reason: str, now: float) -> list[Action]:
        self.state, self.workers.stop_signal, self.stopping_since = "stopping", signum, now
        self.kill_at, self.abandon_at = now + self.grace_s, NEVER
        if self.held:
            self.held = False
            for worker in self.workers.values():
                worker.state = "gone"  # it was not even tried
        self.stop_after_look = ""
        # Not those that are dying already: a signal would only cut their exit handlers short.
        alive = tuple(i for i in self.workers.alive if self.workers[i].state != "dying" and not self.workers[i].struck)
        asked = tuple(i for i in alive if signum == signal.SIGTERM and now < self.workers[i].asked_at + LAST_WORDS_S)
        self.speaking, self.last_words_until = asked, now + LAST_WORDS_S if asked else NEVER
        return self._ask_to_stop(tuple(i for i in alive if i not in asked), reason) or self._settle(now)

    def _ask_to_stop(self, local_ranks: tuple[int, ...], reason: str) -> list[Action]:
        if not local_ranks:
            return []
        signum, ranks = self.workers.stop_signal, self.workers.ranks(local_ranks)
        sent = StopSent(signal=signal.Signals(signum).name, grace_s=self.grace_s, reason=reason, ranks=ranks)
        return [SignalWorkers(local_ranks=local_ranks, signum=signum), Record(event=sent)]

    def _late(self, now: float) -> list[Action]:
        if due := self.for_script.due(now):
            return self._pass_on(due)
        if now >= self.memory.deadline():
            return self.memory.late(now) + self._let_go()
        if now >= self.look.until:
            return self._looked((), now)
        if self.state == "stopping" and now >= self.kill_at:
            return self._kill(now)
        if now >= self.last_words_until:
            self.last_words_until = NEVER
            left = tuple(i for i in self.speaking if self.workers[i].state == "running")
            return self._ask_to_stop(left, f"it has had {LAST_WORDS_S:g} s to end by itself, after what it asked for")
        if self.state == "stopping" and now >= self.abandon_at:
            stuck = [self.workers[i] for i in self.workers.alive]
            for worker in stuck:
                worker.state = "gone"
            pids = ", ".join(str(worker.pid) for worker in stuck)
            stuck_in = "uninterruptible sleep in a driver or a mount?"
            text = f"process {pids} does not die even of SIGKILL ({stuck_in}); going on without it"
            return [Say(text=text, level="error"), *self._all_gone(now)]
        return []

    def _kill(self, now: float) -> list[Action]:
        alive = self.workers.alive
        self.workers.killed.update(alive)
        self.last_words_until = NEVER
        self.kill_at, self.abandon_at = NEVER, now + max(self.grace_s, 1.0)
        waited_s = now - self.stopping_since
        ranks = ", ".join(map(str, self.workers.ranks(alive)))
        return [
            KillWorkers(local_ranks=alive),
            Say(text=f"rank {ranks} did not stop within {waited_s:.1f} s; sent SIGKILL", level="warning"),
        ]

    def _all_gone(self, now: float) -> list[Action]:
        took_s = now - self.stopping_since if self.stopping_since != NEVER else 0.0
        killed = self.workers.ranks(tuple(sorted(self.workers.killed)))
        self.kill_at = self.abandon_at = self.last_words_until = NEVER
        actions: list[Action] = [Sweep(), Record(event=WorkersStopped(took_s=took_s, killed=killed))]
        failures = tuple(self.workers.failures.values())
        actions.append(Send(message=Stopped(node=self.join.node, round=self.round, failures=failures)))
        self.state = "stopped"
        if self.rejoin:
            return actions + self._join(now)
        if self.leaving_by and not self.hosting:
            return [*actions, *self._exit(1, complaint=f"stopped: it {self.leaving_why}")]
        return actions

    def _lease_over(self, reason: str, until: float, now: float) -> list[Action]:
        if self.state not in ("running", "stopping"):
            return [Say(text=f"{reason}; still trying", level="warning")]
        actions: list[Action] = [Say(text=f"{reason}; stopping the workers", level="error")]
        if self.state == "running":
            self.rejoin = True
            # Where we have slept ourselves, nothing that a handler would do may be done any more.
            actions += self._stop(signal.SIGTERM if now < until else signal.SIGKILL, reason, now)
        if self.kill_at != NEVER:
            # No grace: after that moment others may have started these ranks again.
            self.kill_at = min(self.kill_at, until)
        return actions

    # --- signals and timers ---------------------------------------------------------------------------------------------

    def _signalled(self, signum: int, now: float) -> list[Action]:
        name = signal.Signals(signum).name
        noted: list[Action] = [Record(event=SignalReceived(signal=name))]
        if self.state == "ended":
            return noted
        if signum in self.for_script.signums:
            return noted + self._pass_on(self.for_script.came(signum, now))
        if self.leaving_by:
            echo = signum == self.leaving_by and now - self.leaving_since < ECHO_S
            return noted if echo else noted + self._hurry(now)
        self.grace_s = self.term_grace_s
        if not self._is_early:
            text = f"received {name}; stopping the workers, SIGKILL in {self.grace_s:g} s, or at another signal"
            noted.append(Say(text=text, level="warning"))
        return noted + self._go(signum, f"received {name}", now)

    def _pass_on(self, signums: tuple[int, ...]) -> list[Action]:
        return [SignalWorkers(local_ranks=self.workers.alive, signum=signum) for signum in signums]

    def _unguarded(self, now: float) -> list[Action]:
        text = "the process that was started (our guardian) was killed; stopping everything at once"
        actions: list[Action] = [Record(event=GuardianLost()), Say(text=text, level="error")]
        if not self.leaving_by and self.state != "ended":
            actions += self._go(signal.SIGTERM, "lost its guardian: the process that was started was killed", now)
        return actions + (self._hurry(now) if self.state != "ended" else [])

    @property
    def _is_early(self) -> bool:
        """No round has had workers of ours yet."""
        return self.state in ("new", "joining") and self.round == 0

    def _go(self, signum: int, why: str, now: float) -> list[Action]:
        """This node's part ends: workers get `signum`."""
        goodbye = self._goodbye(why)
        if self._is_early:
            return [*goodbye, *self._exit(-signum, reason=why)]
        self.leaving_by, self.leaving_since, self.leaving_why, self.rejoin = signum, now, why, False
        if self.state == "running":
            return goodbye + self._stop(signum, f"the agent {why}", now)
        if self.state == "succeeded":
            return goodbye + self._all_gone(now)
        if self.state in ("joining", "stopped") and not self.hosting:
            return [*goodbye, *self._exit(1, complaint=f"stopped: it {why}")]
        return goodbye

    def _hurry(self, now: float) -> list[Action]:
        """A second signal: no more grace."""
        if self.state == "stopping":
            return self._kill(now) if self.kill_at != NEVER else []
        return self._exit(1, complaint="stopped by a second signal, without waiting for the other nodes")

    def _goodbye(self, why: str) -> list[Action]:
        if self.hosting:
            return [Send(message=StopJob(node=self.join.node, reason=f"{self.join.name} {why}"))]
        goodbye: list[Action] = [Send(message=Leave(node=self.join.node, round=self.round, reason=why))]
        if not self.workers.alive:
            # Said at once, because an assignment may be on its way to us that makes others wait for our workers.
            goodbye.append(Send(message=Stopped(node=self.join.node, round=self.round)))
        return goodbye

    def _timer_expired(self, seen: TimerExpired) -> list[Action]:
        noted = Record(event=WatchdogExpired(pid=seen.pid, scope=seen.scope, expired_s=seen.late_s))
        if seen.signum <= 0:
            text = f"process {seen.pid} did not leave scope {seen.scope} in time; its timer asks for no signal"
            return [noted, Say(text=text, level="warning")]
        for worker in self.workers.values():
            if worker.pid == seen.pid and worker.state == "running":
                worker.charge = "watchdog", f"did not leave scope {seen.scope} in time"
                text = f"rank {worker.rank} {worker.charge[1]}"
                return [
                    noted,
                    Say(text=f"{text}; sent {signal.Signals(seen.signum).name}", level="warning"),
                    SignalWorkers(local_ranks=(worker.local_rank,), signum=seen.signum),
                ]
        text = f"process {seen.pid}, which is no rank's main process, did not leave scope {seen.scope} in time; left alone"
        return [noted, Say(text=text, level="warning")]

    def _stuck(self, worker: WorkerSeat, seen: Stuck, now: float) -> list[Action]:
        if self.state != "running" or worker.state != "running":
            return []  # it is being stopped; that it does not die will show
        asleep = f"uninterruptible sleep for {seen.asleep_s:.1f} s: a driver, a dead mount?"
        worker.charge = "stuck", f"is stuck in the kernel ({asleep})"
        text = f"rank {worker.rank} (pid {worker.pid}) {worker.charge[1]}"
        return [Say(text=text, level="error"), *self._fail(worker, seen.at_unix, "stuck", Evidence(), now)]

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    def _hung(self, worker: WorkerSeat, seen: Hung, now: float) -> list[Action]:
        if self.state != "running" or worker.state != "running" or worker.charge:
            return []
        assert self.assigned is not None
        return self.look.found(worker, seen, self.assigned, now)

    def _told_to_look(self, reason: str, now: float) -> list[Action]:
        if self.state != "running":  # what others hung for is over here
            return [Send(message=Positions(node=self.join.node, round=self.round, positions=()))]
        assert self.assigned is not None
        return self.look.begin(reason, self.assigned, now)

    def _looked(self, positions: tuple[Position, ...], now: float) -> list[Action]:
        """They have shown where they are, or had their time: those that hang end."""
        actions, hanging = self.look.end(positions, self.workers, self.round)
        for worker in hanging:
            actions += self._fail(worker, worker.overdue_at_unix, "hung", Evidence(), now)
        reason, self.stop_after_look = self.stop_after_look, ""
        if reason and self.state == "running":
            return actions + self._stop(signal.SIGTERM, reason, now)
        return actions + (self._all_gone(now) if reason and self.state == "succeeded" else [])

    # --- the end --------------------------------------------------------------------------------------------------------

    def _finish(self, report: JobReport, now: float) -> list[Action]:
        if self.state == "ended":
            return []
        killed: list[Action] = [KillWorkers(local_ranks=alive), Sweep()] if (alive := self.workers.alive) else []
        return killed + self._exit(report.exit_code, report=report)

    def _refused(self, reason: str, hint: str, now: float) -> list[Action]:
        if self.state == "ended":
            return []
        killed: list[Action] = [KillWorkers(local_ranks=alive), Sweep()] if (alive := self.workers.alive) else []
        complaint = f"cannot take part in the job: {reason}"
        decided = Record(event=Decided(decision="stop", reason=complaint))
        shown = complaint + (f"\n  hint: {hint}" if hint else "")
        return [*killed, decided, *self._exit(1, outcome="failed", complaint=shown)]

    def _exit(
        self, code: int, *, report: JobReport | None = None, outcome: str = "stopped", reason: str = "", complaint: str = ""
    ) -> list[Action]:
        self.state, self.held = "ended", False
        self.kill_at = self.abandon_at = self.last_words_until = self.look.until = NEVER
        if self.clean_stop_is_success and self.leaving_by and all(one.exitcode == 0 for one in self.workers.values()):
            code = 0
        self.memory.end()
        outcome = report.outcome if report else outcome
        reason = report.reason if report else complaint or reason
        return [
            Record(event=JobEnded(outcome=outcome, exit_code=code, reason=reason)),
            Exit(code=code, report=report, complaint=complaint),
        ]
