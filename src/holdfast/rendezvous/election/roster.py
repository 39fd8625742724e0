"""Reads a roster, the list of who may vote and who succeeds the coordinator in which order.

`rendezvous.election.leader_lease` draws it up, and `rendezvous.election.succession` acts on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.value import replace
from holdfast.core.wire.messages import Past, Roster


def elector_of(roster: Roster) -> tuple[int, ...]:
    """The electorates in which its holder has a say."""
    return tuple(one.id for one in roster.electorates if one.mine)


def comes_before(roster: Roster, one: str, other: str) -> bool:
    """Whether `one` stands in its line, and before `other`, which need not."""
    line = roster.line
    return one in line and (other not in line or line.index(one) < line.index(other))


def adopted(roster: Roster, endpoint: str, elector_before: Iterable[int]) -> Roster:
    """Somebody else's, as the node at `endpoint` holds it: where that has a say, the line tells, and what it knew before."""
    mine = set(elector_before)
    if endpoint in roster.line:
        mine.add(roster.electorates[0].id)
    says = [replace(one, mine=one.id in mine or endpoint in one.line) for one in roster.electorates]
    return replace(roster, electorates=tuple(says))


def aged(past: Past, since_s: float) -> Past:
    """What a successor must know, `since_s` seconds after it was so."""
    return replace(
        past,
        restart_ages_s=tuple(age_s + since_s for age_s in past.restart_ages_s),
        age_s=past.age_s + since_s,
        excluded=tuple(replace(one, age_s=one.age_s + since_s) for one in past.excluded),
        fault_ages_s={name: tuple(age_s + since_s for age_s in ages_s) for name, ages_s in past.fault_ages_s.items()},
        members=0,  # whose leases are over already
    )
