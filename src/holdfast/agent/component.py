"""The base class of an agent's components, and when the agent's loop calls each method.

A part stands beside the agent's machines: the workers, the control socket, the monitor, warm spares, … The agent's loop knows
no part by name. It tells each of them what concerns it, and wakes up when the first wants to be called. A part that has one of
the methods of `Timed`, `PerRound` and `PerTurn` is asked by it; no other is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from holdfast.core.job.events import Event
from holdfast.core.machine import Observation
from holdfast.core.wire.messages import Assigned


class Component:
    """One part. It says only what concerns it: by default nothing happens."""

    sees: tuple[type[Observation], ...] = ()  # What `saw` is told of.
    notes: tuple[type[Event], ...] = ()  # What `recorded` is told of.

    def first(self) -> list[Observation]:
        """The agent is about to ask for its first round. Returns what the group has to know before."""
        return []

    def settle(self) -> list[Observation]:
        """The first workers have had the processors to themselves: do what was put off for their sake."""
        return []

    def saw(self, seen: Observation) -> None:
        """This host saw something."""

    def recorded(self, event: Event, at_unix: float) -> None:
        """An event of this node was recorded."""

    def close(self) -> None:
        """The agent ends: leave nothing behind."""


@runtime_checkable
class Timed(Protocol):
    """What has something to do at moments of its own."""

    @property
    def due_at(self) -> float:
        """When to call `due` (monotonic); NEVER: there is nothing."""

    def due(self) -> Iterable[Observation]:
        """Do what is due. Returns what came of it."""


@runtime_checkable
class PerRound(Protocol):
    """What has something to do in each round."""

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        """A round's workers have been started; `started` says what became of each."""


@runtime_checkable
class PerTurn(Protocol):
    """What has something to do in each turn of the agent's loop."""

    def end_turn(self) -> None:
        """The loop has done all that was due."""
