"""Who kills what is left behind when guardian and agent are killed in one moment?

A shell, which sleeps in `read` on a pipe that both of them hold: the pipe ends when the last of the two does. It is nobody's
parent and finds nothing by a tree of processes, which is gone by then. It goes by a mark that the agent gives all that it
starts: Python workers have asked the kernel to die with the agent, but what they have started has not.

The mark is a limit that means nothing: that of file locks, which Linux has not looked at since 2.4.25. It is inherited by every
descendant, through setsid, exec and an emptied environment, and /proc/<pid>/limits shows it without a look into the memory of
the process, which may be locked. Where it cannot be set, the mark is a variable in the environment.

A shell, as a third Python would take 10 MB, and as a user who kills by name (`pkill -9 -f holdfast`, `killall -9 python3`)
must not mean it: its command line has neither word. Where there is no /bin/sh or no grep, nothing is lost but this.

Over a user's own process that holds workers (`holdfast.elastic`), where there is no guardian, the same shell watches alone, and
goes by the environment.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress

from holdfast.core.errors import StartError
from holdfast.runtime.process import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE = "HOLDFAST_GUARDED"  # Marks of all agents above a process, where no limit can be the mark.

_LOCKS = 10  # RLIMIT_LOCKS, the same on every architecture; Python has no name for it.
_MOST_PIDS = 10_000_000  # The kernel's own limit is 4,194,304.

# Schedulers signal every process of a step. Looks again for what was being started meanwhile.
# (A pid could be reused between grep and kill only if all others were, within milliseconds.)
_SHELL = """trap '' HUP INT QUIT TERM USR1 USR2
read _ && exit
n=0
while [ $n -lt 50 ]; do
    left=$(LC_ALL=C grep -lsF -e "$0" /proc/[0-9]*/"$1")
    [ "$left" ] || exit 0
    for one in $left; do one=${one#/proc/}; kill -9 "${one%/*}"; done
    n=$((n + 1))
done"""


# The watch over a process that is not ours is not its child either: it may wait for any of its children.
_AWAY = """/bin/sh -c "$1" "$0" environ <&3 3<&- &"""


class LastWatch:
    """Made before guardian and agent part; each then says what it does for it."""

    def __init__(self, mark: str = "") -> None:
        self.mark = mark or str(time.time_ns() // _MOST_PIDS * _MOST_PIDS + os.getpid())
        self.file = "environ" if mark or not _can_limit(int(self.mark)) else "limits"  # Where the shell finds the mark.
        self.pid: int | None = None  # The shell's, once the guardian has started it.
        self._reader, self._held = os.pipe()  # its end: nobody that holds the second one lives; a line: `end`

    def over_us(self, environ: MutableMapping[str, str]) -> None:
        """In the agent: whatever is started from now on carries the mark, in `environ` if that is the only way."""
        os.close(self._reader)
        if self.file == "limits":
            resource.setrlimit(_LOCKS, (int(self.mark), resource.getrlimit(_LOCKS)[1]))
        else:
            environ[VARIABLE] = f"{environ.get(VARIABLE, '')}/{self.mark}"

    def begin(self) -> None:
        """In the guardian: start the shell. It ends when the guardian kills what is below it, which it is."""
        self.pid = self._start(["/bin/sh", "-c", _SHELL, self.mark, self.file], 0)

    def begin_away(self) -> None:
        """Where there is no guardian: start the shell over this process, but not as its child. `end` ends it."""
        if (starter := self._start(["/bin/sh", "-c", _AWAY, self.mark, _SHELL], 3)) is not None:
            os.waitpid(starter, 0)

    def end(self) -> None:
        """Nothing is left to be watched: the shell leaves without a look."""
        with suppress(BrokenPipeError):  # there is no shell
            os.write(self._held, b"\n")
        os.close(self._held)

    def _start(self, argv: list[str], reader_as: int) -> int | None:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            shell = process.spawn(argv, os.environ, stdin=null, stdout=null, stderr=null, inherit={reader_as: self._reader})
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
