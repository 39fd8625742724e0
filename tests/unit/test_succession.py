"""Who leads next? One node's machine, shown what others say, and what it answers. No clock runs and no socket is open."""

from __future__ import annotations

import pytest
from kit.stages.electing_node import ABC, GUEST, LEASE_S, ORIGIN, PROMISE_S, TURN_S, Node, elected, roster, seek

from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER, Say
from holdfast.core.value import replace
from holdfast.core.wire.links import HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Electorate, Finish, Leads, Past, Propose, Seek, Vote
from holdfast.rendezvous.election.leading import KNOCK_S, YIELD_S
from holdfast.rendezvous.election.messages import Follow, Lead, MemberLink, RunOver, StepDown
from holdfast.rendezvous.election.peer_dialer import CONNECT_S, WAIT_S
from holdfast.rendezvous.election.seeking import STAND_S
from holdfast.rendezvous.election.succession_state import (
    JobEnded,
    Knocked,
    LeaderNamed,
    LeaseRenewed,
    Seated,
    ServesOrigin,
)
from holdfast.rendezvous.election.witness_claims import Claim, Claimed
from holdfast.rendezvous.lease import FENCE_S

REPORT = JobReport(job="j", outcome="succeeded", exit_code=0, started_at_unix=0.0, ended_at_unix=1.0, reason="done", life="L")


# --- the beginning ----------------------------------------------------------------------------------------------------------


def test_the_agent_at_the_endpoint_leads_at_once_and_the_others_follow_it() -> None:
    assert Node("a", None, founder=True).of(Lead) == [Lead(past=Past(life="life of a"))]
    assert Node("b", None).of(Follow) == [Follow(endpoint=ORIGIN)]


def test_one_that_serves_the_endpoint_after_all_leads_there_unless_it_was_in_the_job_before() -> None:
    node = Node("b", None)
    assert [type(did) for did in node.it.observe(ServesOrigin(), 5.0)] == [Lead] and node.it.endpoint == ORIGIN
    assert Node("b").it.observe(ServesOrigin(), 5.0) == []


def test_whoever_has_no_roster_waits_for_nothing() -> None:
    assert Node("b", None).it.deadline() == NEVER


def test_a_founder_that_meets_an_older_job_leaves_the_lead_to_it_and_takes_it_back_if_that_is_gone() -> None:
    node = Node("a", None, founder=True)
    assert any(isinstance(did, StepDown) for did in node.it.observe(Knocked(roster=5, life="L"), 1.0))
    node.wait(1.0 + YIELD_S)
    assert len(node.of(Lead)) == 2


def test_a_founder_whose_first_round_has_formed_leaves_the_lead_to_nobody_who_merely_comes() -> None:
    node = Node("a", None, founder=True)
    node.it.observe(Seated(line=("a", "b")), 1.0)
    assert node.it.observe(Knocked(roster=5, life="L"), 1.0) == []


def test_a_founder_that_comes_back_counts_as_itself_when_its_earlier_promises_must_be_over() -> None:
    node = Node("a", None, founder=True)
    node.hear(seek("b", roster("a", "b")), 1.0)
    assert not node.told(Propose)
    node.wait(PROMISE_S)
    assert node.told(Propose), "two of two: b, and itself"


def test_a_founder_chooses_nobody_by_a_roster_that_is_older_than_a_round_of_its_earlier_life() -> None:
    node = Node("a", None, founder=True, known_round=5)
    node.hear(seek("b", roster("a", "b", round=4)), 1.0)
    node.wait(PROMISE_S)
    assert node.it.roster is None and not node.told(Propose)
    node.hear(seek("b", roster("a", "b", round=5)), PROMISE_S + 1.0)
    node.wait(3 * PROMISE_S)
    assert node.told(Propose)


def test_a_founder_leads_on_when_a_node_comes_of_a_run_that_is_over() -> None:
    node = Node("a", None, founder=True, ended={"L": REPORT})
    assert node.it.observe(Knocked(roster=5, life="L"), 1.0) == []
    assert node.it.observe(Knocked(roster=5, life=""), 1.0) == [], "it will say of which one it is"
    assert any(isinstance(did, StepDown) for did in node.it.observe(Knocked(roster=5, life="another"), 1.0))


def test_a_founder_that_comes_after_one_that_was_cut_short_heeds_whoever_comes_though_older_runs_are_over() -> None:
    node = Node("a", None, founder=True, known_round=1, ended={"older": REPORT})
    assert any(isinstance(did, StepDown) for did in node.it.observe(Knocked(roster=5, life=""), 1.0))


