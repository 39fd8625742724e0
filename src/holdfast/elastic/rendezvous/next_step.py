"""What does a node of a dynamic rendezvous do next, to join, leave, close it, or stay alive in it?

Pure: `next_step` gets the shared state, what this node has seen of it, and the time of this node's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from . import shared_state
from .api import RendezvousClosedError, RendezvousError, RendezvousGracefulExitError, RendezvousTimeoutError
from .backend import RendezvousSettings
from .shared_state import Node, Phase, Place, Shared

ROLLBACK_S = 5.0
"""How long after its deadline a node still tries to take itself out. After that its lease runs out anyway."""


class Wish(Enum):
    """What a node wants of the rendezvous."""

    LEAVE = "leave the last round"
    JOIN = "join a round"
    STAY = "stay alive in it"
    CLOSE = "close it"


class Write(NamedTuple):
    """Write this state, unless another node was faster. `renews`: the deadline begins anew."""

    shared: Shared
    what: str
    renews: bool = False


class Wait(NamedTuple):
    """Look again in a moment."""


class Done(NamedTuple):
    """The wish is fulfilled."""


class Fail(NamedTuple):
    """The wish cannot be fulfilled."""

    error: RendezvousError


Step = Write | Wait | Done | Fail


class Known(NamedTuple):
    """A number in the shared state, and since when this node has seen it there (monotonic)."""

    number: int
    since: float


def _known(before: Known | None, number: int, now: float) -> Known:
    return before if before is not None and before.number == number else Known(number, now)


@dataclass(frozen=True, slots=True)
class Sightings:
    """Since when this node has seen each heartbeat, and the last call, by its own clock."""

    beats: Mapping[Node, Known] = field(default_factory=dict)
    last_call: Known | None = None

    def after(self, shared: Shared, now: float) -> Sightings:
        """What is known once the node has seen `shared`."""
        beats = {node: _known(self.beats.get(node), member.beat, now) for node, member in shared.members.items()}
        return Sightings(beats, _known(self.last_call, shared.last_call, now))

    def silent(self, lease_s: float, now: float) -> list[Node]:
        """The nodes without a new heartbeat for `lease_s` seconds."""
        return [node for node, beat in self.beats.items() if now - beat.since > lease_s]


class Situation(NamedTuple):
    """Who asks, the settings, what is shared, and what the node has seen of it."""

    node: Node
    settings: RendezvousSettings
    shared: Shared
    seen: Sightings

    @property
    def place(self) -> Place | None:
        """Where the node is; None: not in the rendezvous."""
        member = self.shared.members.get(self.node)
        return None if member is None else member.place

    @property
    def seat_is_free(self) -> bool:
        """Whether the round has fewer nodes than it may have."""
        return len(self.shared.nodes(Place.SEATED)) < self.settings.max_nodes

    def last_call_is_over(self, now: float) -> bool:
        """Whether the round has had enough nodes for long enough."""
        began, longest_s = self.seen.last_call, self.settings.timeout.last_call.total_seconds()
        enough = len(self.shared.nodes(Place.SEATED)) >= self.settings.min_nodes
        return enough and began is not None and now - began.since > longest_s

    def beat_is_due(self, now: float) -> bool:
        """Whether the node's last heartbeat is an interval old. A node outside the rendezvous has none."""
        last = self.seen.beats.get(self.node)
        return last is not None and now - last.since >= self.settings.keep_alive_interval.total_seconds()


def next_step(wish: Wish, at: Situation, deadline: float, now: float) -> Step:
    """The next step towards `wish`, which must be fulfilled at `deadline` (monotonic)."""
    match wish:
        case Wish.JOIN:
            return _join(at, deadline, now)
        case Wish.LEAVE if at.place is not Place.SEATED:
            return Done()
        case Wish.STAY if not at.beat_is_due(now):
            return Done()
        case Wish.CLOSE if at.shared.phase is Phase.CLOSED:
            return Done()
    if now > deadline:
        return _too_late(at)
    match wish:
        case Wish.LEAVE:
            return _leave(at)
        case Wish.STAY:
            return _beat(at)
        case Wish.CLOSE:
            return Write(shared_state.close(at.shared), "closed the rendezvous")


def _join(at: Situation, deadline: float, now: float) -> Step:
    match at.shared.phase, at.place:
        case Phase.CLOSED, Place.SPARE:
            ended = f"The job '{at.settings.run_id}' ended while this node waited for a seat in its rendezvous."
            return Fail(RendezvousGracefulExitError(ended))
        case Phase.CLOSED, _:
            return Fail(RendezvousClosedError(f"The rendezvous '{at.settings.run_id}' is closed: the job is over."))
        case _, Place.SPARE if at.seat_is_free:
            gone = shared_state.without(at.shared, [at.node])
            return Write(gone, "no longer waits for a free seat", renews=True)
        case _, Place.SPARE:  # without a deadline: a spare node waits as long as the job runs
            return _wait(at, now)
        case Phase.COMPLETE, Place.SEATED:
            return Done()
        case _ if now > deadline:
            return _give_up(at, now - deadline)
        case Phase.COMPLETE, Place.WAITING | None if not at.seat_is_free:  # waiting on would call the whole round off again
            return Write(shared_state.placed(at.shared, at.node, Place.SPARE), "waits for a free seat")
        case Phase.COMPLETE, None:
            waits = shared_state.placed(at.shared, at.node, Place.WAITING)
            return Write(waits, f"waits for round {at.shared.round + 1}")
        case Phase.GATHERING, Place.SEATED if at.last_call_is_over(now):
            return Write(shared_state.complete(at.shared), f"completed round {at.shared.round}")
        case Phase.GATHERING, Place.WAITING | None:
            seated = shared_state.take_seat(at.shared, at.node, at.settings.min_nodes, at.settings.max_nodes)
            return Write(seated, f"took a seat in round {at.shared.round}")
    return _wait(at, now)


def _wait(at: Situation, now: float) -> Step:
    return _beat(at) if at.beat_is_due(now) else Wait()


def _beat(at: Situation) -> Write:
    return Write(shared_state.beat(at.shared, at.node), "wrote a heartbeat")


def _leave(at: Situation) -> Write:
    return Write(shared_state.without(at.shared, [at.node]), f"left round {at.shared.round}")


def _give_up(at: Situation, late_s: float) -> Step:
    return _leave(at) if late_s <= ROLLBACK_S and at.place is not None else _too_late(at)


def _too_late(at: Situation) -> Fail:
    seated = at.shared.nodes(Place.SEATED)
    has = f"round {at.shared.round} has {len(seated)} of {at.settings.min_nodes} nodes"
    names = ", ".join(map(str, seated)) or "nobody"
    return Fail(RendezvousTimeoutError(f"The rendezvous '{at.settings.run_id}' was not done in time: {has} ({names})."))
