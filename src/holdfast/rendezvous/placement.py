"""Which node gets which ranks? Pure functions from seats to places; nothing here knows rounds, time or links.

Group ranks: a rank that the infrastructure gave wins; a node that had a rank keeps it where it can; the gaps are filled
by the others in natural order of their names (n2 before n10), then of arrival. Global ranks are running sums of the
nodes' worker counts in group-rank order, so nodes may differ in size; role ranks likewise within one role.
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Candidate(Value):
    """A node that could take part, as far as its place is concerned."""

    node: str
    name: str
    nproc: int
    role: str
    arrival: int
    """Position in order of arrival; unique."""
    wanted_rank: int | None = None
    previous_rank: int | None = None


class Place(Value):
    """What a node got."""

    node: str
    group_rank: int
    base_rank: int
    role_base_rank: int
    role_world_size: int


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which `n2` comes before `n10`."""
    parts: list[tuple[int, int, str]] = []
    digits = text = ""
    for char in name + "\0":
        if char.isdecimal() and char.isascii():
            if text:
                parts.append((1, 0, text))
                text = ""
            digits += char
        else:
            if digits:
                parts.append((0, int(digits), digits))
                digits = ""
            text += char
    parts.append((1, 0, text))
    return tuple(parts)


def choose(candidates: Sequence[Candidate], most: int) -> list[Candidate]:
    """The at most `most` that take part: those with a rank before, then first come, first served."""
    by_right = sorted(candidates, key=lambda one: (one.previous_rank is None, one.arrival))
    return by_right[:most]


def order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Group-rank order of those that take part. Two with the same wanted rank: the earlier arrival has it."""
    size = len(candidates)
    places: list[Candidate | None] = [None] * size
    left: list[Candidate] = []

    def settle(those: list[Candidate], rank_of: str) -> list[Candidate]:
        homeless = []
        for one in sorted(those, key=lambda one: one.arrival):
            rank = getattr(one, rank_of)
            if rank is not None and 0 <= rank < size and places[rank] is None:
                places[rank] = one
            else:
                homeless.append(one)
        return homeless

    left = settle(list(candidates), "wanted_rank")
    left = settle(left, "previous_rank")
    left.sort(key=lambda one: (one.wanted_rank is None, one.wanted_rank or 0, natural(one.name), one.arrival))
    fill = iter(left)
    return [place if place is not None else next(fill) for place in places]


def assign(candidates: Sequence[Candidate]) -> list[Place]:
    """Places of all `candidates`, in group-rank order."""
    ordered = order(candidates)
    role_sizes: dict[str, int] = {}
    for one in ordered:
        role_sizes[one.role] = role_sizes.get(one.role, 0) + one.nproc
    base, role_base = 0, dict.fromkeys(role_sizes, 0)
    places = []
    for group_rank, one in enumerate(ordered):
        places.append(
            Place(
                node=one.node,
                group_rank=group_rank,
                base_rank=base,
                role_base_rank=role_base[one.role],
                role_world_size=role_sizes[one.role],
            )
        )
        base += one.nproc
        role_base[one.role] += one.nproc
    return places
