"""One node's agent: the loop between its machines and this host.

    while not done:  for each thing that `host.wait(deadline)` saw:  perform what `node.observe` makes of it

The machines decide (`agent.group.machine`, `rendezvous.coordinator.machine`); this module and its hands (`workers`, `desk`,
`hands`) carry out.
"""

from __future__ import annotations

import errno
import os
import select

from holdfast.agent.build import assemble, room_for_links
from holdfast.agent.components import Hands
from holdfast.agent.control.requests import Desk
from holdfast.agent.group.messages import (
    CheckNode,
    Exit,
    FromCoordinator,
    HeedPace,
    KeepStacks,
    KillWorkers,
    LearnImports,
    LeaseOver,
    LookAtMemory,
    LookAtWorkers,
    SignalWorkers,
    StartWorkers,
    Sweep,
    Told,
    Unguarded,
)
from holdfast.agent.group.signal_forwarding import PASSED_ON
from holdfast.agent.logs import paths as logs
from holdfast.agent.reporting.record import Telling
from holdfast.agent.workers.workers import Workers
from holdfast.core.errors import HoldfastError
from holdfast.core.job.events import AgentStarted, RoundFormed
from holdfast.core.machine import NEVER, Record, Say, Signalled, Tick
from holdfast.core.signals import signal
from holdfast.core.wire.links import Arrived, Connect, HangUp, Transmit
from holdfast.core.wire.messages import CheckYourself, Finish, InjectHere, Message, NodeHealth, Noted
from holdfast.runtime.host import Host
from holdfast.runtime.process import guardian
from holdfast.telemetry.record.state_dir import open_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.agent.reporting.final_report import SharedEnd
    from holdfast.core.config.config import RunConfig
    from holdfast.core.job.events import Event
    from holdfast.core.job.report import JobReport
    from holdfast.core.machine import Action, Observation

FAREWELL_S = 5.0
"""How long a hosting agent stays, at most, until every other has taken the final report, whoever was cut off shortly before
included. On purpose longer than a lease: a node that was cut off as the job ended would else look for us in vain, and take a
success for a failure."""

SETTLE_S = 0.1
"""How long after the agent's start to put off what costs time and no worker needs: control socket, monitor, logs; the record,
where no worker has been started yet. By then workers run, where they can, and had the processors to themselves; a node that
waits for others can be asked how it is."""

HURRY_S = 1.0
"""How long the last lines are waited for by somebody who is in a hurry."""

