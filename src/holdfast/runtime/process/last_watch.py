"""Who kills what is left behind when guardian and agent are killed in one moment?

A shell, which sleeps in `read` on a pipe that both of them hold: the pipe ends when the last of the two does. It is nobody's
parent and finds nothing by a tree of processes, which is gone by then. It goes by a mark that the agent gives all that it
starts: Python workers have asked the kernel to die with the agent, but what they have started has not.

The mark is a limit that means nothing: that of file locks, which Linux has not looked at since 2.4.25. It is inherited by every
descendant, through setsid, exec and an emptied environment, and /proc/<pid>/limits shows it without a look into the memory of
the process, which may be locked. Where it cannot be set, the mark is a variable in the environment.

Where a control group of version 2 has been delegated to us, the shell also gathers the agent and all below it in a new one, a
moment after the start, and has the kernel kill that (cgroup.kill): those too that have set the limit anew (pam_limits). What a
process starts once it was moved begins in there, so each is moved before its children are looked for.

The mark is random, and the shell reads it from its pipe, since everybody sees command lines. Yet limits are there for everybody
to see. So only processes that this user has started are ended, whoever else takes the limit, or gives it to a setuid program.

A shell, as a third Python would take 10 MB, and as a user who kills by name (`pkill -9 -f holdfast`, `killall -9 python3`)
must not mean it: its command line has neither word. Where there is no /bin/sh or no grep, nothing is lost but this.

Over a user's own process that holds workers (`holdfast.elastic`), where there is no guardian, the same shell watches alone, and
goes by the environment.
"""

from __future__ import annotations

import os
import resource
from collections.abc import MutableMapping
from contextlib import suppress

from holdfast.core.errors import StartError
from holdfast.runtime.process import process
from holdfast.runtime.secrets import without_secrets

VARIABLE = "HOLDFAST_GUARDED"  # Marks of all agents above a process, where no limit can be the mark.

_LOCKS = 10  # RLIMIT_LOCKS, the same on every architecture; Python has no name for it.
_BELOW = 1 << 61  # How many marks there are. They have 19 digits each.

# Schedulers signal every process of a step. Looks again for what was being started meanwhile.
# (A pid could be reused between grep and kill only if all others were, within milliseconds.)
# One process that is stuck in the kernel may hold up who reads its environment: then each is read by a grep of its own.
# One that has ended waits for its parent only (State: Z). One that is just beginning another program shows no environment, and
# is found a moment later.
# $0: whose processes. Of a setuid program the first of the numbers is who has started it. $1: limits, or a variable's name.
_SHELL = """trap '' HUP INT QUIT TERM USR1 USR2
read -r mark || exit
ours() {
    while read -r word uid _; do
        [ "$word$uid" != State:Z ] || return
        [ "$word" != Uid: ] || { [ "$uid" = "$0" ]; return; }
    done
    false
}
if [ "$1" = limits ]; then
    file=limits how=-lsE is="^Max file locks +$mark "
else
    file=environ how=-lszE is="^$1=.*$mark"
fi
found() {
    printf '%s\\n' "$is" | LC_ALL=C grep $how -f - "$@"
}
command -v timeout >/dev/null || timeout() { shift; "$@"; }
look() {
    all=$({ { found /proc/[0-9]*/$file; echo .; } & } | timeout 2 cat)
    [ "${all%.}" != "$all" ] || all=$({ for one in /proc/[0-9]*/$file; do found "$one" & done; } | timeout 2 cat)
    left=
    for one in ${all%.}; do
        one=${one#/proc/} one=${one%/*}
        { ours </proc/$one/status; } 2>/dev/null && left="$left $one"
    done
}
group=$2
gather() {
    for one in "$@"; do
        { echo "$one" >"$group/cgroup.procs"; } 2>/dev/null
        gather $(cat /proc/"$one"/task/*/children 2>/dev/null)
    done
}
[ -z "$group" ] || for first in $(cat /proc/$PPID/task/*/children); do [ "$first" = $$ ] || gather "$first"; done
read -r _ && exit
[ -z "$group" ] || { echo 1 >"$group/cgroup.kill"; } 2>/dev/null
n=0 none=0
while [ $n -lt 50 ] && [ $none -lt 2 ]; do
    look
    n=$((n + 1)) none=$((none + 1))
    [ "$left" ] && kill -9 $left 2>/dev/null && none=0
    [ $none = 0 ] || { [ $file = limits ] && break; sleep 0.1; }
done
[ -z "$group" ] || until rmdir "$group" 2>/dev/null || [ $n -gt 99 ]; do n=$((n + 1)); sleep 0.1; done"""


