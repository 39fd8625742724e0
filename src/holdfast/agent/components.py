"""What of an agent is made only where it is asked for, or first needed? Its parts beside the workers, and when each is due.

Most jobs never need most of them, and loading each takes its time, which no first worker is to wait for.
"""

from __future__ import annotations

import os

from holdfast.agent.build import no_progress_cycles
from holdfast.agent.group.messages import LogsTaken, Stashed
from holdfast.agent.reporting.daemon_announce import introduce
from holdfast.core.errors import HoldfastError
from holdfast.core.job.events import FailureSeen, StacksKept, StopSent, WorkerStarted
from holdfast.core.machine import NEVER
from holdfast.core.processes import ProcessGone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from holdfast.agent.control.health_checks import Checking
    from holdfast.agent.control.requests import Desk
    from holdfast.agent.faults.driver import Injections
    from holdfast.agent.group.messages import LookAtWorkers
    from holdfast.agent.logs.receiver import LogReceiver
    from holdfast.agent.node import Node
    from holdfast.agent.reporting.attribution import Attribution
    from holdfast.agent.reporting.cycles import Cycles
    from holdfast.agent.reporting.google_rank_reports import RankReports
    from holdfast.agent.reporting.jobset import InPlace
    from holdfast.agent.reporting.record import Telling
    from holdfast.agent.reporting.supervisor_link import Supervised
    from holdfast.agent.spares.pool import Parking
    from holdfast.agent.workers.checkpoint_writes import Saves
    from holdfast.agent.workers.file_timer import Watchdog
    from holdfast.agent.workers.monitor_driver import Monitoring
    from holdfast.agent.workers.progress_iteration import Mileage
    from holdfast.agent.workers.stacks import Stacks
    from holdfast.agent.workers.start_times import Beginnings
    from holdfast.agent.workers.workers import Workers
    from holdfast.core.config.config import RunConfig
    from holdfast.core.job.events import Event
    from holdfast.core.machine import Action, Observation
    from holdfast.core.wire.messages import Assigned
    from holdfast.rendezvous.clocks import ClockLead
    from holdfast.rendezvous.coordinator.machine import Rendezvous
    from holdfast.runtime.host import Host
    from holdfast.runtime.net.net import Network
    from holdfast.telemetry.record.state_dir import JobDir

    class Hand(Protocol):
        """A part of the agent that has something to do at moments of its own."""

        def deadline(self) -> float:
            """When to call `due` (monotonic); NEVER: there is nothing."""

        def due(self) -> list[Observation]:
            """Do what is due, if anything; what came of it."""


