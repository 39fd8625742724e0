"""When is a rank late, gone, or its neighbour silent, and what is done about it? A pure machine, in the rank's monitor process.

idle ──Began──▶ watched ──late──▶ (soft: the life is cut short) ──later──▶ (hard: the rank is ended)
  ▲                │ Left: time begins anew, for the stages after the function
  └────Waiting─────┘  nobody is late who waits for the others: barriers have their own limits
"""

from __future__ import annotations

import dataclasses

from holdfast.inprocess.attribution import Interruption

NEVER = float("inf")


@dataclasses.dataclass(frozen=True)
class Limits:
    """In seconds."""

    soft_s: float
    hard_s: float
    heartbeat_s: float  # How often this monitor says that it lives.
    silent_s: float  # After so long a neighbour that has not said so is given up.


@dataclasses.dataclass(frozen=True)
class Began:
    """The rank begins a life: `rank` of `world_size`."""

    rank: int
    world_size: int


@dataclasses.dataclass(frozen=True)
class Left:
    """It is out of the function: time begins anew, for the stages that follow."""


@dataclasses.dataclass(frozen=True)
class Waiting:
    """It is done with this life, and waits for the others."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """When it last ran Python, and when its function last said that it makes progress."""

    auto: float
    manual: float | None


@dataclasses.dataclass(frozen=True)
class Protection:
    """Whether it may be late."""

    on: bool


@dataclasses.dataclass(frozen=True)
class Gone:
    """Its process has ended."""


@dataclasses.dataclass(frozen=True)
class Heard:
    """What the neighbour last said, as it stands in the store; None: nothing yet."""

    heartbeat: float | None


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time goes by."""


Seen = Began | Left | Waiting | Progress | Protection | Gone | Heard | Tick


@dataclasses.dataclass(frozen=True)
class Interrupt:
    """Cut the life short, since this has happened to `rank`."""

    rank: int
    why: Interruption


@dataclasses.dataclass(frozen=True)
class EndRank:
    """SIGTERM, then SIGKILL."""


@dataclasses.dataclass(frozen=True)
class StandIn:
    """Go through the restart in the place of `rank`, which is not of the next life."""

    rank: int


@dataclasses.dataclass(frozen=True)
class Beat:
    """Say that this monitor lives, and look what the neighbour has said."""

    rank: int
    neighbour: int | None  # None: there is no other.


Action = Interrupt | EndRank | StandIn | Beat


class Watch:
    """One rank's. `observe` is shown what is seen, and returns what is to be done."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.life: Began | None = None
        self.is_watched = False  # It may be late.
        self.is_protected = True
        self.since = self.progress_at = NEVER  # When its time began; when it last made progress.
        self.is_soft = self.is_hard = self.is_gone = False  # Said already.
        self.beat_at = NEVER
        self.heartbeat: float | None = None  # The neighbour's last, and since when.
        self.heard_at = NEVER
        self.is_given_up = False

    def observe(self, seen: Seen, now: float) -> list[Action]:
        """What is to be done about `seen`."""
        match seen:
            case Began():
                self.life, self.is_watched = seen, True
                self.since = self.progress_at = now
                self.is_soft = self.is_hard = self.is_given_up = False
                self.beat_at, self.heartbeat, self.heard_at = now, None, now
            case Left():
                self.since = self.progress_at = now
                self.is_soft = False
            case Waiting():
                self.is_watched = False
            case Protection(on=on):
                self.is_protected = on
                self.since = self.progress_at = now
            case Progress(auto=auto, manual=manual) if not self.is_soft:
                self.progress_at = max(self.since, auto if manual is None else min(auto, manual))
            case Gone() if not self.is_gone:
                return self._gone()
            case Heard(heartbeat=heartbeat) if heartbeat != self.heartbeat:
                self.heartbeat, self.heard_at = heartbeat, now
        return [*self._late(now), *self._beat(now), *self._silent(now)]

    def deadline(self) -> float:
        """When there is something to be done, if nothing is seen before."""
        limit = self.limits.hard_s if self.is_soft else self.limits.soft_s
        late_at = self.progress_at + limit if self._may_be_late() else NEVER
        return min(late_at, self.beat_at)

    def _may_be_late(self) -> bool:
        return self.is_watched and self.is_protected and not self.is_hard and not self.is_gone

    def _late(self, now: float) -> list[Action]:
        if self.life is None or not self._may_be_late():
            return []
        late_s, actions = now - self.progress_at, list[Action]()
        if late_s >= self.limits.soft_s and not self.is_soft:
            self.is_soft = True
            actions.append(Interrupt(self.life.rank, Interruption.SOFT_TIMEOUT))
        if late_s >= self.limits.hard_s:
            self.is_hard = True
            actions += [Interrupt(self.life.rank, Interruption.HARD_TIMEOUT), EndRank()]
        return actions

    def _gone(self) -> list[Action]:
        self.is_gone = True
        if self.life is None:
            return []
        return [Interrupt(self.life.rank, Interruption.TERMINATED), StandIn(self.life.rank)]

    def _beat(self, now: float) -> list[Action]:
        if self.life is None or now < self.beat_at:
            return []
        self.beat_at = now + self.limits.heartbeat_s
        return [Beat(self.life.rank, self._neighbour())]

    def _silent(self, now: float) -> list[Action]:
        neighbour = self._neighbour()
        if neighbour is None or self.is_given_up or now - self.heard_at < self.limits.silent_s:
            return []
        self.is_given_up = True
        return [Interrupt(neighbour, Interruption.UNRESPONSIVE), StandIn(neighbour)]

    def _neighbour(self) -> int | None:
        if self.life is None or self.life.world_size < 2 or self.is_gone:
            return None
        return (self.life.rank + 1) % self.life.world_size
