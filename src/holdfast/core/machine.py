"""How every decision is taken: what a machine is, and the words that cross its border.

    observation ──▶ machine ──▶ actions ──▶ driver ──▶ World

A machine is a plain object with `observe(seen, now) -> list[Action]` and `deadline() -> float`. It reads no clock, does
no I/O, draws no random number and writes no log: time is an argument, and a timeout is part of its state, not a timer.
A driver feeds it, wakes it at its deadline with a `Tick`, and performs its actions on a World: this host, or the
simulator. Link and process numbers are chosen by the machine that asks for them, so that a machine can name what it started.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.job.events import Event
from holdfast.core.value import Value

NEVER = float("inf")  # The deadline of a machine that waits for no time to pass.


class Observation(Value):
    """Something that a machine is shown."""


class Action(Value):
    """Something that a machine wants done."""


class Machine(Protocol):
    """See the module's text."""

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """Take in what was seen at `now` (monotonic seconds); return what to do, in order."""

    def deadline(self) -> float:
        """When to observe a `Tick` though nothing else happens; `NEVER` if at no time."""


class Tick(Observation):
    """The deadline has come."""


class Signalled(Observation):
    """This process was sent a signal."""

    signum: int


class Record(Action):
    """Write an event into the job's record."""

    event: Event
    life: tuple[int, int] = (0, 0)  # Round and attempt that it is about, if newer than the workers'.
    at_unix: float | None = None  # When it happened. None: when it was decided.


class Say(Action):
    """Print one line for a person."""

    text: str
    level: str = "info"  # debug · info · warning · error
