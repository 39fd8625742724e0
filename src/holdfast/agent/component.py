"""The base class of an agent's components, and when the agent's loop calls each method.

A part stands beside the agent's machines: the workers, the control socket, the monitor, warm spares, … The agent's loop knows
no part by name. It tells each of them what happens, and wakes up when the first wants to be called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.agent.group.messages import Started
from holdfast.core.job.events import Event
from holdfast.core.machine import NEVER, Observation
from holdfast.core.wire.messages import Assigned


class Timed(Protocol):
    """What has something to do at moments of its own."""

    def deadline(self) -> float:
        """When to call `due` (monotonic); NEVER: there is nothing."""

    def due(self) -> list[Observation]:
        """Do what is due, if anything. Returns what came of it."""


class Component:
    """One part. It says only what concerns it: by default nothing happens."""

    def first(self) -> list[Observation]:
        """The agent is about to ask for its first round. Returns what the group has to know before."""
        return []

    def settle(self) -> list[Observation]:
        """The first workers have had the processors to themselves: do what was put off for their sake."""
        return []

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        """A round's workers have been started; `started` says what became of each."""
        return []

    def saw(self, seen: Observation) -> None:
        """This host saw something."""

    def recorded(self, event: Event, at_unix: float) -> None:
        """An event of this node was recorded."""

    def end_turn(self) -> None:
        """The loop has done all that was due."""

    def deadline(self) -> float:
        """When to call `due` (monotonic); NEVER: there is nothing."""
        return NEVER

    def due(self) -> list[Observation]:
        """Do what is due, if anything. Returns what came of it."""
        return []

    def close(self) -> None:
        """The agent ends: leave nothing behind."""


def pids_of(started: Sequence[Observation]) -> set[int]:
    """The workers that could be started, of what `begin_round` is told."""
    return {seen.pid for seen in started if isinstance(seen, Started)}
