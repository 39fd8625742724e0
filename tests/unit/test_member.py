"""A member in touch with its coordinator: links that come and go, leases that end, answers that come too late."""

from __future__ import annotations

from typing import Any

import pytest
from kit.stages.made_up import assigned, report

from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import (
    Finish,
    Join,
    Leave,
    Message,
    Refused,
    Renew,
    Renewed,
    Reply,
    Request,
    RequestKind,
    Stop,
    Stopped,
    Succeeded,
    Waiting,
)
from holdfast.rendezvous.lease import KILL_S
from holdfast.rendezvous.member import ABANDONED_S, GIVE_UP_S, LONGEST_RETRY_S, TURNED_S, Deliver, Member, luck

LEASE_S = 3.0
JOIN = Join(node="n1", name="n1", addr="n1", master_port=1, nproc=1, role="default")
REPORT = report()
WAITING = Waiting(round=1, reason="the job has its 2 nodes")


class Talk:
    """A member with a link, and what it does with it."""

    def __init__(self, join_timeout_s: float = 60.0, *, may_serve: bool = False, had_ranks: bool = False) -> None:
        where = {"endpoint": "head:29400", "may_serve": may_serve, "had_ranks": had_ranks}
        self.member = Member("n1", join_timeout_s=join_timeout_s, now=0.0, **where)  # type: ignore[arg-type]
        self.now = 0.0
        self.did: list[Any] = []

    def see(self, seen: Any, now: float | None = None) -> list[Any]:
        self.now = self.now if now is None else now
        self.did = self.member.observe(seen, self.now)
        return self.did

    def link_up(self, now: float | None = None) -> list[Any]:
        return self.see(LinkUp(link=self.member.link, ours=True), now)

    def hear(self, message: Message, now: float | None = None, link: int | None = None) -> list[Any]:
        return self.see(Arrived(link=self.member.link if link is None else link, message=message), now)

    def renewed(self, sent_at: float, now: float | None = None) -> list[Any]:
        return self.hear(Renewed(lease_s=LEASE_S, sent_at=sent_at), now)

    def say(self, message: Message) -> list[Any]:
        self.did = self.member.say(message, self.now)
        return self.did


@pytest.fixture
def talk() -> Talk:
    """A member that is linked and has a lease from 0 s."""
    talk = Talk()
    talk.see(Tick())
    talk.say(JOIN)
    talk.link_up()
    talk.renewed(0.0)
    return talk


@pytest.fixture
def running(talk: Talk) -> Talk:
    """… and takes part in round 1."""
    talk.hear(assigned())
    return talk


def sent(did: list[Any]) -> list[Message]:
    return [action.message for action in did if isinstance(action, Transmit)]


def delivered(did: list[Any]) -> list[Message | None]:
    return [action.message for action in did if isinstance(action, Deliver)]


# --- links ------------------------------------------------------------------------------------------------------------------


def test_it_asks_for_a_link_at_once() -> None:
    assert Talk().see(Tick()) == [Connect(link=1)]


def test_what_was_said_before_there_was_a_link_is_said_when_it_stands() -> None:
    talk = Talk()
    talk.see(Tick())
    assert talk.say(JOIN) == []
    assert sent(talk.link_up()) == [JOIN, Renew(node="n1", round=0, sent_at=0.0)]


def test_who_joins_over_a_link_that_stands_asks_for_a_lease_with_it() -> None:
    talk = Talk()
    talk.see(Tick())
    assert sent(talk.link_up()) == [Renew(node="n1", round=0, sent_at=0.0)], "which a coordinator does not answer: who is n1?"
    talk.now = 0.1
    assert sent(talk.say(JOIN)) == [JOIN, Renew(node="n1", round=0, sent_at=0.1)]


def test_a_broken_link_is_asked_for_again_after_longer_and_longer_pauses() -> None:
    talk = Talk()
    talk.see(Tick())
    pauses = []
    for attempt in range(2, 10):
        talk.see(LinkDown(link=talk.member.link, reason="refused"))
        pauses.append(talk.member.deadline() - talk.now)
        assert talk.see(Tick(), talk.member.deadline()) == [Connect(link=attempt)]
    own = 0.5 + luck("n1")
    assert pauses == pytest.approx([own * pause for pause in (0.05, 0.1, 0.2, 0.4, 0.8, *[LONGEST_RETRY_S] * 3)])


def test_nodes_of_a_large_job_that_lose_their_links_at_once_come_back_one_after_the_other() -> None:
    back = []
    for number in range(1000):
        member = Member(f"n{number}", endpoint="head:29400", join_timeout_s=60.0, now=0.0)
        member.nodes = 4096
        member.observe(Tick(), 0.0)
        member.observe(LinkDown(link=1, reason="the switch restarts"), 1.0)
        back.append(member.deadline())
    most = max(sum(begin <= at < begin + 0.1 for at in back) for begin in [1.0 + 0.1 * step for step in range(20)])
    assert max(back) < 1.0 + LEASE_S / 2 and most < 1000 / 5


