"""Who gets which ranks: whatever the nodes, the ranks are whole, and nobody moves without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rendezvous.placement.placement import Candidate, Place, PlacementRules, place

ROLES = ("trainer", "reader")
WANTED = st.none() | st.integers(-1, 9)
PARTS = st.tuples(st.integers(1, 8), st.sampled_from(ROLES), WANTED, WANTED, st.sampled_from(("n1", "n2", "n10", "host")))
CANDIDATES = st.lists(PARTS, min_size=1, max_size=10).map(
    lambda rows: [
        Candidate(node=f"node{i}", name=name, nproc=nproc, role=role, wanted_rank=wanted, previous_rank=previous)
        for i, (nproc, role, wanted, previous, name) in enumerate(rows)
    ]
)


def assign(candidates: list[Candidate]) -> list[Place]:
    """Places of all of them."""
    return list(place(candidates, PlacementRules(min_nodes=len(candidates), max_nodes=len(candidates))).active)


def node(name: str, *, previous: int | None = None, wanted: int | None = None, nproc: int = 2) -> Candidate:
    return Candidate(node=name, name=name, nproc=nproc, role="default", wanted_rank=wanted, previous_rank=previous)


def order(*candidates: Candidate) -> str:
    return " ".join(place.node for place in assign(candidates))


@given(CANDIDATES)
def test_global_ranks_are_exactly_those_of_the_world(candidates: list[Candidate]) -> None:
    places = assign(candidates)
    size = {one.node: one.nproc for one in candidates}
    ranks = [rank for place in places for rank in range(place.base_rank, place.base_rank + size[place.node])]
    assert ranks == list(range(sum(size.values())))
    assert [place.group_rank for place in places] == list(range(len(candidates)))
    assert sorted(place.node for place in places) == sorted(size)


@given(CANDIDATES)
def test_role_ranks_are_exactly_those_of_each_role(candidates: list[Candidate]) -> None:
    by_node: dict[str, Place] = {place.node: place for place in assign(candidates)}
    for role in ROLES:
        members = sorted((one for one in candidates if one.role == role), key=lambda one: by_node[one.node].group_rank)
        ranks = [by_node[one.node].role_base_rank + i for one in members for i in range(one.nproc)]
        assert ranks == list(range(sum(one.nproc for one in members)))
        assert {by_node[one.node].role_world_size for one in members} <= {len(ranks)}


@given(CANDIDATES)
def test_the_order_in_which_candidates_are_listed_does_not_matter(candidates: list[Candidate]) -> None:
    assert assign(candidates) == assign(candidates[::-1])


@given(st.permutations(range(6)))
def test_members_that_stay_keep_their_ranks(ranks: list[int]) -> None:
    candidates = [node(f"n{rank}", previous=rank) for rank in ranks]
    assert [place.node for place in assign(candidates)] == [f"n{rank}" for rank in range(6)]


@given(st.permutations(range(6)), st.integers(0, 5))
def test_a_replacement_gets_the_rank_that_became_free(ranks: list[int], free: int) -> None:
    stay = [node(f"n{rank}", previous=rank) for rank in ranks if rank != free]
    places = assign([*stay, node("new")])
    assert places[free].node == "new"


def test_new_nodes_come_in_the_natural_order_of_their_names() -> None:
    assert order(node("n10"), node("n2"), node("n1")) == "n1 n2 n10"


def test_of_two_with_the_same_given_rank_the_first_to_come_has_it() -> None:
    assert order(node("late", wanted=0), node("early", wanted=0)) == "early late"


def test_a_rank_beyond_a_smaller_world_is_given_up_for_a_gap() -> None:
    assert order(node("a", previous=0), node("d", previous=3)) == "a d"


def test_nodes_of_different_size_share_one_world() -> None:
    assert [place.base_rank for place in assign([node("a", nproc=3), node("b", nproc=1), node("c")])] == [0, 3, 4]
