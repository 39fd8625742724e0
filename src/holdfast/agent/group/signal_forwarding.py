"""Which signals are the script's, and when does it get them? All others are for the agent (`agent.group.shutdown`)."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.machine import NEVER
from holdfast.core.signals import signal
from holdfast.core.value import Value, replace

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that mean something to the script, not to us (Slurm's notice of pre-emption, for one), unless the user has named
them in --signals-to-handle."""

HELD_S = 0.2
"""How long to wait for a signal's echo where a scheduler signals whole steps: the workers then have it already, and would see
it twice. Both come within milliseconds; without an echo the signal was for the agent alone, and is passed on."""


class ScriptSignals(Value):
    """The signals of a script."""

    signums: tuple[int, ...] = PASSED_ON
    echoing: bool = False  # We are in a Slurm step, where every process may be signalled.
    held: dict[int, float] = {}  # noqa: RUF012
    """Signal that waits for its echo → when it is passed on without one."""

    def came(self, signum: int, now: float) -> tuple[ScriptSignals, tuple[int, ...]]:
        """One of them has reached the agent. Returns what to pass on at once."""
        if not self.echoing:
            return self, (signum,)
        held = {other: until for other, until in self.held.items() if other != signum}
        return replace(self, held=held if signum in self.held else {**held, signum: now + HELD_S}), ()

    def due(self, now: float) -> tuple[ScriptSignals, tuple[int, ...]]:
        """Pass on those whose echo has not come, once."""
        left = {signum: until for signum, until in self.held.items() if now < until}
        return replace(self, held=left), tuple(signum for signum in self.held if signum not in left)

    def deadline(self) -> float:
        """When the first one is due."""
        return min(self.held.values(), default=NEVER)


def of_script(stop_signals: Sequence[int], *, echoing: bool) -> ScriptSignals:
    """All that the agent does not take for itself."""
    return ScriptSignals(signums=tuple(signum for signum in PASSED_ON if signum not in stop_signals), echoing=echoing)