def test_a_link_that_is_taken_up_and_closed_at_once_is_no_reason_to_hurry() -> None:
    """Whoever leads no longer does that, and a thousand members would ask it twenty times a second each."""
    talk = Talk()
    talk.see(Tick())
    pauses = []
    for _ in range(8):
        talk.link_up()
        talk.see(LinkDown(link=talk.member.link, reason="closed"))
        pauses.append(talk.member.deadline() - talk.now)
        talk.see(Tick(), talk.member.deadline())
    own = 0.5 + luck("n1")
    assert pauses == pytest.approx([own * pause for pause in (0.05, 0.1, 0.2, 0.4, 0.8, *[LONGEST_RETRY_S] * 3)])
    talk.link_up()
    talk.renewed(talk.now)
    talk.see(LinkDown(link=talk.member.link, reason="reset"))
    assert talk.member.deadline() == pytest.approx(talk.now + own * 0.05), "a coordinator that answered is looked for at once"


def test_everything_since_the_last_assignment_is_said_again_over_a_new_link(running: Talk) -> None:
    running.say(Succeeded(node="n1", round=1))
    running.see(LinkDown(link=1, reason="reset"), 0.5)
    running.see(Tick(), 0.6)
    assert sent(running.link_up(0.7))[:1] == [Succeeded(node="n1", round=1)]


def test_an_operators_request_is_said_again_until_it_is_answered(running: Talk) -> None:
    asked = Request(node="n1", kind=RequestKind.EXCLUDE, target="n2", ask=1, reason="its fan is broken")
    running.say(asked)
    assert running.member.outbox[-1] == asked
    answer = Reply(ask=1, ok=True, text="so be it")
    assert running.hear(answer) == [Deliver(message=answer)]
    assert asked not in running.member.outbox


def test_a_join_that_was_answered_is_not_repeated(running: Talk) -> None:
    running.see(LinkDown(link=1, reason="reset"), 0.5)
    running.see(Tick(), 0.6)
    assert [type(message) for message in sent(running.link_up(0.7))] == [Renew]


def test_a_join_makes_everything_before_it_needless(running: Talk) -> None:
    running.say(Stopped(node="n1", round=1))
    running.say(JOIN)
    assert running.member.outbox == [JOIN]


def test_news_of_an_old_link_is_no_news(running: Talk) -> None:
    running.see(LinkDown(link=1, reason="reset"), 0.5)
    running.see(Tick(), 0.6)
    assert running.hear(Stop(round=1, reason="late", rejoin=True), link=1) == []
    assert running.see(LinkDown(link=1, reason="again")) == []


def test_who_is_turned_away_tries_again_until_an_agent_that_was_about_to_go_must_be_gone() -> None:
    wrong = "another job (--rdzv-id), or a token (--token-file, HOLDFAST_TOKEN, a shared --state-dir) and this job has none"
    talk = Talk()

    def broke(at: float, **why: Any) -> list[Message | None]:
        talk.see(Tick(), max(talk.now, min(at, talk.member.deadline())))
        return delivered(talk.see(LinkDown(link=talk.member.link, **why), at))

    assert not broke(1.0, reason=wrong, final=True)
    assert not broke(1.5, reason="Connection refused", refused=True)
    assert not broke(2.0, reason=wrong, final=True), "another, perhaps"
    assert not broke(2.0 + TURNED_S - 0.1, reason=wrong, final=True)
    (said,) = broke(2.0 + TURNED_S, reason=wrong, final=True)
    assert isinstance(said, Refused) and said.reason == f"the coordinator at head:29400 refused this node: {wrong}"
    assert talk.member.deadline() == NEVER


# --- leases -----------------------------------------------------------------------------------------------------------------


def test_it_renews_three_times_within_a_lease(running: Talk) -> None:
    assert running.member.deadline() == 0.75
    assert sent(running.see(Tick(), 0.75)) == [Renew(node="n1", round=1, sent_at=0.75)]


def test_thousands_renew_once_a_second_and_more_often_only_if_the_lease_is_short(talk: Talk) -> None:
    talk.hear(assigned(of=4096))
    talk.see(Tick(), talk.member.deadline())
    talk.renewed(talk.now)
    assert talk.member.deadline() == talk.now + 1.0
    talk.see(Tick(), talk.member.deadline())
    talk.hear(Renewed(lease_s=0.5, sent_at=talk.now))
    assert talk.member.deadline() == talk.now + 0.25


