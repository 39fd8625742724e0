"""Which node gets which ranks? Pure functions from seats to places; nothing here knows rounds, time or links.

Group ranks: a rank that the infrastructure gave wins; a node that had a rank keeps it where it can; the gaps are filled
by the others in natural order of their names (n2 before n10). Global ranks are running sums of the nodes' worker counts in
group-rank order, so nodes may differ in size; role ranks likewise within one role. `place` answers the whole question, by
`PlacementRules`.

A segment is a run of consecutive ranks within one domain (the nodes of one NVLink domain, say, that a model's tensor
parallel groups must not leave). Segments stay with the domain that has most of their nodes from the last round, and nodes
on their ranks: who came back whole is not moved for somebody else's loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.value import Value

SHOWN = 8  # Causes named in a reason; a job of thousands of nodes may have thousands.


class Candidate(Value):
    """A node that could take part, as far as its place is concerned."""

    node: str
    name: str
    nproc: int
    role: str
    wanted_rank: int | None = None
    """Rank that the infrastructure gave: it orders the nodes, and need not be below their number."""
    previous_rank: int | None = None  # Group rank in the last round. None: it had none.
    domain: str | None = None  # NVLink or network domain that a segment must not leave.
    switches: tuple[str, ...] = ()  # From the root of the network's tree down to the node's own switch.
    group: str | None = None  # Nodes that are replaced together, all or none.
    group_size: int = 0  # Nodes in that group when it is complete; 0: not told.
    excluded: str = ""  # Why it must not take part. Empty: it may.


class PlacementRules(Value):
    """What a placement is to keep to."""

    min_nodes: int = 1
    max_nodes: int
    segment: int | None = None
    """Nodes per segment: that many consecutive ranks are within one domain. None: domains do not matter."""
    unit: int = 1  # The number of nodes is a multiple of it.
    group_size: int = 0  # Nodes in a complete replacement group; 0: as the nodes say.
    unhealthy_groups: frozenset[str] = frozenset()


class Place(Value):
    """What a node got."""

    node: str
    group_rank: int
    base_rank: int
    role_base_rank: int
    role_world_size: int


class Spare(Value):
    """A node without a place."""

    node: str
    why: str


class Placement(Value):
    """Who takes part and who waits."""

    active: tuple[Place, ...] = ()  # In group-rank order; empty: nobody can be placed yet.
    spares: tuple[Spare, ...] = ()
    reason: str = ""  # Why nobody can be placed. Empty: they are.


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which `n2` comes before `n10`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name + "\0")
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def place(candidates: Sequence[Candidate], rules: PlacementRules) -> Placement:
    """The most nodes that the rules allow, each with its place, and the others as spares.

    The order of `candidates` does not matter. Members of the last round go before newcomers, and
    those before others that the infrastructure (then the switches, then the names) put earlier. Takes time N log N: about
    40 ms for 4,096 nodes.
    """
    ordered = in_order(candidates)
    left_out = _left_out(ordered, rules)
    fit = [one for one in ordered if one.node not in left_out]
    segment, step = _steps(rules)
    domains: dict[str, list[Candidate]] = {}
    for one in fit:
        domains.setdefault((one.domain or "") if segment > 1 else "", []).append(one)
    in_segments = sum(len(those) // segment for those in domains.values()) * segment
    size = min(in_segments, rules.max_nodes) // step * step
    if size < max(1, rules.min_nodes):
        waits = reason = _reason(ordered, left_out, domains, rules)
        active: list[Candidate] = []
    else:
        # Switches say more about neighbours than a number does: with them it only orders.
        by_wanted = segment == 1 and not any(one.switches for one in fit)
        active, reason = _chosen(domains, size, segment, by_wanted=by_wanted), ""
        full = size + step > rules.max_nodes
        waits = f"the job has its {size} nodes" if full else f"no more than {size} nodes can be placed"
    taken = {one.node for one in active}
    return Placement(
        active=tuple(_places(active)),
        spares=tuple(Spare(node=one.node, why=left_out.get(one.node, waits)) for one in ordered if one.node not in taken),
        reason=reason,
    )


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """By infrastructure rank, then name; nodes under one switch side by side, at the place of the first of them."""
    flat = sorted(
        candidates,
        key=lambda one: (one.wanted_rank is None, one.wanted_rank or 0, natural(one.name), one.node),
    )
    if not any(one.switches for one in flat):
        return flat
    first: dict[tuple[str, ...], int] = {}
    keys = []
    for at, one in enumerate(flat):
        above = [one.switches[: depth + 1] for depth in range(len(one.switches))]
        keys.append((*(first.setdefault(path, at) for path in above), at))
    return [flat[key[-1]] for key in sorted(keys)]


def _steps(rules: PlacementRules) -> tuple[int, int]:
    """Nodes per segment, and the number of which the world's size is a multiple."""
    segment = rules.segment or 1
    if rules.unit == 1:
        return segment, segment
    return segment, math.lcm(segment, rules.unit)