def test_who_seeks_a_coordinator_of_a_run_that_is_over_is_told_how_it_ended() -> None:
    node = Node("a", None, founder=True, ended={"L": REPORT})
    node.hear(seek("b"), 1.0)
    assert node.told(Finish) == [Finish(report=REPORT)] and not node.of(StepDown) and node.it.roster is None


def test_a_run_that_goes_on_with_a_node_is_not_over_whatever_its_record_says() -> None:
    node = Node("b", ended={"L": REPORT})
    node.hear(seek("c"), PROMISE_S)
    assert not node.told(Finish) and node.told(Propose)


# --- seeking ----------------------------------------------------------------------------------------------------------------


def test_it_seeks_once_it_has_heard_nothing_for_a_lease_and_goes_down_the_line() -> None:
    node = Node("d", roster("a", "b", "c", "d"))
    node.wait(LEASE_S - 0.1)
    assert node.called() == []
    node.wait(LEASE_S)
    assert node.called() == ["b"], "the one that it has lost comes last"
    node.wait(LEASE_S + CONNECT_S)
    assert node.called() == ["b", "c"] and node.of(HangUp)
    node.wait(LEASE_S + 2 * CONNECT_S + STAND_S)
    assert node.called() == ["b", "c", "a"]


def test_whoever_hears_from_its_coordinator_seeks_no_more() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.done += node.it.observe(LeaseRenewed(), LEASE_S + 0.1)
    assert node.of(HangUp) and node.it.deadline() == LEASE_S + 0.1 + LEASE_S


def test_it_says_what_it_holds_and_when_it_is_free() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S + 0.1)
    assert [(said.free, said.roster.version) for said in node.told(Seek)] == [(False, 5)]
    node.wait(PROMISE_S)
    assert [said.free for said in node.told(Seek)] == [False, True]


def test_the_past_is_as_old_as_it_is_by_then() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S + 0.5)
    past = node.told(Seek)[0].roster.past
    assert (past.age_s, past.restart_ages_s) == (100.0 + LEASE_S + 0.5, (10.0 + LEASE_S + 0.5,))


def test_it_follows_whoever_it_is_told_leads() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S)
    node.hear(Leads(endpoint="b", term=1, life="L"), LEASE_S + 0.1, link=node.it.state.dial.link)
    assert node.of(Follow)[-1] == Follow(endpoint="b") and node.it.term == 1


def test_how_its_run_has_ended_a_node_hears_of_one_that_it_seeks_and_a_leader_of_nobody() -> None:
    end = Finish(report=REPORT)
    node = Node("c")
    node.wait(LEASE_S)
    node.hear(end, LEASE_S, link=node.it.state.dial.link)
    assert node.of(RunOver) == [RunOver(finish=end)]
    leader = elected()
    leader.see(Seated(line=("b", "c")), PROMISE_S)
    leader.wait(PROMISE_S + 1.0)
    link = leader.it.state.dial.link
    leader.see(LinkUp(link=link, ours=True), PROMISE_S + 1.0)
    assert leader.called()[-1] == "a", "the job's endpoint, where an agent may begin anew"
    leader.hear(end, PROMISE_S + 1.0, link=link)
    assert not leader.of(RunOver) and leader.it.mandate is not None


def test_who_lost_its_endpoint_to_another_program_asks_those_whom_its_earlier_life_knew() -> None:
    node = Node("a2", None, elders=("b", "c"))
    node.wait(LEASE_S - 0.1)
    assert node.called() == [], "the coordinator may yet answer at the job's endpoint"
    node.wait(LEASE_S)
    node.see(LinkDown(link=node.it.state.dial.link, reason="refused", refused=True), LEASE_S)
    node.wait(LEASE_S + 1.0)
    assert node.called() == ["b", "c"]
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S + 1.0)
    assert node.told(Seek) == [Seek(node="a2", term=0)]
    node.hear(Leads(endpoint="b", term=1, life="L"), LEASE_S + 1.1, link=node.it.state.dial.link)
    assert node.of(Follow)[-1] == Follow(endpoint="b")
    node.see(MemberLink(up=True), LEASE_S + 1.2)
    node.wait(10 * LEASE_S)
    assert node.called() == ["b", "c"], "whoever has a coordinator asks no more"