def test_a_lease_counts_from_when_the_renewal_was_sent_not_from_its_answer(running: Talk) -> None:
    running.renewed(sent_at=1.0, now=2.9)
    assert running.member.lease_ends == 1.0 + LEASE_S


def test_a_late_answer_to_an_older_renewal_shortens_nothing(running: Talk) -> None:
    running.renewed(sent_at=2.0, now=2.1)
    running.renewed(sent_at=1.0, now=2.2)
    assert running.member.lease_ends == 2.0 + LEASE_S


def test_the_end_of_a_lease_is_told_once_with_the_last_moment_for_the_workers(running: Talk) -> None:
    lease_over = [action for action in running.see(Tick(), LEASE_S) if isinstance(action, Deliver)]
    assert lease_over == [
        Deliver(
            lease_over="the coordinator at head:29400 has not answered for 3.0 s", until=LEASE_S + KILL_S, patience_s=GIVE_UP_S
        )
    ]
    assert not delivered(running.see(Tick(), LEASE_S + 1))


def test_no_word_but_a_renewal_prolongs_a_lease(running: Talk) -> None:
    running.hear(Stop(round=1, reason="b joined", rejoin=True), 2.5)
    assert running.member.lease_ends == LEASE_S


def test_a_link_that_was_silent_for_a_lease_is_made_anew(running: Talk) -> None:
    did = running.see(Tick(), LEASE_S)
    assert HangUp(link=1) in did and Connect(link=2) in did


def test_an_assignment_at_the_very_end_of_a_lease_is_not_acted_on(talk: Talk) -> None:
    did = talk.hear(assigned(), LEASE_S)
    assert delivered(did) == [None], "only word that the lease is over"
    assert talk.member.outbox == [JOIN], "so the answer will be said again"


def test_an_assignment_over_a_new_link_waits_for_its_lease(talk: Talk) -> None:
    talk.see(Tick(), LEASE_S)
    talk.link_up(5.0)
    assert delivered(talk.hear(assigned(4), 5.1)) == []
    assert delivered(talk.renewed(sent_at=5.0, now=5.2)) == [assigned(4)]


def test_a_first_assignment_waits_for_the_first_lease() -> None:
    talk = Talk()
    talk.see(Tick())
    talk.say(JOIN)
    talk.link_up()
    assert delivered(talk.hear(assigned(), 0.1)) == []
    assert delivered(talk.renewed(sent_at=0.0, now=0.2)) == [assigned()]


def test_an_assignment_that_waited_is_forgotten_with_its_link(talk: Talk) -> None:
    talk.see(Tick(), LEASE_S)
    talk.link_up(5.0)
    talk.hear(assigned(4), 5.1)
    talk.see(LinkDown(link=2, reason="reset"), 5.2)
    talk.see(Tick(), 5.3)
    talk.link_up(5.4)
    assert delivered(talk.renewed(sent_at=5.4, now=5.5)) == []


def test_it_gives_up_when_nobody_ever_answered() -> None:
    talk = Talk()
    talk.see(Tick())
    talk.see(LinkDown(link=1, reason="Connection refused"))
    talk.see(Tick(), 59.0)
    (said,) = delivered(talk.see(Tick(), 60.0))
    assert isinstance(said, Refused)
    assert said.reason == "the coordinator at head:29400 is out of reach: no answer for 60 s (Connection refused)"
    assert said.hint == "is the first node's agent running, and is its port open to this node?"


def test_an_agent_of_the_job_that_leads_nobody_is_waited_for_as_long_as_for_nodes() -> None:
    talk = Talk(join_timeout_s=100.0)
    talk.link_up(20.0)
    talk.see(LinkDown(link=talk.member.link, reason="closed by the other side"), 20.0)
    assert not delivered(talk.see(Tick(), 99.9))
    (said,) = delivered(talk.see(Tick(), 100.0))
    assert isinstance(said, Refused) and "closed by the other side" in said.reason
    assert "leads nobody" in said.hint


def test_who_speaks_another_protocol_at_the_endpoint_is_named_at_once_and_may_go() -> None:
    talk = Talk(join_timeout_s=600.0)
    did = talk.see(LinkDown(link=0, reason="it speaks HTTP", foreign=True), 1.0)
    told = [said.text for said in did if isinstance(said, Say)]
    assert told == ["no coordinator at head:29400 yet: it speaks HTTP; trying again"]
    did = talk.see(LinkDown(link=talk.member.link, reason="it speaks HTTP", foreign=True), 2.0)
    assert not any(isinstance(said, Say) for said in did), "once"
    assert not delivered(talk.see(Tick(), 599.9))
    (said,) = delivered(talk.see(Tick(), 600.0))
    assert isinstance(said, Refused) and "it speaks HTTP" in said.reason and "another program" in said.hint


