"""One node's agent: the loop between its machines and this host.

    while not done:  for each thing that `host.wait(deadline)` saw:  perform what `node.observe` makes of it

The machines decide (`agent.group.machine`, `rendezvous.coordinator.machine`); this module and its parts (`agent.components`)
carry out.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast import __version__
from holdfast.agent.build import lone_node
from holdfast.agent.components import Components
from holdfast.agent.group import messages
from holdfast.agent.group.signal_forwarding import PASSED_ON
from holdfast.agent.node import Node
from holdfast.agent.own_lease import OwnLease
from holdfast.agent.reporting.agent_log import AgentLog
from holdfast.agent.reporting.shared_report import EndWatch
from holdfast.agent.secrets import forget_others
from holdfast.agent.surroundings import Surroundings
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import HoldfastError, Stopped
from holdfast.core.job.events import AgentStarted, Event, RoundFormed
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Signalled, Tick
from holdfast.core.resolve.slurm import started_by
from holdfast.core.signals import signal
from holdfast.core.wire.links import Arrived, Connect, HangUp, Serving, Transmit
from holdfast.core.wire.messages import Assigned
from holdfast.rendezvous.member import Member
from holdfast.runtime.host import Host
from holdfast.runtime.process import guardian
from holdfast.runtime.process.descriptors import SHORT_OF
from holdfast.telemetry.record.state_dir import open_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.leader.build import Store
    from holdfast.runtime.net.network import Network

FAREWELL_S = 5.0
"""Longest time that a hosting agent stays until every other agent has the final report. Longer than a lease on purpose: a
node that was cut off at the job's end looks for the coordinator, and would take a success for a failure."""

SETTLE_S = 0.1
"""Delay after the agent's start, and that of a round's workers, for work that takes time and that no worker needs: control
socket, monitor, logs, and the record if no worker has started yet. So the workers that can start have the CPUs to
themselves, and a node that waits for others can still answer questions."""

TELL_AGAIN_S = 0.1  # How soon that is told which could not be, since the host was short of something.

HURRY_S = 1.0  # Seconds to wait for the last lines after a signal asks to hurry.


