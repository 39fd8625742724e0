"""What does the monitor know? The state of `monitor.machine`: one value, which each step replaces.

no ranks ──a rank starts──▶ watching ──a learned limit runs out──▶ suspecting ──all ranks stand still──▶ asking GPUs
                                ▲                                   │      ▲                                │     │
                                └────────it is silent no longer─────┘      └─────────────they work──────────┘     ▼
                                                                                     the suspect hangs ◀──── still
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER, Action
from holdfast.core.value import Value, replace
from holdfast.monitor.glimpse import Glimpse
from holdfast.monitor.limits import Learned, Limits
from holdfast.monitor.silence import Silence
from holdfast.monitor.stillness import TRACED, Stillness
from holdfast.monitor.stragglers import Stragglers

INFORM_S = 60.0
"""Seconds between two reports to the coordinator: one small message per node. A thousand nodes make some twenty a second."""

GLANCE_S, SHORTEST_S = 2.0, 0.05
"""Seconds between two looks at all pages: a limit that a script sets itself is in force after that time at the latest, and gaps
between heartbeats are known that well. Of a limit that is shorter than four of them it is a quarter, so that most of a pause of
our own within that limit is seen; but no page is read more often than each SHORTEST_S."""

DEBUGGER = "debugger"  # The section in which a rank is while pdb or another prompt waits for somebody's words (`client.hooks`).


class Phase(StrEnum):
    """Where the monitor is."""

    NO_RANKS = "no ranks"
    WATCHING = "watching"  # By the clock alone: nobody is suspected.
    SUSPECTING = "suspecting"  # A rank has exceeded a learned limit: all ranks are measured.
    ASKING = "asking GPUs"  # All ranks stand still.
    STILL = "still"  # And no GPU works, as far as anybody can tell.


class Doubt(Value):
    """A silence for which a rank seems to hang. A look that begins later decides: it may have shown something meanwhile."""

    kind: str
    since: float
    how: str = ""  # What else shows it. Empty: nothing, its limit has run out whatever it does.

    def is_of(self, silence: Silence) -> bool:
        return (self.kind, self.since) == (silence.kind, silence.since)


class Rank(Value):
    """What is known of one rank."""

    local_rank: int
    rank: int
    started_at: float
    glimpse: Glimpse  # The last look.
    look_at: float = NEVER  # When one of its limits could run out; NEVER: it is being looked at, or has none.
    suspected: Silence | None = None  # The silence for which it is suspected. None: it is not.
    doubted: Doubt | None = None  # What it seems to hang for, until the next look. None: nothing.
    stillness: Stillness = Stillness()
    overdue: str = ""  # What it was found to hang for. Empty: it was not, so far.

    def stood_still(self, since: float, now: float) -> bool:
        """It has stood still since then for as long as a suspect must."""
        return self.suspected is not None and now - since >= self.suspected.bound.still_s

    @property
    def is_debugged(self) -> bool:
        """Somebody looks into it, from inside or outside."""
        last = self.stillness.last
        return (last is not None and last.state == TRACED) or any(one.name == DEBUGGER for one in self.glimpse.open_sections)


class State(Value):
    """All that the machine knows. First what the user has chosen, and what outlives a round."""

    ft: FaultTolerance
    node: str = ""
    inform_s: float = INFORM_S
    learned: Learned = Learned()
    recorded: dict[str, float] = {}  # noqa: RUF012
    """The learned limits that were recorded last, by kind of silence."""
    noticed: bool = False  # The user was told that no rank gives a sign of life.

    phase: Phase = Phase.NO_RANKS
    ranks: dict[int, Rank] = {}  # noqa: RUF012
    """By local rank."""
    stragglers: Stragglers = Stragglers()
    pauses: tuple[tuple[float, float], ...] = ()  # When we were not there: beginning and end.
    played_until: float = -NEVER  # Until then a fault was played for practice: silences that began before it teach nothing.
    glance_s: float = GLANCE_S
    glance_at: float = NEVER
    measure_at: float = NEVER
    waits_until: float = -NEVER  # Until then a node that stands still waits for another one's ranks, which work.
    inform_at: float = NEVER
    notice_at: float = NEVER
    busy_at: float = -NEVER  # When the coordinator is told again that a rank here works in silence.

    @property
    def limits(self) -> Limits:
        return Limits(ft=self.ft, learned=self.learned)

    @property
    def suspects(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.suspected is not None]

    @property
    def looks_at(self) -> float:
        return min(self.glance_at, self.measure_at, *(rank.look_at for rank in self.ranks.values()))

    def deadline(self) -> float:
        """When a `Tick` has something to do."""
        return min(self.looks_at, self.stragglers.judge_at, self.inform_at, self.notice_at)

    def silent_s(self, since: float, now: float) -> float:
        """Seconds from then to now in which we were there."""
        return now - since - sum(end - max(begin, since) for begin, end in self.pauses if end > since)


Step: TypeAlias = tuple[State, list[Action]]  # What follows from one observation.


def with_rank(state: State, rank: Rank) -> State:
    """This is known of a rank now."""
    return replace(state, ranks={**state.ranks, rank.local_rank: rank})


def with_stillness(state: State, stillness: dict[int, Stillness]) -> State:
    """This is known of what ranks do, by local rank."""
    ranks = {i: replace(rank, stillness=stillness[i]) if i in stillness else rank for i, rank in state.ranks.items()}
    return replace(state, ranks=ranks)
