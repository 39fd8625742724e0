"""A simulated host: a clock of its own, and workers that live as a script says.

It has the face of `runtime.host.Host` (`runtime.world.World`), except that `wait` never waits: the driver calls it when
something has happened or a deadline has come.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from holdfast.agent.group.messages import GpuMemory, MemorySeen
from holdfast.core.config.binding import Binding
from holdfast.core.errors import StartError
from holdfast.core.machine import Observation
from holdfast.core.page.in_memory import HAS_ALL
from holdfast.core.processes import ProcessDying, ProcessGone, ProcessLives
from holdfast.core.value import Value, replace
from holdfast.runtime.host import Host
from holdfast.runtime.process.process import Fds
from holdfast.runtime.shm.pages import Page
from holdfast.runtime.world import World
from holdfast.sim.timeline import Timeline

EPOCH = 1_700_000_000.0  # Unix time at which every simulation begins.

LOOK_S = 0.05  # From the question how much memory a GPU has in use to the answer.

KILL_S = 0.002  # From SIGKILL to death.


class Clock(Value):
    """How a host's clocks differ from true time."""

    origin: float = 0.0  # What its monotonic clock shows at the start.
    rate: float = 1.0  # Its monotonic seconds per true second; a quartz keeps within 1e-4.
    wall_skew_s: float = 0.0
    """By how much its wall clock is ahead. It may be set, and then jumps; the other only ever drifts."""

    def monotonic(self, true: float) -> float:
        """Its monotonic clock at a true time."""
        return self.origin + true * self.rate

    def true(self, monotonic: float) -> float:
        """The true time at which its monotonic clock shows `monotonic`."""
        return (monotonic - self.origin) / self.rate


class Life(Value):
    """What a worker is going to do."""

    runs_s: float = 10.0  # Infinity: it hangs.
    exitcode: int = 0
    on_sigterm: int | None = -signal.SIGTERM
    """The exit code with which it obeys SIGTERM and its like. None: it ignores them."""
    term_s: float = 0.02  # From the signal to the end.
    teardown_s: float = 0.01  # From death to its being reaped, while the kernel frees its memory.
    killable: bool = True  # False: stuck in the kernel, where SIGKILL does not reach.
    let_go_s: float | None = None
    """It can begin again in place, and needs so long to let go of its round. Infinity: C code holds it. None: it cannot."""
    part: int | None = None  # Its part of a state that it keeps from one life to the next. None: it keeps none.
    has_all: bool = False  # That part is all of the model.
    leaves: str = "whole"
    """What it has of that as it lets go: a `whole` one, a `torn` one, or, since it had not begun, that of the life `before`."""
    steps: int = 0  # How many it has made by then.
    begins_s: float = 0.0  # So long it needs to begin the next round in place. Infinity: it never does.
    start_error: str = ""  # Not empty: it cannot even be started.


class Worker:
    """A simulated process."""

    def __init__(
        self, pid: int, env: Mapping[str, str], life: Life, born_at: float, had: tuple[int, int] | None = None, *,
        begins: bool = True
    ) -> None:
        """`born_at`: in true time. `had`: round and step of the state that it begins with in memory. `begins` False: it never
        calls its script's code."""
        self.pid, self.env, self.life, self.born_at = pid, env, life, born_at
        self.rank, self.local_rank, self.round = (int(env[name]) for name in ("RANK", "LOCAL_RANK", "HOLDFAST_ROUND"))
        self.alive = True
        self.exitcode: int | None = None
        self.limit_s: float | None = None  # Longest silence that its script allows. None: it does not say.
        self.quiet_since: float | None = None if begins else born_at  # Since when it hangs, in true time. None: it gets on.
        self.deaf = False  # It does not heed SIGTERM: its interpreter does not run.
        self.spins = False  # It spends processor time though it hangs.
        self.step, self.where = 1, "train (train.py:1)"
        self.let_go = False  # It is of no round, and waits for the next.
        self.had = had
        self.asleep = False  # It is stopped, with all of its node.
        self.lease_ends: float | None = None  # By its page: until when it may change what others read. None: for ever.
        self.put_off: list[Callable[[], None]] = []  # What it does once it is continued.

    @property
    def is_well(self) -> bool:
        """It gets on, or has done its part."""
        return self.exitcode == 0 or (self.exitcode is None and self.quiet_since is None)

    @property
    def works(self) -> bool:
        """It gets on with its round."""
        return self.quiet_since is None and not self.let_go

    @property
    def has(self) -> tuple[int, int] | None:
        """Round and step of the state that it has, if that is whole. Of one that has let go."""
        if self.life.part is None or self.life.leaves == "torn":
            return None
        return self.had if self.life.leaves == "before" else (self.round, self.life.steps)

    @property
    def held(self) -> tuple[int, int, int, int] | None:
        """As `Moments.held`."""
        part, bits = self.life.part, HAS_ALL * self.life.has_all
        return None if part is None else (*(self.has or (0, -1)), part, bits)

    def leave_round(self) -> None:
        """It has let go of its round."""
        self.let_go = True

    def hang(self, now: float, limit_s: float, where: str, step: int, *, deaf: bool) -> None:
        """It gives no sign of life from now on, and its script had allowed `limit_s` at most. It may hang already."""
        self.where, self.step, self.deaf = where, step, deaf
        self.quiet_since = now if self.quiet_since is None else self.quiet_since
        self.limit_s = limit_s if self.limit_s is None else min(limit_s, self.limit_s)

    def awake(self, what: Callable[[], None]) -> bool:
        """Whether it runs. If it is stopped, it does `what` when it goes on."""
        if self.asleep:
            self.put_off.append(what)
        return not self.asleep

    def end(self, exitcode: int | None) -> None:
        """It lives no longer. None: nobody sees how it ended."""
        self.alive, self.exitcode = False, exitcode