def test_an_endpoint_that_may_be_here_is_served_by_who_has_met_nobody_there() -> None:
    talk = Talk(may_serve=True)
    assert talk.see(Tick()) == [Connect(link=1, may_serve=True)]
    talk.see(LinkDown(link=1, reason="it speaks HTTP", foreign=True), 1.0)
    assert Connect(link=2, may_serve=True) in talk.see(Tick(), talk.member.deadline())
    talk.link_up()
    talk.see(LinkDown(link=2, reason="closed by the other side"))
    assert Connect(link=3) in talk.see(Tick(), talk.member.deadline()), "there was a coordinator"


def test_an_endpoint_that_a_coordinator_has_moved_from_is_not_served_in_its_place() -> None:
    talk = Talk(may_serve=True)
    assert talk.member.redirect("n2:1", 0.0) == [Connect(link=talk.member.link, endpoint="n2:1")]


def test_after_its_lease_it_goes_on_looking_for_a_while(running: Talk) -> None:
    running.see(Tick(), LEASE_S)
    assert not delivered(running.see(Tick(), LEASE_S + GIVE_UP_S - 0.1))
    (said,) = delivered(running.see(Tick(), LEASE_S + GIVE_UP_S))
    assert isinstance(said, Refused) and "whether the job goes on without this node, or has ended, is not known" in said.reason


def refused(talk: Talk, *, until: float) -> list[Message]:
    """From 1 s on every attempt to reach the coordinator is refused: what there is for the agent."""
    did = talk.see(LinkDown(link=talk.member.link, reason="Connection refused", refused=True), 1.0)
    said: list[Message] = []
    while (now := talk.member.deadline()) <= until:
        did = talk.see(Tick(), now)
        said += [message for message in delivered(did) if message is not None]
        if any(isinstance(action, Connect) for action in did):
            talk.see(LinkDown(link=talk.member.link, reason="Connection refused", refused=True), now + 0.001)
    return said


def test_a_spare_that_is_refused_at_the_endpoint_says_soon_that_the_job_has_ended_most_likely(talk: Talk) -> None:
    talk.hear(WAITING)
    assert not refused(talk, until=1.0 + ABANDONED_S - 0.1)
    (said,) = refused(talk, until=1.0 + ABANDONED_S)
    assert isinstance(said, Refused) and "most likely the job ended while this node, a spare, was cut off" in said.reason
    assert "holdfast report" in said.hint


def test_a_spare_whose_coordinator_s_host_does_not_answer_waits_for_it_to_start_again(talk: Talk) -> None:
    talk.hear(WAITING)
    refused(talk, until=5.0)
    talk.see(LinkDown(link=talk.member.link, reason="No route to host"))
    assert talk.member.deadline() < 8.0 and not delivered(talk.see(Tick(), 1.0 + ABANDONED_S))


def test_a_spare_that_had_ranks_before_it_was_started_again_waits_for_the_job_to_come_back() -> None:
    talk = Talk(had_ranks=True)
    talk.link_up(0.0)
    talk.renewed(0.0)
    talk.hear(WAITING)
    assert not refused(talk, until=LEASE_S + GIVE_UP_S - 0.1)


def test_whoever_has_a_rank_is_refused_for_longer_before_it_gives_up(talk: Talk) -> None:
    talk.hear(WAITING)
    talk.hear(assigned())
    assert not refused(talk, until=LEASE_S + GIVE_UP_S - 0.1)


def test_nor_does_anybody_give_up_soon_who_waits_for_the_first_round(talk: Talk) -> None:
    assert not refused(talk, until=LEASE_S + GIVE_UP_S - 0.1)


def test_a_deadline_that_was_served_is_never_asked_for_again(running: Talk) -> None:
    now = 0.0
    for _ in range(60):
        deadline = running.member.deadline()
        if deadline == NEVER:
            return
        assert deadline > now
        now = deadline
        running.see(Tick(), now)
    pytest.fail("it never gave up")


# --- the end ----------------------------------------------------------------------------------------------------------------


def test_it_says_that_it_has_heard_the_end_and_hangs_up(running: Talk) -> None:
    heard = Leave(node="n1", round=1, reason="the job is over")
    did = running.hear(Finish(report=REPORT), 1.0)
    assert did == [Transmit(link=1, message=heard), HangUp(link=1), Deliver(message=Finish(report=REPORT))]
    assert running.member.deadline() == NEVER


def test_the_end_of_the_job_is_heard_though_the_lease_is_over(running: Talk) -> None:
    assert Finish(report=REPORT) in delivered(running.hear(Finish(report=REPORT), LEASE_S + 1))


def test_a_refusal_is_passed_on_and_the_search_is_over(talk: Talk) -> None:
    refused = Refused(reason="node rank 0 is already taken")
    assert delivered(talk.hear(refused)) == [refused] and talk.member.deadline() == NEVER