def test_it_follows_though_its_member_has_a_link_to_an_agent_that_leads_nobody() -> None:
    node = Node("c")
    node.wait(PROMISE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), PROMISE_S)
    node.hear(Propose(term=1, mark=7.0, roster=5), PROMISE_S, link=node.it.state.dial.link)
    node.see(MemberLink(up=True), PROMISE_S + 0.1)  # to a, which was started again
    node.see(LeaderNamed(leads=Leads(endpoint="Z", term=1, life="L")), PROMISE_S + 0.2)
    assert node.of(Follow)[-1] == Follow(endpoint="Z"), "in the term in which it voted, and before a by name"


def test_a_coordinator_that_leads_again_is_gone_to_at_once() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S)
    node.hear(Leads(endpoint="a", term=1, life="L"), LEASE_S + 0.1, link=node.it.state.dial.link)
    assert node.of(Follow)[1:] == [Follow(endpoint="a")]


@pytest.mark.parametrize("leads", [Leads(endpoint="a", term=0, life="L"), Leads(endpoint="z", term=-1, life="L")])
def test_old_news_is_none(leads: Leads) -> None:
    node = Node("c")
    assert node.it.observe(LeaderNamed(leads=leads), LEASE_S) == []


def test_whoever_has_a_leader_tells_those_who_seek() -> None:
    node = Node("c")
    node.it.observe(MemberLink(up=True), 0.0)
    node.hear(seek("d"), 1.0)
    assert node.told(Leads) == [Leads(endpoint="a", term=0, life="L")]


def test_whoever_has_lost_it_too_does_not() -> None:
    node = Node("c")
    node.hear(seek("d"), LEASE_S + 1.0)
    assert node.told(Leads) == []


# --- votes ------------------------------------------------------------------------------------------------------------------


def test_with_the_support_of_a_majority_it_proposes_itself_and_with_its_votes_it_leads() -> None:
    node = Node("b")
    node.hear(seek("c"), PROMISE_S)
    assert node.told(Propose) == [Propose(term=1, mark=PROMISE_S, roster=5)]
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S + 0.01)
    (lead,) = node.of(Lead)
    assert (lead.past.round, lead.past.restarts, lead.past.fence_s) == (4, 1, FENCE_S)
    assert node.told(Leads) == [Leads(endpoint="b", term=1, life="L")]
    assert any("2 of 3 nodes" in said.text for said in node.of(Say))


def test_it_proposes_nothing_before_its_own_promise_is_over() -> None:
    node = Node("b")
    node.hear(seek("c"), PROMISE_S - 0.1)
    assert not node.told(Propose)
    node.wait(PROMISE_S)
    assert node.told(Propose)


def test_support_that_is_not_free_yet_and_support_that_is_gone_do_not_count() -> None:
    node = Node("b")
    node.hear(seek("c", free=False), PROMISE_S)
    assert not node.told(Propose)
    other = Node("b", roster("a", "b", "c", "d"))
    other.hear(seek("c", other.it.roster), PROMISE_S)
    other.see(LinkDown(link=GUEST, reason="broken"), PROMISE_S + 0.1)
    other.hear(seek("d", other.it.roster), PROMISE_S + 0.2, link=GUEST + 1)
    assert not other.told(Propose), "two of four"


def test_whoever_stands_in_no_line_proposes_nothing() -> None:
    node = Node("d", replace(ABC, electorates=(Electorate(id=5, size=3),)))
    node.hear(seek("b"), PROMISE_S)
    node.hear(seek("c"), PROMISE_S, link=GUEST + 1)
    assert not node.told(Propose)


def test_whoever_is_linked_to_one_that_comes_before_it_leaves_that_the_proposing() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S)
    node.hear(seek("b"), PROMISE_S)
    assert not node.told(Propose)
    node.wait(PROMISE_S + WAIT_S)
    assert node.told(Propose), "it had its chance"


def test_a_vote_is_given_once_in_a_term_and_binds() -> None:
    node = Node("c")
    node.wait(PROMISE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), PROMISE_S)
    for term, mark in ((1, 7.0), (1, 8.0), (2, 9.0)):
        node.hear(Propose(term=term, mark=mark, roster=5), PROMISE_S + 0.1, link=node.it.state.dial.link)
    assert node.told(Vote) == [Vote(node="c", term=1, mark=7.0)]


def test_a_proposal_over_a_link_that_it_has_left_binds_nobody() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    link = node.it.state.dial.link
    node.see(LinkUp(link=link, ours=True), LEASE_S)
    node.wait(PROMISE_S + WAIT_S)
    assert HangUp(link=link) in node.of(HangUp) and node.it.state.dial.link == link, "it waits at its own place"
    node.hear(Propose(term=1, mark=7.0, roster=5), PROMISE_S + WAIT_S, link=link)
    assert node.it.term == 0, "its vote would be lost, and it could give no other for a promise"


