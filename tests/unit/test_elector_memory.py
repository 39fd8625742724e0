"""What does an elector do that was started again? It has its earlier life's say, and contradicts nothing that life has told."""

from __future__ import annotations

from typing import Any

import pytest
from test_succession import ABC, LEASE_S, PROMISE_S, Node, roster, seek

from holdfast.core.machine import Tick
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, HangUp, LinkUp
from holdfast.core.wire.messages import Electorate, Leads, Past, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election.elector_memory import DEAF_S, ElectorMemory, Remember, Remembered
from holdfast.rendezvous.election.peer_dialer import LINKS_FROM
from holdfast.rendezvous.election.succession_state import LeaderNamed, LeaderSeeks, Role
from holdfast.rendezvous.election.voting import PROPOSE_S


def kept(held: Roster, *, term: int = 0) -> ElectorMemory:
    return ElectorMemory(term=term, roster=replace(held, past=Past(life=held.past.life)))


def returning(held: Roster = ABC, *, term: int = 0, endpoint: str = "b", **options: Any) -> Node:
    """An agent whose earlier life held that roster, and voted in that term."""
    return Node(endpoint, None, before=kept(held, term=term), loyal_at=PROPOSE_S, **options)


def remembered(node: Node, now: float) -> list[Any]:
    """What it was to keep last is kept."""
    return node.see(Remembered(memory=node.it.state.keeping.latest), now)


def asked_by_a(node: Node, term: int, at: float) -> float:
    """It calls a, which asks for its vote; when that is."""
    node.wait(at)
    now = at
    while not node.it.state.dial.to:
        now = node.it.deadline()
        node.wait(now)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), now)
    node.see(Arrived(link=node.it.state.dial.link, message=Propose(term=term, mark=now, roster=5)), now)
    return now


def test_a_vote_goes_out_when_its_term_is_kept() -> None:
    node = Node("b", is_remembered=True)
    remembered(node, 0.1)
    now = asked_by_a(node, 3, PROMISE_S + 1.0)
    assert node.of(Remember)[-1].memory.term == 3 and not node.told(Vote)
    remembered(node, now + 0.1)
    assert [vote.term for vote in node.told(Vote)] == [3]


def test_a_disk_that_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    node = Node("b", is_remembered=True)
    remembered(node, 0.1)
    now = asked_by_a(node, 3, PROMISE_S + 1.0)
    node.wait(now + DEAF_S - 0.01)
    assert not node.told(Vote)
    node.see(Tick(), now + DEAF_S)
    assert node.told(Vote)


def test_nor_is_one_that_fails() -> None:
    node = Node("b", is_remembered=True)
    remembered(node, 0.1)
    now = asked_by_a(node, 3, PROMISE_S + 1.0)
    assert not node.told(Vote)
    node.see(Remembered(memory=node.of(Remember)[-1].memory, is_kept=False), now + 0.1)
    assert node.told(Vote)


def test_its_own_vote_counts_when_its_term_is_kept() -> None:
    node = Node("b", is_remembered=True)
    remembered(node, 0.1)
    node.hear(seek("c"), PROMISE_S)
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S)
    assert node.told(Propose) and not node.it.state.leads
    remembered(node, PROMISE_S + 0.1)
    assert node.it.state.leads


def test_a_roster_is_told_of_when_it_is_kept() -> None:
    node = Node("b", is_remembered=True)
    assert node.it.state.keeping.told_of(node.it.roster) == 0
    remembered(node, 0.1)
    assert node.it.state.keeping.told_of(node.it.roster) == ABC.version


def test_it_never_votes_again_in_a_term_in_which_its_earlier_life_did() -> None:
    node = returning(term=7)
    node.it.observe(LeaderSeeks(roster=ABC, held_s=LEASE_S), 1.0)
    asked_by_a(node, 7, 3 * PROMISE_S)
    assert not node.told(Vote)
    asked_by_a(node, 8, 6 * PROMISE_S)
    assert [vote.term for vote in node.told(Vote)] == [8]


def test_it_votes_a_promise_after_its_start_at_the_earliest() -> None:
    node = returning()
    node.it.observe(LeaderSeeks(roster=ABC, held_s=100.0), 1.0)
    asked_by_a(node, 1, PROMISE_S - 0.1)
    assert not node.told(Vote)
    asked_by_a(node, 2, PROMISE_S + 0.1)
    assert node.told(Vote)


