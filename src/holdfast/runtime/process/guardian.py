"""Who sees to it that nothing is left behind, however the agent ends?

`guard` splits `holdfast run` in two before anything heavy is imported:

    the user's shell ── guardian (the pid that was started) ── agent ── workers and all that descends from them
                        passes signals on, waits, sweeps      runs the job

The *guardian* sleeps in sigwaitinfo. It is a subreaper, so everything that loses its parent becomes its child, and when the
agent has ended, by whatever cause, it kills what is left and ends as the agent did: same exit code, or same signal.
The *agent* is in a session of its own. So a Ctrl-C at the terminal, `kill -- -pgid` and a hang-up reach the guardian alone,
which passes each on exactly once, and no SIGKILL to the process group can take both of them. (Workers were never
in the terminal's session under torchrun either; like theirs, our reads from the terminal are not subject to job control.)
When the guardian dies the agent learns it from the end of a pipe, and kills everything itself. Should both be killed in one
moment, as `pkill -9 -f "holdfast run"` does it, a shell that has been waiting for just that kills what they leave behind
(`runtime.process.last_watch`).

A *lease* is for an agent that other nodes rely on: once it has run out they may go on without this node, so its
workers must not go on either. An agent that is stopped (SIGSTOP) cannot see to that; the guardian does, and ends it with them.
One that is merely slow loses its workers as soon, since others count on that, but is itself given time. What the guardian may
not do is mistake a pause of the whole machine, or a Ctrl-Z of the whole job, for that: it judges only time in which it was
itself awake. The agent does not watch for a stopped guardian: workers lose nothing by it.
"""

from __future__ import annotations

import _thread
import gc
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from holdfast.core.errors import StartError
from holdfast.core.machine import NEVER
from holdfast.core.signals import name_of, signal
from holdfast.runtime.process import last_watch, process

TICK_S = 1.0  # Longest sleep while there is a lease; otherwise the guardian sleeps until a signal comes.

STRIKE_S = 0.3
"""Seconds that the guardian sees a lease expired before it ends the workers. A running agent has done so by
then (`rendezvous.lease`). If the agent is stopped, the guardian ends it too."""

SLACK_S = 1.0
"""The same for an agent that is not known to be stopped. Longer than a busy host keeps a process off the CPU."""

LOOK_S = 0.25  # Pause between two checks whether an expired lease was renewed.

SWEEP_S = 5.0
"""Longest time to kill the remaining processes. The guardian gives up sooner on processes that sleep in the kernel
(`DEAF_S`)."""

LAST_WATCH_AFTER_S = 0.1  # Seconds from the start to the last watch: the workers run by then.

BACKSTOP_S = 0.5  # Seconds for an agent without its guardian to end things its own way.

_NOT_PASSED_ON = {
    signal.SIGKILL, signal.SIGSTOP,  # cannot be caught
    signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS,  # our own
    signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH, signal.SIGPIPE, signal.SIGURG, signal.SIGIO,
}  # fmt: skip


