"""Which signals are the script's, and when does it get them? Whatever else comes is for the agent (`agent.group.machine`)."""

from __future__ import annotations

from holdfast.core.machine import NEVER
from holdfast.core.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to the script, not to us (Slurm's notice of pre-emption, for one), unless the user has named
them in --signals-to-handle."""

HELD_S = 0.2
"""How long to wait for a signal's echo where a scheduler signals whole steps: the workers then have it already, and would see
it twice. Both come within milliseconds; without an echo it was meant for us alone, and is passed on."""


class ForScript:
    """The signals of a script whose agent takes `stop_signals` for itself."""

    def __init__(self, stop_signals: Sequence[int], *, echoing: bool) -> None:
        self.signums = tuple(signum for signum in PASSED_ON if signum not in stop_signals)
        self.echoing = echoing
        """We are in a step of Slurm's, which may signal every process in it."""
        self.held: dict[int, float] = {}
        """Signal to be passed on → when, if no echo comes before."""

    def came(self, signum: int, now: float) -> tuple[int, ...]:
        """One of them has reached the agent: what to pass on at once."""
        if not self.echoing:
            return (signum,)
        if self.held.pop(signum, None) is None:
            self.held[signum] = now + HELD_S
        return ()

    def due(self, now: float) -> tuple[int, ...]:
        """What no echo has come of: to be passed on now, once."""
        due = tuple(signum for signum, until in self.held.items() if now >= until)
        for signum in due:
            del self.held[signum]
        return due

    def deadline(self) -> float:
        """When the first one is due."""
        return min(self.held.values(), default=NEVER)
