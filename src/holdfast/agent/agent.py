"""One node's agent: the loop between its machines and this host.

    while not done:  for each thing that `host.wait(deadline)` saw:  perform what `node.observe` makes of it

The machines decide (`agent.group`, `rendezvous.round`); this module only carries out, and fetches the evidence that they
need (error files, the last lines of logs).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from holdfast.agent import error_files, launch, logs
from holdfast.agent.assembly import assemble
from holdfast.agent.group import (
    PASSED_ON,
    Ended,
    Exit,
    KillWorkers,
    PortHeld,
    SignalWorkers,
    Started,
    StartFailed,
    StartWorkers,
    StopAsked,
    Sweep,
)
from holdfast.core.errors import StartError
from holdfast.core.events import AgentStarted, Degraded
from holdfast.core.failure import Evidence
from holdfast.core.links import Connect, HangUp, Transmit
from holdfast.core.machine import NEVER, Record, Say, Signalled, Tick
from holdfast.core.processes import ProcessDying, ProcessGone
from holdfast.runtime import guardian
from holdfast.runtime.host import Host
from holdfast.runtime.ports import hold_port
from holdfast.telemetry.recorder import Recorder
from holdfast.telemetry.state_dir import open_job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agent.attempt_logs import AttemptLogs
    from holdfast.agent.control import ControlSocket, Request
    from holdfast.agent.tee import Tee
    from holdfast.agent.watchdog import Watchdog
    from holdfast.core.config import RunConfig
    from holdfast.core.events import Event
    from holdfast.core.machine import Action, Observation
    from holdfast.core.messages import Assigned
    from holdfast.core.report import JobReport
    from holdfast.telemetry.health_http import HealthHttpServer

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

FAREWELL_S = 5.0
"""How long a hosting agent stays, at most, until every other has taken the final report."""

SETTLE_S = 0.05
"""How long the way to the first worker may take before what costs time (the record on disk, the control socket) is done all
the same: a node that waits for others wants to be asked how it is."""

PULSE_S = 5.0
"""How often the loop shows that it is alive, where somebody asks (TORCHELASTIC_HEALTH_CHECK_PORT)."""

TAIL_LINES = 20
"""Lines of a failed worker's log that go into the report."""


def run(config: RunConfig) -> int:
    """Run this node's part of the job. Returns the exit code; a signal before the first round is died of, as by any program."""
    agent = Agent(config)
    try:
        code = agent.run()
    finally:
        agent.close()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