LOOK_S = 1.0
"""How often an agent that has lost the coordinator, or does not find it, looks whether another has left a report of the job's
end."""


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
        together = "" if alone else self._started_by()
        self.job_dir = open_job(config.state_dir, config.rdzv_id, self.name, alone=alone, started_by=together, **meet)
        self.telling.open(self.job_dir, self.host.unix)
        self.shared_end = self._open_shared_end() if self.network is not None else None
        self.look_at = NEVER
        self.workers = Workers(config, self.host, logs.LogPlan.of(config, self.job_dir.path, self.job_dir.node))
        self.desk = Desk(self.node.group, self.host, self.name)
        self.answers: list[Transmit] = []
        """To what has come by now: they go out together."""
        self.exit: Exit | None = None
        self.leave_at = self.cut_at = NEVER
        self.settle_at = self.host.now() + SETTLE_S
        self.awake_at_unix = self.host.unix()
        self.hands = Hands(
            config, self.host, self.telling, self.node, self.network, self.workers, self.desk, self.job_dir, self.perform
        )
        if config.event_log_handler == "console":
            self._show_torch_events()
        if config.health_check_port is not None:
            self.desk.open_health(config.health_check_port, self._progress_at_unix)

    # --- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The loop; returns the exit code."""
        self._record_start()
        self._observe(self.workers.hold_port())
        if self.workers.mileage is not None:
            self._observe(self.workers.mileage.reached())
        self._observe(*self.hands.replicas(), *self.hands.gather_logs())
        self.perform(self.node.begin(self.host.now()))
        while not self._done():
            until = self._deadline()
            if until > self.host.now() and not self.hands.is_looking:
                self._write_down()
            for seen in [*self._struck(self.host.wait(until)), *self._due()]:
                if isinstance(seen, Arrived):  # thousands a second, and nothing that this host's processes have done
                    self._answer_or_perform(self.node.observe(seen, self.host.now()))
                    continue
                self.hands.saw(seen)
                self._observe(*self.workers.understood(seen))
            self._send_answers()
            self._show_lease()
            self.hands.look_at_cycles()
        assert self.exit is not None
        self.workers.close_logs(patient=True, cut=self._is_cut)
        self.hands.take_last_lines(self._is_cut)
        self._write_down()
        if self.exit.complaint:
            self.telling.say(self.exit.complaint, "error")
        if self.exit.report is not None:
            self.telling.report(self.exit.report)
        return self.exit.code

    def _observe(self, *observations: Observation) -> None:
        for seen in observations:
            if self.hands.monitoring is not None:
                self.hands.monitoring.saw(seen)
            self.perform(self.node.observe(seen, self.host.now()))

    def _show_lease(self) -> None:
        """Tell the guardian until when others count on this agent: it ends the workers if the agent itself cannot."""
        if guardian.lease is None or self.node.member is None:
            return
        until = self.node.lease_ends
        guardian.lease.none() if until is None else guardian.lease.renew(until)

    def _struck(self, seen: list[Observation]) -> list[Observation]:
        """What this host saw; and before it, if the guardian has ended the workers, why: they have not failed."""
        if guardian.lease is None or not guardian.lease.struck or not self.node.group.has_workers:
            return seen
        reason = "this agent did not run when its lease was over: its guardian has ended the workers"
        return [LeaseOver(reason=reason, until=self.host.now()), *seen]

    def _done(self) -> bool:
        if self.exit is None:
            return False
        return self.node.done or self.host.now() >= self.leave_at

    def _is_cut(self) -> bool:
        """At the end, while the last lines are shown and taken: somebody has been in a hurry for `HURRY_S`, by a signal beyond
        that which has ended the job, if one has."""
        now, group = self.host.now(), self.node.group
        for seen in self.host.signalled():
            if isinstance(seen, Signalled) and seen.signum in self.config.signals_to_handle:
                group.observe(seen, now)
        if group.state.in_a_hurry:
            self.cut_at = min(self.cut_at, now + HURRY_S)
        return now >= self.cut_at

    def _deadline(self) -> float:
        return min(self.node.deadline(), self.leave_at, self.settle_at, self.look_at, self.hands.deadline())

    def _due(self) -> list[Observation]:
        """What the passing of time has brought."""
        now, self.awake_at_unix = self.host.now(), self.host.unix()
        late: list[Observation] = []
        if now >= self.settle_at:
            self.settle_at = NEVER
            late += self.hands.settle()
        late += self.hands.due()
        if self.network is not None:
            self.node.set_clock(self.awake_at_unix - now)
            late += self._look_for_the_end(now)
        return [*late, Tick()] if now >= self.node.deadline() else late

    def _look_for_the_end(self, now: float) -> list[Observation]:
        """Where nobody is left to tell us how the job ended, somebody may have left a report."""
        member = self.node.member
        finds_none = member is not None and self.job_dir.joins and member.leased_at is None and member.trouble
        if member is None or not (member.lease_over or finds_none) or self.exit is not None:
            self.look_at = NEVER
        elif self.look_at == NEVER or now >= self.look_at:
            self.look_at = now + LOOK_S
            found: list[JobReport | None] = []
            if (shared_end := self.shared_end) is not None:
                self.telling.recorder.aside.attempt(lambda: found.append(shared_end.look()))
            if found and found[0] is not None:
                self.telling.say(f"the job has ended, as {self.job_dir.report_path} tells", "warning")
                return [Told(message=Finish(report=found[0]))]
        return []

    def _started_by(self) -> str:
        from holdfast.core.resolve.slurm import started_by

        return started_by(os.environ)

    def _open_shared_end(self) -> SharedEnd:
        from holdfast.agent.reporting.final_report import SharedEnd

        return SharedEnd(self.job_dir.report_path, joins=self.job_dir.joins)

    def _guardian_lost(self, fd: int) -> list[Observation]:
        self.host.unwatch(fd)
        return [Unguarded()]

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order; what is seen of them at once is observed when all are done, for what it leads to comes
        after them. What is to be recorded is only noted: nobody waits for a disk (`_write_down`)."""
        self._send_answers()
        decided_at_unix = self.host.unix()
        seen: list[Observation] = []
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    assert self.network is not None, "a job of one node has no links"
                    seen += self.network.perform(action)
                case Record(event=event, life=life):
                    self._record(event, decided_at_unix, life)
                case Say(text=text, level=level):
                    self.telling.say(text, level)
                case StartWorkers(assigned=assigned):
                    self._show_lease()  # to make their directories may take longer than it lasts, and others then go on
                    started = self.workers.start(assigned, self.node.lease_ends)
                    self.hands.look_at_beginnings()  # before: what ranks tell counts from when their start is recorded
                    seen += [*started, *self.hands.begin_round(assigned, started)]
                case CheckNode(after_failure=after_failure):
                    seen += self.hands.checking().before_join(after_failure)
                case HeedPace(longest_s=longest_s, busy_s=busy_s):
                    if self.hands.monitoring is not None:
                        self.hands.monitoring.heed(longest_s, busy_s)
                case LearnImports(modules=modules):
                    self.hands.stand_by(modules)
                case SignalWorkers(local_ranks=local_ranks, signum=signum):
                    self.workers.signal(local_ranks, signum)
                case KillWorkers(local_ranks=local_ranks):
                    self.workers.kill(local_ranks)
                case LookAtWorkers():
                    self.hands.look(action)
                case KeepStacks(reason=reason):
                    self.hands.keep_stacks(reason, decided_at_unix)
                case Sweep():
                    self.workers.sweep()
                    if self.hands.watchdog is not None:
                        self.hands.watchdog.timers.forget_all()
                case LookAtMemory(above_mb=above_mb):
                    seen += self.workers.look_at_memory(above_mb)
                case FromCoordinator(message=message):
                    seen += self._heed(message)
                case Exit():
                    self.exit, self.leave_at = action, self.host.now() + FAREWELL_S
                case _:
                    assert self.store is not None, f"an agent cannot do {action!r}"
                    seen += self.store.perform(action)
        self._observe(*seen)

    def _heed(self, message: Message) -> list[Observation]:
        """What an operator asks of this node through the coordinator, or the answer to one here."""
        match message:
            case CheckYourself(ask=ask, checks=checks):
                return self.hands.checking().run_for(self.node.group.join.node, ask, checks)
            case InjectHere(ask=ask, injection=wanted):
                return [self.hands.injections().play(ask, wanted)]
            case NodeHealth():
                self.desk.examined(message)
            case Noted():
                self.desk.answered(message)
        return []

    def _answer_or_perform(self, actions: Sequence[Action]) -> None:
        """Where all that a message leads to is an answer, that goes out with the answers to whatever else has come."""
        if len(actions) == 1 and isinstance(answer := actions[0], Transmit):
            self.answers.append(answer)
        else:
            self.perform(actions)

    def _send_answers(self) -> None:
        if self.answers:
            assert self.network is not None, "a job of one node has no links"
            self.network.transmit_all(self.answers)
            self.answers = []

    def _progress_at_unix(self) -> float:
        """When the watchdog last looked; without one there is nothing that could be stuck."""
        return self.awake_at_unix if self.hands.watchdog is not None else self.host.unix()

    # --- telling --------------------------------------------------------------------------------------------------------

    def _record(self, event: Event, at_unix: float, life: tuple[int, int]) -> None:
        if isinstance(event, RoundFormed):
            # Not the group's own: one step of it can end a life and begin the next, and what is recorded comes after.
            assigned = self.node.group.assigned
            self.telling.life = event.round, assigned.restart_count if assigned else 0
            self.hands.look_at_cycles()  # before the workers start, which may look for the file
        self.telling.record(event, at_unix, life)
        self.hands.recorded(event)

    def _show_torch_events(self) -> None:
        from holdfast.agent.workers.launch import program_name
        from holdfast.telemetry.report.torch_events import TorchEvents

        shown, group = TorchEvents(self.config, self.name, program_name(self.config)), self.node.group
        self.telling.torch_events = lambda event, at_unix: shown.heard(event, at_unix, group.assigned)

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
        if self.network is not None and (config.rdzv_backend != "embedded" or self.node.group.state.hosting):
            from holdfast.runtime.net.net import open_doors  # which has come with the network

            links.append(open_doors(self.network, config.max_nodes, token_by="--token-file FILE"))
        if self.network is not None:
            links.append(room_for_links(config, self.network))
        self.telling.begin(started, (*self.workers.plan.warnings, *links))

    def close(self) -> None:
        """Leave nothing behind, however we got here."""
        self.workers.close()
        self.hands.close()
        if self.store is not None:
            self.store.close(self.node.will(self.host.now()))
        if self.network is not None:
            self.network.close()
        self.desk.close()
        self.telling.close()
