"""Who leads: stories of one candidate, of the coordinator it founds, and of the node around both."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.made_up import report
from kit.stages.quick_disk import with_logs

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Exit, Started, StartWorkers
from holdfast.agent.group.state import Phase, State
from holdfast.agent.leader.build import open_etcd
from holdfast.agent.leader.store_elected_node import StoreElectedNode
from holdfast.core.errors import UsageError
from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.value import to_plain
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Assigned, Finish, Join, Message, Past, Renewed, Stop
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.election.messages import Follow, GiveUp, Lead, MemberLink, StepDown
from holdfast.rendezvous.election.store_election import (
    CONNECT_S,
    Await,
    Campaign,
    Deposed,
    Election,
    Keep,
    Kept,
    Leads,
    PastChanged,
    Persist,
    Persisted,
    Ranked,
    Resign,
    StoreTrouble,
    Vacant,
    Won,
    inherited,
)
from holdfast.rendezvous.lease import FENCE_S
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.rules import Heard, Rules, Tell
from holdfast.runtime.net.codec import build

HERE, THERE = "a:1", "b:2"
NEW = Past(life="L")


def candidate() -> Election:
    return Election(HERE, store="etcd at e:2379", fresh_life="L", ttl_s=5.0, now=0.0)


def kinds(actions: list[Any]) -> list[str]:
    return [type(action).__name__ for action in actions if not isinstance(action, Say)]


def won(term: int = 7, past: Past = NEW, asked_at: float = 0.0) -> Won:
    return Won(term=term, past=past, asked_at=asked_at, ttl_s=5.0)


@pytest.fixture
def leader() -> Election:
    election = candidate()
    election.observe(Tick(), 0.0)
    election.observe(won(), 0.01)
    return election


@pytest.fixture
def follower() -> Election:
    """It has a link to the leader."""
    election = candidate()
    election.observe(Tick(), 0.0)
    election.observe(Leads(endpoint=THERE, term=7, life="L"), 0.01)
    election.observe(MemberLink(up=True), 0.02)
    return election


# --- one candidate ----------------------------------------------------------------------------------------------------------


def test_it_campaigns_at_once_and_leads_when_it_has_won() -> None:
    election = candidate()
    assert kinds(election.observe(Tick(), 0.0)) == ["Campaign"]
    assert kinds(election.observe(won(), 0.01)) == ["Lead"] and election.state.role == "leading"


def test_it_follows_whoever_leads_and_asks_nothing_while_linked(follower: Election) -> None:
    assert (follower.state.role, follower.state.leader) == ("following", THERE)
    assert follower.observe(Tick(), 100.0) == [] and follower.deadline() == NEVER


def test_a_new_leader_is_given_time_for_the_first_link() -> None:
    election = candidate()
    election.observe(Tick(), 0.0)
    assert kinds(election.observe(Leads(endpoint=THERE, term=7, life="L"), 1.0)) == ["Follow"]
    assert election.deadline() == 1.0 + CONNECT_S
    assert election.observe(Tick(), 1.0 + CONNECT_S) == [Await(term=7)]


def test_a_broken_link_makes_it_wait_for_the_end_of_that_term(follower: Election) -> None:
    assert follower.observe(MemberLink(up=False), 3.0) == [Await(term=7)]
    assert follower.observe(MemberLink(up=False), 3.1) == []  # one question at a time
    assert follower.observe(Leads(endpoint=THERE, term=7, life="L"), 13.0) == [Await(term=7)]


def test_when_nobody_leads_the_lower_ranks_campaign_first(follower: Election) -> None:
    follower.observe(Ranked(group_rank=20), 2.0)
    follower.observe(MemberLink(up=False), 3.0)
    assert follower.observe(Vacant(), 4.0) == []
    assert follower.deadline() == pytest.approx(4.2)
    assert follower.observe(Tick(), 4.2) == [Campaign(endpoint=HERE, life="L", fresh_life="L", ttl_s=5.0)]


def test_whom_no_leader_has_taken_in_is_of_no_run_yet(follower: Election) -> None:
    follower.observe(MemberLink(up=False), 3.0)
    assert follower.observe(Vacant(), 4.0) == [Campaign(endpoint=HERE, life="", fresh_life="L", ttl_s=5.0)]


def test_it_moves_on_to_the_next_leader(follower: Election) -> None:
    follower.observe(MemberLink(up=False), 3.0)
    assert follower.observe(Leads(endpoint="c:3", term=9, life="L"), 4.0) == [Follow(endpoint="c:3")]


def test_a_leader_renews_five_times_per_lease(leader: Election) -> None:
    assert leader.deadline() == 1.0
    assert leader.observe(Tick(), 1.0) == [Keep(term=7)]
    assert leader.observe(Kept(term=7, asked_at=1.0), 1.1) == [] and leader.state.lead_ends == 6.0


def test_a_leader_counts_its_lease_from_when_it_asked(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    leader.observe(Kept(term=7, asked_at=1.0), 3.9)
    assert leader.state.lead_ends == 6.0


def test_trouble_within_the_lease_is_said_once_and_changes_nothing(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    said = leader.observe(StoreTrouble(reason="refused"), 1.1)
    assert kinds(said) == [] and "does not answer: refused" in said[0].text
    assert leader.observe(Tick(), leader.deadline()) == [Keep(term=7)]
    assert leader.observe(StoreTrouble(reason="refused"), 1.3) == []
    leader.observe(Tick(), 2.0)
    assert "answers again" in leader.observe(Kept(term=7, asked_at=2.0), 2.1)[0].text and leader.state.role == "leading"


def test_a_leader_steps_down_by_its_own_clock_and_campaigns_again(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    leader.observe(StoreTrouble(reason="refused"), 4.9)
    acts = leader.observe(Tick(), 5.0)
    assert kinds(acts) == ["StepDown", "Resign", "Campaign"] and "refused" in acts[0].reason


def test_an_answer_that_comes_after_the_lease_does_not_save_the_leader(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    assert kinds(leader.observe(Kept(term=7, asked_at=1.0), 5.0))[:2] == ["StepDown", "Resign"]


def test_a_deposed_leader_steps_down_at_once(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    assert kinds(leader.observe(Deposed(term=7, reason="revoked"), 1.1)) == ["StepDown", "Resign", "Campaign"]


def test_word_of_an_older_term_is_late_news(leader: Election) -> None:
    assert leader.observe(Deposed(term=6, reason="revoked"), 0.1) == []
    leader.observe(Kept(term=6, asked_at=4.0), 0.2)
    assert leader.state.role == "leading" and leader.state.lead_ends == 5.0


def test_a_victory_that_took_longer_than_its_lease_is_given_back() -> None:
    election = candidate()
    election.observe(Tick(), 0.0)
    assert kinds(election.observe(won(asked_at=0.0), 5.0)) == ["Resign", "Campaign"]


def test_what_a_successor_must_know_is_written_until_the_store_has_it(leader: Election) -> None:
    past = Past(life="L", round=1)
    assert leader.observe(PastChanged(past=past), 0.1) == [Persist(term=7, past=past)]
    leader.observe(StoreTrouble(reason="refused"), 0.2)
    assert leader.observe(Tick(), leader.deadline()) == [Keep(term=7)]
    assert leader.observe(Kept(term=7, asked_at=0.5), 0.6)[-1] == Persist(term=7, past=past)
    assert leader.observe(Persisted(term=7, past=past), 0.7) == []


def test_renewing_goes_before_writing(leader: Election) -> None:
    leader.busy = True
    leader.observe(PastChanged(past=Past(life="L", round=1)), 1.5)
    assert kinds(leader.observe(Kept(term=7, asked_at=0.0), 1.5)) == ["Persist"]
    leader.observe(PastChanged(past=Past(life="L", round=2)), 3.0)
    assert kinds(leader.observe(Persisted(term=7, past=Past(life="L", round=1)), 3.0)) == ["Keep"]


def test_an_unreachable_store_is_tried_ever_more_seldom() -> None:
    election, pauses, now = candidate(), [], 0.0
    election.observe(Tick(), now)
    for _ in range(7):
        election.observe(StoreTrouble(reason="refused"), now)
        pauses.append(round(election.deadline() - now, 3))
        now = election.deadline()
        assert kinds(election.observe(Tick(), now)) == ["Campaign"]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_what_cannot_be_mended_by_trying_again_ends_it() -> None:
    election = candidate()
    election.observe(Tick(), 0.0)
    assert election.observe(StoreTrouble(reason="wrong password", hint="h", final=True), 1.0) == [
        GiveUp(reason="wrong password", hint="h")
    ]
    assert election.deadline() == NEVER


def test_a_password_that_changes_ends_no_running_job_before_its_lease(leader: Election) -> None:
    leader.observe(Tick(), 1.0)
    assert kinds(leader.observe(StoreTrouble(reason="wrong password", final=True), 1.1)) == []


@pytest.mark.parametrize(
    ("kept", "life", "starts_from"),
    [
        (None, "", Past(life="new")),
        (None, "old", Past(life="old")),
        (Past(life="old", round=3), "", Past(life="old", round=3)),  # a replacement wins before any survivor
        (Past(life="old", round=3), "old", Past(life="old", round=3)),
    ],
)
def test_a_new_leader_carries_on_where_the_job_stands(kept: Past | None, life: str, starts_from: Past) -> None:
    assert inherited(kept, life=life, fresh_life="new") == starts_from


def test_a_job_that_ended_is_history_except_for_its_own_members() -> None:
    ended = Past(life="old", round=3, report=report())
    assert inherited(ended, life="", fresh_life="new") == Past(life="new")
    assert inherited(ended, life="old", fresh_life="new") == ended


def test_the_past_survives_the_way_to_the_store_and_back() -> None:
    past = Past(life="L", round=2, restarts=1, restart_ages_s=(1.5,), members=2, report=report())
    assert build(Past, to_plain(past)) == past


# --- the coordinator of a new leader --------------------------------------------------------------------------------------


def join(node: str, round: int = 0) -> Join:
    return Join(node=node, name=node, addr=node, master_port=1, nproc=1, role="default", round=round)


def heir(least: int, most: int, members: int) -> Rendezvous:
    """Took over at 100, after round 4 of that many members."""
    rules = Rules(job="j", min_nodes=least, max_nodes=most, lease_s=3.0)
    rendezvous = Rendezvous(rules, RestartOnFailure(max_restarts=1), now=100.0, now_unix=0.0)
    rendezvous.resume(Past(life="", round=4, restarts=1, members=members), now=100.0)
    return rendezvous


def assigned(actions: list[Any]) -> list[tuple[str, int, int]]:
    told = [action for action in actions if isinstance(action, Tell) and isinstance(action.message, Assigned)]
    return [(one.node, one.message.round, one.message.restart_count) for one in told]  # type: ignore[attr-defined]


def test_a_new_leader_goes_on_as_soon_as_all_members_of_the_last_round_are_back() -> None:
    rendezvous = heir(1, 3, members=2)
    assert assigned(rendezvous.observe(Heard(message=join("a", 4)), 100.1)) == []
    assert assigned(rendezvous.observe(Heard(message=join("c", 0)), 100.2)) == []  # a newcomer is not one of them
    assert assigned(rendezvous.observe(Heard(message=join("b", 4)), 100.3)) == [("a", 5, 1), ("b", 5, 1), ("c", 5, 1)]


def test_it_waits_for_those_who_do_not_come_until_their_leases_are_over() -> None:
    rendezvous = heir(1, 2, members=2)
    rendezvous.observe(Heard(message=join("a", 4)), 102.0)
    rendezvous.seats["a"].heard_at = 104.0
    assert rendezvous.deadline() == 100.0 + 3.0 + FENCE_S
    assert assigned(rendezvous.observe(Tick(), 103.4)) == []
    assert assigned(rendezvous.observe(Tick(), 103.5)) == [("a", 5, 1)]


def test_it_does_not_form_a_round_of_too_few() -> None:
    rendezvous = heir(2, 2, members=2)
    rendezvous.observe(Heard(message=join("a", 4)), 102.0)
    rendezvous.seats["a"].heard_at = 109.0
    assert assigned(rendezvous.observe(Tick(), 110.0)) == []


def test_whoever_missed_the_end_hears_it_from_the_next_leader() -> None:
    rendezvous = heir(1, 2, members=2)
    rendezvous.resume(Past(life="", round=4, restarts=0, report=report()), now=100.0)
    assert rendezvous.observe(Heard(message=join("b", 4)), 101.0) == [Tell(node="b", message=Finish(report=report()))]


# --- the node around both -------------------------------------------------------------------------------------------------

GUEST = 1 << 20


class Story:
    """A node `a` of a job of one node or two, with everything that it wants done at the last step."""

    def __init__(self, nodes: int = 1) -> None:
        self.rules = Rules(job="j", min_nodes=nodes, max_nodes=nodes, lease_s=3.0)
        member = Member("a", endpoint="?", join_timeout_s=60.0, is_told_where=True, now=0.0)
        self.node = StoreElectedNode(Group(State(join=join("a"), grace_s=5.0, hosting=False)), member, candidate(), self.found)
        self.done = self.node.begin(0.0)

    def found(self, now: float) -> tuple[LinkRouter, RestartOnFailure]:
        policy = RestartOnFailure(max_restarts=3)
        return LinkRouter(Rendezvous(self.rules, policy, now=now, now_unix=0.0)), policy

    def see(self, seen: Any, now: float) -> list[Any]:
        self.done = with_logs(self.node, self.node.observe(seen, now), now)
        return self.done

    def linked_to_itself(self, now: float) -> list[Any]:
        """Both ends of its own link come up, and what it has said over that arrives."""
        self.see(LinkUp(link=GUEST, ours=False), now)
        said = self.sent(self.see(LinkUp(link=self.node.member.link, ours=True), now), self.node.member.link)
        return [action for message in said for action in self.see(Arrived(link=GUEST, message=message), now)]

    @staticmethod
    def sent(actions: list[Any], link: int) -> list[Message]:
        return [action.message for action in actions if isinstance(action, Transmit) and action.link == link]

    def all_of(self, kind: type) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]


@pytest.fixture
def leading() -> Story:
    """It leads, and its own Join has arrived: the first round waits for the store."""
    story = Story()
    story.see(won(), 0.1)
    story.done = story.linked_to_itself(0.2)
    return story


def test_a_node_does_nothing_but_campaign_before_it_knows_a_leader() -> None:
    assert [kind for kind in kinds(Story().done) if kind != "Record"] == ["Campaign"]


def test_a_leader_reaches_itself_like_everybody_else() -> None:
    story = Story()
    story.see(won(), 0.1)
    assert Connect(link=story.node.member.link, endpoint=HERE) in story.done


def test_nobody_is_assigned_to_a_round_that_the_store_does_not_have(leading: Story) -> None:
    (wish,) = leading.all_of(Persist)
    assert wish.past.round == 1 and not [told for told in leading.sent(leading.done, GUEST) if isinstance(told, Assigned)]
    leading.see(Persisted(term=7, past=wish.past), 0.3)
    assert [type(told) for told in leading.sent(leading.done, GUEST)] == [Assigned]


def start(story: Story) -> None:
    """The store has the round, and the assignment arrives."""
    (wish,) = story.all_of(Persist)
    link = story.node.member.link
    (told,) = story.sent(story.see(Persisted(term=7, past=wish.past), 0.3), GUEST)
    story.see(Arrived(link=link, message=Renewed(lease_s=3.0, sent_at=0.2)), 0.3)
    story.see(Arrived(link=link, message=told), 0.3)
    assert story.all_of(StartWorkers)
    story.see(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.3)


def test_a_leader_s_own_workers_have_a_lease_too(leading: Story) -> None:
    start(leading)
    assert leading.node.lease_ends == 0.2 + 3.0


def test_a_leader_that_slept_through_its_lease_says_nothing_more_in_its_name(leading: Story) -> None:
    start(leading)
    late = leading.see(Arrived(link=GUEST, message=join("b")), 50.0)
    assert HangUp(link=GUEST) in late and not leading.sent(late, GUEST) and leading.node.server is None


def test_whoever_comes_to_a_node_that_does_not_lead_is_sent_away() -> None:
    story = Story()
    story.see(Leads(endpoint=THERE, term=7, life="L"), 0.1)
    assert story.see(LinkUp(link=GUEST, ours=False), 0.2) == [HangUp(link=GUEST)]


def test_a_follower_asks_the_store_when_its_link_breaks() -> None:
    story = Story()
    story.see(Leads(endpoint=THERE, term=7, life="L"), 0.1)
    link = story.node.member.link
    story.see(LinkUp(link=link, ours=True), 0.2)
    assert Await(term=7) in story.see(LinkDown(link=link, reason="reset"), 5.0)


def test_a_new_leader_stops_the_members_of_the_old_one_and_they_join_again(leading: Story) -> None:
    start(leading)
    leading.see(Deposed(term=7, reason="revoked"), 1.0)
    leading.see(Leads(endpoint=THERE, term=9, life="L"), 1.1)
    link = leading.node.member.link
    leading.see(LinkUp(link=link, ours=True), 1.2)
    assert leading.sent(leading.done, link), "it shows itself"
    leading.see(Arrived(link=link, message=Stop(round=1, reason="unknown", rejoin=True)), 1.3)
    assert leading.node.group.phase is Phase.STOPPING and leading.node.group.state.rejoin


def test_a_store_that_does_not_let_us_in_ends_the_agent() -> None:
    story = Story()
    story.see(StoreTrouble(reason="wrong password", hint="give another", final=True), 1.0)
    (end,) = story.all_of(Exit)
    assert end.code == 1 and "wrong password" in end.complaint and "give another" in end.complaint


def test_a_leader_that_goes_leaves_word_of_where_the_job_stands(leading: Story) -> None:
    start(leading)
    (will,) = leading.node.will(2.0)
    assert isinstance(will, Resign) and not will.forget and will.past is not None
    assert (will.past.round, will.past.members) == (1, 1)


def ended(story: Story) -> bool:
    """The job ends well and everyone knows. Does the leader have the store forget it?"""
    assert story.node.server is not None
    story.node.server.guests.clear()
    story.node.server.owed.clear()
    story.node.server.rendezvous.report = report()
    (will,) = story.node.will(9.0)
    assert isinstance(will, Resign)
    return will.forget


def test_a_job_that_lost_nobody_is_forgotten_when_it_ends(leading: Story) -> None:
    start(leading)
    assert ended(leading)


def test_a_node_that_was_lost_can_still_learn_how_the_job_ended(leading: Story) -> None:
    start(leading)
    assert leading.node.server is not None
    leading.node.server.rendezvous.seats.lost.append("b")
    assert not ended(leading)


def test_nor_does_a_later_leader_forget_a_job_that_others_may_have_been_lost_from() -> None:
    story = Story()
    story.see(won(past=Past(life="L", round=3, members=1)), 0.1)
    assert not ended(story)


def test_a_follower_leaves_nothing() -> None:
    story = Story()
    story.see(Leads(endpoint=THERE, term=7, life="L"), 0.1)
    assert story.node.will(1.0) == []


def test_stepping_down_is_told_with_its_reason(leading: Story) -> None:
    said = [action.text for action in leading.see(Deposed(term=7, reason="revoked"), 1.0) if isinstance(action, Say)]
    assert said == ["this agent no longer leads the job: revoked"]
    assert not leading.all_of(StepDown) and not leading.all_of(Lead)


def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[etcd\]'"):
        open_etcd(None, None)  # type: ignore[arg-type]