def test_it_is_not_counted_on_while_one_may_be_elected_that_its_earlier_life_voted_for() -> None:
    node = returning(term=7)
    assert not node.it.state.gives_loyalty(0.5) and node.it.state.gives_loyalty(PROPOSE_S)
    earlier, later = roster("a", "b", "c", term=6), roster("a", "b", "c", term=7)
    for held, may in ((earlier, False), (later, True)):
        assert replace(node.it.state, roster=held).gives_loyalty(0.5) is may


def test_what_it_knows_is_newer_than_what_it_is_shown() -> None:
    """Its earlier life has told of a roster of a and b: by that of a, b and c nobody may be elected any more."""
    node = returning(roster("a", "b", version=6))
    node.it.observe(LeaderSeeks(roster=ABC, held_s=LEASE_S), 1.0)
    held = node.it.roster
    assert held is not None and held.version == 6 and held.line == ("a", "b") and held.past.round == ABC.past.round


def test_it_has_a_say_where_it_had_one_also_in_an_electorate_of_which_it_never_heard() -> None:
    older = Electorate(id=4, size=3, line=("a", "b", "c"))
    shown = replace(roster("a", version=9), electorates=(Electorate(id=9, size=1, mine=True, line=("a",)), older))
    node = returning()
    node.it.observe(LeaderSeeks(roster=shown, held_s=LEASE_S), 1.0)
    assert node.it.roster is not None and [one.mine for one in node.it.roster.electorates] == [False, True]


@pytest.mark.parametrize("before", [None, kept(replace(ABC, past=Past(life="M")))])
def test_one_that_was_not_there_before_is_given_no_say_by_being_shown_a_roster(before: ElectorMemory | None) -> None:
    node = Node("b", None, before=before)
    node.it.observe(LeaderSeeks(roster=ABC, held_s=LEASE_S), 1.0)
    assert node.it.roster is None


def test_a_node_whose_leader_s_agent_leads_nobody_seeks_with_it_at_once() -> None:
    node = Node("b")
    node.it.observe(LeaderSeeks(roster=None), 0.5)
    node.wait(0.5)
    assert node.it.state.role is Role.SEEKING and node.called() == ["a"]


def test_whoever_is_with_an_elder_sends_others_there_and_spares_it_their_own_call() -> None:
    node = Node("c", roster("a", "b", "c", "d"))
    node.hear(seek("d", roster("a", "b", "c", "d")), LEASE_S + 0.1, link=1)
    node.hear(seek("a", roster("a", "b", "c", "d")), LEASE_S + 0.1, link=2)
    node.wait(LEASE_S + 0.2)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S + 0.2)
    elder = node.it.state.dial.to
    told = {seek.elder for seek in node.told(Seek)} - {""}
    assert elder == "b" and told == {"b"} and not any(isinstance(did, HangUp) and did.link == 1 for did in node.done)


def test_one_that_is_sent_to_an_elder_calls_it_next_and_not_again_and_again() -> None:
    held = roster("a", "b", "c", "d")
    node = Node("d", held)
    node.wait(LEASE_S + 3.0)
    while node.it.state.dial.to != "c":
        node.wait(node.it.deadline() + 0.01)
    now = node.it.state.dial.until - 0.1
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), now)
    for times in (1, 1):
        node.see(Arrived(link=node.it.state.dial.link, message=Seek(node="c", term=0, elder="b")), now)
        node.wait(now)
        assert node.called()[-1] == "b" and node.called().count("b") >= times
    assert node.it.state.dial.link > LINKS_FROM


def test_of_two_leaders_of_one_term_a_node_follows_one_and_tells_the_other() -> None:
    """Each was forced to lead by an operator, and then they meet: its own coordinator tells it."""
    node = Node("b", None)
    for endpoint in "xyx":
        node.see(LeaderNamed(leads=Leads(endpoint=endpoint, term=4096, life="L")), 1.0)
        node.it.state = replace(node.it.state, linked=True, renewed_at=1.0)
    assert node.it.state.leader == "y"
