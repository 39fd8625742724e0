"""Creates the agent's components, and gives each action to the component that carries it out.

Most parts are made before the first worker starts. What takes time to load and no worker needs at its start is made once the
first workers run (`agent.late_components`); what most jobs never need, when somebody asks for it.
"""

from __future__ import annotations

import os
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from holdfast.agent.build import no_progress_cycles
from holdfast.agent.component import Component, PerRound, PerTurn, Timed
from holdfast.agent.control.control_handler import ControlHandler
from holdfast.agent.disk_thread import DiskThread
from holdfast.agent.group.messages import CheckNode, FromCoordinator, KeepStacks, LookAtWorkers
from holdfast.agent.logs.attempt_logs import LogPlan
from holdfast.agent.optional_components import wished_for
from holdfast.agent.reporting.daemon_announce import introduce
from holdfast.agent.secrets import job_s_at_supervisor, supervisor_token
from holdfast.agent.surroundings import Surroundings
from holdfast.agent.workers.file_timer import open_watchdog
from holdfast.agent.workers.progress_iteration import ProgressIteration
from holdfast.agent.workers.rank_lives import RankLives
from holdfast.agent.workers.workers import Workers
from holdfast.core.job.events import Event
from holdfast.core.machine import NEVER, Action, Observation
from holdfast.core.wire.messages import Assigned, Paced, Reply, Request, ToImport
from holdfast.telemetry.record.state_dir import safe_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.control.health_checks import Checking
    from holdfast.agent.faults.driver import Injections
    from holdfast.agent.late_components import LateComponents
    from holdfast.agent.logs.receiver import LogReceiver
    from holdfast.agent.logs.sender import Upstream
    from holdfast.agent.states.state_disk import StateDisk
    from holdfast.agent.states.state_replication import Replicas