def _chosen(domains: Mapping[str, list[Candidate]], size: int, segment: int, *, by_wanted: bool) -> list[Candidate]:
    """Those that take part, in group-rank order."""
    slots: dict[str, list[int]] = {}
    for at, name in enumerate(_domains_of_segments(domains, size, segment)):
        slots.setdefault(name, []).extend(range(at * segment, (at + 1) * segment))
    seats = [seat for name, those in slots.items() for seat in _seated(domains[name], those, by_wanted=by_wanted)]
    return [one for _, one in sorted(seats, key=lambda seat: seat[0])]


def _left_out(ordered: Sequence[Candidate], rules: PlacementRules) -> dict[str, str]:
    """Node → why it cannot take part, with however many others."""
    found = {one.node: f"excluded: {one.excluded}" for one in ordered if one.excluded}
    groups: dict[str, list[Candidate]] = {}
    for one in ordered:
        if one.group is not None:
            groups.setdefault(one.group, []).append(one)
    for group, members in groups.items():
        able = [one for one in members if one.node not in found]
        if why := _unfit_group(group, members, able, rules, is_only=len(groups) == 1):
            found |= {one.node: why for one in able}
    if _steps(rules)[0] > 1:
        lost = [one for one in ordered if not one.domain and one.node not in found]
        found |= {one.node: f"segment {rules.segment}: {one.name} names no domain (--domain)" for one in lost}
    return found


def _unfit_group(
    group: str, members: Sequence[Candidate], able: Sequence[Candidate], rules: PlacementRules, *, is_only: bool
) -> str:
    """Why a replacement group cannot take part, of which these members could. Empty: it can."""
    if group in rules.unhealthy_groups:
        return f"replacement group {group} is unhealthy"
    size = rules.group_size or max(one.group_size for one in members)
    if len(able) < size and not is_only:  # a job of one group has nothing to replace it by
        return f"replacement group {group} has {len(able)} of {size} nodes"
    return ""


def _reason(
    ordered: Sequence[Candidate], left_out: dict[str, str], domains: dict[str, list[Candidate]], rules: PlacementRules
) -> str:
    """Why so few can be placed: what a person would have to change, the same thing once."""
    causes = []
    for one in ordered:
        if why := left_out.get(one.node):
            causes.append(f"{one.name} is {why}" if one.excluded else why)
    segment, step = _steps(rules)
    for name, those in domains.items():
        if over := len(those) % segment:
            so_far = f"{over} of {segment} nodes"
            if len(those) > segment:
                so_far = f"{len(those)} nodes, {segment - over} short of {len(those) - over + segment}"
            causes.append(f"segment {segment}: domain {name} has {so_far}")
    least = -(-max(1, rules.min_nodes) // step) * step
    if least > rules.max_nodes:
        causes.append(f"no multiple of {step} is from {rules.min_nodes} to {rules.max_nodes}")
    said = list(dict.fromkeys(causes))
    shown = [*said[:SHOWN], *([f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else [])]
    able = len(ordered) - len(left_out)
    return f"{able} of the {least} nodes needed are here and fit" + "".join(f"; {cause}" for cause in shown)


def _places(ordered: Sequence[Candidate]) -> list[Place]:
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


def _domains_of_segments(domains: Mapping[str, Sequence[Candidate]], size: int, segment: int) -> list[str]:
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


def _seated(those: Sequence[Candidate], slots: Sequence[int], *, by_wanted: bool) -> list[tuple[int, Candidate]]:
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
