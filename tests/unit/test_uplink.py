"""What a reporter says to its supervisor, when, and which orders it takes."""

from __future__ import annotations

from holdfast.agent.reporting.supervisor_link import ageless
from holdfast.agent.reporting.supervisor_uplink import ANSWER_S, REFUSED_S, TROUBLES, Obey, Uplink
from holdfast.core.machine import Action, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Alive, Did, Heard, Heed, NotHeard, Order, RankSaid, Standing, Trouble
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit

STANDS = Standing(node="a-1", number=0, name="a", job="train", state="running", round=1)


def trouble(what: str) -> Trouble:
    return Trouble(node="a-1", number=0, kind="worker", what=what)


def said(actions: list[Action]) -> list[object]:
    return [action.message for action in actions if isinstance(action, Transmit)]


def connected(now: float = 0.0) -> Uplink:
    """It has said how things are, and was heard."""
    uplink = Uplink("a-1", "host:1", now=now)
    uplink.stands(STANDS, now)
    assert uplink.observe(Tick(), now) == [Connect(link=1, endpoint="host:1")]
    (standing,) = said(uplink.observe(LinkUp(link=1, ours=True), now))
    told(uplink, Heed(lease_s=4.0, generation=3), now)
    told(uplink, Heard(number=standing.number), now)
    return uplink


def told(uplink: Uplink, message: object, now: float = 0.0) -> list[Action]:
    return uplink.observe(Arrived(link=uplink.link, message=message), now)


def order(id: str = "3-1.exclude", generation: int = 3) -> Order:
    return Order(order=id, generation=generation, verb="exclude", target="b", reason="its fan")


def test_it_gives_signs_of_life_four_times_a_lease():
    uplink = connected()
    assert uplink.deadline() == 1.0 and said(uplink.observe(Tick(), 1.0)) == [Alive(node="a-1")] and uplink.deadline() == 2.0


def test_of_what_has_changed_while_nobody_answers_only_the_newest_is_said():
    uplink = connected()
    (first,) = said(uplink.stands(STANDS, 0.1))
    for round in (2, 3, 4):
        assert uplink.stands(Standing(node="a-1", number=0, name="a", job="train", state="running", round=round), 0.2) == []
    (last,) = said(told(uplink, Heard(number=first.number), 0.3))
    assert last.round == 4


def test_a_trouble_is_said_until_it_is_heard_and_too_many_are_forgotten():
    uplink = connected()
    for number in range(TROUBLES + 5):
        uplink.trouble(trouble(str(number)), 0.1)
    uplink.observe(LinkDown(link=1, reason="broken"), 0.2)
    uplink.observe(Tick(), uplink.deadline())
    again = [one for one in said(uplink.observe(LinkUp(link=2, ours=True), 1.0)) if isinstance(one, Trouble)]
    assert [one.what for one in again] == [str(number) for number in range(5, TROUBLES + 5)]
    told(uplink, Heard(number=again[0].number))
    assert len(uplink.troubles) == TROUBLES - 1


def test_a_supervisor_that_has_not_answered_is_given_up_and_sought_again():
    uplink = connected()
    uplink.stands(STANDS, 0.5)
    while (at := uplink.deadline()) < 0.5 + ANSWER_S:
        uplink.observe(Tick(), at)
    assert uplink.observe(Tick(), at)[0] == HangUp(link=1)
    assert uplink.observe(Tick(), uplink.deadline()) == [Connect(link=2, endpoint="host:1")]


def test_it_comes_back_later_each_time_and_says_so_once():
    uplink = connected()
    lines, waits, now = [], [], 0.0
    for _ in range(8):
        down = uplink.observe(LinkDown(link=uplink.link, reason="refused"), now)
        lines += [action for action in down if isinstance(action, Say)]
        waits.append(round(uplink.deadline() - now, 3))
        now = uplink.deadline()
        uplink.observe(Tick(), now)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0], "at the longest half of a lease"
    assert len(lines) == 1 and "goes on without it" in lines[0].text


def test_where_trying_again_cannot_help_it_waits_long():
    uplink = connected()
    uplink.observe(LinkDown(link=1, reason="wrong token", final=True), 1.0)
    assert uplink.deadline() == 1.0 + REFUSED_S


def refused(uplink: Uplink, now: float) -> list[Action]:
    """Its next link stands, the supervisor refuses what it says, and closes it."""
    (connect,) = uplink.observe(Tick(), now)
    uplink.observe(LinkUp(link=connect.link, ours=True), now)
    actions = told(uplink, NotHeard(reason="another speaks for a"), now)
    return actions + uplink.observe(LinkDown(link=connect.link, reason="closed"), now)


