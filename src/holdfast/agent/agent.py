"""One node's agent: the loop between its machines and this host.

    while not done:  for each thing that `host.wait(deadline)` saw:  perform what `node.observe` makes of it

The machines decide (`agent.group`, `rendezvous.round`); this module and its hands (`workers`, `desk`, `farewell`) carry out.
"""

from __future__ import annotations

import errno
import os
import select
import signal

from holdfast.agent import farewell, logs
from holdfast.agent.assembly import assemble, no_progress_cycles, open_doors, room_for_links
from holdfast.agent.desk import Desk
from holdfast.agent.signals import PASSED_ON
from holdfast.agent.telling import Telling
from holdfast.agent.voice import RETRY_S
from holdfast.agent.words import (
    Answer,
    CheckNode,
    Exit,
    HeedPace,
    KeepStacks,
    KillWorkers,
    LookAtMemory,
    LookAtWorkers,
    RunChecks,
    SignalWorkers,
    StartWorkers,
    Sweep,
    TellExamined,
    Told,
    Unguarded,
)
from holdfast.agent.workers import Workers
from holdfast.core.errors import HoldfastError
from holdfast.core.events import AgentStarted, RoundFormed, StacksKept
from holdfast.core.links import Connect, HangUp, Transmit
from holdfast.core.machine import NEVER, Record, Say, Tick
from holdfast.core.messages import Finish
from holdfast.runtime import guardian
from holdfast.runtime.host import Host
from holdfast.telemetry.state_dir import open_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.attribution import Attribution
    from holdfast.agent.beginnings import Beginnings
    from holdfast.agent.checking import Checking
    from holdfast.agent.cycles import Cycles
    from holdfast.agent.imports_file import ImportsFile
    from holdfast.agent.monitoring import Monitoring
    from holdfast.agent.parking import Parking
    from holdfast.agent.reached import Mileage
    from holdfast.agent.stacks import Stacks
    from holdfast.agent.watchdog import Watchdog
    from holdfast.core.config import RunConfig
    from holdfast.core.events import Event
    from holdfast.core.machine import Action, Observation
    from holdfast.core.messages import Assigned
    from holdfast.core.report import JobReport

FAREWELL_S = 5.0
"""How long a hosting agent stays, at most, until every other has taken the final report. On purpose longer than a lease: a node
that was cut off as the job ended would else look for us in vain for half a minute, and take a success for a failure."""

SETTLE_S = 0.05
"""How long after the agent's start to put off what costs time and no worker needs: the control socket and the monitor. By then
workers run, where they can, and had their processors to themselves; and a node that waits for others can be asked how it is."""

LOOK_S = 1.0
"""How often an agent that has lost the coordinator looks whether another one has left a report of the job's end."""

LEARN_S = 2.0
"""How often a node that waits for a place looks whether others have told what the script imports."""

PULSE_S = 5.0
"""How often the loop shows that it is alive, where somebody asks (TORCHELASTIC_HEALTH_CHECK_PORT)."""


def run(config: RunConfig) -> int:
    """Run this node's part of the job. Returns the exit code; a signal before the first round is died of, as by any program."""
    try:
        agent = Agent(config)
        try:
            code = agent.run()
        finally:
            agent.close()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise HoldfastError(
            f"out of file descriptors: {config.nproc_per_node} workers need more than the {os.sysconf('SC_OPEN_MAX')} allowed",
            hint="raise the limit (ulimit -n 4096)",
        ) from error
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