def test_no_vote_before_the_promise_is_over_nor_for_an_older_roster() -> None:
    node = Node("c")
    node.wait(LEASE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), LEASE_S)
    node.hear(Propose(term=1, mark=7.0, roster=5), PROMISE_S - 0.1, link=node.it.state.dial.link)
    node.hear(Propose(term=1, mark=7.0, roster=4), PROMISE_S + 0.1, link=node.it.state.dial.link)
    assert not node.told(Vote)


def test_votes_that_come_too_late_or_for_an_older_proposal_elect_nobody() -> None:
    node = Node("b")
    node.hear(seek("c"), PROMISE_S)
    node.hear(Vote(node="c", term=1, mark=1.0), PROMISE_S + 0.1)
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S + 60.0)
    assert not node.of(Lead)


def test_a_node_that_votes_in_the_names_of_others_elects_nobody() -> None:
    held = roster("a", "b", "c", "d", "e")
    node = Node("b", held)
    for link, name in enumerate("cd", start=GUEST):
        node.hear(seek(name, held), PROMISE_S, link=link)
    for name in "cde":
        node.hear(Vote(node=name, term=1, mark=PROMISE_S), PROMISE_S, link=GUEST)  # c's link
    assert node.told(Propose) and not node.of(Lead)
    node.hear(Vote(node="d", term=1, mark=PROMISE_S), PROMISE_S, link=GUEST + 1)
    assert node.of(Lead)


def test_a_node_that_seeks_under_many_names_is_counted_once() -> None:
    held = roster("a", "b", "c", "d", "e")
    node = Node("b", held)
    for name in "cdec":
        node.hear(seek(name, held), PROMISE_S, link=GUEST)
    assert node.it.state.ballot.willing == {"b", "c"} and not node.told(Propose)


@pytest.mark.parametrize(("peers", "elects"), [("xxx", False), ("xyz", True), ("777", True)])
def test_a_member_that_seeks_and_votes_over_many_links_is_counted_once(peers: str, elects: bool) -> None:
    """It names the endpoints of others, who are cut off. Agents of one host have one address, and their own ports; over
    loopback the kernel says whose they are."""
    names = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1", "10.0.0.5:1"]
    held = roster(*names)
    node = Node(names[1], held)
    for link, (name, peer) in enumerate(zip(names[2:], peers, strict=True), start=GUEST):
        node.see(LinkUp(link=link, ours=False, peer="127.0.0.1" if peer == "7" else f"10.0.9.{ord(peer)}"), PROMISE_S)
        node.hear(seek(name, held), PROMISE_S, link=link)
    for link, name in enumerate(names[2:], start=GUEST):
        node.hear(Vote(node=name, term=1, mark=PROMISE_S), PROMISE_S, link=link)
    assert bool(node.of(Lead)) is elects


def test_agents_of_one_host_have_a_vote_each() -> None:
    held = roster("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3")
    node = Node("10.0.0.1:2", held)
    for link in (GUEST, GUEST + 1):
        name = f"10.0.0.2:{link - GUEST + 1}"
        node.see(LinkUp(link=link, ours=False, peer="10.0.0.2"), PROMISE_S)
        node.hear(seek(name, held), PROMISE_S, link=link)
        node.hear(Vote(node=name, term=1, mark=PROMISE_S), PROMISE_S, link=link)
    assert node.told(Propose) and node.it.state.ballot.willing >= {"10.0.0.2:1", "10.0.0.2:2"}


def test_a_node_that_comes_back_from_its_address_under_another_endpoint_is_counted_there() -> None:
    """The link of its earlier life may stand for a while: nobody has heard that its host has no power."""
    held = roster("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
    node = Node("10.0.0.2:1", held)
    for link, name in ((GUEST, "name-of-a-host:1"), (GUEST + 1, "10.0.0.3:1")):
        node.see(LinkUp(link=link, ours=False, peer="10.0.0.3"), PROMISE_S)
        node.hear(seek(name, held), PROMISE_S, link=link)
    assert node.it.state.ballot.willing == {"10.0.0.2:1", "10.0.0.3:1"}


def test_votes_for_a_proposal_in_one_run_of_the_job_elect_nobody_in_another() -> None:
    node = Node("b")
    node.hear(seek("c"), PROMISE_S)
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), PROMISE_S)
    node.hear(Leads(endpoint="x", term=1, life="another"), PROMISE_S, link=node.it.state.dial.link)
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S)
    assert not node.of(Lead) and node.of(Follow)[-1] == Follow(endpoint="x")


