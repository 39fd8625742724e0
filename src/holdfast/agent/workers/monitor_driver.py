"""How does the monitor see this host's ranks? In the agent's loop: it has no process and no socket of its own.

Carries out what `monitor.machine` asks for: reads pages and logs, asks the kernel and the GPUs, and passes on what it says. A
thread reads the logs, whose file system may hang: what comes too late for one look is seen at the next, and till then nobody
hangs by it. When the monitor itself fails, that is recorded and another one made; the ranks notice nothing, since they only
write to their pages.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.agent.component import Component
from holdfast.agent.group.messages import Hung, PaceKnown, Started
from holdfast.agent.workers.workers import Workers
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Event, FaultOver
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.processes import ProcessDying, ProcessErred, ProcessGone
from holdfast.core.value import fields_of
from holdfast.core.wire.messages import Assigned
from holdfast.monitor import messages
from holdfast.monitor.log_progress import LogProgress
from holdfast.monitor.machine import Monitor
from holdfast.runtime.hardware import nvidia
from holdfast.runtime.host import Host
from holdfast.runtime.process import process
from holdfast.telemetry.record.io_thread import IoThread

SOON_S, LATEST_S = 10.0, 300.0
"""A monitor that fails is made anew at once. If that one fails within SOON_S, the next waits for so long, then twice as long,
and so on up to LATEST_S: what fails always must not cost the agent its time."""

GPUS_S, GPUS_LOOK_S = 15.0, 0.5
"""Seconds that `nvidia-smi` has for an answer, for which a thread waits; and between two looks whether it is there."""


class Watched:
    """A rank that runs, as this host knows it."""

    def __init__(self, rank: int, pid: int, started_at: float, log: LogProgress | None) -> None:
        self.rank, self.pid, self.started_at, self.log = rank, pid, started_at, log
        self.lines = 0  # Lines of progress that were in the log at the last look.
        self.logged_at: float | None = None  # When the last of them was read. None: there is none.

    def read(self, now: float) -> None:
        if self.log is not None and self.log.lines > self.lines:
            self.lines, self.logged_at = self.log.lines, now


class Monitoring(Component):
    """The monitor of this node, with its hands."""

    sees = ProcessDying, ProcessErred, ProcessGone
    notes = (FaultOver,)

    def __init__(
        self,
        config: RunConfig,
        host: Host,
        workers: Workers,
        *,
        node: str,
        perform: Callable[[Iterable[Action]], None],
        complain: Callable[[str], None],
        make: Callable[..., Monitor] = Monitor,
    ) -> None:
        """`make`: a monitor, from what `Monitor` takes; called again whenever one has failed."""
        self.make = make
        self.config, self.host, self.workers, self.node = config, host, workers, node
        self.perform, self.complain = perform, complain
        self.ranks: dict[int, Watched] = {}  # By local rank.
        self.job_s: Mapping[str, float] = {}
        self.monitor = self._anew()
        self.reader = IoThread()  # Reads their logs.
        self.gpus: list[bool | None] = []  # The answer to the question for the GPUs, once it is there; put there by a thread.
        self.gpus_at = self.gpus_until = NEVER  # When to look for it, and for how long; NEVER: nobody has been asked.
        self.known_s: Mapping[str, float] = {}
        """What the monitor has learned, as it said last: for the one that comes after it."""
        self.failed_at, self.wait_s, self.back_at = -NEVER, SOON_S, -NEVER
        """When the monitor failed last, how long it stays away if it fails again soon, and when it is back."""
        self.due_at = NEVER  # When to call `due`; NEVER: no rank is watched.

    # --- what the agent tells -------------------------------------------------------------------------------------------

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        self.close()
        self.job_s, now = assigned.longest_s, self.host.now()
        for seen in started:
            if isinstance(seen, Started) and seen.pid in self.host.children:  # it may have ended since
                rank = assigned.base_rank + seen.local_rank
                self.ranks[seen.local_rank] = Watched(rank, seen.pid, now, self._log(seen.local_rank))
        return self._guarded(self._begin)

    def saw(self, seen: Observation) -> None:
        match seen:
            case ProcessDying(pid=pid, exitcode=exitcode) if exitcode != 0:
                self._over(pid)
            case ProcessErred(pid=pid) | ProcessGone(pid=pid):
                self._over(pid)

    def recorded(self, event: Event, at_unix: float) -> None:
        """See `Component`: a fault that was played is over."""
        self._guarded(lambda: self._show(messages.FaultPlayed()))

    def _over(self, pid: int) -> None:
        local_rank = next((local_rank for local_rank, one in self.ranks.items() if one.pid == pid), None)
        if local_rank is not None:
            self._close_log(self.ranks.pop(local_rank))
            if self.ranks:
                self._guarded(lambda: self._show(messages.RankGone(local_rank=local_rank)))
            else:
                self.due_at = NEVER  # there is nothing to watch any more

    def heed(self, job_s: Mapping[str, float], busy_s: float) -> None:
        """The coordinator says what the whole job needs, and for how long to wait for another node."""
        self.job_s = job_s
        self._guarded(lambda: self._show(messages.PaceHeard(job_s=dict(job_s), busy_s=busy_s)))

    def due(self) -> list[Observation]:
        now = self.host.now()
        if self.back_at != -NEVER:
            self.back_at = -NEVER
            return self._guarded(self._begin)
        answer: list[Observation] = []
        if now >= self.gpus_at:
            self.gpus_at = now + GPUS_LOOK_S
            if self.gpus or now >= self.gpus_until:
                busy, self.gpus_at = self.gpus.pop() if self.gpus else None, NEVER
                answer = self._guarded(lambda: self._show(messages.GpusSeen(busy=busy)))
        return answer + self._guarded(lambda: self._show(Tick()))

    def shown(self, local_rank: int) -> dict[str, object]:
        """What is known of a rank, for `holdfast status`."""
        if local_rank not in self.ranks:
            return {}
        try:
            return self.monitor.shown(self._see(local_rank), self.host.now())
        except Exception as error:
            self.complain(f"the monitor cannot be shown: {_described(error)}")
            return {}

    def logged(self, local_rank: int) -> tuple[int | None, float | None]:
        """The last step in a rank's log, and when its last line of progress was read. None: there is none."""
        watched = self.ranks.get(local_rank)
        return (watched.log.step, watched.logged_at) if watched is not None and watched.log is not None else (None, None)

    def close(self) -> None:
        for watched in self.ranks.values():
            self._close_log(watched)
        self.ranks = {}

    # --- the monitor itself ---------------------------------------------------------------------------------------------

    def _guarded(self, step: Callable[[], list[Observation]]) -> list[Observation]:
        """What it finds; nothing while the monitor stays away, or if it fails."""
        if self.host.now() >= self.back_at:
            try:
                found = step()
                self.due_at = min(self.monitor.deadline(), self.gpus_at) if self.ranks else NEVER
                return found
            except Exception as error:
                self._failed(error)
        self.due_at = self.back_at if self.ranks else NEVER
        return []

    def _failed(self, error: Exception) -> None:
        now = self.host.now()
        soon = now - self.failed_at < max(SOON_S, 2 * self.wait_s)
        self.failed_at, self.back_at = now, now + (self.wait_s if soon else 0.0)
        self.wait_s = min(2 * self.wait_s, LATEST_S) if soon else SOON_S
        then = f"a new one starts in {self.back_at - now:.0f} s" if soon else "a new one starts"
        self.complain(f"the monitor failed ({_described(error)}): {then}; the ranks are not affected")
        self.monitor = self._anew()
        self.job_s = {**self.known_s, **self.job_s}

    def _anew(self) -> Monitor:
        return self.make(self.config.ft, node=self.node)

    def _begin(self) -> list[Observation]:
        ranks = self.ranks.items()
        started = [messages.RankStarted(local_rank=i, rank=one.rank, started_at=one.started_at) for i, one in ranks]
        return [found for seen in (messages.RoundBegan(job_s=dict(self.job_s)), *started) for found in self._show(seen)]

    def _show(self, seen: Observation) -> list[Observation]:
        """Show the monitor something, and carry out what it asks for; what there is for the group."""
        found: list[Observation] = []
        for action in self.monitor.observe(seen, self.host.now()):
            match action:
                case messages.SeeRanks(local_ranks=local_ranks):
                    for local_rank in local_ranks:
                        found += self._show(self._see(local_rank))
                case messages.MeasureRanks(local_ranks=local_ranks):
                    found += self._show(messages.RanksMeasured(ranks=tuple(map(self._measure, local_ranks))))
                case messages.AskGpus():
                    self._ask_gpus()
                case messages.Overdue(local_rank=local_rank, reason=reason, silent_s=silent_s):
                    at_unix = self.host.unix()
                    pid = self.ranks[local_rank].pid
                    found.append(Hung(local_rank=local_rank, pid=pid, reason=reason, at_unix=at_unix, quiet_s=silent_s))
                case messages.Inform():
                    self.known_s = action.longest_s
                    found.append(PaceKnown(**fields_of(action)))
                case Record() | Say():
                    self.perform([action])
                case _:
                    raise AssertionError(f"a monitoring agent cannot do {action!r}")
        return found

    # --- its eyes -------------------------------------------------------------------------------------------------------

    def _log(self, local_rank: int) -> LogProgress | None:
        pattern, attempt = self.config.ft.progress_regex, self.workers.attempt
        if pattern is None or attempt is None:
            return None
        return LogProgress(attempt.files(local_rank), pattern)

    def _close_log(self, watched: Watched) -> None:
        if watched.log is not None:  # in the thread that may be reading it
            self.reader.do(watched.log.close)

    def _see(self, local_rank: int) -> messages.RankSeen:
        watched = self.ranks[local_rank]
        if (log := watched.log) is not None:
            self.reader.do(log.look)
            watched.read(self.host.now())
        child = self.host.children.get(watched.pid)
        signs = child.page.signs() if child is not None and child.page is not None else None
        if log is None:
            return messages.RankSeen(local_rank=local_rank, signs=signs)
        return messages.RankSeen(
            local_rank=local_rank,
            signs=signs,
            logged_at=watched.logged_at,
            logged_step=log.step,
            lines=watched.lines,
            # A rank whose page alone has told of it so far is judged by that.
            is_whole=not self.reader.is_late or (signs is not None and signs.beats > 0 and not watched.lines),
        )

    def _measure(self, local_rank: int) -> messages.RankMeasured:
        pid = self.ranks[local_rank].pid
        cpu_s, io_bytes = process.spent(pid)
        return messages.RankMeasured(local_rank=local_rank, cpu_s=cpu_s, io_bytes=io_bytes, state=process.state(pid) or "")

    def _ask_gpus(self) -> None:
        answer: list[bool | None] = []
        self.gpus = answer
        self.gpus_at = self.gpus_until = self.host.now()
        if nvidia.is_here():
            self.gpus_until += GPUS_S + 2 * GPUS_LOOK_S
            _thread.start_new_thread(lambda: answer.append(nvidia.any_busy(GPUS_S)), ())


def _described(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f", {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}: {error}{where}"
