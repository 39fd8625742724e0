"""Whose roster counts? What a node knows of who has a say, against what others bring, among them members that lie."""

from __future__ import annotations

from kit.stages.electing_node import ABC, GUEST, LEASE_S, PROMISE_S, Node, roster, seek

from holdfast.core.value import replace
from holdfast.core.wire.messages import Past, Propose, Roster, Vote
from holdfast.rendezvous.election.messages import Lead, MemberLink
from holdfast.rendezvous.election.succession_state import LeaseRenewed, TakenIn
from holdfast.rendezvous.election.voting import ALONE_S


def of_another_run(held: Roster) -> Roster:
    return replace(held, version=held.version + 3, past=Past(life="another"))


def test_a_node_of_another_run_has_no_say_in_this_one_though_both_have_counted_alike() -> None:
    node = Node("b")
    node.hear(seek("c", replace(ABC, past=Past(life="another"))), PROMISE_S)
    node.hear(seek("a", of_another_run(ABC)), PROMISE_S, link=GUEST + 1)
    assert not node.told(Propose) and node.it.roster == ABC


def test_the_roster_of_the_coordinator_s_run_is_held_whatever_was_held_before() -> None:
    node = Node("b", of_another_run(ABC))
    node.it.observe(MemberLink(up=True), 1.0)
    node.it.observe(LeaseRenewed(roster=ABC), 1.0)
    assert node.it.roster == ABC
    node.it.observe(TakenIn(life="L"), 1.0)
    assert node.it.roster == ABC
    node.it.observe(TakenIn(life="another"), 1.0)
    assert node.it.roster is None


def test_a_newer_roster_is_taken_over_from_whoever_brings_it() -> None:
    node = Node("b", roster("a", "b", "c"))
    node.hear(seek("c", roster("a", "b", "c", version=6, round=9, older=3)), PROMISE_S)
    assert node.told(Propose)[0].roster == 6
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S)
    assert node.of(Lead)[0].past.round == 9


def test_one_node_s_word_takes_nobody_s_say_away_until_the_others_have_long_been_silent() -> None:
    """A member that lies names its hearer as the only elector, each of the others to itself: all of them would lead."""
    lie = replace(roster("b", version=1000), promise_s=1e9)
    node = Node("b", ABC)
    node.hear(seek("liar", lie), PROMISE_S)
    assert node.it.roster.version == ABC.version and not node.told(Propose)
    node.hear(seek("c"), PROMISE_S + 0.1, GUEST + 1)
    assert node.told(Propose)[0].roster == ABC.version, "those who have a say elect all the same"
    alone = Node("b", roster("a", "b", "c", "d", "e"))
    alone.hear(seek("c", roster("a", "b", "c", version=6)), PROMISE_S)
    assert not alone.told(Propose)
    alone.hear(seek("c", roster("a", "b", "c", version=6)), PROMISE_S + ALONE_S)
    assert alone.told(Propose)[0].roster == 6


def test_a_node_with_a_leader_takes_no_roster_from_others_nor_a_longer_promise() -> None:
    node = Node("b", None)
    node.see(MemberLink(up=True), 0.0)
    node.see(LeaseRenewed(roster=ABC), 0.0)
    node.hear(seek("c", roster("a", "b", "c", version=6, older=3)), 1.0)
    assert node.it.roster.version == ABC.version
    node = Node("b", ABC)
    node.hear(seek("c", replace(roster("a", "b", "c", version=6, older=3), promise_s=1e9)), PROMISE_S)
    assert node.it.roster.promise_s == PROMISE_S


def test_whoever_has_heard_its_coordinator_without_a_roster_takes_one_from_others_and_keeps_its_promise() -> None:
    node = Node("c", None)
    node.it.observe(LeaseRenewed(), 2.0)
    node.hear(seek("b"), 3.0)
    node.wait(2.0 + PROMISE_S - 0.1)
    assert node.it.roster is not None and not node.told(Propose)
    node.wait(2.0 + PROMISE_S)
    assert node.told(Propose)


def test_whoever_has_never_heard_it_votes_no_sooner_than_a_promise_after_the_roster_was_drawn_up() -> None:
    """Whoever brings the roster has lost the coordinator for a lease already."""
    node = Node("c", None)
    node.hear(seek("b"), 100.0)
    node.wait(100.0 + PROMISE_S - LEASE_S - 0.1)
    assert not node.told(Propose)
    node.wait(100.0 + PROMISE_S - LEASE_S)
    assert node.told(Propose)