class Hands:
    """One agent's."""

    def __init__(
        self,
        config: RunConfig,
        host: Host,
        telling: Telling,
        node: Node,
        network: Network | None,
        workers: Workers,
        desk: Desk,
        job_dir: JobDir,
        perform: Callable[[Iterable[Action]], None],
    ) -> None:
        self.config, self.host, self.telling, self.node, self.network = config, host, telling, node, network
        self.workers, self.desk, self.job_dir, self.perform = workers, desk, job_dir, perform
        self.all: list[Hand] = [telling.voice, workers, desk, *([network] if network is not None else [])]
        """Those that may have something to do at moments of their own."""
        self.beginnings: Beginnings | None = None
        """How the ranks of the round began. None: none has been started."""
        self.saves: Saves | None = None
        """Whether they write a checkpoint. None: nobody asks, or none has been started."""
        self.stacks: Stacks | None = None
        """Where the ranks are. None: none has hung so far."""
        self.monitoring: Monitoring | None = None
        """None: nothing has to be watched yet."""
        self.unwatched: tuple[Assigned, list[Observation]] | None = None
        """A round, and what became of each of its workers, for the monitor that is not there yet."""
        self.checker: Checking | None = None
        """None: nobody has asked how the node is."""
        self.player: Injections | None = None
        """None: nobody has asked for a fault."""
        self.reports: RankReports | None = None
        """None: no host daemon is to hear of the ranks, or none has been started yet."""
        self.supervised: Supervised | None = None
        """None: there is no supervisor, or it has not been spoken to yet."""
        self.log_receiver: LogReceiver | None = None
        """None: no other node's lines come here."""
        self.in_place = self._open_in_place() if config.in_place_restart else None
        self.secret = self._supervisor_secret()
        telling.regrouped = lambda: node.group.state.regrouped
        self.early: list[Event] = []
        """What the supervisor is to be told as soon as it is spoken to."""
        if config.supervisors:
            telling.listener = self.early.append
        workers.mileage = self._open_mileage() if no_progress_cycles(config) else None
        self.watchdog = self._open_watchdog() if config.watchdog else None
        self.cycles = self._open_cycles(config.ft.cycle_info_dir) if config.ft.cycle_info_dir else None
        self.attribution = self._open_attribution()
        desk.rendezvous = self._rendezvous
        desk.checking = self.checking
        desk.injections = self.injections
        if config.check_before or config.check_after or config.check_during:
            self.checking()

    def _rendezvous(self) -> Rendezvous | None:
        """The coordinator's machine, while it is here."""
        return self.node.server.rendezvous if self.node.server is not None else None

    # --- the loop -------------------------------------------------------------------------------------------------------

    def deadline(self) -> float:
        """When the first of them has something to do."""
        return min(hand.deadline() for hand in self.all)

    def due(self) -> list[Observation]:
        """What the passing of time has brought to any."""
        return [seen for hand in self.all for seen in hand.due()]

    def settle(self) -> list[Observation]:
        """Do what was put off, lest it hold up the first workers."""
        self.desk.open_control(self.job_dir.socket_path)
        self.workers.settle()
        if self.network is not None:
            self.network.warm()
        self._warm_up()
        introduce(self.config.state_dir, self.config.rdzv_id, self.job_dir)
        self._open_supervised()
        if self.in_place is not None:
            self.all.append(self.in_place)
        return self._watch(*self.unwatched) if self.unwatched is not None else []

    def begin_round(self, assigned: Assigned, started: list[Observation]) -> list[Observation]:
        """The workers of a round have been started; what is seen of them at once."""
        seen = self._watch(assigned, started)
        if self.checker is not None:
            self.checker.begin_round()
        self._warm_up()
        return seen

    def saw(self, seen: Observation) -> None:
        """What this host saw."""
        if self.beginnings is not None:
            self.beginnings.saw(seen)
        assigned = self.node.group.assigned
        if isinstance(seen, ProcessGone) and seen.stack and assigned is not None:
            local_rank = self.workers.local_ranks.get(seen.pid)
            if local_rank is not None:  # else it is of an earlier round, and was given up: the kernel has let it go only now
                self.telling.showed(assigned.base_rank + local_rank, local_rank, seen.stack)

    def recorded(self, event: Event) -> None:
        """An event of this node has been recorded."""
        if self.reports is None and isinstance(event, WorkerStarted) and os.environ.get("GCP_HOST_DAEMON_PORT"):
            self._open_reports()
        if self.reports is not None:
            self.reports.saw(event)
        if self.player is not None:
            self.player.saw(event)
        if self.workers.parking is not None and isinstance(event, (FailureSeen, StopSent)):
            self.workers.parking.round_ends()

    def close(self) -> None:
        """Leave nothing behind."""
        hands = (self.player, self.reports, self.checker, self.supervised, self.in_place, self.watchdog, self.attribution)
        for hand in hands:
            if hand is not None:
                hand.close()
        if self.cycles is not None:
            self.cycles.close(self.host.unix())

    # --- the node's health ----------------------------------------------------------------------------------------------

    def checking(self) -> Checking:
        """Runs checks of this node."""
        if self.checker is None:
            from holdfast.agent.control.health_checks import Checking

            self.checker = Checking(self.config, self.host, self.perform, self._lead)
            self.telling.verdicts = self.checker.verdicts
            self.all.append(self.checker)
        return self.checker

    def _lead(self) -> ClockLead | None:
        return self.node.clock_lead if self.network is not None else None

    # --- practice -------------------------------------------------------------------------------------------------------

    def injections(self) -> Injections:
        """Plays faults on this node."""
        if self.player is None:
            from holdfast.agent.faults.driver import Injections

            group = self.node.group
            self.player = Injections(
                self.config, self.host, self.workers, group, checker=lambda: self.checker, perform=self.perform
            )
            self.all.append(self.player)
        return self.player

    # --- the supervisor -------------------------------------------------------------------------------------------------

    def _supervisor_secret(self) -> bytes:
        if not self.config.supervisors:
            return b""
        from holdfast.agent.reporting.supervisor_link import token

        return token(self.config)

    def _open_supervised(self) -> None:
        if not self.config.supervisors:
            return
        from holdfast.agent.reporting.supervisor_link import Supervised  # it takes its time to load

        self.supervised = Supervised(
            self.config,
            self.host,
            self.desk,
            self.node.group,
            secret=self.secret,
            rendezvous=self._rendezvous,
            monitoring=lambda: self.monitoring,
            say=self.telling.say,
        )
        self.all.append(self.supervised)
        self.telling.listener = self.supervised.saw
        for event in self.early:
            self.supervised.saw(event)

    # --- the JobSet -----------------------------------------------------------------------------------------------------

    def _open_in_place(self) -> InPlace:
        from holdfast.agent.reporting.jobset import InPlace

        return InPlace(self.host, os.environ, self.telling.say)

    # --- cycles ---------------------------------------------------------------------------------------------------------

    def _open_cycles(self, folder: str) -> Cycles:
        from holdfast.agent.reporting.cycles import Cycles

        return Cycles(self.config, folder, self.telling.degraded)

    def look_at_cycles(self) -> None:
        """Whether another cycle has begun, or one is over."""
        rendezvous = self._rendezvous()
        if self.cycles is not None:
            self.cycles.look(rendezvous, self.host.unix())
        if self.attribution is not None:
            self.attribution.look(rendezvous)

    def _open_attribution(self) -> Attribution | None:
        ft = self.config.ft
        if not (ft.attribution_endpoint or ft.attrsvc_host or ft.attrsvc_port):
            return None
        needed = {
            "the log of --ft-per-cycle-applog-prefix": ft.per_cycle_applog_prefix,
            "--ft-attrsvc-host": ft.attrsvc_host or ft.attribution_endpoint,
            "--ft-attrsvc-port": ft.attrsvc_port or not ft.attrsvc_host,
        }
        if missing := " and ".join(option for option, given in needed.items() if not given):
            self.telling.degraded(f"the attribution service is not asked without {missing}")
            return None
        from holdfast.agent.reporting.attribution import Attribution

        def latch(verdict: str) -> None:
            if (rendezvous := self._rendezvous()) is not None:
                rendezvous.policy.heed(verdict)

        def is_whole(path: str) -> bool:
            ours, others = self.workers.app_logs, self.log_receiver
            return (ours is None or ours.is_whole(path)) and (others is None or others.is_whole(path))

        return Attribution(self.config, self.telling.say, latch, self.host.others.add, is_whole)

    # --- a rank that hangs ----------------------------------------------------------------------------------------------

    @property
    def is_looking(self) -> bool:
        """It is being found out where the ranks are."""
        return self.stacks is not None and self.stacks.deadline() != NEVER

    def look(self, wanted: LookAtWorkers) -> None:
        """Find out where the ranks are."""
        if self.stacks is None:
            from holdfast.agent.workers.stacks import Stacks  # most jobs never need it

            self.stacks = Stacks(self.workers, self.job_dir.incident_path)
            self.all.append(self.stacks)
        self.stacks.begin(wanted, self.monitoring)

    def keep_stacks(self, reason: str, at_unix: float) -> None:
        """Keep what was found out, as evidence."""
        if self.stacks is None:
            return
        ranks = self.stacks.ranks
        shown, silent = ([rank.rank for rank in ranks if bool(rank.stacks) == has] for has in (True, False))
        kept = StacksKept(path=self.stacks.path, ranks=tuple(shown), silent=tuple(silent), reason=reason)
        self.telling.record(kept, at_unix)
        self.telling.evidence.append(self.stacks.keeper(reason))

    # --- how ranks begin ------------------------------------------------------------------------------------------------

    def look_at_beginnings(self) -> None:
        """The workers of a round have just been started."""
        if self.beginnings is None:
            from holdfast.agent.workers.start_times import Beginnings  # after the first worker has started

            self.beginnings = Beginnings(self.host, self.telling.record)
            self.all.append(self.beginnings)
        self.beginnings.begin(self.workers.local_ranks, self.host.now())
        if self.config.grow == "at-checkpoint":
            self._look_at_saves()

    def _look_at_saves(self) -> None:
        if self.saves is None:
            from holdfast.agent.workers.checkpoint_writes import Saves

            self.saves = Saves(self.host)
            self.all.append(self.saves)
        self.saves.begin(self.workers.local_ranks)

    # --- the monitor ----------------------------------------------------------------------------------------------------

    def _watch(self, assigned: Assigned, started: list[Observation]) -> list[Observation]:
        """Have the monitor look after the ranks of a round that run; what it sees at once."""
        if self.config.ft.monitor == "off":
            return []
        if not self.workers.settled:
            self.unwatched = assigned, started
            return []
        if self.monitoring is None:
            from holdfast.agent.workers.monitor_driver import Monitoring  # it takes its time to load

            telling = self.telling
            self.monitoring = self.desk.monitoring = Monitoring(
                self.config, self.host, self.workers, node=telling.name, perform=self.perform, complain=telling.degraded
            )
            self.all.append(self.monitoring)
        self.unwatched = None
        return self.monitoring.begin_round(assigned, started)

    # --- warm spares ----------------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """The workers of a round run."""
        if self.config.warm_spares == 0 or not self.workers.given or not self.workers.settled:
            return
        if self.workers.parking is None:
            self.workers.parking = self._open_parking()
        self.workers.parking.round_began()

    def _open_parking(self) -> Parking:
        from holdfast.agent.spares.pool import Parking  # it takes its time to load

        group, workers = self.node.group, self.workers
        parking = Parking(
            self.config,
            self.host,
            workers.given,
            workers.hook,
            lambda: workers.local_ranks,
            perform=self.perform,
            between=lambda: group.state.is_between,
        )
        self.all.append(parking)
        return parking

    def stand_by(self, modules: tuple[str, ...]) -> None:
        """This node waits for a place, and has been told what its workers would import."""
        if self.config.warm_spares == 0:
            return
        if self.workers.parking is None:
            self.workers.parking = self._open_parking()
        self.workers.parking.stand_by(modules)

    # --- states ---------------------------------------------------------------------------------------------------------

    def replicas(self) -> list[Observation]:
        """Have another node's memory hold what is stashed here, where that is wished; what the group has to know of it."""
        if not self.config.stash_replicate:
            return []
        if self.network is None or self.config.stash_limit == "0":
            lacks = "no state is stashed (--stash-limit 0)" if self.network is not None else "the job has one node"
            self.telling.degraded(f"states are not replicated: {lacks}")
            return []
        from holdfast.agent.workers.state_replication import Replicas

        try:
            self.workers.replicas = replicas = Replicas(
                self.network.identity,
                self.network.shelter,
                self.node.group.join.addr,
                nproc=self.config.nproc_per_node,
                limit=self.config.stash_limit,
                tell=self.host.complain,
            )
        except (OSError, HoldfastError) as error:
            self.telling.degraded(f"states are not replicated: {error}")
            return []
        self.all.append(replicas)
        return [Stashed(held=(), at=replicas.at)]

    # --- the logs of all nodes ------------------------------------------------------------------------------------------

    def gather_logs(self) -> list[Observation]:
        """Have the coordinator's node gather the lines of all, where that is wished; what the group has to know of it."""
        ft = self.config.ft
        if not ft.enable_log_server or self.network is None:
            return []
        if not ft.per_cycle_applog_prefix:
            self.telling.degraded("--ft-enable-log-server gathers nothing without --ft-per-cycle-applog-prefix")
            return []
        from holdfast.agent.logs.receiver import FILES_PER_NODE, open_receiver
        from holdfast.agent.logs.sender import Upstream
        from holdfast.runtime.process.open_files import make_room

        group, tell = self.node.group, self.telling.degraded
        receiver = self.log_receiver = open_receiver(ft, self.network.identity, self.network.shelter, group.join.addr, tell)
        if receiver is None:
            return []
        if make_room(self.host, FILES_PER_NODE * (self.config.max_nodes - 1)):
            tell("this node may open too few files to take the logs of all others: raise its hard limit (ulimit -Hn)")
        self.all.append(receiver)
        patience_s = ft.log_server_graceful_shutdown_timeout
        self.workers.upstream = Upstream(self.network.identity, self.network.shelter, receiver.address, patience_s)
        return [LogsTaken(at=receiver.address)]

    def take_last_lines(self, cut: Callable[[], bool]) -> None:
        """The job has ended: what other nodes' ranks have said last may still be on its way. It is waited for until `cut`."""
        if self.log_receiver is not None:
            self.log_receiver.finish(self._rendezvous(), self.node.group.join.node, cut)

    # --- progress -------------------------------------------------------------------------------------------------------

    def _open_mileage(self) -> Mileage:
        from holdfast.agent.workers.progress_iteration import Mileage

        return Mileage(self.config.ft.checkpoint_iteration_file, self.telling.recorder.aside, self.telling.degraded)

    # --- the watchdog ---------------------------------------------------------------------------------------------------

    def _open_watchdog(self) -> Watchdog | None:
        from holdfast.agent.workers.file_timer import Watchdog

        path = self.config.timer_file or os.path.join(self.job_dir.path, f"watchdog-{self.job_dir.node}.fifo")
        try:
            watchdog = Watchdog(path, self.host)
        except OSError as error:
            self.telling.degraded(f"no watchdog: cannot make the pipe {path}: {error.strerror}")
            return None
        os.environ["TORCHELASTIC_TIMER_FILE"] = path
        self.all.append(watchdog)
        return watchdog

    # --- the host's daemon ----------------------------------------------------------------------------------------------

    def _open_reports(self) -> None:
        from holdfast.agent.reporting.google_rank_reports import RankReports

        job = os.path.basename(self.job_dir.path) if self.config.rdzv_id == "none" else self.config.rdzv_id
        voice = self.telling.voice
        self.reports = RankReports(
            self.config, job, lambda text: voice.say(f"holdfast[{self.telling.name}]: {text}\n"), self.telling.degraded
        )
        self.all.append(self.reports)
