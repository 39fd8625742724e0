"""How are one node's workers started, watched and cleared away in each round? Processes, pages, logs and ports.

Carries out what `agent.group.machine` decides and tells it, in its words, what became of it; fetches the evidence that a
failure needs (error file, last lines of the log). Decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from holdfast.agent.component import Component
from holdfast.agent.disk_thread import DiskThread
from holdfast.agent.group import messages
from holdfast.agent.logs import attempt_logs as logs
from holdfast.agent.logs.app_log import AppLogs
from holdfast.agent.logs.attempt_logs import AttemptLogs, RankLogs
from holdfast.agent.logs.log_files import LogFiles
from holdfast.agent.logs.tee_thread import TeeThread
from holdfast.agent.workers import launch
from holdfast.agent.workers.ends import End, Ends
from holdfast.agent.workers.gpu_memory import GpuLook
from holdfast.agent.workers.progress_iteration import ProgressIteration
from holdfast.agent.workers.uninterruptible import DEAF_LOG_S, Sleepers
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import HoldfastError, StartError
from holdfast.core.job.cycles import cycle_of
from holdfast.core.machine import NEVER, Observation
from holdfast.core.page.layout import HOOK_MODULES, HOOK_ONCE, HOOK_SIGNS
from holdfast.core.processes import (
    LastSigns,
    ProcessAsked,
    ProcessCalculated,
    ProcessDying,
    ProcessEnding,
    ProcessErred,
    ProcessGone,
    ProcessLives,
)
from holdfast.core.value import replace
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.hardware.oom_kills import OomKills
from holdfast.runtime.host import Host
from holdfast.runtime.net.ports import hold_port
from holdfast.runtime.process.descriptors import SHORT_OF
from holdfast.runtime.shm import pages as shm
from holdfast.runtime.shm.stash import held
from holdfast.telemetry.record.io_thread import IoThread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket

    from holdfast.agent.logs.sender import Upstream
    from holdfast.agent.states.state_disk import StateDisk
    from holdfast.agent.states.state_replication import Replicas
    from holdfast.core.page.in_memory import Holding

ASK_S = 0.01
"""Seconds after a signal until workers are asked where they are: a script that handles the signal does not show it itself."""

SHORTAGE_S, AGAIN_S = 30.0, 0.25
"""How long a start that fails for want of descriptors, processes or memory is tried again, and how often. Those who are short
of something get it back when others end; the other nodes' ranks wait in `init_process_group` far longer."""


class Unstarted:
    """Workers of a round that are still to be started."""

    def __init__(self, assigned: Assigned | None, local_ranks: list[int]) -> None:
        self.of, self.local_ranks = assigned, local_ranks
        self.again_at = NEVER  # When to try again.
        self.short_until: float | None = None  # Until when; None: nothing was short so far.

    @property
    def assigned(self) -> Assigned:
        """Their round."""
        assert self.of is not None
        return self.of

    def waits(self, now: float) -> bool:
        """Something is short: whether to try again."""
        self.short_until = now + SHORTAGE_S if self.short_until is None else self.short_until
        is_worth_it = now < self.short_until
        self.again_at = now + AGAIN_S if is_worth_it else NEVER
        return is_worth_it

    def give_up(self) -> None:
        """The round ends: they are not tried again, and their start has failed."""
        if self.local_ranks:
            self.short_until, self.again_at = -NEVER, -NEVER


