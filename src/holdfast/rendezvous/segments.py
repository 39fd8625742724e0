"""Which domain does each segment belong to, and which of a domain's nodes sits where in it? A part of `rendezvous.placement`;
pure.

A segment is a run of consecutive ranks within one domain (the nodes of one NVLink domain, say, that a model's tensor
parallel groups must not leave). Segments stay with the domain that has most of their nodes from the last round, and nodes
on their ranks: who came back whole is not moved for somebody else's loss.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.rendezvous.placement import Candidate


def domains_of_segments(domains: Mapping[str, Sequence[Candidate]], size: int, segment: int) -> list[str]:
    """The domain of each segment of a world of `size` nodes. There must be enough: `size` is a multiple of `segment`, and
    the domains, which come in their order, have that many whole ones."""
    if len(domains) == 1:
        return list(domains) * (size // segment)
    room = {name: len(those) // segment for name, those in domains.items()}
    claims: dict[tuple[int, str], int] = {}
    for name, those in domains.items():
        for one in those:
            if one.previous_rank is not None and 0 <= one.previous_rank < size:
                claim = one.previous_rank // segment, name
                claims[claim] = claims.get(claim, 0) + 1
    homes: dict[int, str] = {}
    for at, name in sorted(claims, key=lambda claim: -claims[claim]):  # the sort is stable: of equals the domain that is first
        if at not in homes and room[name]:
            homes[at] = name
            room[name] -= 1
    free = (name for name, left in room.items() for _ in range(left))
    return [homes[at] if at in homes else next(free) for at in range(size // segment)]


def seated(those: Sequence[Candidate], slots: Sequence[int], *, by_wanted: bool) -> list[tuple[int, Candidate]]:
    """A node for each of `slots`: at most as many as `those`, which come in their order.

    Members of the last round first, on their ranks where those are among the slots. `by_wanted`: if they turn out to be
    exactly those for whom the infrastructure gave these ranks, each has that one.
    """
    free = set(slots)
    taken: list[tuple[int, Candidate]] = []
    members, newcomers = [], []
    for one in those:
        if one.previous_rank is None:
            newcomers.append(one)
        elif one.previous_rank in free:
            free.discard(one.previous_rank)
            taken.append((one.previous_rank, one))
        else:
            members.append(one)
    by_right = {one.node for one in (*members, *newcomers)[: len(free)]}
    taken += zip(sorted(free), (one for one in those if one.node in by_right))
    if by_wanted and {one.wanted_rank for _, one in taken} == set(slots):
        return [(one.wanted_rank, one) for _, one in taken if one.wanted_rank is not None]
    return taken
