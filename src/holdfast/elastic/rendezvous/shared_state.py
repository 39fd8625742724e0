"""What do the nodes of a dynamic rendezvous share, and how does each step change it?

One value, which a backend stores as JSON. Each change is a function from the value to the next one. There are no times in it:
the clocks of nodes differ. A heartbeat and a last call are numbers, and each node measures by its own clock how long it has
known them (`next_step.Sightings`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from .api import RendezvousStateError

MOST_BYTES = 8 << 20  # Longest state that is read. A thousand nodes need 0.1 MB.
FORMAT = "holdfast-rendezvous-1"
NOT_OURS = "it is not Holdfast's JSON; agents of torch and of Holdfast cannot meet in one rendezvous"


class Node(NamedTuple):
    """One handler of one process of one host. Ranks follow the order of these."""

    addr: str
    pid: int
    local_id: int

    def __str__(self) -> str:
        return f"{self.addr}_{self.pid}_{self.local_id}"


class Phase(StrEnum):
    """How far the rendezvous is."""

    GATHERING = "gathering"  # nodes take seats
    COMPLETE = "complete"  # the round is formed, and its nodes have their ranks
    CLOSED = "closed"  # the job is over


class Place(StrEnum):
    """What a node waits for or takes part in."""

    SEATED = "seated"  # takes part in the round
    WAITING = "waiting"  # wants the next round, which is formed for it
    SPARE = "spare"  # waits until a seat is free


class Member(NamedTuple):
    """A node's place, the number of its last heartbeat, and its rank in a complete round."""

    place: Place
    beat: int
    rank: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The state. `turn` counts the changes; a heartbeat is numbered by the turn that wrote it."""

    phase: Phase = Phase.GATHERING
    round: int = 0
    world_size: int = 0  # nodes in the complete round, also when some have left it
    turn: int = 0
    last_call: int = 0  # the turn in which the round got enough nodes
    members: Mapping[Node, Member] = field(default_factory=dict)

    def nodes(self, place: Place) -> list[Node]:
        """The nodes at this place, in the order of their ranks."""
        return sorted(node for node, member in self.members.items() if member.place is place)


def placed(shared: Shared, node: Node, place: Place) -> Shared:
    """The node is there from now on, and alive."""
    turn = shared.turn + 1
    rank = shared.members[node].rank if node in shared.members else -1
    return replace(shared, turn=turn, members={**shared.members, node: Member(place, turn, rank)})


def beat(shared: Shared, node: Node) -> Shared:
    """The node is alive, where it was."""
    return placed(shared, node, shared.members[node].place)


def take_seat(shared: Shared, node: Node, min_nodes: int, max_nodes: int) -> Shared:
    """The node takes a seat. The one that makes the minimum starts the last call; the last one completes the round."""
    shared = placed(shared, node, Place.SEATED)
    match len(shared.nodes(Place.SEATED)):
        case count if count == max_nodes:
            return complete(shared)
        case count if count == min_nodes:
            return replace(shared, last_call=shared.turn)
    return shared


def without(shared: Shared, gone: Collection[Node]) -> Shared:
    """These nodes have left, or are dead. The last one of a complete round opens the next."""
    members = {node: member for node, member in shared.members.items() if node not in gone}
    left = replace(shared, turn=shared.turn + 1, members=members)
    if shared.phase is Phase.COMPLETE and not left.nodes(Place.SEATED):
        return replace(left, phase=Phase.GATHERING, round=shared.round + 1, world_size=0)
    return left


def complete(shared: Shared) -> Shared:
    """The round is formed: its nodes get their ranks."""
    seated = shared.nodes(Place.SEATED)
    ranked = {node: shared.members[node]._replace(rank=rank) for rank, node in enumerate(seated)}
    return replace(shared, phase=Phase.COMPLETE, world_size=len(seated), members={**shared.members, **ranked})


def close(shared: Shared) -> Shared:
    """The job is over."""
    return replace(shared, phase=Phase.CLOSED)


def encode(shared: Shared) -> bytes:
    """The state as JSON. A member is `[addr, pid, local id, place, heartbeat, rank]`."""
    plain = {
        "format": FORMAT,
        "phase": shared.phase,
        "round": shared.round,
        "world_size": shared.world_size,
        "turn": shared.turn,
        "last_call": shared.last_call,
        "members": [[*node, *member] for node, member in shared.members.items()],
    }
    return json.dumps(plain, separators=(",", ":")).encode()


def decode(data: bytes) -> Shared:
    """The state from that JSON. Anything else is a RendezvousStateError, whatever a peer has written."""
    try:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes; no state has more than {MOST_BYTES}")
        return _state_from(_json_from(data))
    except (ValueError, TypeError, KeyError) as error:
        raise RendezvousStateError("The rendezvous state is corrupt. See inner exception for details.") from error


def _json_from(data: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(NOT_OURS) from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError(NOT_OURS)
    return plain


def _state_from(plain: Mapping[str, Any]) -> Shared:
    members = {}
    for addr, pid, local_id, place, beat, rank in plain["members"]:
        if not isinstance(addr, str):
            raise TypeError(f"{addr!r} is not an address")
        members[Node(addr, _number(pid), _number(local_id))] = Member(Place(place), _number(beat), _number(rank, -1))
    counts = {name: _number(plain[name]) for name in ("round", "world_size", "turn", "last_call")}
    return Shared(phase=Phase(plain["phase"]), members=members, **counts)


def _number(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise TypeError(f"{value!r} is not a number of at least {least}")
    return value