def test_a_proposal_that_fails_is_made_again_in_a_later_term() -> None:
    node = Node("b")
    node.hear(seek("c"), PROMISE_S)
    node.wait(PROMISE_S + 1.5)
    assert [said.term for said in node.told(Propose)] == [1, 2]


def test_while_an_electorate_changes_both_must_agree() -> None:
    joint = roster("a", "b", "c", older=5)
    node = Node("b", joint)
    node.hear(seek("c", joint), PROMISE_S)
    assert not node.told(Propose), "two of three, and two of five"
    outgoing = replace(joint, version=4, electorates=(Electorate(id=4, size=5, mine=True),))
    node.hear(seek("e", outgoing), PROMISE_S, link=GUEST + 1)
    assert node.told(Propose)


# --- leading ----------------------------------------------------------------------------------------------------------------


def test_a_leader_steps_down_when_its_mandate_is_over_and_seeks_as_the_others_do() -> None:
    node = elected()
    node.wait(2 * PROMISE_S - 0.1)
    assert not node.of(StepDown)
    node.it.observe(LeaseRenewed(roster=ABC), 2 * PROMISE_S - 0.1)
    node.wait(2 * PROMISE_S)
    assert "only 1 of 3 nodes answer" in node.of(StepDown)[0].reason
    assert node.it.mandate is None and node.it.state.free_at == 2 * PROMISE_S


def test_on_split_continue_it_leads_on_and_says_what_it_risks() -> None:
    node = Node("b", goes_on=True)
    node.hear(seek("c"), PROMISE_S)
    node.hear(Vote(node="c", term=1, mark=PROMISE_S), PROMISE_S)
    node.wait(2 * PROMISE_S)
    assert not node.of(StepDown) and any("the job runs twice" in said.text for said in node.of(Say))


def test_a_successor_knocks_at_the_endpoint_and_whoever_founds_there_follows() -> None:
    node = elected()
    node.wait(PROMISE_S)
    assert node.called()[-1] == ORIGIN
    seen = LinkUp(link=node.it.state.dial.link, ours=True)
    (did,) = [did for did in node.see(seen, PROMISE_S + 0.1) if isinstance(did, Transmit)]
    founder = Node("a", None, founder=True)
    founder.hear(did.message, 0.5)
    assert founder.of(StepDown) and founder.of(Follow)[-1] == Follow(endpoint="b")
    node.see(LinkDown(link=node.it.state.dial.link, reason="gone"), PROMISE_S + 0.2)
    calls = len(node.called())
    node.it.mandate.waive()  # type: ignore[union-attr]
    node.wait(PROMISE_S + 0.2 + KNOCK_S)
    assert len(node.called()) == calls + 1


def test_a_successor_whose_job_has_ended_knocks_no_more() -> None:
    node = elected()
    node.it.observe(JobEnded(), PROMISE_S)
    calls = node.called()
    node.see(LinkUp(link=node.it.state.dial.link, ours=True), PROMISE_S + 0.1)
    node.wait(PROMISE_S + 60.0)
    assert not node.told(Seek) and node.called() == calls


def without_mandate() -> Node:
    """b, that leads without one: its user would rather risk two sides than none."""
    node = elected()
    node.it.mandate.waive()  # type: ignore[union-attr]
    return node


def test_of_two_that_lead_without_a_mandate_the_one_of_the_earlier_term_follows() -> None:
    node = without_mandate()
    node.hear(Seek(node="x", term=3, leads=Leads(endpoint="x", term=3, life="L")), PROMISE_S + 0.1)
    assert node.of(StepDown) and node.of(Follow)[-1] == Follow(endpoint="x")
    other = without_mandate()
    other.hear(Seek(node="x", term=0, leads=Leads(endpoint="x", term=0, life="L")), PROMISE_S + 0.1)
    assert not other.of(StepDown) and other.told(Leads)[-1].endpoint == "b"


def test_whoever_follows_into_another_life_of_the_job_has_no_say_from_its_own() -> None:
    node = without_mandate()
    node.hear(Seek(node="x", term=3, leads=Leads(endpoint="x", term=3, life="another")), PROMISE_S + 0.1)
    assert node.it.roster is None and node.it.deadline() == NEVER


# --- two nodes --------------------------------------------------------------------------------------------------------------