def run(config: RunConfig) -> int:
    """Run this node's part of the job. Returns the exit code; a signal before the first round is died of, as by any program."""
    try:
        agent = Agent(config)
        try:
            code = agent.run()
        finally:
            agent.close()
    except Stopped as stopped:
        code = stopped.exit_code
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
        self.agent_log = AgentLog(config, self.name)
        self.host = Host(self.agent_log.degraded)
        self.host.files.keep()
        self.host.catch((*config.signals_to_handle, *(s for s in PASSED_ON if s not in config.signals_to_handle)))
        if (fd := guardian.guardian_lost_fd()) >= 0:
            self.host.watch(fd, select.EPOLLIN, lambda events: self._guardian_lost(fd))
        self.node, self.network, self.store = self._assemble()
        self.lease = OwnLease(self.host, self.node, guardian.lease)
        listens_at = self.network.listens_at if self.network is not None else ""
        self.job_dir = open_job(
            config.state_dir,
            config.rdzv_id,
            self.name,
            alone=self.network is None,
            started_by="" if self.network is None else started_by(os.environ),
            endpoint=config.rdzv_endpoint,
            listens=listens_at,
        )
        if self.store is not None:
            self.store.open(self.job_dir)
        self.answers: list[Transmit] = []  # To what has come by now: they go out together.
        self.exit: messages.Exit | None = None
        self.leave_at = self.cut_at = NEVER
        self.settle_at = self.host.now() + SETTLE_S
        self.untold: list[Observation] = []  # What could not be told yet.
        self.tell_at = NEVER  # When it is tried again.
        self.awake_at_unix = self.host.unix()
        self.agent_log.open(
            self.job_dir,
            self.host,
            listener=lambda event, at_unix: self.components.recorded(event, at_unix),
            verdicts=lambda: self.components.verdicts(),
            regrouped=lambda: self.node.group.state.regrouped,
        )
        around = Surroundings(
            config=config,
            host=self.host,
            agent_log=self.agent_log,
            node=self.node,
            network=self.network,
            job_dir=self.job_dir,
            perform=self.perform,
        )
        self.components = Components(around)
        forget_others()
        self.parts, self.workers, self.control = self.components.parts, self.components.workers, self.components.control
        if self.network is not None:
            io_thread, say = self.agent_log.recorder.io_thread, self.agent_log.say
            self.components.add(EndWatch(self.job_dir, self._member, self.host, io_thread, say))
        if config.health_check_port is not None:
            self.control.open_health(config.health_check_port, self._progress_at_unix)

    def _assemble(self) -> tuple[Node, Network | None, Store | None]:
        if self.config.rdzv_backend == "memory":
            return lone_node(self.config, self.host, self.name), None, None
        from holdfast.agent.networked import assemble  # a job of one node loads no network

        return assemble(self.config, self.host, self.name, lambda text: self.agent_log.say(text, "warning"))

    # --- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The loop; returns the exit code."""
        self._record_start()
        self._observe(*(seen for part in self.parts for seen in part.first()))
        self.perform(self.node.begin(self.host.now()))
        self.lease.arm()
        while not self._done():
            until = self._deadline()
            if until > self.host.now() and not self.components.is_looking:
                self._write_down()
            said = [] if self.network is None else self.network.heard_here()
            seen_here = self.host.wait(until)
            self.lease.enforce()
            for seen in [*said, *self.lease.explained(seen_here), *self._due()]:
                if isinstance(seen, Arrived):  # thousands a second, and nothing that this host's processes have done
                    self._answer_or_perform(self.node.observe(seen, self.host.now()))
                    continue
                self._tell_or_keep(seen)
            self._send_answers()
            self.lease.show()
            for one in self.components.per_turn:
                one.end_turn()
        assert self.exit is not None
        self.workers.close_logs(patient=True, cut=self._is_cut)
        self.components.take_last_lines(self._is_cut)
        self._write_down()
        if self.exit.complaint:
            self.agent_log.say(self.exit.complaint, "error")
        if self.exit.report is not None:
            self.agent_log.report(self.exit.report)
        return self.exit.code

    def _tell_or_keep(self, seen: Observation) -> None:
        """Show the parts and the machines what this host saw. What it cannot find out yet, for want of memory, is told
        again: else a job would wait for a rank's end for ever."""
        try:
            understood = self.workers.understood(seen)
        except OSError as error:
            self._short_of(error)
            self.untold.append(seen)
            self.tell_at = self.host.now() + TELL_AGAIN_S
            return
        for part in self.parts:
            if isinstance(seen, part.sees):
                self._unless_short(part.saw, seen)
        self._observe(*understood)

    def _observe(self, *observations: Observation) -> None:
        for seen in observations:
            if isinstance(seen, Serving):
                for text in filter(None, self._links(hosting=True)):
                    self.agent_log.degraded(text)
            self.perform(self.node.observe(seen, self.host.now()))

    def _done(self) -> bool:
        if self.exit is None:
            return False
        return self.node.done or self.host.now() >= self.leave_at

    def _is_cut(self) -> bool:
        """Whether the last lines are waited for no more: a signal, beyond the one that ended the job, came `HURRY_S` ago."""
        now, group = self.host.now(), self.node.group
        for seen in self.host.signalled():
            if isinstance(seen, Signalled) and seen.signum in self.config.signals_to_handle:
                group.observe(seen, now)
        if group.state.in_a_hurry:
            self.cut_at = min(self.cut_at, now + HURRY_S)
        return now >= self.cut_at

    def _deadline(self) -> float:
        network_at = NEVER if self.network is None else self.network.deadline()
        timed_at = min(one.due_at for one in self.components.timed)
        return min(self.node.deadline(), network_at, timed_at, self.leave_at, self.settle_at, self.tell_at)

    def _due(self) -> list[Observation]:
        """What the passing of time has brought."""
        now, self.awake_at_unix = self.host.now(), self.host.unix()
        late: list[Observation] = []
        if now >= self.tell_at:
            late, self.untold, self.tell_at = self.untold, [], NEVER
        if now >= self.settle_at:
            self.settle_at = NEVER
            late += self._unless_short(self._settle)
        if self.network is not None:
            self.node.set_clock(self.awake_at_unix - now)
            late += self._unless_short(self.network.due)
        for one in list(self.components.timed):  # one of them may have others made
            if now >= one.due_at:
                late += self._unless_short(one.due)
        if now < self.node.deadline():
            return late
        return [*late, *self.host.lives(), Tick()]  # who has just begun in place, or let go, is not too late

    def _settle(self) -> list[Observation]:
        try:
            return self.components.settle()
        except OSError:
            self.settle_at = self.host.now() + SETTLE_S  # again, where the host was short of something
            raise

    def _member(self) -> Member | None:
        """This node's link to the coordinator, while the job goes on here. None: the coordinator is here."""
        return self.node.member if self.exit is None else None

    def _guardian_lost(self, fd: int) -> list[Observation]:
        self.host.unwatch(fd)
        return [messages.Unguarded()]

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order. What is seen of them at once is observed when all are done: what it leads to comes after
        them. What is to be recorded is only noted: nothing waits for a disk (`_write_down`)."""
        self._send_answers()
        decided_at_unix = self.host.unix()
        seen: list[Observation] = []
        for action in actions:
            seen += self._unless_short(self._carry_out, action, decided_at_unix)
        self._observe(*seen)

    def _unless_short(self, do: Callable[..., Iterable[Observation] | None], *given: object) -> list[Observation]:
        """Do something. A host that is short of descriptors or memory costs what was not done yet, and a complaint, but neither
        the agent nor what was seen until then."""
        seen: list[Observation] = []
        try:
            for one in do(*given) or ():
                seen.append(one)
        except OSError as error:
            self._short_of(error)
        return seen

    def _short_of(self, error: OSError) -> None:
        if error.errno not in SHORT_OF or self.workers.attempt is None:  # before the first round it is the user's to know
            raise error
        self.host.short_of(error)

    def _carry_out(self, action: Action, at_unix: float) -> Iterable[Observation]:
        """Do one thing, decided at `at_unix`; what is seen of it at once."""
        match action:
            case Connect() | Transmit() | HangUp():
                assert self.network is not None, "a job of one node has no links"
                return self.network.perform(action)
            case Record(event=event, life=life, at_unix=since):
                self._record(event, at_unix if since is None else since, life)
            case Say(text=text, level=level):
                self.agent_log.say(text, level)
            case messages.OpenLogs(assigned=assigned):
                return self.workers.open_logs(assigned)
            case messages.StartWorkers(assigned=assigned, kept=kept):
                return self._start_workers(assigned, kept)
            case messages.RegroupWorkers(local_ranks=local_ranks):
                self.workers.regroup(local_ranks)
            case messages.SignalWorkers(local_ranks=local_ranks, signum=signum):
                self.workers.signal(local_ranks, signum)
            case messages.KillWorkers(local_ranks=local_ranks):
                self.workers.kill(local_ranks)
            case messages.LookAtMemory(above_mb=above_mb):
                return self.workers.look_at_memory(above_mb)
            case messages.Sweep():
                self.workers.sweep()
                if self.components.watchdog is not None:
                    self.components.watchdog.forget_timers()
            case messages.Exit():
                self.exit, self.leave_at = action, self.host.now() + FAREWELL_S
            case messages.FromCoordinator() | messages.CheckNode() | messages.LookAtWorkers() | messages.KeepStacks():
                return self.components.carry_out(action, at_unix)
            case _:
                assert self.store is not None, f"an agent cannot do {action!r}"
                return self.store.perform(action)
        return []

    def _start_workers(self, assigned: Assigned, kept: tuple[int, ...]) -> Iterator[Observation]:
        self.lease.show()  # starting them may take longer than the lease lasts: others then go on
        is_first = self.workers.attempt is None
        started: list[Observation] = []
        for seen in self.workers.start(assigned, self.node.lease_ends, kept):
            started.append(seen)
            yield seen
        soon = self.host.now() + SETTLE_S
        self.settle_at = soon if is_first else min(self.settle_at, soon)  # however fast one failure follows another
        yield from self.components.begin_round(assigned, started)

    def _answer_or_perform(self, actions: Sequence[Action]) -> None:
        """Where a message leads to an answer only, that goes out with the answers to whatever else has come."""
        if len(actions) == 1 and isinstance(answer := actions[0], Transmit):
            self.answers.append(answer)
        else:
            self.perform(actions)

    def _send_answers(self) -> None:
        if self.answers:
            assert self.network is not None, "a job of one node has no links"
            answers, self.answers = self.answers, []
            for seen in self.network.transmit_all(answers):
                self._tell_or_keep(seen)

    def _progress_at_unix(self) -> float:
        """When the watchdog last looked. Without one, now: nothing could be stuck."""
        return self.awake_at_unix if self.components.watchdog is not None else self.host.unix()

    # --- telling --------------------------------------------------------------------------------------------------------

    def _record(self, event: Event, at_unix: float, life: tuple[int, int]) -> None:
        if isinstance(event, RoundFormed):
            # Not the group's own: one step of it can end a life and begin the next, and what is recorded comes after.
            assigned = self.node.group.assigned
            self.agent_log.begin_life(event.round, assigned.restart_count if assigned else 0)
        self.agent_log.record(event, at_unix, life)

    def _write_down(self) -> None:
        """Write the record, once the first worker is on its way."""
        if self.settle_at == NEVER or self.workers.attempt is not None or self.exit is not None:
            self.agent_log.write_down()

    def _record_start(self) -> None:
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
        self.agent_log.begin(started, (*self.workers.plan.warnings, *self._links(hosting=self.node.group.state.hosting)))

    def _links(self, *, hosting: bool) -> list[str]:
        """What the user should know of who may connect here."""
        if self.network is None:
            return []
        from holdfast.agent.networked import warnings  # which is loaded by now

        return warnings(self.config, self.network, hosting=hosting)

    def close(self) -> None:
        """Leave nothing behind, however we got here."""
        for part in self.parts:
            part.close()
        if self.store is not None:
            self.store.close(self.node.will(self.host.now()))
        if self.network is not None:
            self.network.close()
        self.agent_log.close()