_WISHES = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which an agent is asked to end: it says so itself, where it can. Of any other nobody else says what it was."""

_SI_KERNEL = 0x80  # si_code of our own timer's SIGALRM (asm-generic/siginfo.h).


class Lease:
    """Until when the agent may act, in memory that it shares with the guardian. Unguarded, it is a plain number."""

    def __init__(self) -> None:
        self._words = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._nudge = 0

    def watched_by(self, guardian: int) -> None:
        """Whom to wake when the first lease begins, since it sleeps without an end until then."""
        self._nudge = guardian

    def renew(self, until: float) -> None:
        """The agent may act until `until` (monotonic seconds)."""
        before, self._words[0] = self._words[0], max(1, int(until * 1e9))
        if self._words[0] > before:
            self._words[1] = 0
        if not before and self._nudge:
            os.kill(self._nudge, signal.SIGCHLD)

    def none(self) -> None:
        """Nobody depends on this agent (any more)."""
        self._words[0] = self._words[1] = 0

    def strike(self) -> None:
        """The workers are being ended, since the agent has slept through the end of the lease."""
        self._words[1] = 1

    @property
    def struck(self) -> bool:
        """Whether that is so."""
        return bool(self._words[1])

    def suspend(self, suspended: bool) -> None:
        """For the guardian: the user has stopped the job (Ctrl-Z), or continued it."""
        self._words[2] = suspended

    @property
    def suspended(self) -> bool:
        """Whether that is so: an agent that wakes meanwhile ends its workers if the lease is over, and sleeps on."""
        return bool(self._words[2])

    @property
    def until(self) -> float | None:
        """When it ends; None: there is no lease."""
        return self._words[0] / 1e9 or None


lease: Lease | None = None  # The agent's lease, once `guard` or `unguarded` has run.

_lost_fd = -1


def guardian_lost_fd() -> int:
    """Readable (end of file) once the guardian has died; -1: there is none."""
    return _lost_fd


def end_everything(exit_code: int = 1) -> NoReturn:
    """For the agent that has lost its guardian: kill all that is below us, and go."""
    process.kill_tree([os.getpid()])
    os._exit(exit_code)


def guard(agent: Callable[[], int]) -> int:
    """Run `agent()` in a child, guarded by this process, which must have no threads. Returns its result, in the child only: the
    guardian leaves with `os._exit` or by a signal. StartError: no /proc, so what the agent leaves could not be found.

    Python's collector is off in both, since it writes to shared pages; the agent turns it on once it is loaded."""
    if blind := process.blindness():
        raise StartError(f"cannot run jobs without /proc: {blind}", hint=process.PROC_ADVICE)
    global lease
    lease = Lease()
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if our parent ignores it, exit codes would be lost
    passed_on = {int(signum) for signum in signal.valid_signals()} - _NOT_PASSED_ON
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        passed_on.discard(signal.SIGHUP)  # nohup means it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    process.set_subreaper()
    reader, writer = os.pipe()
    watch = last_watch.LastWatch()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.disable()
    guardian = os.getpid()
    pid = os.fork()
    if pid:
        os.close(reader)
        _Guardian(pid, passed_on, lease, watch).watch()
    os.close(writer)
    watch.over_us(os.environ)
    os.setsid()
    process.set_subreaper()
    lease.watched_by(guardian)
    _expect_loss(reader)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return agent()


def _expect_loss(reader: int) -> None:
    global _lost_fd
    _lost_fd = reader

    def backstop() -> None:
        while os.read(reader, 1):
            pass
        process.pause(BACKSTOP_S)
        end_everything()

    _thread.start_new_thread(backstop, ())