class Agent:
    """What the loop holds."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.name = config.node_name or socket.gethostname()
        self.host = Host(self._degraded)
        self.host.catch((*config.signals_to_handle, *(s for s in PASSED_ON if s not in config.signals_to_handle)))
        if (fd := guardian.guardian_lost_fd()) >= 0:
            self.host.watch(fd, select.EPOLLIN, lambda events: self._guardian_lost(fd))
        self.node, self.network = assemble(config, self.host, self.name)
        self.job_dir = open_job(config.state_dir, config.rdzv_id, self.name, endpoint=config.rdzv_endpoint)
        self.recorder = Recorder(self.job_dir.events_path, self.job_dir.node)
        self.plan = logs.LogPlan.of(config, self.job_dir.path, self.job_dir.node)
        self.ports: list[socket.socket] = []
        """Held for MASTER_PORT: that of the running round, and that of the next."""
        self.control: ControlSocket | None = None
        self.attempt: AttemptLogs | None = None
        self.tee: Tee | None = None
        self.local_ranks: dict[int, int] = {}
        """pid → local rank, of the current round"""
        self.exit: Exit | None = None
        self.leave_at = NEVER
        self.settle_at = self.host.now() + SETTLE_S
        self.awake_at_unix = self.host.unix()
        self.health = self._open_health() if config.health_check_port is not None else None
        self.watchdog = self._open_watchdog() if config.watchdog else None

    # --- the loop -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The loop; returns the exit code."""
        self._record_start()
        self._hold_port()
        self.perform(self.node.begin(self.host.now()))
        while not self._done():
            for seen in [*self.host.wait(self._deadline()), *self._due()]:
                for understood in self._understood(seen):
                    self.perform(self.node.observe(understood, self.host.now()))
        assert self.exit is not None
        return self._farewell(self.exit)

    def _done(self) -> bool:
        if self.exit is None:
            return False
        return self.node.done or self.exit.code < 0 or self.host.now() >= self.leave_at

    def _guardian_lost(self, fd: int) -> list[Observation]:
        self.host.unwatch(fd)
        self._say("the process that was started (our guardian) was killed; stopping everything at once", "error")
        # Twice is without grace: nobody is left who would see to it that it ends.
        return [Signalled(signum=signal.SIGTERM), Signalled(signum=signal.SIGTERM)]

    def _deadline(self) -> float:
        deadlines = [self.node.deadline(), self.leave_at, self.settle_at]
        if self.health is not None:
            deadlines.append(self.host.now() + PULSE_S)
        if self.network is not None:
            deadlines.append(self.network.deadline())
        if self.tee is not None and self.tee.interval_s is not None:
            deadlines.append(self.host.now() + self.tee.interval_s)
        if self.watchdog is not None:
            deadlines.append(self.host.now() + self.watchdog.timers.next_unix() - self.host.unix())
        return min(deadlines)

    def _due(self) -> list[Observation]:
        now, self.awake_at_unix = self.host.now(), self.host.unix()
        if now >= self.settle_at:
            self._settle()
        if self.tee is not None and self.tee.interval_s is not None:
            self.tee.pump()
        late: list[Observation] = self.network.expire(now) if self.network is not None else []
        if self.watchdog is not None:
            late += self.watchdog.timers.expired(self.host.unix())
        return [*late, Tick()] if now >= self.node.deadline() else late

    def _understood(self, seen: Observation) -> list[Observation]:
        """What the World saw, in the words of the machines."""
        match seen:
            case ProcessDying(pid=pid, exitcode=exitcode) if exitcode != 0 and pid in self.local_ranks:
                return [self._ended(pid, exitcode, gone=False)]
            case ProcessGone(pid=pid, exitcode=exitcode) if pid in self.local_ranks:
                return [self._ended(pid, exitcode, gone=True)]
            case ProcessDying() | ProcessGone():
                return []
        return [seen]

    def _ended(self, pid: int, exitcode: int, *, gone: bool) -> Ended:
        local_rank = self.local_ranks[pid]
        evidence = Evidence() if exitcode == 0 else self._evidence(local_rank)
        return Ended(local_rank=local_rank, exitcode=exitcode, gone=gone, at_unix=self.host.unix(), evidence=evidence)

    def _evidence(self, local_rank: int) -> Evidence:
        assert self.attempt is not None
        rank_logs = self.attempt[local_rank]
        record = error_files.read(rank_logs.error_file)
        said = record or error_files.ErrorRecord()
        return Evidence(
            at_unix=said.at_unix,
            message=said.message or said.trouble,
            traceback=said.traceback,
            error_file=rank_logs.error_file if record else None,
            error_record=said.content,
            log_tail=self.attempt.tail_lines(local_rank, TAIL_LINES),
            log_path=rank_logs.log_path,
        )

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out actions, in order."""
        for action in actions:
            match action:
                case Record(event=event):
                    self._record(event)
                case Say(text=text, level=level):
                    self._say(text, level)
                case StartWorkers(assigned=assigned):
                    self._start(assigned)
                case SignalWorkers(local_ranks=local_ranks, signum=signum):
                    for pid in self._pids(local_ranks):
                        self.host.signal_group(pid, signum)
                case KillWorkers(local_ranks=local_ranks):
                    self.host.kill(self._pids(local_ranks))
                case Sweep():
                    self._sweep()
                case Exit():
                    self.exit, self.leave_at = action, self.host.now() + FAREWELL_S
                case Connect() | Transmit() | HangUp():
                    self._network(action)
                case _:
                    raise AssertionError(f"an agent cannot do {action!r}")

    def _network(self, action: Connect | Transmit | HangUp) -> None:
        assert self.network is not None, "a job of one node has no links"
        match action:
            case Connect(link=link):
                for seen in self.network.connect(link):
                    self.perform(self.node.observe(seen, self.host.now()))
            case Transmit(link=link, message=message):
                self.network.transmit(link, message)
            case HangUp(link=link):
                self.network.hang_up(link)

    def _start(self, assigned: Assigned) -> None:
        config, environ = self.config, dict(os.environ)
        self._close_logs(patient=False)
        self.attempt = self.plan.open_attempt(assigned.restart_count, assigned.round, config.nproc_per_node)
        self.local_ranks = {}
        seen: list[Observation] = []
        for local_rank in range(config.nproc_per_node):
            files = self.attempt[local_rank]
            page = None if config.no_python else self.host.page()
            argv = launch.command(config, local_rank)
            env = launch.environment(
                config, environ, assigned, local_rank, error_file=files.error_file, paged=page is not None
            )
            try:
                pid = self.host.start(argv, env, stdout=files.stdout_fd, stderr=files.stderr_fd, page=page, page_fd=launch.PAGE_AT)
            except StartError as error:
                seen.append(StartFailed(local_rank=local_rank, message=str(error), at_unix=self.host.unix()))
                break
            self.local_ranks[pid] = local_rank
            seen.append(Started(local_rank=local_rank, pid=pid, argv=tuple(argv), log_dir=files.dir))
        self.attempt.release()
        self.host.watch_pages()
        self._follow_logs(assigned)
        for what in seen:
            self.perform(self.node.observe(what, self.host.now()))
        self._hold_port()
        self._settle()

    def _settle(self) -> None:
        """Do what was put off until the first worker runs."""
        if self.settle_at != NEVER:
            self.settle_at = NEVER
            self.recorder.flush()
            self._open_control()

    def _hold_port(self) -> None:
        """Hold a port for the round to come, in case this node gets group rank 0 in it."""
        sock = hold_port()
        self.ports.append(sock)
        self.perform(self.node.observe(PortHeld(port=sock.getsockname()[1]), self.host.now()))

    def _pids(self, local_ranks: Iterable[int]) -> list[int]:
        wanted = set(local_ranks)
        return [pid for pid, local_rank in self.local_ranks.items() if local_rank in wanted]

    def _sweep(self) -> None:
        self.host.sweep()
        if self.watchdog is not None:
            self.watchdog.timers.forget_all()
        for sock in self.ports[:-1]:
            sock.close()
        del self.ports[:-1]

    # --- logs -----------------------------------------------------------------------------------------------------------

    def _follow_logs(self, assigned: Assigned) -> None:
        assert self.attempt is not None
        ranks = range(assigned.base_rank, assigned.base_rank + self.config.nproc_per_node)
        self.tee = tee = self.attempt.tee(logs.prefixes(self.config.role, ranks, self.config.log_line_prefix_template))
        if tee is not None and tee.interval_s is None:
            self.host.watch(tee.fileno(), select.EPOLLIN, lambda events: self._pump())

    def _pump(self) -> list[Observation]:
        assert self.tee is not None
        self.tee.pump()
        return []

    def _close_logs(self, *, patient: bool) -> None:
        """`patient`: wait for a slow console; between two rounds there is no time for it."""
        if self.tee is not None:
            self.tee.drain() if patient else self.tee.drain(stall_s=0.5, limit_s=1.0)
            if self.tee.interval_s is None:
                self.host.unwatch(self.tee.fileno())
            self.tee.close()
            self.tee = None
        if self.attempt is not None:
            self.attempt.close()

    # --- health ---------------------------------------------------------------------------------------------------------

    def _open_health(self) -> HealthHttpServer | None:
        from holdfast.telemetry.health_http import HealthHttpServer

        assert self.config.health_check_port is not None
        server = HealthHttpServer(self._progress_at_unix, self.config.health_check_port)
        try:
            server.start()
        except OSError as error:
            self._degraded(f"no health check on port {self.config.health_check_port}: {error.strerror}")
            return None
        return server

    def _progress_at_unix(self) -> float:
        """When the watchdog last looked; without one there is nothing that could be stuck."""
        return self.awake_at_unix if self.watchdog is not None else self.host.unix()

    # --- the watchdog ---------------------------------------------------------------------------------------------------

    def _open_watchdog(self) -> Watchdog | None:
        from holdfast.agent.watchdog import Watchdog

        path = self.config.timer_file or os.path.join(self.job_dir.path, f"watchdog-{self.job_dir.node}.fifo")
        try:
            watchdog = Watchdog(path)
        except OSError as error:
            self._degraded(f"no watchdog: cannot make the pipe {path}: {error.strerror}")
            return None
        os.environ["TORCHELASTIC_TIMER_FILE"] = path
        self.host.watch(watchdog.fd, select.EPOLLIN, lambda events: watchdog.read() or [])
        return watchdog

    # --- telling --------------------------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        assigned = self.node.group.assigned
        attempt = assigned.restart_count if assigned else 0
        self.recorder.record(event, at_unix=self.host.unix(), round=self.node.group.round, attempt=attempt)

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
        self._record(started)

    def _say(self, text: str, level: str) -> None:
        if LEVELS[level] >= LEVELS.get(self.config.log_level.lower(), LEVELS["warning"]):
            print(f"holdfast[{self.name}]: {text}", file=sys.stderr, flush=True)

    def _degraded(self, what: str) -> None:
        self._record(Degraded(what=what, instead=""))
        self._say(what, "warning")

    # --- being asked ----------------------------------------------------------------------------------------------------

    def _open_control(self) -> None:
        from holdfast.agent.control import ControlSocket

        try:
            self.control = control = ControlSocket(self.job_dir.socket_path)
        except OSError as error:
            self._degraded(f"`holdfast status` and `stop` cannot reach this agent: {self.job_dir.socket_path}: {error.strerror}")
            return
        self.host.watch(control.fileno(), select.EPOLLIN, lambda events: self._asked(control))

    def _asked(self, control: ControlSocket) -> list[Observation]:
        return [seen for request in control.requests() for seen in self._answer(request)]

    def _answer(self, request: Request) -> list[Observation]:
        match request.ask:
            case "status":
                request.reply(self._status())
            case "stop":
                request.reply({})
                return [StopAsked(reason=str(request.arguments.get("reason") or "asked to stop by an operator"))]
            case "signal":
                signum = getattr(signal, str(request.arguments.get("signal")), None)
                if not isinstance(signum, signal.Signals):
                    request.refuse(f"there is no signal {request.arguments.get('signal')!r}")
                    return []
                request.reply({})
                return [Signalled(signum=signum)]
            case _:
                request.refuse(f"this agent knows no {request.ask!r}; it knows status, stop and signal")
        return []

    def _status(self) -> dict[str, object]:
        group = self.node.group
        assigned = group.assigned
        return {
            "node": self.name,
            "pid": os.getpid(),
            "state": group.state,
            "round": group.round,
            "attempt": assigned.restart_count if assigned else 0,
            "group_rank": assigned.group_rank if assigned else None,
            "world_size": assigned.world_size if assigned else None,
            "hosting": group.hosting,
            "workers": [
                {"rank": w.rank, "local_rank": w.local_rank, "pid": w.pid, "state": w.state, "exitcode": w.exitcode}
                for w in group.workers.values()
            ],
        }

    # --- the end --------------------------------------------------------------------------------------------------------

    def _farewell(self, end: Exit) -> int:
        """Show what there is to show; the exit code."""
        self._close_logs(patient=True)
        self.recorder.flush()
        if end.complaint:
            self._say(end.complaint, "error")
        if end.report is not None:
            self._show(end.report)
        return end.code

    def _show(self, report: JobReport) -> None:
        if report.outcome == "succeeded" and not report.restarts_used and report.rounds <= 1:
            self._write_report(report)
            return
        from holdfast.telemetry.report_text import report_text, terminal

        width, colour = terminal(sys.stderr)
        print(report_text(report, width=width, colour=colour), end="", file=sys.stderr)
        self._write_report(report)
        if report.failures:
            from holdfast.telemetry.box import entrypoint_name, failure_box

            program, *args = launch.command(self.config, 0)
            error_files.hand_on(report.failures[0], self.config.error_file)
            print(failure_box(entrypoint_name(program, args), report.failures), file=sys.stderr)
        sys.stderr.flush()

    def _write_report(self, report: JobReport) -> None:
        import json

        from holdfast.telemetry.report_text import report_json

        path = self.job_dir.report_path
        try:
            with open(f"{path}.{self.job_dir.node}", "w", encoding="utf-8") as file:
                json.dump(report_json(report), file, indent=2)
            os.replace(f"{path}.{self.job_dir.node}", path)
        except OSError as error:
            self._say(f"cannot write {path}: {error.strerror}", "warning")

    def close(self) -> None:
        """Leave nothing behind, however we got here."""
        self.host.kill(list(self.host.children))
        self.host.sweep()
        if self.network is not None:
            self.network.close()
        for sock in self.ports:
            sock.close()
        if self.control is not None:
            self.control.close()
        if self.watchdog is not None:
            self.watchdog.close()
        if self.health is not None:
            self.health.stop()
        self.recorder.close()
        self.job_dir.close()
