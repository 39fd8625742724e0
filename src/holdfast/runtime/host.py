"""This host as a World: one epoll for processes, sockets and signals; the only clock and the only sleep there is.

`Ready` is that epoll with what is to be done about each descriptor. A `LinkPool` is another, behind a descriptor of this one.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from holdfast.core.config.binding import Binding
from holdfast.core.errors import HoldfastError, StartError
from holdfast.core.job.events import ControlKind
from holdfast.core.machine import Observation, Signalled
from holdfast.core.page import layout
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
from holdfast.core.signals import signal
from holdfast.runtime.process.descriptors import SHORT_OF, OpenFiles
from holdfast.runtime.process.process import (
    Fds,
    Process,
    dying,
    kill_group,
    kill_strays,
    kill_tree,
    leave_to_kernel,
    name,
    pidfd_open,
    reap,
    spawn,
    state,
)
from holdfast.runtime.shm.pages import DeathWatch, Page, create_page

Handler = Callable[[int], list[Observation]]

LONGEST_SLEEP_S = 86400.0  # The kernel's count of milliseconds ends after 24 days; a user's timeout need not.


class Child:
    """A worker's process, with its page where it has one."""

    def __init__(self, process: Process, page: Page | None) -> None:
        self.process = process
        self.page = page
        self.watch: DeathWatch | None = None
        self.is_ending = False  # It has been told that its interpreter ends.
        self.became = ""  # The program that it has become by exec. Empty: it has not.

    def last_signs(self) -> LastSigns:
        """What it has shown of its own end so far."""
        if (page := self.page) is None:
            return LastSigns()
        return LastSigns(
            words=page.last_words,
            line=page.last_line,
            ending=page.is_ending,
            booted=page.is_booted,
            became=self.became,
        )

    def begins_to_end(self) -> bool:
        """Whether its interpreter has begun to end since somebody asked last."""
        was, self.is_ending = self.is_ending, self.page is not None and self.page.is_ending
        return self.is_ending and not was

    def watch_death(self, page: Page, notify: Callable[[], None]) -> None:
        """Have `notify` called, by a thread, when the kernel releases the page's mutex."""
        self.watch = DeathWatch(page, notify)


