"""How is a process started, watched and ended, with everything that descends from it?

Starting goes through posix_spawn (a vfork underneath: about 1 ms whatever the agent's size). Watching is a pidfd, and
`dying` for the time between a death and the moment the kernel has freed its memory. Ending is by tree, found in /proc, since
data loaders call setsid and outlive their parents. Signals to processes that are not our own children go by pidfd, or after
a look at the start time, so that a reused pid is never hit.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import time

try:
    import _ctypes  # what `ctypes` is made of: the rest of it takes 2 ms to load, and this is all that a start needs of it
except ImportError:  # a Python that was built without it works, and has no subreaper
    _ctypes = None  # type: ignore[assignment]

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from holdfast.core.errors import StartError
from holdfast.core.signals import signal
from holdfast.core.value import Value

Fds = Mapping[int, int | None]
"""A child's number of a file descriptor → ours; None: the same as ours, of a stream."""

PF_EXITING = 0x4  # Bit of a task's flags (linux/sched.h): set before its memory is freed; never set by exec.
TREE_DEADLINE_S = 2.0  # How long `kill_tree` goes on looking for survivors.

DEAF_S = 0.5
"""How long somebody with a SIGKILL of ours may sleep in the kernel (state D) until he is left to it. What a working disk brings
comes sooner. Whoever wakes after that ends before his next instruction: he forks no more, and nobody need wait for him."""

PROC_ADVICE = "mount -t proc proc /proc, in the job's own pid namespace; `holdfast doctor` shows what else this host lacks"

_left: set[tuple[int, str]] = set()
"""(pid, start time) of those who were left to the kernel: no later sweep waits for them again."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Process:
    """A started child of ours. `pidfd` is readable once it has ended; None where the kernel gives none."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int, pidfd: int | None) -> None:
        self.pid = pid
        self.pidfd = pidfd

    def close(self) -> None:
        """Close the pidfd. The process itself is left alone."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Dying(Value):
    """A process past the point of no return: it runs no more code of its own, though its memory may still be being freed."""

    exitcode: int | None  # As `Popen.returncode`. None: the kernel does not tell us (other user, hidepid).


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    stdout: int | None = None,
    stderr: int | None = None,
    stdin: int | None = None,
    inherit: Fds | None = None,
    files: tuple[int, int] | None = None,
) -> Process:
    """Start `argv`, found on the PATH of `env`, in a session of its own. The child gets the streams, ours where None, and
    `inherit`; no other fd.

    Ignored SIGPIPE is reset as by `Popen`, and the signal mask emptied. `files`: its limit of open files; None: ours. A worker
    that dies with its parent dies with the calling *thread*. Raises StartError."""
    program = _find(argv[0], env)
    wanted = {0: stdin, 1: stdout, 2: stderr, **(inherit or {})}
    temporary: list[int] = []
    ours = None
    try:
        actions = _file_actions({to: ours for to, ours in wanted.items() if ours is not None}, temporary)
        if files is not None:
            ours = _limit_files(files)
        pid = os.posix_spawn(
            program,
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    except OSError as error:
        raise _start_error(program, error) from error
    except ValueError as error:  # a NUL byte, or an environment name with "="
        raise StartError(f"cannot start {argv[0]!r}: {error}") from error
    finally:
        if ours is not None:
            _limit_files(ours)
        for fd in temporary:
            os.close(fd)
    return Process(pid, pidfd_open(pid))


def _limit_files(limit: tuple[int, int]) -> tuple[int, int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    except (ValueError, OSError):  # somebody has lowered our hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def _find(program: str, env: Mapping[str, str]) -> str:
    """The file that exec would take. As in execvp, a file that may not be executed is remembered, not taken."""
    if os.sep in program:
        return program
    barred = None
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            barred = barred or path
    if barred:
        return barred
    raise StartError(f"cannot start {program!r}: no such program on PATH", hint="give its path, or correct PATH")


def _start_error(program: str, error: OSError) -> StartError:
    what, hint = error.strerror, ""
    if error.errno == errno.ENOENT and os.path.exists(program):
        what, hint = (
            "the interpreter it names does not exist",
            "look at the file's first line (#!), or at the loader of the binary",
        )
    elif error.errno in (errno.ENOENT, errno.ENOTDIR):
        what = "no such file"
    elif error.errno == errno.EACCES and os.path.isdir(program):
        what = "it is a directory"
    elif error.errno == errno.EACCES:
        what, hint = "it is not executable", f"chmod +x {program}"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        what, hint = "out of file descriptors", "raise the limit (ulimit -n 4096)"
    elif error.errno == errno.ENOEXEC:
        what = "not a program that this machine can run (Exec format error)"
        hint = "a script needs a first line such as #!/bin/sh; a binary must be built for this architecture"
    return StartError(f"cannot start {program!r}: {what}", hint=hint)


def _file_actions(wanted: Mapping[int, int], temporary: list[int]) -> list[tuple[int, ...]]:
    """posix_spawn's file actions for {child's fd: our fd}. `temporary` gets the copies to close afterwards."""
    # A source that is also a target would be overwritten before its turn, and a dup2 onto itself keeps close-on-exec
    # in older C libraries: such a source is copied out of the way first.
    above = max([2, *wanted]) + 1
    actions: list[tuple[int, ...]] = []
    for to, ours in wanted.items():
        if ours in wanted:
            ours = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, above)
            temporary.append(ours)
        actions.append((os.POSIX_SPAWN_DUP2, ours, to))
    limit = os.sysconf("SC_OPEN_MAX")
    for fd in _leaking():
        if fd >= limit:  # opened before somebody lowered `ulimit -n`: the C library will not hear of it
            os.set_inheritable(fd, False)
        elif fd not in wanted:
            actions.append((os.POSIX_SPAWN_CLOSE, fd))
    return actions


def _leaking() -> list[int]:
    """Our fds above 2 that an exec would pass on: not Python's, but those that our parent left open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                found.append(fd)
        except OSError:
            pass  # the listing's own
    return found