def is_short(error: StartError) -> bool:
    """Whether the host was short of something that it may have again soon."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in SHORT_OF


class Workers(Component):
    """The workers of the present round, if any."""

    def __init__(
        self,
        config: RunConfig,
        host: Host,
        plan: logs.LogPlan,
        *,
        job_progress: ProgressIteration | None = None,
        replicas: Replicas | None = None,
        state_disk: StateDisk | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        """`job_progress`: how far the job is; None: nobody asks. `replicas`: keeps states in another node's memory too; None:
        only here. `upstream`: where the lines of `--ft-per-cycle-applog-prefix` go; None: to a file here."""
        self.config, self.host, self.plan = config, host, plan
        self.job_progress, self.replicas, self.upstream = job_progress, replicas, upstream
        self.state_disk = state_disk  # Writes states to a disk too. None: that is not wished for.
        self.attempt: AttemptLogs | None = None
        self.shown: TeeThread | None = None  # None: nothing of it is shown.
        disk = DiskThread(host)
        self.files = LogFiles(plan, config.nproc_per_node, host, disk)  # Of the next round.
        self.ends = Ends(host, disk)  # Of processes: what they have left is being read.
        self.oom_kills = OomKills()
        self.shower = IoThread()  # Reads the logs to show them.
        self.unfollowed: Assigned | None = None  # The round of workers that run unfollowed so far.
        self.local_ranks: dict[int, int] = {}  # pid → local rank
        self.let_go: set[int] = set()  # Pids of those that have let go of the round, and wait for the next.
        self.left: dict[int, Holding] = {}  # Local rank → what is known of the state of one that is gone.
        self.has_told = False  # What they have in memory.
        self.kept: dict[int, int] = {}  # Local rank → pid, of those that are to begin the round in place.
        self.given: dict[int, tuple[list[str], dict[str, str], RankLogs | None]] = {}
        """Local rank → what its process was started with last, or is to be: command line, environment, log files (None: none
        has been)."""
        self.environments: dict[int, dict[str, str]] = {}  # Pid → what its process has, of those of this round.
        self.take_spare: Callable[..., tuple[int | None, str]] = lambda *worker: (None, "")
        """Has a warm spare become a worker (`SparePool.take`). Until then, and where there are none, all workers start cold."""
        self.hook = HOOK_SIGNS * (config.ft.monitor == "auto") | HOOK_MODULES * (config.warm_spares != 0)
        self.ports: list[socket] = []  # Held for MASTER_PORT: that of the running round, and that of the next.
        self.gpus: GpuLook | None = None  # None: nobody has asked for their memory so far.
        self.app_logs: AppLogs | None = None  # None: no log is to have all lines.
        self.ask_at = NEVER  # When to ask workers that have been signalled where they are.
        limit_s = config.uninterruptible_timeout_s
        self.sleepers = None if limit_s is None else Sleepers(limit_s)
        """None: workers that are stuck in the kernel are not looked for."""
        self.ending: Sleepers | None = None  # Of workers that are to end. None: none is.
        self.deaf: set[int] = set()  # Pids of those that were found so, and are not waited for.
        self.injected: dict[int, str] = {}  # Pid → as `Failure.injected`.
        self.to_start = Unstarted(None, [])  # Of the present round.
        self.port_at = NEVER  # When to try again to hold a port.
        self.stash = -1
        """Where this node's ranks leave their states (`core.page.stash`): a nameless file, which ends with the agent."""

    def first(self) -> list[Observation]:
        """Hold a port, and say how far the job is."""
        return [self.hold_port(), *([self.job_progress.reached()] if self.job_progress is not None else [])]

    def hold_port(self) -> messages.PortHeld:
        """Hold a port for the round to come, in case this node gets group rank 0 in it."""
        self.ports.append(hold_port())
        return messages.PortHeld(master_port=self.ports[-1].getsockname()[1])

    def open_logs(self, assigned: Assigned) -> list[Observation]:
        """Make the log files of a round's workers; see `LogFiles.open`."""
        self.close_logs(patient=False)
        self.host.files.release()  # room for what a start needs; taken back when it is done
        return self.files.open(assigned)

    def start(self, assigned: Assigned, until: float | None = None, kept: Iterable[int] = ()) -> Iterator[Observation]:
        """Start the workers of a round, before `until` if at all; what came of each, in order. After one that could not start,
        no other is tried. `kept`: local ranks whose processes go on, where they still live."""
        self._open_stash()
        if self.replicas is not None and self.stash >= 0:
            self.replicas.begin(assigned, self.stash)
        if self.state_disk is not None and self.stash >= 0:
            self.state_disk.begin(assigned, self.stash)
        if self.attempt is not None:
            self.attempt.forget()
        self.attempt = self.files.take()
        self.ends, self.oom_kills = Ends(self.host, self.files.disk), OomKills()
        self.kept = {i: pid for pid, i in self.local_ranks.items() if pid in self.let_go and i in kept}
        self.environments = {pid: self.environments[pid] for pid in self.kept.values()}
        self.local_ranks, self.ending, self.deaf, self.let_go, self.left = {}, None, set(), set(), {}
        self.injected = {}
        self.to_start = Unstarted(assigned, list(range(self.config.nproc_per_node)))
        yield from self._start_all(self.to_start, until)
        self.unfollowed = assigned
        yield from self._next_port()
        self.host.files.keep()
        if self.config.ft.per_cycle_applog_prefix:  # the user may look for that file at once
            self.follow()

    def _start_all(self, to_start: Unstarted, until: float | None) -> Iterator[Observation]:
        """Start those that are left to start. Where the host is short of something, `due` tries again for a while."""
        assert self.attempt is not None
        environ = dict(os.environ)
        while to_start.local_ranks:
            local_rank = to_start.local_ranks[0]
            try:
                if until is not None and self.host.now() >= until:
                    raise StartError(messages.TOO_LATE)
                started = self._start_one(local_rank, to_start.assigned, environ)
                to_start.local_ranks.pop(0)
                yield started
            except StartError as error:
                message = "; ".join(filter(None, (error.what, error.hint)))
                if is_short(error) and to_start.waits(self.host.now()):
                    self.host.complain(f"{message}: trying again for {SHORTAGE_S:g} s")
                    return
                to_start.local_ranks = []
                yield messages.StartFailed(local_rank=local_rank, message=message, at_unix=self.host.unix())
        self.files.disk.do(self.attempt.release)

    def _start_one(self, local_rank: int, assigned: Assigned, environ: dict[str, str]) -> messages.Started:
        try:
            return self._start(local_rank, assigned, environ)
        except OSError as error:
            if error.errno not in SHORT_OF:
                raise
            raise StartError(f"cannot start local rank {local_rank}: {error.strerror}") from error

    def _next_port(self) -> list[Observation]:
        """Hold a port for the next round; later, where the host is short of something."""
        self.port_at = NEVER
        try:
            return [self.hold_port()]
        except StartError as error:
            self.host.complain(f"{error.what}: trying again")
            self.port_at = self.host.now() + AGAIN_S
            return []

    def use_spares(self, take: Callable[..., tuple[int | None, str]]) -> None:
        """From now on warm spares become workers, where they can."""
        self.take_spare = take

    def follow(self) -> None:
        """Begin to wait for the mutexes of the workers, and to show their logs. Not from their start: it costs them time."""
        if (assigned := self.unfollowed) is not None:
            self.unfollowed = None
            self.host.watch_pages()
            self._follow_logs(assigned)

    def _open_stash(self) -> None:
        if self.stash < 0 and self.config.stash_limit != "0":
            try:
                self.stash = shm.nameless_file("holdfast-stash")
                shm.keep_length(self.stash)
            except HoldfastError as error:
                self.config = replace(self.config, stash_limit="0")
                self.host.complain(f"{error.what}: no state is stashed")

    def understood(self, seen: Observation) -> list[Observation]:
        """What this host saw, as the group's observations."""
        match seen:
            case ProcessEnding(pid=pid) if pid in self.local_ranks:
                return [messages.Ending(local_rank=self.local_ranks[pid], pid=pid, at_unix=self.host.unix())]
            case ProcessDying(pid=pid, exitcode=exitcode, last=last) if exitcode != 0 and pid in self.local_ranks:
                return self._ended(pid, exitcode, last, gone=False)
            case ProcessErred(pid=pid, last=last) if pid in self.local_ranks:
                return self._ended(pid, 1, last, gone=False)
            case ProcessGone(pid=pid, exitcode=exitcode, last=last, moments=moments) if pid in self.local_ranks:
                # Of the state of one that is gone nothing is there any more. Which part it held is known still.
                if moments is not None and moments.held is not None:
                    local_rank, (number, _, part, bits) = self.local_ranks[pid], moments.held
                    self.left[local_rank] = self._holding(local_rank, (number, -1, part, bits))
                known = [*self._how_far(seen), *self._in_memory(), *self._stashed()]
                return [*known, *self._ended(pid, exitcode, last, gone=True)]
            case ProcessLives(pid=pid, in_place=in_place, let_go=let_go) if pid in self.local_ranks:
                self.let_go = self.let_go | {pid} if let_go else self.let_go - {pid}
                news = messages.Lives(local_rank=self.local_ranks[pid], pid=pid, in_place=in_place, let_go=let_go)
                return [*([*self._in_memory(), *self._stashed()] if let_go else []), news]
            case ProcessAsked(pid=pid, kind=kind, reason=reason) if pid in self.local_ranks:
                return [messages.ControlAsked(local_rank=self.local_ranks[pid], kind=kind, reason=reason)]
            case ProcessCalculated(pid=pid, limits_s=limits_s) if pid in self.local_ranks:
                return [messages.LimitsKnown(limits_s=limits_s)]
            case ProcessEnding() | ProcessDying() | ProcessErred() | ProcessGone():
                return []
            case ProcessLives() | ProcessAsked() | ProcessCalculated():
                return []
        return [seen]

    def _how_far(self, gone: ProcessGone) -> list[Observation]:
        """How far the job has come, once the last worker is gone."""
        if self.job_progress is None:
            return []
        self.job_progress.ended(gone)
        return [] if self._is_any_left() else [self.job_progress.reached()]

    def _is_any_left(self) -> bool:
        return any(pid in self.host.children for pid in self.local_ranks.keys() - self.deaf - self.let_go)

    def _holding(self, local_rank: int, held: tuple[int, int, int, int]) -> Holding:
        of = self.to_start.assigned
        return local_rank, of.base_rank + local_rank, of.world_size, *held

    def _in_memory(self) -> list[Observation]:
        """What the workers have in memory, once the last has let go or is gone."""
        if self._is_any_left():
            return []
        alive = {pid: self.host.children.get(pid) for pid in self.let_go if pid in self.local_ranks}
        pages = [(self.local_ranks[pid], child.page) for pid, child in alive.items() if child is not None]
        holding = [self._holding(i, page.held) for i, page in pages if page is not None and page.held is not None]
        holding += [one for i, one in self.left.items() if i not in {i for i, _ in pages}]
        is_news, self.has_told = bool(holding) or self.has_told, bool(holding)
        return [messages.InMemory(in_memory=tuple(sorted(holding)))] if is_news else []

    def _stashed(self) -> list[Observation]:
        """The states that the workers have stashed, once the last is gone."""
        if self._is_any_left() or self.stash < 0 or not os.fstat(self.stash).st_size:
            return []
        mine = held(self.stash, self.config.nproc_per_node)
        on_disk = [messages.StashedOnDisk(stash_on_disk=self.state_disk.held())] if self.state_disk is not None else []
        if self.replicas is None:
            return [messages.Stashed(stash=mine), *on_disk]
        return [messages.Stashed(stash=mine, kept=self.replicas.kept(), stash_at=self.replicas.at), *on_disk]

    def signal(self, local_ranks: Iterable[int], signum: int) -> None:
        """Signal the process groups of some workers."""
        self.to_start.give_up()
        for pid in self._pids(local_ranks):
            self.host.signal_group(pid, signum)
        self.ask_at = self.host.now() + ASK_S
        if self.ending is None and self.attempt is not None and (folder := self.attempt.dir) is not None:
            self.ending = Sleepers(DEAF_LOG_S)
            self.files.disk.do(lambda: os.utime(folder))  # does it answer?

    def regroup(self, local_ranks: Iterable[int]) -> None:
        """Ask some workers to let go of their round."""
        for pid in self._pids(local_ranks):
            self.host.regroup(pid)

    def kill(self, local_ranks: Iterable[int]) -> None:
        self.to_start.give_up()
        self.host.kill(self._pids(local_ranks))

    def look_at_memory(self, above_mb: float) -> list[Observation]:
        """How much of the GPUs' memory is in use: told at once, or later, through `host`."""
        self.gpus = self.gpus or GpuLook(self.host, os.environ, self.config.nproc_per_node)
        return self.gpus.begin(above_mb)

    def sweep(self) -> None:
        """SIGKILL what the workers of the last round left behind, and let its port go."""
        self.host.sweep()
        for sock in self.ports[:-1]:
            sock.close()
        del self.ports[:-1]

    def close(self) -> None:
        self.host.kill([*self.host.children, *self.host.parked])
        self.host.sweep()
        for sock in self.ports:
            sock.close()

    def _start(self, local_rank: int, assigned: Assigned, environ: dict[str, str]) -> messages.Started:
        assert self.attempt is not None
        at, at_unix, files = self.host.now(), self.host.unix(), self.attempt[local_rank]
        if (going_on := self._go_on(local_rank, assigned, environ, files)) is not None:
            return going_on
        # A program that is not Python has no use for a page; its death is seen by its pidfd.
        page = None if self.config.no_python else self.host.page(self.hook | HOOK_ONCE * (files.stderr_fd is None))
        argv = launch.command(self.config, local_rank)
        env = launch.environment(
            self.config, environ, assigned, local_rank, error_file=files.error_file, paged=page is not None, stash=self.stash
        )
        self.given[local_rank] = argv, env, files
        spare, cold_because = self.take_spare(local_rank, argv, env, page, files)
        fds = {1: files.stdout_fd, 2: files.stderr_fd} | ({launch.page_at(): page.fd} if page else {})
        pid = spare or self.host.start(argv, env, fds, page, self.config.bindings.get(local_rank))
        self.local_ranks[pid], self.environments[pid] = local_rank, env
        return messages.Started(
            local_rank=local_rank,
            pid=pid,
            argv=tuple(argv),
            log_dir=files.dir,
            at=at,
            at_unix=at_unix,
            spare=spare is not None,
            cold_because=cold_because,
        )

    def _go_on(self, local_rank: int, assigned: Assigned, environ: dict[str, str], files: RankLogs) -> messages.Started | None:
        """Have the process of the round before begin this one. None: it is gone, or was none."""
        if (pid := self.kept.pop(local_rank, None)) is None:
            return None
        argv, before = self.given[local_rank][0], self.environments[pid]
        env = launch.environment(
            self.config, environ, assigned, local_rank, error_file=files.error_file, paged=True, stash=self.stash
        )
        if not self.host.begin_life(pid, launch.next_life(before, env, files.paths.stdout.path, files.paths.stderr.path)):
            self.host.kill([pid])
            return None
        self.given[local_rank] = argv, env, files
        self.local_ranks[pid], self.environments[pid] = local_rank, env
        at, at_unix = self.host.now(), self.host.unix()
        return messages.Started(
            local_rank=local_rank, pid=pid, argv=tuple(argv), log_dir=files.dir, at=at, at_unix=at_unix, in_place=True
        )

    def _pids(self, local_ranks: Iterable[int]) -> list[int]:
        wanted = set(local_ranks)
        return [pid for pid, local_rank in self.local_ranks.items() if local_rank in wanted]

    # --- asked for by time ----------------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """For logs that cannot be watched, for files and evidence that do not come, for workers stuck in the kernel, and to ask
        workers where they are."""
        logs_at = NEVER if self.shown is None else self.shown.look_at
        looks_at = min((one.look_at for one in (self.sleepers, self.ending) if one is not None), default=NEVER)
        return min(logs_at, self.files.due_at, self.ends.due_at, self.ask_at, looks_at, self.port_at, self.to_start.again_at)

    def due(self) -> Iterator[Observation]:
        """Show what is new in such logs, go on without files, and find workers that are stuck in the kernel."""
        yield from self.files.due()
        yield from self.ends.due()
        if self.host.now() >= self.ask_at:
            self.ask_at = NEVER
            self.host.ask_where()
        if self.shown is not None:
            self.shown.due()
        now = self.host.now()
        if now >= self.port_at:
            yield from self._next_port()
        if now >= self.to_start.again_at:
            self.to_start.again_at = NEVER
            yield from self._start_all(self.to_start, self.host.lease_ends)
            self.host.watch_pages()
        yield from self._stuck(self.sleepers, now)
        yield from self._deaf(now)

    def _stuck(self, sleepers: Sleepers | None, now: float) -> list[messages.Stuck]:
        if sleepers is None or now < sleepers.look_at:
            return []
        return [
            messages.Stuck(local_rank=self.local_ranks[pid], pid=pid, asleep_s=asleep_s, at_unix=self.host.unix())
            for pid, asleep_s in sleepers.look(self.host.states(), now)
            if pid in self.local_ranks
        ]

    def _deaf(self, now: float) -> list[Observation]:
        """Workers that are to end, and wait for the disk of their logs."""
        if self.ending is None or now < self.ending.look_at:
            return []
        if not self._is_any_left():
            self.ending = None
            return []
        if not self.files.disk.is_late:
            self.ending.look({}, now)  # from the beginning, if it hangs later
            return []
        stuck = self._stuck(self.ending, now)
        for pid in self._pids(seen.local_rank for seen in stuck):
            self.deaf.add(pid)
            self.host.leave(pid)
        is_over = stuck and not self._is_any_left()
        return [*([*self._in_memory(), *self._stashed()] if is_over else []), *stuck]

    # --- stacks ---------------------------------------------------------------------------------------------------------

    def dump(self, local_ranks: Iterable[int]) -> dict[int, str]:
        """Have some workers write down the stacks of all their threads. Returns why one cannot, by local rank; the others have
        been asked, and what they write is `dumped` within a millisecond, unless they are stopped or deaf to signals."""
        asked = {self.local_ranks[pid]: self.host.ask_for_stacks(pid) for pid in self._pids(local_ranks)}
        return {local_rank: why for local_rank, why in asked.items() if why}

    def dumped(self, local_rank: int) -> str:
        """What a worker has written since the last `dump`: faulthandler's text, the main thread last. Empty: nothing yet."""
        return "".join(self.host.stacks(pid) for pid in self._pids([local_rank]))

    def _ended(self, pid: int, exitcode: int, last: LastSigns, *, gone: bool) -> list[Observation]:
        assert self.attempt is not None
        oom, injected = self.oom_kills.of(pid, exitcode), self.injected.get(pid, "")
        end = End(self.local_ranks[pid], pid, exitcode, gone, self.host.unix(), last, oom, injected)
        return self.ends.add(end, self.attempt)

    def struck(self, pid: int, what: str) -> None:
        """A fault is played on that worker: that is to blame if SIGKILL ends it. Empty: it is over."""
        self.injected[pid] = what

    # --- logs -----------------------------------------------------------------------------------------------------------

    def _follow_logs(self, assigned: Assigned) -> None:
        assert self.attempt is not None
        ranks = range(assigned.base_rank, assigned.base_rank + self.config.nproc_per_node)
        if self.attempt.are_followed:
            attempt, prefixes = self.attempt, logs.prefixes(self.config.role, ranks, self.config.log_line_prefix_template)
            self.shown = TeeThread(self.host, self.shower, lambda: attempt.tee(prefixes))
        if self.config.ft.per_cycle_applog_prefix:
            self._gather_logs(self.config.ft.per_cycle_applog_prefix, assigned)

    def _gather_logs(self, prefix: str, assigned: Assigned) -> None:
        assert self.attempt is not None
        if self.upstream is not None:
            self.upstream.moves_to(assigned.logs_at)
            if not assigned.logs_at:
                self.host.complain("the coordinator's node gathers no lines: this node's lines go to a log here")
        wide = len(str(assigned.world_size - 1))
        sources = [
            (path, f"{assigned.base_rank + local_rank:>{wide}}: ")
            for local_rank in range(self.config.nproc_per_node)
            for path in self.attempt.files(local_rank)
        ]
        self.app_logs = self.app_logs or AppLogs(self.host, self.upstream)
        self.app_logs.begin(prefix, cycle_of(assigned.round), sources)

    def close_logs(self, *, patient: bool, cut: Callable[[], bool] = lambda: False) -> None:
        """Show the rest of the logs; `patient`: however slow the console is, until `cut`."""
        self.follow()
        if self.shown is not None:
            self.shown.finish(patient=patient, cut=cut)
            self.shown = None
        if self.app_logs is not None:
            self.app_logs.finish(patient=patient, cut=cut)