class _Guardian:
    def __init__(self, agent: int, passed_on: set[int], lease: Lease, watch: last_watch.LastWatch) -> None:
        self.agent = agent
        self.passed_on = passed_on
        self.lease = lease
        self.last_watch = watch
        self.watch_at = time.monotonic() + LAST_WATCH_AFTER_S
        self.overdue_since: float | None = None  # None: the lease is good, or there is none
        self.all_stopped = False  # Everything below us has been stopped, and not yet continued.

    def watch(self) -> NoReturn:
        while True:
            patience = self._patience()
            asleep_at = time.monotonic()
            # Not sigtimedwait: CPython's returns uninitialised memory when it was stopped and continued past its deadline.
            signal.setitimer(signal.ITIMER_REAL, patience)
            seen = signal.sigwaitinfo(self.passed_on)
            if seen.si_signo != signal.SIGALRM or seen.si_code != _SI_KERNEL:
                self._pass_on(seen.si_signo)  # where that is a Ctrl-Z, it comes back when we are continued
            now = time.monotonic()
            status = self._agent_status()
            if status is not None:
                self._end_like(status)
            if now >= self.watch_at:
                self.watch_at = NEVER
                self.last_watch.begin()
            if patience and now - asleep_at > patience + 0.5:
                self.overdue_since = None  # we were not awake ourselves
            self._judge_lease(now)
            if self.all_stopped and self.overdue_since is None:
                self.all_stopped = False
                process.kill_tree([os.getpid()], signal.SIGCONT)

    def _patience(self) -> float:
        """Seconds to sleep; 0: until a signal comes."""
        if self.watch_at != NEVER:
            return LAST_WATCH_AFTER_S
        until = self.lease.until
        if until is None:
            return 0.0
        if self.overdue_since is not None:
            left = self.overdue_since + STRIKE_S - time.monotonic()
            return LOOK_S if self.lease.struck else min(LOOK_S, max(left, 0.001))
        return min(TICK_S, max(until - time.monotonic(), 0.0) + 0.01)

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            return
        if signum != signal.SIGTSTP:
            self._signal_agent(signum)
            return
        # Ctrl-Z. The agent's group has no parent in its session, where the kernel ignores SIGTSTP: so stop it hard. For
        # ourselves the kernel decides, as it would for any program (a group that nobody could continue is not stopped).
        if self.lease.until is None:
            self._signal_agent(signal.SIGSTOP)
        else:
            # Others may go on without this node meanwhile, and nobody here could end its workers then: they sleep too, and are
            # continued only if the lease is good when we wake. If not, the agent has ended them in their sleep.
            self.all_stopped = True
            self.lease.suspend(True)
            process.kill_tree([os.getpid()], signal.SIGSTOP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        self.overdue_since = None
        self.lease.suspend(False)
        self._signal_agent(signal.SIGCONT)

    def _signal_agent(self, signum: int) -> None:
        try:  # noqa: SIM105 (contextlib costs more to import than all of this)
            os.kill(self.agent, signum)
        except ProcessLookupError:
            pass

    def _agent_status(self) -> int | None:
        """Its wait status, once; strays that became our children are buried on the way."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1 << 8  # somebody reaped it: cannot happen, and must not hang
            if pid == self.agent:
                return status
            if not pid:
                return None

    def _judge_lease(self, now: float) -> None:
        until = self.lease.until
        if until is None or now < until:
            self.overdue_since = None
            return
        if self.overdue_since is None:
            self.overdue_since = now
        over_s = now - self.overdue_since
        is_stopped = process.state(self.agent) in ("T", "t") if over_s >= STRIKE_S else False
        if over_s >= SLACK_S or is_stopped:
            self._end_overdue()
        if over_s >= STRIKE_S and not self.lease.struck:
            self.lease.strike()  # before it: their ends are not to be taken for failures
            process.kill_below(self.agent)

    def _end_overdue(self) -> NoReturn:
        self._signal_agent(signal.SIGKILL)
        self._sweep()  # before a word of it: stderr may be a terminal that takes none
        self.last_watch.clear()
        _say(f"the agent (pid {self.agent}) did not run any more (stopped?) and its lease is over: killed it and its workers")
        os._exit(1)

    def _end_like(self, status: int) -> NoReturn:
        self._sweep()
        self.last_watch.clear()
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))
        signum = os.WTERMSIG(status)
        if signum not in _WISHES:
            advice = "; if nobody did that, see whether memory ran out (journalctl -k)" if signum == signal.SIGKILL else ""
            _say(f"the agent (pid {self.agent}) was killed by {name_of(signum)}: ended its workers{advice}")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the agent's core is the one to keep
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
        os.kill(os.getpid(), signum)
        os._exit(128 + signum)  # pid 1 of a container is immune to its own signals

    def _sweep(self) -> None:
        """Kill and bury everything below us: as the subreaper, we get all of it as children."""
        deadline = time.monotonic() + SWEEP_S
        while time.monotonic() < deadline:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if (shell := self.last_watch.pid) is not None and process.children_of(os.getpid()) == [shell]:
                os.kill(shell, signal.SIGKILL)  # and whoever takes it in may bury it: nobody waits for that
                return
            process.kill_tree([os.getpid()])
            if (left := process.descendants(os.getpid())) and all(map(process.deaf, left)):
                break
            signal.setitimer(signal.ITIMER_REAL, SWEEP_S / 20)  # in case the last SIGCHLD is one that we have already had
            signal.sigwaitinfo({signal.SIGCHLD, signal.SIGALRM})
        if left := process.descendants(os.getpid()):
            told = "; ".join(f"pid {pid} ({process.name(pid)}), {process.asleep(pid)}" for pid in left)
            _say(f"left to the kernel, since SIGKILL does not end it (does a mount or a driver hang?): {told}")


def _say(text: str) -> None:
    try:  # noqa: SIM105
        os.write(2, f"holdfast: {text}\n".encode())
    except OSError:
        pass
