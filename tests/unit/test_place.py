"""Who takes part and where, by the rules: whole segments, multiples, whole groups, nobody excluded, nobody moved in vain."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.value import replace
from holdfast.rendezvous.placement.placement import Candidate, Placement, PlacementRules, natural, place

NODE: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "name": st.sampled_from(("n1", "n2", "n10", "host")),
        "nproc": st.integers(1, 4),
        "role": st.sampled_from(("trainer", "reader")),
        "wanted_rank": st.none() | st.integers(0, 14) | st.sampled_from((50000000003, 60000000001)),
        "domain": st.sampled_from((None, "d0", "d1", "d2")),
        "switches": st.sampled_from(((), ("r",), ("r", "s1"), ("r", "s2"), ("r", "s2", "t"))),
        "group": st.sampled_from((None, None, "g0", "g1")),
        "group_size": st.integers(0, 3),
        "excluded": st.sampled_from(("", "", "", "ECC errors")),
    }
)


@st.composite
def crowds(draw: st.DrawFn) -> list[Candidate]:
    rows = draw(st.lists(NODE, min_size=1, max_size=12))
    ranks = draw(st.permutations(range(14)))
    had = draw(st.lists(st.booleans(), min_size=12, max_size=12))
    return [
        Candidate(node=f"node{i}", previous_rank=ranks[i] if had[i] else None, **row) for i, row in enumerate(rows)
    ]


RULES = st.builds(
    lambda low, more, segment, unit, size, bad: PlacementRules(
        min_nodes=low, max_nodes=low + more, segment=segment, unit=unit, group_size=size, unhealthy_groups=bad
    ),
    st.integers(1, 6),
    st.integers(0, 8),
    st.none() | st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from((frozenset(), frozenset({"g0"}))),
)


def nodes(count: int, *, per_domain: int = 4, start: int = 0, was: bool = False, **more: Any) -> list[Candidate]:
    return [
        Candidate(
            node=f"n{i}",
            name=f"n{i}",
            nproc=2,
            role="default",
            wanted_rank=i,
            previous_rank=i if was else None,
            domain=f"d{i // per_domain}",
            **more,
        )
        for i in range(start, start + count)
    ]


def without(candidates: list[Candidate], *lost: str) -> list[Candidate]:
    return [one for one in candidates if one.node not in lost]


def shown(found: Placement) -> str:
    assert not found.reason
    return " ".join(one.node for one in found.active)


def rules(low: int, high: int | None = None, **more: Any) -> PlacementRules:
    return PlacementRules(min_nodes=low, max_nodes=high or low, **more)


def next_round(candidates: list[Candidate], found: Placement) -> list[Candidate]:
    ranks = {one.node: one.group_rank for one in found.active}
    return [replace(one, previous_rank=ranks.get(one.node)) for one in candidates]


# --- whatever the crowd and the rules ------------------------------------------------------------------------------------


@given(crowds(), RULES)
def test_everybody_is_active_or_spare_and_never_both(crowd: list[Candidate], kept: PlacementRules) -> None:
    found = place(crowd, kept)
    named = [one.node for one in found.active] + [one.node for one in found.spares]
    assert sorted(named) == sorted(one.node for one in crowd)
    assert all(spare.why for spare in found.spares)
    assert bool(found.reason) == (not found.active)


@given(crowds(), RULES)
def test_the_ranks_are_exactly_those_of_the_world(crowd: list[Candidate], kept: PlacementRules) -> None:
    found = place(crowd, kept).active
    nproc = {one.node: one.nproc for one in crowd}
    assert [one.group_rank for one in found] == list(range(len(found)))
    ranks = [rank for one in found for rank in range(one.base_rank, one.base_rank + nproc[one.node])]
    assert ranks == list(range(sum(nproc[one.node] for one in found)))


@given(crowds(), RULES)
def test_the_number_keeps_to_the_rules(crowd: list[Candidate], kept: PlacementRules) -> None:
    size = len(place(crowd, kept).active)
    assert size % kept.unit == 0 and size % (kept.segment or 1) == 0
    assert size == 0 or kept.min_nodes <= size <= kept.max_nodes


@given(crowds(), RULES)
def test_a_segment_is_within_one_domain(crowd: list[Candidate], kept: PlacementRules) -> None:
    segment, domain = kept.segment or 1, {one.node: one.domain for one in crowd}
    if segment > 1:
        for _, part in groupby(place(crowd, kept).active, key=lambda one: one.group_rank // segment):
            of = {domain[one.node] for one in part}
            assert len(of) == 1 and None not in of


@given(crowds(), RULES)
def test_nobody_excluded_or_of_a_broken_group_is_active(crowd: list[Candidate], kept: PlacementRules) -> None:
    by_node = {one.node: one for one in crowd}
    for taken in place(crowd, kept).active:
        one = by_node[taken.node]
        members = [other for other in crowd if other.group == one.group and not other.excluded]
        assert not one.excluded and one.group not in kept.unhealthy_groups
        if one.group and len({other.group for other in crowd} - {None}) > 1:
            size = max(other.group_size for other in crowd if other.group == one.group)
            assert len(members) >= (kept.group_size or size)


@given(crowds(), RULES, st.randoms(use_true_random=False))
def test_the_order_of_the_listing_does_not_matter(crowd: list[Candidate], kept: PlacementRules, luck: random.Random) -> None:
    assert place(luck.sample(crowd, len(crowd)), kept) == place(crowd, kept)


@given(crowds(), RULES)
def test_who_comes_back_whole_is_placed_as_before(crowd: list[Candidate], kept: PlacementRules) -> None:
    first = place(crowd, kept)
    again = place(next_round(crowd, first), kept)
    assert again == first


@given(crowds(), RULES)
def test_as_many_take_part_as_can(crowd: list[Candidate], kept: PlacementRules) -> None:
    found = place(crowd, kept)
    if kept.segment is None and kept.unit == 1 and all(one.group is None for one in crowd):
        able = sum(not one.excluded for one in crowd)
        assert len(found.active) == (min(able, kept.max_nodes) if able >= kept.min_nodes else 0)


@given(st.integers(2, 16), st.integers(1, 4), st.data())
def test_one_spare_takes_the_place_of_one_lost_and_nobody_else_moves(size: int, spares: int, data: st.DataObject) -> None:
    crowd = nodes(size + spares)
    before = place(crowd, rules(size))
    lost = data.draw(st.sampled_from([one.node for one in before.active]))
    after = place(without(next_round(crowd, before), lost), rules(size))
    moved = [(one.node, other.node) for one, other in zip(before.active, after.active) if one.node != other.node]
    assert moved == [(lost, f"n{size}")]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2), st.data())
def test_a_segment_that_lost_nobody_keeps_its_ranks(segment: int, count: int, extra: int, data: st.DataObject) -> None:
    crowd = nodes((count + 2) * (segment + extra), per_domain=segment + extra)
    world = rules(count * segment, segment=segment)
    before = place(crowd, world)
    lost = data.draw(st.sampled_from([one.node for one in before.active]))
    after = place(without(next_round(crowd, before), lost), world)
    broken = next(one.group_rank for one in before.active if one.node == lost) // segment
    for one, other in zip(before.active, after.active, strict=True):
        assert one.node == other.node or one.group_rank // segment == broken


@given(st.lists(st.sampled_from(("s1", "s2", "s3")), min_size=1, max_size=10))
def test_nodes_under_one_switch_have_neighbouring_ranks(leaves: list[str]) -> None:
    crowd = [replace(one, switches=("root", leaf)) for one, leaf in zip(nodes(len(leaves)), leaves, strict=False)]
    leaf_of = {one.node: one.switches for one in crowd}
    runs = [switches for switches, _ in groupby(place(crowd, rules(len(leaves))).active, key=lambda one: leaf_of[one.node])]
    assert len(runs) == len(set(runs))
    assert shown(place(crowd, rules(len(leaves)))).split()[0] == "n0"


# --- in the words of the domain ------------------------------------------------------------------------------------------


def test_complete_segments_come_in_the_order_of_their_domains_smallest_rank() -> None:
    d0, d1, d2 = nodes(3), nodes(4, start=4), nodes(5, start=8, per_domain=8)
    found = place([*d2, *d1, *d0], rules(4, 12, segment=2))
    assert shown(found) == "n0 n1 n4 n5 n6 n7 n8 n9 n10 n11"
    assert [one.node for one in found.spares] == ["n2", "n12"]


def test_the_reason_names_the_domain_that_is_short() -> None:
    found = place([*nodes(4), *nodes(3, start=4)], rules(8, segment=4))
    assert found.reason == "7 of the 8 nodes needed are here and fit; segment 4: domain d1 has 3 of 4 nodes"
    assert {spare.why for spare in found.spares} == {found.reason}


def test_the_reason_says_when_enough_are_here_but_scattered() -> None:
    found = place(nodes(8, per_domain=6), rules(8, segment=4))
    assert "8 of the 8" in found.reason
    assert "domain d0 has 6 nodes, 2 short of 8; segment 4: domain d1 has 2 of 4 nodes" in found.reason


def test_the_reason_names_who_is_excluded_and_why() -> None:
    found = place([*nodes(1), *nodes(1, start=1, excluded="ECC errors")], rules(2))
    assert found.reason == "1 of the 2 nodes needed are here and fit; n1 is excluded: ECC errors"
    assert [spare.why for spare in found.spares] == [found.reason, "excluded: ECC errors"]


def test_the_reason_stays_short_in_a_large_job() -> None:
    found = place(nodes(300, excluded="ECC errors"), rules(300))
    assert len(found.reason) < 500 and found.reason.endswith("and 292 more")


def test_a_node_without_a_domain_completes_no_segment() -> None:
    found = place([replace(one, domain=None) for one in nodes(2)], rules(2, segment=2))
    assert "n0 names no domain (--domain)" in found.reason
    assert shown(place([replace(one, domain=None) for one in nodes(2)], rules(2, segment=1))) == "n0 n1"


def test_a_segment_goes_to_another_domain_when_its_own_has_no_node_left() -> None:
    crowd = nodes(6, per_domain=2)
    before = next_round(crowd, place(crowd, rules(4, segment=2)))
    assert shown(place(without(before, "n1"), rules(4, segment=2))) == "n4 n5 n2 n3"


def test_no_multiple_within_the_range_is_said() -> None:
    assert "no multiple of 4 is from 2 to 3" in place(nodes(3), rules(2, 3, unit=4)).reason


def test_what_is_more_than_a_multiple_waits() -> None:
    found = place(nodes(7), rules(2, 8, unit=3))
    assert shown(found) == "n0 n1 n2 n3 n4 n5"
    assert [(spare.node, spare.why) for spare in found.spares] == [("n6", "the job has its 6 nodes")]


def test_only_complete_and_healthy_groups_take_part() -> None:
    groups = [nodes(2, start=start, group=name, group_size=2) for start, name in ((0, "a"), (2, "b"), (4, "c"))]
    a, b, c = groups
    assert shown(place([*a, *b[:1], *c], rules(4))) == "n0 n1 n4 n5"
    assert shown(place([*a, *b, *c], rules(4, unhealthy_groups=frozenset("a")))) == "n2 n3 n4 n5"
    short = place([*a, *b[:1]], rules(4))
    assert short.reason == "2 of the 4 nodes needed are here and fit; replacement group b has 1 of 2 nodes"
    assert shown(place(a, rules(2, group_size=3))) == "n0 n1"  # of one group only: there is nothing to replace it by


def test_members_go_before_newcomers_even_if_those_have_smaller_ranks() -> None:
    crowd = [*nodes(1), *nodes(2, start=1, was=True)]
    assert shown(place(crowd, rules(2))) == "n2 n1"


def test_given_ranks_are_the_ranks_as_soon_as_their_nodes_are_all_there() -> None:
    first = without(nodes(4), "n2")
    assert shown(place(first, rules(3, 4))) == "n0 n1 n3"
    later = [*next_round(first, place(first, rules(3, 4))), *nodes(1, start=2)]
    assert shown(place(later, rules(3, 4))) == "n0 n1 n2 n3"


def test_without_given_ranks_names_decide_and_gaps_are_filled() -> None:
    crowd = [replace(one, wanted_rank=None) for one in nodes(11)]
    assert shown(place(crowd, rules(11))) == " ".join(sorted((one.name for one in crowd), key=natural))
    was = next_round(crowd, place(crowd, rules(3)))
    assert shown(place(without(was, "n1"), rules(3))) == "n0 n3 n2"


def test_the_same_rank_given_twice_moves_nobody() -> None:
    crowd = [replace(one, wanted_rank=0) for one in nodes(3)]
    first = place(crowd, rules(3))
    assert place(next_round(crowd, first), rules(3)) == first