def test_one_of_two_is_no_majority_and_says_once_what_would_help() -> None:
    node = Node("b", roster("a", "b"))
    node.wait(60.0)
    assert not node.of(Lead)
    (said,) = [said for said in node.of(Say) if said.level == "error"]
    assert "--witness DIR" in said.text and "holdfast force-leader" in said.text


def test_a_minority_says_how_many_are_missing_and_what_it_does() -> None:
    node = Node("c", roster("a", "b", "c"))
    node.wait(60.0)
    (said,) = [said for said in node.of(Say) if said.level == "error"]
    assert "1 of 3 nodes are here, and 2 could go on" in said.text
    assert "joins the others as soon as it reaches one" in said.text and "holdfast force-leader" in said.text


def test_a_half_is_told_of_the_witness_too() -> None:
    node = Node("c", roster("a", "b", "c", "d"))
    node.hear(seek("d", roster("a", "b", "c", "d")), PROMISE_S)
    node.wait(60.0)
    (said,) = [said for said in node.of(Say) if said.level == "error"]
    assert "2 of 4 nodes are here, and 3 could go on" in said.text and "--witness DIR" in said.text


def test_those_that_are_here_without_a_say_are_counted_apart() -> None:
    five = roster("a", "b", "c", "d", "e")
    node = Node("c", five)
    node.hear(seek("new", replace(five, electorates=(Electorate(id=5, size=5),))), PROMISE_S)
    node.wait(60.0)
    (said,) = [said for said in node.of(Say) if said.level == "error"]
    assert "1 of 5 nodes are here, and 3 could go on (1 more here came too late to have a say)" in said.text


def test_one_that_has_just_lost_others_speaks_of_all_whose_votes_it_lacks() -> None:
    node = Node("c", roster("a", "c", older=3))
    node.wait(60.0)
    (said,) = [said for said in node.of(Say) if said.level == "error"]
    assert "1 of 3 nodes are here, and 2 could go on" in said.text


def test_a_witness_makes_it_one() -> None:
    node = Node("b", roster("a", "b", witness=True), witness=True)
    node.wait(TURN_S)
    assert node.of(Claim) == [Claim(life="L", id=5, endpoint="b", missing=("a",))]
    node.see(Claimed(id=5, granted=True), TURN_S + 0.1)
    assert node.of(Lead)
    assert any("with the votes of 1 of 2 nodes and the witness's" in said.text for said in node.of(Say))


def test_the_witness_is_told_who_is_missing() -> None:
    node = Node("b", roster("a", "b", "c", "d", witness=True), witness=True)
    node.hear(seek("c", roster("a", "b", "c", "d", witness=True)), PROMISE_S)
    assert node.of(Claim)[0].missing == ("a", "d")


def test_a_witness_that_speaks_for_the_other_does_not_and_is_asked_again() -> None:
    node = Node("b", roster("a", "b", witness=True), witness=True)
    node.wait(TURN_S)
    node.see(Claimed(id=5, granted=False, reason="it speaks for a"), TURN_S + 0.1)
    assert not node.of(Lead) and any("it speaks for a" in said.text for said in node.of(Say))
    node.wait(TURN_S + 5.0)
    assert len(node.of(Claim)) == 2


def test_nobody_asks_for_the_witness_while_its_promise_binds() -> None:
    node = Node("b", roster("a", "b", witness=True), witness=True)
    node.wait(PROMISE_S - 0.01)
    assert not node.of(Claim)


def test_a_side_may_go_on_without_a_majority_if_it_is_told_to_and_meets_nobody_before_it() -> None:
    node = Node("b", roster("a", "b"), goes_on=True)
    node.wait(60.0)
    (lead,) = node.of(Lead)
    assert lead.past.fence_s == FENCE_S + LEASE_S
    last = Node("c", roster("a", "b", "c", "d", "e"), goes_on=True)
    last.wait(LEASE_S)
    last.see(LinkUp(link=last.it.state.dial.link, ours=True), LEASE_S)
    last.wait(PROMISE_S + WAIT_S + 1.0)
    assert not last.of(Lead), "b is there: it is for b to lead"


def test_whoever_comes_after_one_that_was_cut_short_waits_for_the_knock_of_a_successor() -> None:
    (led,) = Node("a", None, founder=True, known_round=1).of(Lead)
    assert led.past.fence_s > 2 * KNOCK_S
    assert led.past.fence_s >= LEASE_S + FENCE_S, "ranks of the old ones may live as long"