def pidfd_open(pid: int) -> int | None:
    """A pidfd for `pid`; None where the kernel, a seccomp filter or this Python refuses."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def reap(pid: int) -> int | None:
    """Exit code of our child `pid`, once, as `Popen.returncode`; None: it runs. ChildProcessError: not ours (any more)."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def dying(pid: int) -> Dying | None:
    """Is `pid` past the point of no return? None: it lives (an exec included), or there is no such process any more."""
    fields = _stat(pid)
    if fields is None or not (int(fields[6]) & PF_EXITING or fields[0] in "ZX"):
        return None
    status = int(fields[49])
    # The kernel writes 0 both for "exited with 0" and for "not your business"; the latter hides the stack start too.
    if status == 0 and int(fields[25]) == 0 and not _may_see(pid):
        return Dying(exitcode=None)
    return Dying(exitcode=os.waitstatus_to_exitcode(status))


def state(pid: int) -> str | None:
    """The letter of its state in /proc (R running, S asleep, D asleep and deaf to signals, Z dead …). None: no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def begun(pid: int) -> str:
    """When it began, in the kernel's ticks since its own start: with its pid, nobody else's. Empty: it has ended."""
    fields = _stat(pid)
    return "" if fields is None or fields[0] in "ZX" else fields[19]


def asleep(pid: int) -> str:
    """In which state a process is, and where in the kernel."""
    where = _line(pid, "wchan")
    return f"state {state(pid) or 'gone'}" + (f", in {where}" if where not in ("", "0") else "")


def name(pid: int) -> str:
    """What the kernel calls it. Not its command line: that is in its memory, which it may hold locked as it sleeps."""
    return _line(pid, "comm") or "?"


def _line(pid: int, file: str) -> str:
    try:
        with open(f"/proc/{pid}/{file}", errors="replace") as told:
            return told.read().strip()
    except OSError:
        return ""


def spent(pid: int) -> tuple[float, int]:
    """Processor seconds, and bytes read and written, of `pid` and everything below it, as far as the kernel tells."""
    cpu_ticks = io_bytes = 0
    for one in [pid, *descendants(pid)]:
        if fields := _stat(one):
            cpu_ticks += sum(map(int, fields[11:15]))  # in user and kernel mode, and that of children it has waited for
        io_bytes += _io(one)
    return cpu_ticks / os.sysconf("SC_CLK_TCK"), io_bytes


def _io(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            said = dict(line.split(b": ") for line in file.read().splitlines())
        return int(said[b"rchar"]) + int(said[b"wchar"])
    except (OSError, ValueError, KeyError):  # it has ended, or may not be looked at
        return 0


def blindness() -> str:
    """Why /proc does not show us our own processes; empty: it does. Blind, nothing that workers leave behind could be found."""
    try:
        shown = os.readlink("/proc/self")
    except FileNotFoundError:
        return "it is not mounted"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if shown == str(os.getpid()) else "it shows the processes of another pid namespace"


def _may_see(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid() or os.geteuid() == 0
    except OSError:
        return False


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third on (state, ppid, …); None if there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).rpartition(b")")[2].decode("ascii").split()
    except OSError:
        return None  # ESRCH: it went while we looked
    finally:
        os.close(fd)


def descendants(pid: int) -> list[int]:
    """Every live descendant of `pid`, nearest first. What was reparented is found below the subreaper that took it in."""
    return [child for child, _, is_dying in walk([pid]) if not is_dying]


def walk(roots: Iterable[int], keep: Collection[int] = ()) -> list[tuple[int, str, bool]]:
    """(pid, start time, is dying) of everything below `roots` that is no zombie, without the subtrees of `keep`.

    Whoever loses its parent while we look goes to a root, the subreaper: roots are read again until they have nobody new.
    """
    found: list[tuple[int, str, bool]] = []
    seen = set(keep)
    known = -1
    while known != len(seen):
        known = len(seen)
        queue = list(roots)
        parents = None if _kernel_lists_children() else _parents()
        while queue:
            for child in children_of(queue.pop(0), parents):
                if child in seen:
                    continue
                seen.add(child)
                if (fields := _stat(child)) is None:
                    continue
                queue.append(child)
                if fields[0] not in "ZX":
                    found.append((child, fields[19], bool(int(fields[6]) & PF_EXITING)))
    return found


def children_of(pid: int, parents: Mapping[int, list[int]] | None = None) -> list[int]:
    """Children of `pid`, dead ones included. `parents`: a whole tree read before, where the kernel keeps no lists."""
    if parents is None and not _kernel_lists_children():
        parents = _parents()
    if parents is not None:
        return parents.get(pid, [])
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, (file.read() or b"").split())
    except OSError:
        pass  # it ended while we looked
    return found


def _kernel_lists_children() -> bool:
    """CONFIG_PROC_CHILDREN: a look at a tree then costs its own size, not that of the whole host."""
    return os.path.exists("/proc/thread-self/children")


def _parents() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            tree.setdefault(int(fields[1]), []).append(int(name))
    return tree


def kill_group(pid: int, signum: int) -> bool:
    """Signal the process group that `pid` leads (or led). False: nobody is left in it."""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # members that changed their user
    return True


def kill_tree(root_pids: Iterable[int], signum: int = signal.SIGKILL, keep: Collection[int] = ()) -> set[int]:
    """Signal `root_pids`, our children, and all below them but the subtrees of `keep`; our own pid: all that is below us.

    SIGKILL is repeated until none is left that could fork, or for TREE_DEADLINE_S; a process asleep in the kernel is waited for
    once, DEAF_S (`deaf`). Returns the pids signalled. The caller reaps the roots."""
    me = os.getpid()
    roots = [pid for pid in root_pids if pid not in keep]
    ours = {*children_of(me), *keep}
    struck = {pid for pid in roots if pid != me and _strike(pid, None, signum)}
    # Orphans of the dead come to us, the subreaper: children of ours that were not there before.
    return struck | _strike_all(lambda: walk(roots, keep) + ([] if me in roots else walk([me], ours)), signum)


def _strike_all(look: Callable[[], list[tuple[int, str, bool]]], signum: int) -> set[int]:
    """Signal all that `look` finds, with SIGKILL again and again until nobody is to be waited for."""
    struck: set[int] = set()
    began = time.monotonic()
    while True:
        below = look()
        struck.update(pid for pid, started, _ in below if _strike(pid, started, signum))
        late_s = time.monotonic() - began
        if signum != signal.SIGKILL or late_s > TREE_DEADLINE_S or _no_one_to_wait_for(below, late_s):
            return struck
        pause(0.001)


def pause(seconds: float) -> None:
    """Wait so long, by the kernel's count from now: `time.sleep` gives it a moment of the clock, and raises where an interposed
    clock (libfaketime) has made that one impossible. What ends workers may not fail of that."""
    select.poll().poll(1000 * seconds)


def _no_one_to_wait_for(below: list[tuple[int, str, bool]], late_s: float) -> bool:
    """Whether all of them die, or sleep where the SIGKILL does not reach them."""
    alive = {(pid, started) for pid, started, is_dying in below if not is_dying}
    if late_s > DEAF_S:
        _left.update(one for one in alive - _left if state(one[0]) == "D")
    return alive <= _left


def leave_to_kernel(pid: int) -> None:
    """It sleeps in the kernel, as is known already: who kills it need not wait for that."""
    if started := begun(pid):
        _left.add((pid, started))


def deaf(pid: int) -> bool:
    """Whether a SIGKILL of ours has not ended `pid`, below us, since it sleeps in the kernel: it has been left there."""
    return any(left == pid and (fields := _stat(pid)) is not None and fields[19] == started for left, started in _left)


def kill_below(pid: int) -> None:
    """SIGKILL everything below `pid`, a subreaper that may be slow to bury it, but not `pid` itself."""
    _strike_all(lambda: walk([pid]), signal.SIGKILL)


def kill_strays(keep: Collection[int] = ()) -> set[int]:
    """SIGKILL and reap all our descendants outside the subtrees of `keep`, such as what dead workers left behind."""
    struck = kill_tree([os.getpid()], signal.SIGKILL, keep)
    reap_strays(keep)
    return struck


def reap_strays(keep: Collection[int]) -> list[int]:
    """Bury dead children of ours that are not in `keep`: orphans that a subreaper was given."""
    buried = []
    for pid in children_of(os.getpid()):
        if pid in keep:
            continue
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                buried.append(pid)
        except ChildProcessError:
            pass
    return buried


def _strike(pid: int, started: str | None, signum: int) -> bool:
    """Signal `pid` if it still is the process that started at `started`. None: a child of ours, whose pid is not reused."""
    fd = pidfd_open(pid)
    try:
        if started is not None and begun(pid) != started:
            return False
        if fd is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def set_subreaper() -> bool:
    """Become the parent of every descendant whose own parent dies. False where that cannot be had."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGKILL) -> bool:
    """Ask the kernel for `signum` when the thread that started us ends. False where that cannot be had."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def _prctl(option: int, value: int) -> bool:
    try:
        prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type]
        return bool(_ctypes.call_function(prctl, (option, value, 0, 0, 0)) == 0)
    except (OSError, AttributeError):
        return False