class Components:
    """One agent's parts."""

    def __init__(self, around: Surroundings) -> None:
        """UsageError: what an option asks for cannot be had."""
        self.around = around
        config, host, agent_log, job_dir = around.config, around.host, around.agent_log, around.job_dir
        self.late: LateComponents | None = None  # None: the first workers have yet to run, and to have their time.
        self.round: tuple[Assigned, Sequence[Observation]] | None = None
        """The newest round, and what became of each of its workers. None: the late parts know it, or none was started."""
        self.is_settled = False  # What was put off for the sake of the first workers is done.
        self.before: list[tuple[Event, float]] = []  # What was recorded before the late parts were there.
        joined = around.network.identity.token if around.network is not None else None
        self.supervisor_secret = supervisor_token(config) if config.supervisors else b""
        self.secret_there = job_s_at_supervisor(config, joined)
        self.checks: Checking | None = None
        self.faults: Injections | None = None  # None, of both: nobody has asked for one.
        self.control = ControlHandler(
            around.node.group,
            host,
            agent_log.name,
            socket_path=job_dir.socket_path,
            disk=DiskThread(host, agent_log.recorder.io_thread),
            rendezvous=around.rendezvous,
            checking=self.checking,
            injections=self.injections,
            progress=self._progress,
        )
        job_progress = None
        if no_progress_cycles(config):
            file = config.ft.checkpoint_iteration_file
            job_progress = ProgressIteration(file, agent_log.recorder.io_thread, agent_log.degraded)
        replicas, self.log_receiver, upstream = self._made_with_links()
        plan = LogPlan.of(config, job_dir.path, job_dir.node)
        disk = self._made_disk()
        self.workers = Workers(
            config, host, plan, job_progress=job_progress, replicas=replicas, state_disk=disk, upstream=upstream
        )
        timer_file = config.timer_file or os.path.join(job_dir.path, f"watchdog-{job_dir.node}.fifo")
        self.watchdog = open_watchdog(timer_file, host, os.environ, agent_log.degraded) if config.watchdog else None
        self.parts: list[Component] = []
        self.timed: list[Timed] = [agent_log.stderr]
        self.per_round: list[PerRound] = []
        self.per_turn: list[PerTurn] = []
        self.add(
            self.workers,
            self.control,
            RankLives(host, agent_log.record, agent_log.showed),  # before the monitor: it speaks of ranks that have started
            *(part for part in (replicas, disk, self.log_receiver, self.watchdog) if part is not None),
            *wished_for(around, self.log_is_whole),
        )
        if config.check_before or config.check_after or config.check_during:
            self.checking()  # a check that does not exist is a usage error

    def add(self, *parts: Component) -> None:
        """From now on these are told and asked what concerns them."""
        self.parts += parts
        self.timed += [part for part in parts if isinstance(part, Timed)]
        self.per_round += [part for part in parts if isinstance(part, PerRound)]
        self.per_turn += [part for part in parts if isinstance(part, PerTurn)]

    def log_is_whole(self, path: str) -> bool:
        """Whether nothing more comes into the log at that path. Any thread may ask."""
        ours, others = self.workers.app_logs, self.log_receiver
        return (ours is None or ours.is_whole(path)) and (others is None or others.is_whole(path))

    @property
    def is_looking(self) -> bool:
        """The ranks are being asked where they are."""
        return self.late is not None and self.late.stacks.due_at != NEVER

    # --- what they are told ---------------------------------------------------------------------------------------------

    def settle(self) -> list[Observation]:
        """Workers have had the processors to themselves for a while: do what was put off for their sake."""
        self.workers.follow()
        seen: list[Observation] = []
        if not self.is_settled:
            with suppress(RuntimeError):  # no more threads are allowed: the first failure loads it
                start_new_thread(_load_diagnosis, ())
            seen += [seen for part in self.parts for seen in part.settle()]
            if self.around.network is not None:
                self.around.network.warm()
            introduce(self.around.config.state_dir, self.around.config.rdzv_id, self.around.job_dir)
            self.is_settled = True  # a host that is short of something has it done again
        return [*seen, *self._begin_late(self._made_late())]

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> Iterator[Observation]:
        """The workers of a round have been started; what is seen of them at once. The late parts hear of it in `settle`."""
        self.round = assigned, started
        for part in self.per_round:
            yield from part.begin_round(assigned, started)

    def recorded(self, event: Event, at_unix: float) -> None:
        if self.late is None:
            self.before.append((event, at_unix))
        for part in self.parts:
            if isinstance(event, part.notes):
                part.recorded(event, at_unix)

    def take_last_lines(self, cut: Callable[[], bool]) -> None:
        """The job has ended: wait until `cut` for the last lines of other nodes' ranks."""
        if self.log_receiver is not None:
            self.log_receiver.finish(self.around.rendezvous(), self.around.node.group.join.node, cut)

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def carry_out(self, action: Action, at_unix: float) -> list[Observation]:
        """Have a part do what a machine wants; what is seen of it at once."""
        match action:
            case CheckNode(after_failure=after_failure):
                return self.checking().before_join(after_failure)
            case FromCoordinator(message=Reply() as reply):
                self.control.replied(reply)
                return []
            case FromCoordinator(message=Request() as request):
                return self.control.carry_out(request)
            case FromCoordinator(message=Paced(longest_s=longest_s, busy_s=busy_s)):
                if self.late is not None and self.late.monitoring is not None:
                    self.late.monitoring.heed(longest_s, busy_s)
                return []
        late = self._made_late()
        seen = self._begin_late(late)
        match action:
            case FromCoordinator(message=ToImport(modules=modules)) if late.spares is not None:
                late.spares.stand_by(modules)
            case LookAtWorkers():
                late.stacks.begin(action, late.monitoring)
            case KeepStacks(reason=reason) if late.stacks.path:
                self.around.agent_log.keep(late.stacks.kept(reason), at_unix, late.stacks.keeper(reason))
        return seen

    def verdicts(self) -> list[Mapping[str, Any]]:
        """What the node's checks say now."""
        return self.checks.verdicts() if self.checks is not None else []

    # --- making ---------------------------------------------------------------------------------------------------------

    def _made_late(self) -> LateComponents:
        if self.late is not None:
            return self.late
        from holdfast.agent.late_components import LateComponents  # costs time that the first workers would wait for

        secrets = self.supervisor_secret, self.secret_there
        self.late = late = LateComponents(self.around, self.workers, self.control, supervisor_secrets=secrets)
        self.parts += late.parts
        self.timed += [part for part in late.parts if isinstance(part, Timed)]
        before, self.before = self.before, []
        for part in late.parts:
            for event, at_unix in before:
                if isinstance(event, part.notes):
                    part.recorded(event, at_unix)
        return late

    def _begin_late(self, late: LateComponents) -> list[Observation]:
        """Tell the late parts of the newest round, once."""
        if self.round is None:
            return []
        (assigned, started), self.round = self.round, None
        per_round = [part for part in late.parts if isinstance(part, PerRound)]
        return [seen for part in per_round for seen in part.begin_round(assigned, started)]

    def _progress(self, local_rank: int) -> dict[str, object]:
        return self.late.progress(local_rank) if self.late is not None else {}

    def checking(self) -> Checking:
        """What runs checks; made when somebody first asks."""
        if self.checks is None:
            from holdfast.agent.control.health_checks import Checking  # most jobs check nothing

            around = self.around
            lead = (lambda: around.node.clock_lead) if around.network is not None else (lambda: None)
            self.checks = Checking(around.config, around.host, around.perform, lead)
            self.add(self.checks)
        return self.checks

    def injections(self) -> Injections:
        """What plays faults; made when somebody first asks."""
        if self.faults is None:
            from holdfast.agent.faults.driver import Injections  # most jobs never play a fault

            self.faults = Injections(self.around, self.workers, checker=lambda: self.checks)
            self.add(self.faults)
        return self.faults

    def _made_disk(self) -> StateDisk | None:
        config, complain = self.around.config, self.around.agent_log.degraded
        if config.stash_dir is None:
            return None
        if config.stash_limit == "0" or config.rdzv_id == "none":
            why = "no state is stashed (--stash-limit 0)" if config.stash_limit == "0" else "give the job a name (--rdzv-id)"
            complain(f"--stash-dir gets nothing: {why}")
            return None
        from holdfast.agent.states.state_disk import StateDisk  # most jobs have none

        folder = os.path.join(config.stash_dir, safe_name(config.rdzv_id))
        return StateDisk(folder, nproc=config.nproc_per_node, complain=self.around.host.complain, unix=self.around.host.unix)

    def _newest_round(self) -> int:
        """Of which this node knows, with a place in it or as the coordinator's."""
        rendezvous = self.around.rendezvous()
        return max(self.around.node.group.round, rendezvous.round if rendezvous is not None else 0)

    def _made_with_links(self) -> tuple[Replicas | None, LogReceiver | None, Upstream | None]:
        config, complain, network = self.around.config, self.around.agent_log.degraded, self.around.network
        if network is None:
            if config.stash_replicas:
                complain("states are not replicated: the job has one node")
            return None, None, None
        from holdfast.agent.networked import open_logs, open_replicas  # a job of one node loads no network

        join = self.around.node.group.join
        replicas = open_replicas(config, network, join, self.around.host, complain)
        return replicas, *(open_logs(config, network, join, complain, self._newest_round) or (None, None))


def _load_diagnosis() -> None:
    """Every rule: the first failure needs them, all ranks would wait, and by then Holdfast may have been upgraded or removed on
    its disk, or that may hang."""
    with suppress(Exception):  # the first failure tries again
        import_module("holdfast.diagnosis.collect").prepare()
