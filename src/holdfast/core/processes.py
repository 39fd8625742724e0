"""The words for a process's end, and for what it says to its agent, as a World reports them."""

from __future__ import annotations

from holdfast.core.job.events import ControlKind
from holdfast.core.machine import Observation
from holdfast.core.page.signs import Moments
from holdfast.core.value import Value


class LastSigns(Value):
    """What a process has shown of its own end."""

    words: str = ""  # The exception that ended its script: type and text in one line. Empty: none has, as far as is known.
    line: str = ""  # What it wrote to stderr last, where its interpreter ends without an exception.
    ending: bool = False  # Its interpreter has begun to end in good order.
    booted: bool = False  # It is, or was, a Python that ran our bootstrap.
    became: str = ""  # The program that it has become by exec. Empty: it has not.


class ProcessEnding(Observation):
    """A process's interpreter has begun to end in good order, with a code that is not known yet: its script is over."""

    pid: int


class ProcessDying(Observation):
    """A process is dead, though the kernel still frees its memory (0.1-0.2 s per GB)."""

    pid: int
    exitcode: int
    last: LastSigns = LastSigns()


class ProcessErred(Observation):
    """An uncaught exception has ended a process's main thread, and its record is on disk: it will exit with 1."""

    pid: int
    last: LastSigns = LastSigns()


class ProcessGone(Observation):
    """A process has been reaped."""

    pid: int
    exitcode: int  # As `Popen.returncode`: negative for a signal.
    step: int | None = None  # The last step that it had reported. None: it reported none.
    step_told: bool = False  # The script said so itself: it is the job's step, not this process's.
    moments: Moments | None = None  # None: it had no page.
    last: LastSigns = LastSigns()
    stack: str = ""
    """Where its main thread was when it was asked to end, in faulthandler's words. Empty: it was not asked, or has not told."""


class ProcessAsked(Observation):
    """A process asks something of its job."""

    pid: int
    kind: ControlKind
    reason: str


class ProcessLives(Observation):
    """A process can begin another round in place, or no longer, or has let go of its round."""

    pid: int
    in_place: bool
    let_go: bool = False


class ProcessCalculated(Observation):
    """A process has calculated limits for itself and its like."""

    pid: int
    limits_s: dict[str, float]  # By kind of silence (`core.page.silences`).