class Agent:
    """What the loop holds."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.name = config.node_name or os.uname().nodename
        self.telling = Telling(config, self.name)
        self.host = Host(self.telling.degraded)
        self.host.catch((*config.signals_to_handle, *(s for s in PASSED_ON if s not in config.signals_to_handle)))
        if (fd := guardian.guardian_lost_fd()) >= 0:
            self.host.watch(fd, select.EPOLLIN, lambda events: self._guardian_lost(fd))
        self.node, self.network, self.store = assemble(config, self.host, self.name)
        alone = config.rdzv_backend == "memory"
        meet = {"endpoint": config.rdzv_endpoint, "listens": self.network.listens_at if self.network is not None else ""}
        self.job_dir = open_job(config.state_dir, config.rdzv_id, self.name, alone=alone, **meet)
        self.telling.open(self.job_dir, self.host.unix)
        self.shared_end = farewell.SharedEnd(self.job_dir.report_path)
        self.look_at = self.learn_at = NEVER
        self.workers = Workers(config, self.host, logs.LogPlan.of(config, self.job_dir.path, self.job_dir.node))
        self.beginnings: Beginnings | None = None
        """How the ranks of the round began. None: none has been started."""
        self.stacks: Stacks | None = None
        """Where the ranks are. None: none has hung so far."""
        self.workers.mileage = self._open_mileage() if no_progress_cycles(config) else None
        self.desk = Desk(self.node.group, self.host, self.name)
        self.desk.rendezvous = lambda: self.node.server.rendezvous if self.node.server is not None else None
        self.exit: Exit | None = None
        self.leave_at = NEVER
        self.settle_at = self.host.now() + SETTLE_S
        self.awake_at_unix = self.host.unix()
        self.watchdog = self._open_watchdog() if config.watchdog else None
        self.cycles = self._open_cycles(config.ft.cycle_info_dir) if config.ft.cycle_info_dir else None
        self.attribution = self._open_attribution() if config.ft.attribution_endpoint or config.ft.attrsvc_host else None
        self.monitoring: Monitoring | None = None
        """None: nothing has to be watched yet."""
        self.unwatched: tuple[Assigned, list[Observation]] | None = None
        """A round, and what became of each of its workers, for the monitor that is not there yet."""
        self.checking: Checking | None = None
        """None: nobody has asked how the node is."""
        self.desk.checking = self._checking
        if config.check_before or config.check_after or config.check_during:
            self._checking()
        if config.health_check_port is not None:
            self.desk.open_health(config.health_check_port, self._progress_at_unix)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The loop; returns the exit code."""
        self._record_start()
        self._observe(self.workers.hold_port())
        if self.workers.mileage is not None:
            self._observe(self.workers.mileage.reached())
        self.perform(self.node.begin(self.host.now()))
        while not self._done():
            until = self._deadline()
            if until > self.host.now() and (self.stacks is None or self.stacks.look_at == NEVER):
                self._write_down()
            for seen in [*self.host.wait(until), *self._due()]:
                if self.beginnings is not None:
                    self.beginnings.saw(seen)
                for understood in self.workers.understood(seen):
                    self._observe(understood)
            self._show_lease()
            self._look_at_cycles()
        assert self.exit is not None
        self.workers.close_logs(patient=True)
        self._write_down()
        if self.exit.complaint:
            self.telling.say(self.exit.complaint, "error")
        if self.exit.report is not None:
            self.telling.report(self.exit.report)
        return self.exit.code

    def _observe(self, seen: Observation) -> None:
        if self.monitoring is not None:
            self.monitoring.saw(seen)
        self.perform(self.node.observe(seen, self.host.now()))

    def _show_lease(self) -> None:
        """Tell the guardian until when others count on this agent: it ends the workers if the agent itself cannot."""
        if guardian.lease is None or self.node.member is None:
            return
        until = self.node.lease_ends
        guardian.lease.none() if until is None else guardian.lease.renew(until)

    def _done(self) -> bool:
        if self.exit is None:
            return False
        return self.node.done or self.host.now() >= self.leave_at

    def _deadline(self) -> float:
        now = self.host.now()
        deadlines = [self.node.deadline(), self.leave_at, self.settle_at, self.workers.look_at, self.look_at, self.learn_at]
        if self.stacks is not None:
            deadlines.append(self.stacks.look_at)
        if self.network is not None:
            deadlines.append(self.network.deadline())
        if self.monitoring is not None:
            deadlines.append(self.monitoring.deadline())
        if self.beginnings is not None:
            deadlines.append(self.beginnings.look_at)
        if self.checking is not None:
            deadlines += [self.checking.deadline(), self.desk.deadline()]
        if self.workers.parking is not None:
            deadlines.append(self.workers.parking.deadline())
        if self.desk.health is not None:
            deadlines.append(now + PULSE_S)
        if (pump_s := self.workers.pump_s) is not None:
            deadlines.append(now + pump_s)
        if self.telling.voice.pending:
            deadlines.append(now + RETRY_S)
        if self.watchdog is not None:
            deadlines.append(now + self.watchdog.timers.next_unix() - self.host.unix())
        return min(deadlines)

    def _due(self) -> list[Observation]:
        """What the passing of time has brought."""
        now, self.awake_at_unix = self.host.now(), self.host.unix()
        late = self._settle() if now >= self.settle_at else []
        self.telling.voice.flush()
        if self.workers.pump_s is not None:
            self.workers.pump()
        late += self.workers.look(now)
        if self.stacks is not None:
            late += self.stacks.look()
        if self.network is not None:
            late += [*self.network.expire(now), *self._look_for_the_end(now)]
            self._stand_by(now)
        if self.watchdog is not None:
            late += self.watchdog.timers.expired(self.awake_at_unix)
        if self.beginnings is not None:
            self.beginnings.look()
        if self.monitoring is not None:
            late += self.monitoring.due()
        if self.checking is not None:
            late += self.checking.due()
            self.desk.due()
        if self.workers.parking is not None:
            late += self.workers.parking.due()
        return [*late, Tick()] if now >= self.node.deadline() else late

    def _look_for_the_end(self, now: float) -> list[Observation]:
        """Where nobody is left to tell us how the job ended, somebody may have left a report."""
        if self.node.member is None or not self.node.member.lease_over or self.exit is not None:
            self.look_at = NEVER
        elif self.look_at == NEVER or now >= self.look_at:
            self.look_at = now + LOOK_S
            found: list[JobReport | None] = []
            self.telling.recorder.aside.attempt(lambda: found.append(self.shared_end.look()))
            if found and found[0] is not None:
                self.telling.say(f"the job has ended, as {self.job_dir.report_path} tells", "warning")
                return [Told(message=Finish(report=found[0]))]
        return []

    def _guardian_lost(self, fd: int) -> list[Observation]:
        self.host.unwatch(fd)
        return [Unguarded()]

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order. What is to be recorded is only noted: nobody waits for a disk (`_write_down`)."""
        decided_at_unix = self.host.unix()
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    assert self.network is not None, "a job of one node has no links"
                    for seen in self.network.perform(action):
                        self._observe(seen)
                case Record(event=event, life=life):
                    self._record(event, decided_at_unix, life)
                case Say(text=text, level=level):
                    self.telling.say(text, level)
                case StartWorkers(assigned=assigned):
                    self._show_lease()  # to make their directories may take longer than it lasts, and others then go on
                    started = self.workers.start(assigned, self.node.lease_ends)
                    for seen in started:
                        self._observe(seen)
                    self._look_at_beginnings()
                    for seen in self._watch(assigned, started):
                        self._observe(seen)
                    if self.checking is not None:
                        self.checking.begin_round()
                    self._warm_up()
                case CheckNode(after_failure=after_failure):
                    for seen in self._checking().before_join(after_failure):
                        self._observe(seen)
                case HeedPace(longest_s=longest_s, busy_s=busy_s):
                    if self.monitoring is not None:
                        self.monitoring.heed(longest_s, busy_s)
                case SignalWorkers(local_ranks=local_ranks, signum=signum):
                    self.workers.signal(local_ranks, signum)
                case KillWorkers(local_ranks=local_ranks):
                    self.workers.kill(local_ranks)
                case LookAtWorkers():
                    self._look(action)
                case KeepStacks(reason=reason):
                    self._keep_stacks(reason, decided_at_unix)
                case Sweep():
                    self.workers.sweep()
                    if self.watchdog is not None:
                        self.watchdog.timers.forget_all()
                case LookAtMemory(above_mb=above_mb):
                    for seen in self.workers.look_at_memory(above_mb):
                        self._observe(seen)
                case RunChecks(ask=ask, checks=checks):
                    for seen in self._checking().run_for(ask, checks):
                        self._observe(seen)
                case TellExamined(answer=answer):
                    self.desk.examined(answer)
                case Answer():
                    self.desk.answered(action)
                case Exit():
                    self.exit, self.leave_at = action, self.host.now() + FAREWELL_S
                case _:
                    assert self.store is not None, f"an agent cannot do {action!r}"
                    self.store.perform(action)

    def _settle(self) -> list[Observation]:
        """Do what was put off, lest it hold up the first workers."""
        self.settle_at = NEVER
        self.desk.open_control(self.job_dir.socket_path)
        if self.network is not None:
            self.network.warm()
        self.node.warm()
        self._warm_up()
        return self._watch(*self.unwatched) if self.unwatched is not None else []

    # --- the node's health ----------------------------------------------------------------------------------------------

    def _checking(self) -> Checking:
        if self.checking is None:
            from holdfast.agent.checking import Checking

            self.checking = Checking(self.config, self.host, self.perform)
        return self.checking

    # --- cycles ---------------------------------------------------------------------------------------------------------

    def _open_cycles(self, folder: str) -> Cycles:
        from holdfast.agent.cycles import Cycles

        return Cycles(self.config, folder, self.telling.degraded)

    def _look_at_cycles(self) -> None:
        rendezvous = self.node.server.rendezvous if self.node.server is not None else None
        if self.cycles is not None:
            self.cycles.look(rendezvous, self.host.unix())
        if self.attribution is not None:
            self.attribution.look(rendezvous)

    def _open_attribution(self) -> Attribution | None:
        ft = self.config.ft
        if not ft.per_cycle_applog_prefix or bool(ft.attrsvc_host) > bool(ft.attrsvc_port):
            needs = "--ft-attrsvc-port" if ft.per_cycle_applog_prefix else "the log of --ft-per-cycle-applog-prefix"
            self.telling.degraded(f"the attribution service is not asked without {needs}")
            return None
        from holdfast.agent.attribution import Attribution

        def latch(verdict: str) -> None:
            if self.node.server is not None:
                self.node.server.rendezvous.policy.heed(verdict)

        return Attribution(self.config, self.telling.say, latch, self.host.others.add)

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    def _look(self, wanted: LookAtWorkers) -> None:
        if self.stacks is None:
            from holdfast.agent.stacks import Stacks  # most jobs never need it

            incidents = self.job_dir.incidents_path
            self.stacks = Stacks(self.workers, lambda round: os.path.join(incidents, f"round-{round}-hang"))
        self.stacks.begin(wanted, self.monitoring)

    def _keep_stacks(self, reason: str, at_unix: float) -> None:
        if self.stacks is None:
            return
        ranks = self.stacks.ranks
        shown, silent = ([rank.rank for rank in ranks if bool(rank.stacks) == has] for has in (True, False))
        kept = StacksKept(path=self.stacks.path, ranks=tuple(shown), silent=tuple(silent), reason=reason)
        self.telling.record(kept, at_unix)
        self.telling.evidence.append(self.stacks.keeper(reason))

    # --- how ranks begin ------------------------------------------------------------------------------------------------

    def _look_at_beginnings(self) -> None:
        if self.beginnings is None:
            from holdfast.agent.beginnings import Beginnings  # after the first worker has started

            self.beginnings = Beginnings(self.host, self.telling.record)
        self.beginnings.begin(self.workers.local_ranks, self.workers.begun_at)

    # --- the monitor ----------------------------------------------------------------------------------------------------

    def _watch(self, assigned: Assigned, started: list[Observation]) -> list[Observation]:
        """Have the monitor look after the ranks of a round that run; what it sees at once."""
        if self.config.ft.monitor == "off":
            return []
        if self.settle_at != NEVER:
            self.unwatched = assigned, started
            return []
        if self.monitoring is None:
            from holdfast.agent.monitoring import Monitoring  # it takes its time to load

            self.monitoring = self.desk.monitoring = Monitoring(
                self.config, self.host, self.workers, node=self.name, perform=self.perform, complain=self.telling.degraded
            )
        self.unwatched = None
        return self.monitoring.begin_round(assigned, started)

    # --- warm spares ----------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """The workers of a round run."""
        if self.config.warm_spares == 0 or not self.workers.given or self.settle_at != NEVER:
            return
        if self.workers.parking is None:
            self.workers.parking = self._open_parking()
        self.workers.parking.round_began()

    def _open_parking(self) -> Parking:
        from holdfast.agent.parking import Parking  # it takes its time to load

        return Parking(self.config, self.host, self.workers, imports=self._imports(), perform=self.perform)

    def _imports(self) -> ImportsFile:
        from holdfast.agent.imports_file import ImportsFile

        return ImportsFile(self.job_dir.path, self.config.python, self.telling.recorder.aside)

    def _stand_by(self, now: float) -> None:
        """A node that waits for a place looks whether others have told what its workers would import."""
        if self.config.warm_spares == 0 or self.workers.parking is not None or not self.node.group.spare_because:
            self.learn_at = NEVER
        elif self.learn_at == NEVER or now >= self.learn_at:
            self.learn_at = now + LEARN_S
            if modules := self._imports().look():
                self.workers.parking = self._open_parking()
                self.workers.parking.stand_by(modules)

    # --- progress -------------------------------------------------------------------------------------------------------

    def _open_mileage(self) -> Mileage:
        from holdfast.agent.reached import Mileage

        return Mileage(self.config.ft.checkpoint_iteration_file, self.telling.recorder.aside, self.telling.degraded)

    # --- the watchdog ---------------------------------------------------------------------------------------------------

    def _open_watchdog(self) -> Watchdog | None:
        from holdfast.agent.watchdog import Watchdog

        path = self.config.timer_file or os.path.join(self.job_dir.path, f"watchdog-{self.job_dir.node}.fifo")
        try:
            watchdog = Watchdog(path)
        except OSError as error:
            self.telling.degraded(f"no watchdog: cannot make the pipe {path}: {error.strerror}")
            return None
        os.environ["TORCHELASTIC_TIMER_FILE"] = path
        self.host.watch(watchdog.fd, select.EPOLLIN, watchdog.readable)
        return watchdog

    def _progress_at_unix(self) -> float:
        """When the watchdog last looked; without one there is nothing that could be stuck."""
        return self.awake_at_unix if self.watchdog is not None else self.host.unix()

    # --- telling --------------------------------------------------------------------------------------------------------

    def _record(self, event: Event, at_unix: float, life: tuple[int, int]) -> None:
        if isinstance(event, RoundFormed):
            # Not the group's own: one step of it can end a life and begin the next, and what is recorded comes after.
            assigned = self.node.group.assigned
            self.telling.life = event.round, assigned.restart_count if assigned else 0
            self._look_at_cycles()  # before the workers start, which may look for the file
        self.telling.record(event, at_unix, life)

    def _write_down(self) -> None:
        """Once nothing is pressing, and the first worker is on its way."""
        if self.settle_at == NEVER or self.workers.attempt is not None or self.exit is not None:
            self.telling.write_down()

    def _record_start(self) -> None:
        from holdfast import __version__

        config = self.config
        started = AgentStarted(
            pid=os.getpid(),
            host=self.name,
            version=__version__,
            argv=(config.training_script, *config.training_script_args),
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            nproc=config.nproc_per_node,
            max_restarts=config.max_restarts,
            backend=config.rdzv_backend,
        )
        links: list[str] = []
        if self.network is not None and (config.rdzv_backend != "embedded" or self.node.group.hosting):
            links.append(open_doors(config, self.network))
        if self.network is not None:
            links.append(room_for_links(config, self.network))
        self.telling.begin(started, (*self.workers.plan.warnings, *links))

    def close(self) -> None:
        """Leave nothing behind, however we got here."""
        self.workers.close()
        if self.checking is not None:
            self.checking.close()
        if self.store is not None:
            self.store.close(self.node.will(self.host.now()))
        if self.network is not None:
            self.network.close()
        self.desk.close()
        if self.watchdog is not None:
            self.watchdog.close()
        if self.cycles is not None:
            self.cycles.close(self.host.unix())
        if self.attribution is not None:
            self.attribution.close()
        self.telling.close()
