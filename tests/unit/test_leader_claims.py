"""Is one that says of a node that it leads believed? What a member says that has the token, and lies."""

from __future__ import annotations

import pytest
from test_succession import ABC, LEASE_S, PROMISE_S, REPORT, Node, elected, roster, seek

from holdfast.core.machine import Say
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived
from holdfast.core.wire.messages import Leads, Propose, Roster, Seek, Vote
from holdfast.rendezvous.election.elector_memory import ElectorMemory
from holdfast.rendezvous.election.following import TERMS_AHEAD
from holdfast.rendezvous.election.leader_lease import TERM, Mandate
from holdfast.rendezvous.election.messages import Follow, Lead, MemberLink, StepDown
from holdfast.rendezvous.election.succession_state import JobEnded, LeaseRenewed, Seated

HUGE = 1 << 62


def claim(term: int, life: str = "L", endpoint: str = "x") -> Seek:
    return Seek(node=endpoint, term=term, leads=Leads(endpoint=endpoint, term=term, life=life))


def said(node: Node, words: str) -> int:
    return sum(words in action.text for action in node.of(Say))


@pytest.mark.parametrize("life", ["L", "another", "life of b"])
@pytest.mark.parametrize("term", [0, 1, 3, TERMS_AHEAD, HUGE])
def test_a_leader_with_a_mandate_leads_on_whatever_is_claimed_and_says_so_once(term: int, life: str) -> None:
    node = elected()
    for _ in range(3):
        node.hear(claim(term, life), PROMISE_S + 0.1)
        node.see(Arrived(link=node.it.state.dial.link, message=Leads(endpoint="x", term=term, life=life)), PROMISE_S + 0.1)
    assert not node.of(StepDown) and node.it.state.leads and node.told(Leads)[-1].endpoint == "b"
    assert said(node, "x leads the job: not believed, since this agent has the mandate") == (term > 0)


def test_the_coordinator_whose_round_runs_leads_on_too() -> None:
    node = Node("a", None, founder=True)
    node.it.observe(Seated(line=("a", "b", "c")), 1.0)
    node.hear(claim(3, "life of a"), 1.1)
    assert not node.of(StepDown)


def test_a_leader_whose_job_has_ended_leads_on_for_those_who_have_not_heard() -> None:
    node = elected()
    node.see(JobEnded(), PROMISE_S + 0.1)
    node.hear(claim(3), PROMISE_S + 0.2)
    assert not node.of(StepDown)


def test_one_that_began_anew_unawares_gives_way_to_the_run_that_its_host_remembers_and_to_no_other() -> None:
    before = ElectorMemory(term=1, roster=ABC)
    for life, gives_way in (("L", True), ("another", False)):
        node = Node("a", None, founder=True, before=before)
        node.it.observe(Seated(line=("a", "b", "c")), 1.0)
        node.hear(claim(3, life), 1.1)
        assert bool(node.of(StepDown)) is gives_way


@pytest.mark.parametrize("life", ["L", "another"])
@pytest.mark.parametrize("term", [1, 3, TERMS_AHEAD, HUGE])
def test_a_node_under_a_lease_follows_nobody_else(term: int, life: str) -> None:
    node = Node("b")
    follows = node.of(Follow)
    node.hear(claim(term, life), LEASE_S - 0.1)
    assert node.of(Follow) == follows and node.it.state.leader == "a" and node.it.state.term == 0
    assert said(node, "x leads the job: not believed, since this node has a coordinator") == 1


def test_nor_does_one_that_waits_for_its_first_round() -> None:
    node = Node("b", None)
    node.it.observe(MemberLink(up=True), 0.0)
    node.it.observe(LeaseRenewed(), 0.0)
    node.hear(claim(3), LEASE_S + 0.1)
    assert node.it.state.leader == "a"


def test_when_its_lease_is_over_it_does() -> None:
    node = Node("b")
    node.wait(LEASE_S)
    node.hear(claim(1), LEASE_S + 0.1)
    assert node.of(Follow)[-1] == Follow(endpoint="x")


def test_but_not_into_a_term_that_no_election_can_have_reached() -> None:
    for message in (claim(HUGE), seek("c", term=HUGE), Propose(term=HUGE, mark=1.0, roster=ABC.version)):
        node = Node("b")
        node.wait(LEASE_S + 0.2)
        link = node.it.state.dial.link if isinstance(message, Propose) else 1 << 20
        node.hear(message, PROMISE_S + 0.1, link=link)
        node.wait(PROMISE_S + 0.2)
        assert node.it.term <= 1 and not node.told(Vote)


def test_a_roster_that_no_leader_can_have_drawn_up_is_not_taken_over_and_none_that_says_how_the_job_ended() -> None:
    for held in (roster("x", version=HUGE), roster("x", version=TERM + 1), roster("x", version=1, term=HUGE)):
        node = Node("b")
        node.hear(seek("x", held), LEASE_S + 0.1)
        assert node.it.roster == ABC
    newer = roster("a", "b", "c", version=6)
    node = Node("b")
    node.hear(seek("c", replace(newer, past=replace(newer.past, report=REPORT))), LEASE_S + 0.1)
    held: Roster | None = node.it.roster
    assert held is not None and held.version == 6 and held.past.report is None
    assert not node.of(Lead)


def test_a_member_s_word_on_its_roster_moves_no_version_out_of_reach() -> None:
    mandate = Mandate("a", term=1, lease_s=LEASE_S)
    mandate.joined("x", HUGE, ())
    mandate.renewed("x", 0.0, HUGE, 1.0)
    assert mandate.version == TERM and mandate.holds["x"] == 0
