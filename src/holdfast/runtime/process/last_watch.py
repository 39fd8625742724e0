"""Who kills what is left behind when guardian and agent are killed in one moment?

A shell, which sleeps in `read` on a pipe that both of them hold: the pipe ends when the last of the two does. It is nobody's
parent and finds nothing by a tree of processes, which is gone by then. It goes by a mark in the environment, as Python workers
have asked the kernel to die with the agent, but what they have started has not.

A shell, as a third Python would take 10 MB, and as a user who kills by name (`pkill -9 -f holdfast`, `killall -9 python3`)
must not mean it: its command line has neither word. Where there is no /bin/sh or no grep, nothing is lost but this.

Over a user's own process that holds workers (`holdfast.elastic`), where there is no guardian, the same shell watches alone.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from holdfast.core.errors import StartError
from holdfast.runtime.process import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE = "HOLDFAST_GUARDED"  # Marks of all agents above a process. Whatever carries ours is killed with us.

# Schedulers signal every process of a step. Looks again for what was being started meanwhile; a dead one has no environment.
# (A pid could be reused between grep and kill only if all others were, within milliseconds.)
_SHELL = """trap '' HUP INT QUIT TERM USR1 USR2
read _ && exit
n=0
while [ $n -lt 50 ]; do
    left=$(LC_ALL=C grep -lsF -e "$0" /proc/[0-9]*/environ)
    [ "$left" ] || exit 0
    for one in $left; do one=${one#/proc/}; kill -9 "${one%/*}"; done
    n=$((n + 1))
done"""


# The watch over a process that is not ours is not its child either: it may wait for any of its children.
_AWAY = """/bin/sh -c "$1" "$0" <&3 3<&- &"""


class LastWatch:
    """Made before guardian and agent part; each then says what it does for it."""

    def __init__(self, mark: str = "") -> None:
        self.mark = mark or f"/{os.getpid()}-{time.time_ns()}/"
        self.pid: int | None = None  # The shell's, once the guardian has started it.
        self._reader, self._held = os.pipe()  # its end: nobody that holds the second one lives; a line: `end`

    def over_us(self, environ: MutableMapping[str, str]) -> None:
        """In the agent: whatever is started from now on with `environ` carries the mark."""
        os.close(self._reader)
        environ[VARIABLE] = environ.get(VARIABLE, "") + self.mark

    def begin(self) -> None:
        """In the guardian: start the shell. It ends when the guardian kills what is below it, which it is."""
        self.pid = self._start(["/bin/sh", "-c", _SHELL, self.mark], 0)

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