def test_one_that_is_refused_comes_back_much_later_and_says_so_once():
    uplink = Uplink("a-1", "host:1", now=0.0)
    uplink.stands(STANDS, 0.0)
    hung_up, line = refused(uplink, 0.0)
    assert hung_up == HangUp(link=1) and isinstance(line, Say) and line.level == "warning"
    assert line.text == "the supervisor at host:1 refuses this node: another speaks for a; the job goes on without it"
    assert uplink.deadline() == REFUSED_S
    assert refused(uplink, REFUSED_S) == [HangUp(link=2)] and uplink.deadline() == 2 * REFUSED_S


def test_one_whose_links_stand_and_break_unheeded_comes_back_later_each_time():
    uplink, now, waits = Uplink("a-1", "host:1", now=0.0), 0.0, []
    for link in (1, 2, 3):
        uplink.observe(Tick(), now)
        uplink.observe(LinkUp(link=link, ours=True), now)
        uplink.observe(LinkDown(link=link, reason="reset"), now)
        waits.append(round(uplink.deadline() - now, 3))
        now = uplink.deadline()
    assert waits == [0.1, 0.2, 0.4]


def test_one_that_a_supervisor_refuses_asks_the_other_at_once_and_then_waits_long():
    uplink = Uplink("a-1", "host:1", "other:1", now=0.0)
    uplink.stands(STANDS, 0.0)
    refused(uplink, 0.0)
    assert uplink.deadline() == 0.0
    refused(uplink, 0.0)
    assert uplink.deadline() == REFUSED_S


def test_an_order_is_carried_out_once_and_its_end_told_as_often_as_it_comes():
    uplink = connected()
    assert told(uplink, order()) == [Obey(order=order())]
    assert told(uplink, order()) == [], "it is under way"
    uplink.did("3-1.exclude", True, "b is excluded")
    done = Did(node="a-1", order="3-1.exclude", ok=True, text="b is excluded")
    assert said(told(uplink, order())) == [done]
    assert said(told(uplink, order(generation=4))) == [done], "the next life of the supervisor asks again"


def test_an_order_of_an_older_supervisor_is_refused():
    uplink = connected()
    told(uplink, order("4-1.exclude", generation=4))
    (refused,) = said(told(uplink, order("3-9.exclude", generation=3)))
    assert not refused.ok and "generation 3, and 4 has spoken" in refused.text


def test_what_comes_over_an_older_link_is_ignored():
    uplink = connected()
    assert uplink.observe(Arrived(link=0, message=order()), 1.0) == []
    assert uplink.observe(LinkDown(link=0, reason="late"), 1.0) == []


def test_a_report_in_which_only_ages_are_others_is_no_news():
    def standing(step: int, age_s: float) -> Standing:
        rank = RankSaid(rank=0, local_rank=0, state="running", step=step, step_s=age_s, beat_age_s=age_s)
        return replace(STANDS, ranks=(rank,))

    assert ageless(standing(7, 0.1)) == ageless(standing(7, 0.2)) and ageless(standing(7, 0.1)) != ageless(standing(8, 0.1))


def of_two(now: float = 0.0) -> Uplink:
    """Connected to the first of two supervisors."""
    uplink = Uplink("a-1", "host:1", "other:1", now=now)
    uplink.stands(STANDS, now)
    uplink.observe(Tick(), now)
    (standing,) = said(uplink.observe(LinkUp(link=1, ours=True), now))
    told(uplink, Heed(lease_s=4.0, generation=3), now)
    told(uplink, Heard(number=standing.number), now)
    return uplink


def test_of_several_supervisors_the_next_is_tried_at_once_and_then_all_again_later():
    uplink, tried, now = of_two(), [], 1.0
    uplink.observe(LinkDown(link=1, reason="reset"), now)
    for _ in range(4):
        now = uplink.deadline()
        (connect,) = uplink.observe(Tick(), now)
        tried.append((connect.endpoint, round(now, 3)))
        uplink.observe(LinkDown(link=uplink.link, reason="refused"), now)
    assert tried == [("other:1", 1.1), ("host:1", 1.1), ("other:1", 1.3), ("host:1", 1.3)]


def test_a_leader_that_is_stopped_is_left_though_its_link_stands():
    uplink = of_two()
    at = uplink.deadline()
    assert said(uplink.observe(Tick(), at)) == [uplink.standing], "a sign of life that has to be answered"
    while uplink.deadline() < at + 2.0:
        uplink.observe(Tick(), uplink.deadline())
    assert uplink.observe(Tick(), uplink.deadline())[0] == HangUp(link=1)
    (connect,) = uplink.observe(Tick(), uplink.deadline())
    assert connect == Connect(link=2, endpoint="other:1")


def test_one_of_several_that_does_not_answer_at_all_is_not_waited_for_long():
    uplink = of_two()
    uplink.observe(LinkDown(link=1, reason="reset"), 1.0)
    uplink.observe(Tick(), uplink.deadline())
    assert uplink.deadline() == 1.1 + 2.0 and uplink.observe(Tick(), uplink.deadline())[0] == HangUp(link=2)