class Ready:
    """File descriptors, and who is to be called when one of them is ready."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.handlers: dict[int, Handler] = {}
        self.unregistered: dict[int, int] = {}  # Descriptors that the kernel had no memory to wait for, and their events.

    def watch(self, fd: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` when `fd` is ready."""
        try:
            self.epoll.register(fd, events)
        except OSError as error:
            if error.errno not in SHORT_OF:
                raise
            self.unregistered[fd] = events  # it is tried again as long as it is watched
        self.handlers[fd] = handler

    def rewatch(self, fd: int, events: int) -> None:
        """Wait for other events of `fd`."""
        try:
            self.epoll.modify(fd, events)
        except OSError:
            self.unregistered[fd] = events

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; it is still to be closed."""
        if self.handlers.pop(fd, None) and self.unregistered.pop(fd, None) is None:
            try:  # noqa: SIM105 (contextlib takes a millisecond of a start)
                self.epoll.unregister(fd)
            except OSError:
                pass  # to close it does the same

    def register_again(self) -> None:
        """Register what could not be, for want of memory."""
        for fd, events in list(self.unregistered.items()):
            try:
                self.epoll.register(fd, events)
            except FileExistsError:
                self.epoll.modify(fd, events)
            del self.unregistered[fd]

    def heard(self, ready: Iterable[tuple[int, int]]) -> list[Observation]:
        """What those have to say that epoll found ready, but for those that the handler of another has forgotten."""
        seen: list[Observation] = []
        for fd, events in ready:
            if handler := self.handlers.get(fd):
                try:
                    seen += handler(events)
                except OSError as error:
                    if error.errno not in SHORT_OF:
                        raise
                    self.short_of(error)  # it is ready still, and asked again
        return seen

    def short_of(self, error: OSError) -> None:
        """A handler could not do its part, for want of descriptors or memory."""


class Host(Ready):
    """Clock, processes, signals and file descriptors of this host."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__()
        self._complain = complain
        self.children: dict[int, Child] = {}
        self.others: set[int] = set()  # Children that are no workers, and not what workers left behind.
        self.parked: dict[int, Process] = {}  # By pid: processes that wait to become workers.
        self.complaints: list[str] = []
        self.dead: list[int] = []  # Pids whose mutex the kernel has released; filled by DeathWatch threads.
        self.alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self.alarm, select.EPOLLIN, self._alarmed)
        self.signal_pipe: tuple[int, int] | None = None
        self.files_given: tuple[int, int] | None = None  # Workers' limit of open files, where ours was raised.
        self.files = OpenFiles()
        self.lease_ends: float | None = None  # Until when workers may change what others read. None: nobody else counts on it.

    # --- the clock ------------------------------------------------------------------------------------------------------

    now = staticmethod(time.monotonic)
    unix = staticmethod(time.time)

    def wait(self, until: float) -> list[Observation]:
        """What happens next, at the latest at `until` (monotonic seconds); empty when nothing did."""
        timeout = -1.0 if until == float("inf") else min(max(0.0, until - time.monotonic()), LONGEST_SLEEP_S)
        try:
            if self.unregistered:
                self.register_again()
            # A wait that SIGSTOP has held up beyond its end returns without a look (PEP 475). What was said meanwhile is to be
            # heard before anything is too late.
            ready = self.epoll.poll(timeout) or self.epoll.poll(0)
        except InterruptedError:
            return []
        except OSError as error:
            if error.errno not in SHORT_OF:
                raise
            self.short_of(error)
            return []
        if said := self.files.look():
            self.complain(said)
        return self.heard(ready)

    # --- signals --------------------------------------------------------------------------------------------------------

    def catch(self, signums: Sequence[int]) -> None:
        """From now on these signals are observations. SIGCHLD is one of them where there is no pidfd."""
        self.signal_pipe = caught(signums)
        self.hear(self.signal_pipe[0])

    def hear(self, signals: int) -> None:
        """The same with what `caught` gave, which stays the caller's: what this host does not read, the next one does."""
        self.watch(signals, select.EPOLLIN, lambda events: self._signalled(signals))

    def signalled(self) -> list[Observation]:
        """The signals that have come: for a caller that holds up the loop."""
        try:
            return self._signalled(self.signal_pipe[0]) if self.signal_pipe is not None else []
        except BlockingIOError:
            return []

    def _signalled(self, receiver: int) -> list[Observation]:
        seen: list[Observation] = []
        for signum in os.read(receiver, 4096):
            seen += self._reap_all() if signum == signal.SIGCHLD else [Signalled(signum=signum)]
        return seen

    # --- processes ------------------------------------------------------------------------------------------------------

    def start(self, argv: Sequence[str], env: Mapping[str, str], fds: Fds, page: Page | None, binding: Binding | None) -> int:
        """Start a worker and watch it; returns its pid. `fds` has its page too, if it has one. Raises StartError."""
        process = self._spawn(argv, env, fds, binding)
        self._raise(process, page)
        return process.pid

    def _spawn(self, argv: Sequence[str], env: Mapping[str, str], fds: Fds, binding: Binding | None) -> Process:
        start = partial(spawn, argv, env, inherit=fds, files=self.files_given)
        if binding is None or binding.prefix:
            return start()
        from holdfast.runtime.hardware.affinity import bound  # most workers are bound to nothing

        return bound(binding, start, self.complain)

    def _raise(self, process: Process, page: Page | None) -> None:
        pid = process.pid
        self.children[pid] = Child(process, page)
        if process.pidfd is not None:
            self.watch(process.pidfd, select.EPOLLIN, lambda events: self._gone(pid))
        else:
            self.complain("no pidfd (an old kernel, or a seccomp filter): worker exits are detected by SIGCHLD")
            if signal.getsignal(signal.SIGCHLD) is not _noted:
                signal.signal(signal.SIGCHLD, _noted)

    def park(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Fds,
        gone: Callable[[int], list[Observation]],
        binding: Binding | None = None,
    ) -> int:
        """Start a process that may become a worker later (`adopt`); returns its pid. `wait` calls `gone(exit code)` if it ends
        before. Raises StartError."""
        process = self._spawn(argv, env, fds, binding)
        if process.pidfd is None:
            self.parked[process.pid] = process
            raise StartError("no pidfd: the exit of a spare cannot be detected")
        pid, pidfd = process.pid, process.pidfd
        self.parked[pid] = process

        def ended(events: int) -> list[Observation]:
            exitcode = reap(pid)
            if exitcode is None:
                return []
            self.unwatch(pidfd)
            del self.parked[pid]
            process.close()
            return gone(exitcode)

        self.watch(pidfd, select.EPOLLIN, ended)
        return pid

    def adopt(self, pid: int, page: Page | None) -> None:
        """A process that was parked, or that one has forked, is a worker from now on. It has much to tell at once: a script
        that begins in place waits until it is heard."""
        process = self.parked.pop(pid, None) or Process(pid, pidfd_open(pid))
        if process.pidfd is not None and process.pidfd in self.handlers:
            self.unwatch(process.pidfd)
        self._raise(process, page)
        self.watch_pages()

    def start_with_files(self, limit: tuple[int, int]) -> None:
        """Workers start with that limit of open files from now on, unless another was given before."""
        self.files_given = self.files_given or limit

    def page(self, hook: int = 0) -> Page | None:
        """A page for a worker to come; None where the kernel has none (then its death is seen a little later)."""
        try:
            page = create_page(hook)
        except (HoldfastError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.complain(f"deaths of workers are seen a little later: no memory is shared with them ({why})")
            return None
        page.show_lease(self.lease_ends)
        return page

    def show_lease(self, until: float | None) -> None:
        """Workers may act until then (monotonic). None: nobody counts on those to come; those that live keep what they have."""
        self.lease_ends = until
        if until is None:
            return
        for child in self.children.values():
            if child.page is not None:
                child.page.show_lease(until)

    def strike(self) -> None:
        """SIGKILL all workers, stopped ones too, each before anything is looked at; then what is below them."""
        pids = [*self.children, *self.parked]
        for pid in pids:
            try:  # noqa: SIM105
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        kill_tree(pids)

    def stop(self) -> None:
        """SIGSTOP to this very process: it returns once somebody continues us."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def watch_pages(self) -> None:
        """Begin to wait for the workers' mutexes; after the start, because it costs what a worker could use."""
        for pid, child in self.children.items():
            if child.page is None or child.watch is not None:
                continue
            try:
                child.watch_death(child.page, self._alarm_for(pid))
            except HoldfastError as error:
                self.complain(str(error))
                return

    def lives(self) -> list[Observation]:
        """Which workers have begun a round in place or let go of one: what is new of that, though no alarm was raised yet."""
        return _lives(self.children)

    def signal_group(self, pid: int, signum: int) -> None:
        """Signal the process group of a worker, and let it go on: a stopped one could not act on the signal."""
        if (child := self.children.get(pid)) is not None and child.page is not None:
            child.page.ends()
        kill_group(pid, signum)
        kill_group(pid, signal.SIGCONT)

    def regroup(self, pid: int) -> None:
        """Have a worker let go of its round, and let it go on: a stopped one could not."""
        if (child := self.children.get(pid)) is not None and child.page is not None:
            child.page.regroup()
            kill_group(pid, signal.SIGCONT)

    def begin_life(self, pid: int, text: bytes) -> bool:
        """Have one that has let go begin its next round with what `text` says. False: it is gone, or that is too long."""
        child = self.children.get(pid)
        return child is not None and child.page is not None and child.page.begin_life(text)

    def kill(self, pids: Sequence[int]) -> None:
        """SIGKILL workers with everything below them."""
        kill_tree(pids)

    def leave(self, pid: int) -> None:
        """Do not wait for a worker that is killed and sleeps in the kernel."""
        leave_to_kernel(pid)

    def sweep(self) -> set[int]:
        """SIGKILL whatever dead workers left behind; returns the pids."""
        return kill_strays(keep=[*self.children, *self.others, *self.parked])

    def states(self) -> dict[int, str]:
        """Each worker's state in the kernel's eyes, by its pid."""
        return {pid: seen for pid in self.children if (seen := state(pid))}

    def ask_for_stacks(self, pid: int, below: int | None = None) -> str:
        """Have a worker, or a process below it, write its stacks (`Page.ask_for_stacks`). Returns why it cannot; empty:
        asked."""
        child = self.children.get(pid)
        if child is None:
            return "it is gone"
        return child.page.ask_for_stacks(below) if child.page else "it is no Python that we can reach"

    def stacks(self, pid: int) -> str:
        """What it has written so far of what it was asked for last."""
        child = self.children.get(pid)
        return child.page.stacks() if child and child.page else ""

    def ask_where(self) -> None:
        """Ask those that have been signalled, and live, where they are, unless they have shown it."""
        for child in self.children.values():
            if child.page is not None:
                child.page.ask_where()

    def _alarm_for(self, pid: int) -> Callable[[], None]:
        def notify() -> None:
            self.dead.append(pid)
            os.eventfd_write(self.alarm, 1)

        return notify

    def _alarmed(self, events: int) -> list[Observation]:
        os.eventfd_read(self.alarm)
        # Before anything that has one of these signalled.
        seen: list[Observation] = [ProcessEnding(pid=pid) for pid, child in self.children.items() if child.begins_to_end()]
        seen += _lives(self.children)
        while self.dead:
            pid = self.dead.pop()
            child = self.children.get(pid)
            if child:
                seen += _said(pid, child)
            # A worker that merely called exec has lost its mutex too, but is not dying.
            if child and (death := dying(pid)) and death.exitcode is not None:
                seen.append(ProcessDying(pid=pid, exitcode=death.exitcode, last=child.last_signs()))
            elif child and child.page and child.page.error_at_unix is not None:
                seen.append(ProcessErred(pid=pid, last=child.last_signs()))
            elif child and child.watch and child.watch.died:
                child.became = name(pid)
        return seen

    def _gone(self, pid: int) -> list[Observation]:
        child = self.children[pid]
        if child.became:  # by now its name is surely the new program's
            child.became = name(pid) or child.became
        exitcode = reap(pid)
        if exitcode is None:
            return []
        lives = _lives(self.children)  # the end of one decides over the others, and their watch may not have begun
        del self.children[pid]
        if child.process.pidfd is not None:
            self.unwatch(child.process.pidfd)
        child.process.close()
        if child.watch:
            child.watch.close()
        step, told = child.page.last_step if child.page else (None, False)
        moments = child.page.moments if child.page else None
        stack = child.page.where() if child.page else ""
        last = child.last_signs()
        gone = ProcessGone(pid=pid, exitcode=exitcode, step=step, step_told=told, moments=moments, last=last, stack=stack)
        seen: list[Observation] = [*lives, *_said(pid, child), gone]
        if child.page:
            child.page.close()
        return seen

    def _reap_all(self) -> list[Observation]:
        return [seen for pid, child in list(self.children.items()) if child.process.pidfd is None for seen in self._gone(pid)]

    def short_of(self, error: OSError) -> None:
        """See `Ready`: a person is told, and what comes next has the reserve."""
        if said := self.files.look():
            self.complain(said)
        self.files.release()
        self.complain(f"something is left undone: {error.strerror}")

    # --- complaints -----------------------------------------------------------------------------------------------------

    def complain(self, what: str) -> None:
        """Tell a person, once, that something does not work as it should; the job goes on."""
        if what not in self.complaints:
            self.complaints.append(what)
            self._complain(what)

    def close(self) -> None:
        """Give the descriptors back."""
        self.files.release()
        if self.signal_pipe:
            signal.set_wakeup_fd(-1)
            for fd in self.signal_pipe:
                os.close(fd)
        os.close(self.alarm)
        self.epoll.close()


def _said(pid: int, child: Child) -> list[Observation]:
    if (page := child.page) is None:
        return []
    seen: list[Observation] = []
    if (limits_s := page.calculated()) is not None:
        seen.append(ProcessCalculated(pid=pid, limits_s=limits_s))
    if (asked := page.asked()) is not None:
        seen.append(ProcessAsked(pid=pid, kind=ControlKind(asked[0]), reason=asked[1]))
    return seen


def _lives(children: Mapping[int, Child]) -> list[Observation]:
    """Which of them can begin another round in place, or no longer, or have let go: what is new of that."""
    pages = [(pid, child.page) for pid, child in children.items() if child.page is not None]
    return [
        ProcessLives(pid=pid, in_place=life != layout.NOT_IN_PLACE, let_go=life == layout.LET_GO)
        for pid, page in pages
        if (life := page.life()) is not None
    ]


def caught(signums: Sequence[int]) -> tuple[int, int]:
    """From now on these signals go into a pipe of this process. Its ends: where they are read, and where they are written."""
    receiver, sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    for signum in signums:
        signal.signal(signum, _noted)
    return receiver, sender


def _noted(signum: int, frame: object) -> None:
    """A handler only so that the wake-up descriptor is written to."""