# The watch over a process that is not ours is not its child either: it may wait for any of its children.
_AWAY = """/bin/sh -c "$2" "$0" "$1" <&3 3<&- &"""


class LastWatch:
    """Made before guardian and agent part; each then says what it does for it."""

    def __init__(self, mark: str = "", variable: str = VARIABLE) -> None:
        """`mark`: what the processes have in `variable` already; empty: one is made, and given by `over_us`."""
        self.mark = mark or str(int.from_bytes(os.urandom(8), "little") % _BELOW + _BELOW)
        self.file = variable if mark or not _can_limit(int(self.mark)) else "limits"  # Where the shell finds the mark.
        self.pid: int | None = None  # The shell's, once the guardian has started it.
        self.group = ""  # The control group that it gathers all in. Empty: none may be made.
        self._reader, self._held = os.pipe()  # its end: nobody that holds the second one lives; after the mark, a line: `end`

    def over_us(self, environ: MutableMapping[str, str]) -> None:
        """In the agent: whatever is started from now on carries the mark, in `environ` if that is the only way."""
        os.close(self._reader)
        if self.file == "limits":
            resource.setrlimit(_LOCKS, (int(self.mark), resource.getrlimit(_LOCKS)[1]))
        else:
            environ[VARIABLE] = f"{environ.get(VARIABLE, '')}/{self.mark}"

    def begin(self) -> None:
        """In the guardian: start the shell. It ends when the guardian kills what is below it, which it is."""
        self.group = _new_group()
        self.pid = self._start(["/bin/sh", "-c", _SHELL], 0, self.group)

    def begin_away(self) -> None:
        """Where there is no guardian: start the shell over this process, but not as its child. `end` ends it."""
        if (starter := self._start(["/bin/sh", "-c", _AWAY], 3, _SHELL)) is not None:
            os.waitpid(starter, 0)

    def clear(self) -> None:
        """In the guardian, at the end, when nothing is left below it."""
        if self.group:
            with suppress(OSError):  # a process that the kernel holds, or the shell has been faster
                os.rmdir(self.group)

    def end(self) -> None:
        """Nothing is left to be watched: the shell leaves without a look."""
        with suppress(BrokenPipeError):  # there is no shell
            os.write(self._held, b"\n")
        os.close(self._held)

    def _start(self, argv: list[str], reader_as: int, *more: str) -> int | None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.write(self._held, f"{self.mark}\n".encode())
        argv += [str(os.getuid()), self.file, *more]
        try:
            env, inherit = without_secrets(os.environ), {reader_as: self._reader}
            shell = process.spawn(argv, env, stdin=null, stdout=null, stderr=null, inherit=inherit)
            shell.close()
            return shell.pid
        except StartError:
            return None  # no shell, or no more processes allowed
        finally:
            os.close(null)
            os.close(self._reader)


def _can_limit(mark: int) -> bool:
    """Whether this process may have that limit, and others can see it."""
    try:
        hard = resource.getrlimit(_LOCKS)[1]
    except (ValueError, OSError):
        return False
    return (hard == resource.RLIM_INFINITY or hard >= mark) and os.access("/proc/self/limits", os.R_OK)


def _new_group() -> str:
    """A control group below the one that we are in, if that has been delegated to us: we own it, or systemd says so.
    Empty: it has not, or has no cgroup.kill (Linux 5.14)."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            own = next(line[3:].rstrip("\n") for line in file if line.startswith("0::"))
    except (OSError, StopIteration):
        return ""
    for top in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        if os.access(f"{top}{own}/cgroup.procs", os.W_OK) and os.path.exists(f"{top}{own}/cgroup.kill"):
            group = f"{top}{own}/guarded-{os.getpid()}"  # a name that nobody kills by
            with suppress(OSError):
                if not _is_delegated(f"{top}{own}"):
                    return ""
                os.mkdir(group)
                return group
    return ""


def _is_delegated(group: str) -> bool:
    if (owner := os.stat(group).st_uid) and owner == os.geteuid():
        return True
    return any(name in ("trusted.delegate", "user.delegate") for name in os.listxattr(group))