class SimHost:
    """One host, for one life of its agent. `noticed` is called whenever there is something for `wait` to return."""

    def __init__(
        self,
        timeline: Timeline,
        clock: Clock,
        script: Callable[[Mapping[str, str]], Life],
        noticed: Callable[[], None],
        first_pid: int,
        *,
        memory_s: float = 0.0,
        died: Callable[[Worker, int], None] = lambda worker, exitcode: None,
        born: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        """`memory_s`: how long a GPU's memory stays taken when the workers have gone; 0: there is no GPU."""
        self.born = born
        self.timeline, self.clock, self.script, self.noticed = timeline, clock, script, noticed
        self.next_pid, self.memory_s, self.died = first_pid, memory_s, died
        self.workers: dict[int, Worker] = {}  # By pid, those that have ended too.
        self.seen: list[Observation] = []
        self.floor = float("-inf")
        self.freed_at = 0.0
        self.lease_ends: float | None = None

    def now(self) -> float:
        # A deadline turned into true time and back may come out an ulp early; and no monotonic clock runs backwards.
        self.floor = max(self.floor, self.clock.monotonic(self.timeline.now))
        return self.floor

    def wait_for(self, deadline: float) -> None:
        """If `deadline` has come in true time, the clock shows at least that from now on."""
        if self.clock.true(deadline) <= self.timeline.now:
            self.floor = max(self.floor, deadline)

    def set_clock(self, clock: Clock) -> None:
        """Its clocks are these from now on."""
        self.clock = clock

    def unix(self) -> float:
        return EPOCH + self.timeline.now + self.clock.wall_skew_s

    def wait(self, until: float) -> list[Observation]:
        seen, self.seen = self.seen, []
        return seen

    def see(self, seen: Observation) -> None:
        """Something has happened here."""
        self.seen.append(seen)
        self.noticed()

    # --- processes ------------------------------------------------------------------------------------------------------

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Fds = {},  # noqa: B006 (never written to)
        page: Page | None = None,
        binding: Binding | None = None,
    ) -> int:
        life = self.script(env)
        if life.start_error:
            raise StartError(life.start_error)
        return self._live(self.take_pid(), env, life)

    def adopt(self, pid: int, page: Page | None) -> None:
        """As `runtime.host.Host.adopt`; `begin_life` follows."""

    def begin_life(self, pid: int, env: Mapping[str, str]) -> None:
        """A spare has become a worker, which its program cannot prevent."""
        self._live(pid, env, replace(self.script(env), start_error=""))

    def take_pid(self) -> int:
        """One that nobody has had."""
        self.next_pid += 1
        return self.next_pid - 1

    def _live(
        self, pid: int, env: Mapping[str, str], life: Life, begins_s: float = 0.0, had: tuple[int, int] | None = None
    ) -> int:
        worker = self.workers[pid] = Worker(pid, env, life, self.timeline.now, had, begins=begins_s != float("inf"))
        worker.lease_ends = self.lease_ends
        self.born(worker)
        if life.let_go_s is not None and begins_s == 0.0:
            self._begun(worker)
        elif life.let_go_s is not None and begins_s != float("inf"):
            self.timeline.after(begins_s, lambda: self._begun(worker))
        if life.runs_s != float("inf"):
            self.timeline.after(life.runs_s, lambda: self.end(worker, life.exitcode) if worker.works else None)
        return worker.pid

    def _begun(self, worker: Worker) -> None:
        """Its script's code is called, and it can begin again in place."""
        if worker.alive and not worker.let_go and worker.awake(lambda: self._begun(worker)):
            self.see(ProcessLives(pid=worker.pid, in_place=True))

    def regroup(self, pid: int) -> None:
        """As `runtime.host.Host.regroup`."""
        worker = self.workers.get(pid)
        if worker is not None and worker.alive and not worker.deaf and worker.life.let_go_s not in (None, float("inf")):
            self.timeline.after(worker.life.let_go_s or 0.0, lambda: self._let_go(worker))

    def _let_go(self, worker: Worker) -> None:
        if worker.alive and worker.awake(lambda: self._let_go(worker)):
            worker.leave_round()
            self.see(ProcessLives(pid=worker.pid, in_place=True, let_go=True))

    def go_on(self, pid: int, env: Mapping[str, str]) -> bool:
        """Who has let go begins another round. False: it is gone."""
        old = self.workers[pid]
        if not old.alive:
            return False
        assert old.let_go, f"rank {old.rank} is to begin another round, and has not let go of round {old.round}"
        old.end(None)
        life = replace(self.script(env), start_error="", let_go_s=old.life.let_go_s)
        if life.begins_s == float("inf"):
            life = replace(life, runs_s=life.begins_s, let_go_s=life.begins_s)
        self._live(pid, env, life, life.begins_s, old.has if old.life.part == life.part else None)
        return True

    def signal_group(self, pid: int, signum: int) -> None:
        worker = self.workers.get(pid)
        if worker is None or not worker.alive or signum in (signal.SIGUSR1, signal.SIGUSR2):
            return
        obeys = None if worker.deaf else worker.life.on_sigterm
        if signum == signal.SIGKILL:
            self.kill([pid])
        elif obeys is not None:
            code = -signum if obeys == -signal.SIGTERM else obeys
            self.timeline.after(worker.life.term_s, lambda: self.end(worker, code))

    def kill(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if (worker := self.workers.get(pid)) and worker.life.killable:
                self.timeline.after(KILL_S, lambda worker=worker: self.end(worker, -signal.SIGKILL))  # type: ignore[misc]

    def look_at_memory(self) -> list[Observation]:
        """As `agent.workers.gpu_memory`: told at once where there is no GPU."""
        if not self.memory_s:
            return [MemorySeen()]
        busy = self.timeline.now < self.freed_at
        gpu = GpuMemory(index=0, used_mb=40000.0 if busy else 3.0)
        self.timeline.after(LOOK_S, lambda: self.see(MemorySeen(gpus=(gpu,))))
        return []

    def sweep(self) -> set[int]:
        """See `runtime.world.World`. Simulated workers leave nothing behind."""
        return set()

    def end(self, worker: Worker, exitcode: int) -> None:
        """A worker dies, unless it is dead."""
        if not worker.alive or (exitcode != -signal.SIGKILL and not worker.awake(lambda: self.end(worker, exitcode))):
            return
        worker.end(exitcode)
        self.died(worker, exitcode)
        self.see(ProcessDying(pid=worker.pid, exitcode=exitcode))
        self.freed_at = self.timeline.now + worker.life.teardown_s + self.memory_s
        gone = ProcessGone(pid=worker.pid, exitcode=exitcode)
        self.timeline.after(worker.life.teardown_s, lambda: self.see(gone))

    def show_lease(self, until: float | None) -> None:
        """As `runtime.host.Host.show_lease`."""
        self.lease_ends = until
        for worker in self.live if until is not None else ():
            worker.lease_ends = until

    def strike(self) -> None:
        """As `runtime.host.Host.strike`."""
        self.kill([worker.pid for worker in self.live])

    def fall_asleep(self) -> None:
        """All workers are stopped."""
        for worker in self.live:
            worker.asleep = True

    def wake_up(self, soon: Callable[[], float]) -> None:
        """They go on, each as soon as `soon` says."""
        for worker in self.live:
            put_off, worker.put_off, worker.asleep = worker.put_off, [], False
            for what in put_off:
                self.timeline.after(soon(), what)

    def close(self) -> None:
        """The agent has ended, and its guardian sees to the rest."""
        self.kill([pid for pid, worker in self.workers.items() if worker.alive])

    def lose_power(self) -> None:
        """Everything here ends, and nobody is told."""
        for worker in self.workers.values():
            worker.end(worker.exitcode)

    @property
    def as_host(self) -> Host:
        """For parts of a real agent that ask no more of their host than this one can do."""
        return cast("Host", self)

    @property
    def children(self) -> dict[int, Worker]:
        """As `runtime.host.Host.children`."""
        return self.workers

    @property
    def live(self) -> list[Worker]:
        """Workers that have not ended."""
        return [worker for worker in self.workers.values() if worker.alive]


if TYPE_CHECKING:
    _WORLDS: tuple[type[World], ...] = (Host, SimHost)
