"""The store that a coordinator keeps for its agents: what is asked, who waits, and how much it may hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.rendezvous.kvstore.machine as module
import holdfast.rendezvous.kvstore.table as table
from holdfast.core.machine import NEVER, Tick
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Join, StoreAnswer, StoreAsk
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.kvstore.machine import LONGEST_WAIT_S, KeyValues
from holdfast.rendezvous.kvstore.table import EMPTY, FULL, OVER, TIMEOUT, VALUE_BYTES, WRONG
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.rules import Rules


class Desk:
    """Somebody who asks the machine; each link has one open question at most, unless it is numbered."""

    def __init__(self) -> None:
        self.machine, self.now = KeyValues(), 0.0

    def ask(
        self, op: str, *keys: str, link: int = 1, ask: int = 1, round: int = 0, **how: Any
    ) -> list[tuple[int, StoreAnswer]]:
        """What is said now, and to whom."""
        how["values"] = tuple(how.get("values", ()))
        message = StoreAsk(node="n", ask=ask, round=round, op=op, keys=keys, **how)
        return self.said(self.machine.observe(Arrived(link=link, message=message), self.now))

    def said(self, actions: list[Any]) -> list[tuple[int, StoreAnswer]]:
        assert all(isinstance(action, Transmit) and isinstance(action.message, StoreAnswer) for action in actions)
        return [(action.link, action.message) for action in actions]

    def one(self, op: str, *keys: str, **how: Any) -> StoreAnswer:
        ((link, answer),) = self.ask(op, *keys, **how)
        assert link == how.get("link", 1)
        return answer

    def set(self, key: str, value: bytes = b"v", **how: Any) -> list[tuple[int, StoreAnswer]]:
        return self.ask("set", key, values=[value], link=99, **how)[1:]

    def tick(self, now: float) -> list[tuple[int, StoreAnswer]]:
        self.now = now
        return self.said(self.machine.observe(Tick(), now))

    def nothing_left(self) -> bool:
        machine = self.machine
        return not machine.waiters and not machine.by_key and not machine.turns and machine.count == 0


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_read_waits_for_its_key_and_is_answered_with_its_value(desk):
    assert desk.ask("get", "a", "b", wait_s=9.0) == []
    assert desk.set("a", b"1") == []
    ((link, answer),) = desk.set("b", b"2")
    assert (link, answer.values, answer.error) == (1, (b"1", b"2"), "") and desk.nothing_left()


def test_everybody_at_a_barrier_is_answered_at_once_in_the_order_of_their_coming(desk):
    for link in range(5):
        assert desk.ask("wait", "all here", link=link, wait_s=9.0) == []
    assert [link for link, _ in desk.set("all here")] == [0, 1, 2, 3, 4] and desk.nothing_left()


def test_one_that_waits_too_long_is_told_what_is_missing(desk):
    desk.set("there")
    assert desk.ask("wait", "never", "there", "nor", wait_s=2.0) == []
    assert desk.machine.deadline() == 2.0 and desk.tick(1.9) == []
    ((_, answer),) = desk.tick(2.0)
    assert answer.error == TIMEOUT and answer.reason == "waited 2 s for never, nor, which nobody has set"
    assert desk.machine.deadline() == NEVER and desk.nothing_left()


def test_no_time_means_now_or_never(desk):
    assert desk.one("get", "a").error == TIMEOUT and desk.nothing_left()


def test_nobody_waits_longer_than_clocks_know(desk):
    desk.ask("wait", "never", wait_s=1e300)
    assert desk.machine.deadline() == LONGEST_WAIT_S


def test_a_broken_link_takes_its_waiters_with_it(desk):
    desk.ask("wait", "a", link=1, ask=1, wait_s=9.0)
    desk.ask("get", "a", "b", link=1, ask=2, wait_s=9.0)
    assert desk.machine.observe(LinkDown(link=1, reason="gone"), 0.0) == []
    assert desk.nothing_left() and desk.set("a") == [] and desk.tick(10.0) == []


def test_long_answers_come_at_a_pace_and_to_each_link_in_turn(desk):
    desk.set("k", bytes(module.BYTES_PER_S // 20))
    for link in (1, 2):
        for ask in (1, 2, 3):
            desk.ask("get", "k", link=link, ask=ask, wait_s=5.0)
    told: list[tuple[int, int]] = []
    while desk.machine.deadline() < NEVER:
        desk.now = max(desk.now, desk.machine.deadline())
        told += [(link, answer.ask) for link, answer in desk.tick(desk.now)]
    assert told == [(1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]  # (1, 1) was answered at once
    assert 0.2 <= desk.now <= 0.3 and desk.nothing_left()


def test_what_takes_long_to_look_through_has_a_pace_though_its_answer_is_short(desk):
    """A member fills the store with keys, or makes a value long, and has all of it looked through by a hundred bytes."""
    for part in range(25):
        keys = [f"{part}/{number}" for number in range(8000)]
        desk.ask("set", *keys, values=[b""] * len(keys))
    desk.ask("set", "long", values=[bytes(VALUE_BYTES - 100)])
    for op, how in (("count", {}), ("list", {}), ("append", {"values": [b"x"]}), ("add", {"number": 1})):
        desk.now += 100.0
        at_once = sum(len(desk.ask(op, "long", ask=number, **how)) for number in range(20))
        assert 0 < at_once < 10, op
        told = 0
        while desk.machine.deadline() < NEVER:
            desk.now = max(desk.now, desk.machine.deadline())
            told += len(desk.tick(desk.now))
        assert at_once + told == 20


def test_who_waits_for_many_keys_that_come_and_go_is_looked_at_at_that_pace(desk):
    keys = [f"{number}" for number in range(8000)]
    desk.ask("set", *keys, values=[b""] * len(keys))
    for link in range(16):
        desk.ask("wait", *keys, "a", "b", link=link, wait_s=60.0)
    desk.now = 1.0
    for number in range(100):
        come, go = ("a", "b") if number % 2 else ("b", "a")
        desk.ask("delete", go, ask=2 * number, link=99)
        desk.ask("set", come, ask=2 * number + 1, values=[b""], link=99)
    assert len(desk.machine.turns[""][99]) > 100


def test_an_address_has_one_turn_however_many_links_come_from_it(desk):
    """One member with a thousand links, each of which asks for much again and again, and another with one."""
    for link in range(1000):
        desk.machine.observe(LinkUp(link=link, ours=False, peer="10.0.0.1"), 0.0)
    desk.machine.observe(LinkUp(link=5000, ours=False, peer="10.0.0.2"), 0.0)
    desk.set("k", bytes(VALUE_BYTES))
    for ask in range(8):
        for link in range(1000):
            desk.ask("get", "k", link=link, ask=ask, wait_s=5.0)
    for ask in range(5):
        assert desk.ask("get", "k", link=5000, ask=ask, wait_s=5.0) == []
        told: list[int] = []
        while 5000 not in told:
            desk.now = max(desk.now, desk.machine.deadline())
            told += [link for link, _ in desk.tick(desk.now)]
        assert len(told) <= 2
    for link in (*range(1000), 5000):
        desk.machine.observe(LinkDown(link=link, reason="gone"), desk.now)
    assert desk.nothing_left() and not desk.machine.peers and not desk.machine.counts


def test_whom_one_word_wakes_in_thousands_is_answered_at_that_pace_and_a_broken_link_takes_its_turns_with_it(desk):
    for link in range(10_000):
        desk.ask("get", "k", link=link, wait_s=60.0)
    at_once = len(desk.set("k"))
    assert 0 < at_once < 5000
    for link in range(5000, 10_000):
        desk.machine.observe(LinkDown(link=link, reason="gone"), desk.now)
    assert len(desk.tick(10.0)) + len(desk.tick(20.0)) == 5000 - at_once and desk.nothing_left()


def test_a_key_deleted_while_others_are_awaited_is_awaited_again(desk):
    desk.ask("get", "a", "b", wait_s=9.0)
    desk.set("a", b"old")
    assert desk.one("delete", "a", link=2).number == 1
    assert desk.set("b", b"2") == []
    ((_, answer),) = desk.set("a", b"new")
    assert answer.values == (b"new", b"2")


def test_each_item_of_a_queue_goes_to_one_who_waits(desk):
    for link in (1, 2, 3):
        assert desk.ask("pop", "q", link=link, number=1, wait_s=9.0) == []
    got = [desk.ask("push", "q", values=[item], link=9)[1:] for item in (b"x", b"y")]
    assert [(link, answer.values) for ((link, answer),) in got] == [(1, (b"x",)), (2, (b"y",))]
    assert desk.one("length", "q", link=9).number == 0 and list(desk.machine.waiters) == [3]
    assert desk.one("pop", "q", link=8).error == EMPTY


def test_a_new_round_forgets_those_before_the_last_and_tells_who_waits_there(desk):
    desk.machine.begin_round(1)
    desk.set("a", round=1)
    desk.ask("wait", "b", link=7, round=1, wait_s=9.0)
    assert desk.machine.begin_round(2) == [] and desk.one("check", "a", round=1).number == 1
    ((link, answer),) = desk.said(desk.machine.begin_round(3))
    assert (link, answer.error, answer.reason) == (7, OVER, "round 1 is over: the job is in round 3")
    assert desk.one("check", "a", round=1).error == OVER
    assert desk.machine.tables == {} and desk.machine.room.used == 0 and desk.nothing_left()


def test_a_round_that_is_far_ahead_has_no_store_yet(desk):
    for number in range(2, 1000):
        assert desk.one("check", "a", round=number).error == WRONG
    assert desk.machine.tables == {}


def test_rounds_do_not_see_each_others_keys(desk):
    desk.machine.begin_round(1)
    desk.set("a", b"1", round=1)
    assert desk.one("check", "a", round=2).number == 0 and desk.one("count", "", round=2).number == 0


# --- what it holds ----------------------------------------------------------------------------------------------------------


def test_a_value_that_is_too_long_is_refused_however_it_comes(desk, monkeypatch):
    monkeypatch.setattr(table, "VALUE_BYTES", 10)
    assert desk.one("set", "a", values=[b"x" * 11]).error == FULL
    assert desk.one("append", "a", values=[b"x" * 10]).error == ""
    assert desk.one("append", "a", values=[b"x"]).error == FULL
    assert desk.one("compare_set", "b", values=[b"", b"x" * 11]).error == FULL
    assert desk.one("get", "a").values == (b"x" * 10,) and desk.one("check", "b").number == 0


def test_a_full_store_takes_nothing_more_and_says_so(desk, monkeypatch):
    monkeypatch.setattr(table, "STORE_BYTES", 1000)
    desk.set("a", b"x" * 300)
    assert desk.one("set", "b", "c", values=[b"x" * 200, b"x" * 200]).error == FULL
    assert desk.one("push", "q", values=[b"x" * 400]).error == FULL
    assert desk.one("count", "").number == 1, "all or nothing"
    assert desk.one("set", "a", values=[b"y"]).error == "", "what makes it smaller is taken"
    assert desk.one("set", "b", values=[b"x" * 200]).error == ""


def test_only_so_many_may_wait(desk, monkeypatch):
    monkeypatch.setattr(module, "WAITERS", 2)
    monkeypatch.setattr(module, "OF_ONE", 1)
    for link in (1, 2):
        assert desk.ask("wait", "a", link=link, wait_s=9.0) == []
    assert desk.one("wait", "a", link=3, wait_s=9.0).error == FULL


def test_from_one_address_only_a_part_of_them_may_wait_and_others_still_can(desk, monkeypatch):
    monkeypatch.setattr(module, "WAITERS", 40)
    for link in range(40):
        desk.machine.observe(LinkUp(link=link, ours=False, peer="10.0.0.1"), 0.0)
    desk.machine.observe(LinkUp(link=40, ours=False, peer="10.0.0.2"), 0.0)
    told = [answer.error for link in range(40) for _, answer in desk.ask("wait", "a", link=link, wait_s=9.0)]
    assert told == [FULL] * 30 and desk.ask("wait", "a", link=40, wait_s=9.0) == []


def test_they_may_wait_for_only_so_many_keys_together(desk, monkeypatch):
    monkeypatch.setattr(module, "WAITED_KEYS", 3)
    monkeypatch.setattr(module, "OF_ONE", 1)
    assert desk.ask("wait", "a", "b", wait_s=9) == []
    ((_, answer),) = desk.ask("wait", "c", "d", ask=2, wait_s=9)
    assert answer.error == FULL
    desk.ask("set", "a", "b", ask=3, values=[b"", b""])
    assert desk.ask("wait", "c", "d", ask=4, wait_s=9) == []


def test_those_who_were_answered_are_not_remembered_until_their_time(desk):
    for number in range(1000):
        desk.ask("wait", "k", ask=number, wait_s=300.0)
        desk.set("k")
        desk.one("delete", "k")
    assert len(desk.machine.due) < 250


def test_an_answer_holds_what_fits_and_the_rest_is_asked_for_again(desk, monkeypatch):
    monkeypatch.setattr(table, "VALUE_BYTES", 40)
    for key in "abc":
        desk.set(key, b"x" * 15)
    assert [len(desk.one("get", *keys).values) for keys in ("abc", "c")] == [2, 1]
    first = desk.one("list", "")
    assert (len(first.values), first.number) == (3, 3)
    monkeypatch.setattr(table, "VALUE_BYTES", 20)
    shown = desk.one("list", "").values + desk.one("list", "", number=2).values
    assert shown == (b"a", b"b", b"c")


@pytest.mark.parametrize(
    ("op", "keys", "how", "said"),
    [
        ("steal", ["a"], {}, "there is no such operation"),
        ("_woken", ["a"], {}, "there is no such operation"),
        ("add", [], {}, "0 keys and 0 values were given, it takes 1 and 0"),
        ("compare_set", ["a"], {"values": [b""]}, "it takes 1 and 2"),
        ("set", ["a", "b"], {"values": [b""]}, "2 keys and 1 values"),
        ("wait", ["a"], {"wait_s": float("inf")}, "it cannot wait for such a time"),
        ("wait", ["a"], {"wait_s": float("nan")}, "it cannot wait for such a time"),
        ("add", ["text"], {"number": 1}, "is not a whole number"),
        ("add", ["great"], {"number": 2**63 - 1}, "would not fit into 64 bits"),
    ],
)
def test_what_cannot_be_done_is_said(desk, op, keys, how, said):
    desk.set("text", b"abc")
    desk.set("great", b"1")
    answer = desk.one(op, *keys, **how)
    assert answer.error == WRONG and said in answer.reason


def test_one_number_for_two_questions_is_refused(desk):
    desk.ask("wait", "a", wait_s=9.0)
    assert desk.one("wait", "b", wait_s=9.0).error == WRONG


KEYS = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([b"", b"1", b"22"])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.lists(st.tuples(KEYS, VALUES), max_size=3)),
            st.tuples(st.sampled_from(["append", "push"]), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=1)),
            st.tuples(st.sampled_from(["delete", "pop"]), st.lists(st.tuples(KEYS), min_size=1, max_size=1)),
            st.tuples(st.sampled_from(["get", "wait"]), st.lists(st.tuples(KEYS), max_size=3)),
            st.tuples(st.just("round"), st.just([])),
            st.tuples(st.just("late"), st.just([])),
        ),
        max_size=30,
    )
)
def test_whatever_is_asked_its_weight_is_that_of_its_tables_and_every_question_has_one_answer(steps):
    desk, open_ = Desk(), set()
    for number, (op, items) in enumerate(steps):
        if op == "round":
            said = desk.said(desk.machine.begin_round(desk.machine.round + 1))
        elif op == "late":
            said = desk.tick(desk.now + 3.0)
        else:
            open_.add(number)
            keys, values = [item[0] for item in items], [item[1] for item in items if len(item) == 2]
            said = desk.ask(op, *keys, ask=number, round=desk.machine.round, values=values, wait_s=5.0, number=number % 2)
        for _, answer in said:
            open_.remove(answer.ask)
        assert desk.machine.room.used == sum(one.weight() for one in desk.machine.tables.values())
        assert open_ == {ask for asks in desk.machine.waiters.values() for ask in asks} and desk.machine.count == len(open_)
    desk.machine.observe(LinkDown(link=1, reason=""), desk.now)
    assert desk.nothing_left()


# --- beside the members -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> LinkRouter:
    rules = Rules(job="job", min_nodes=1, max_nodes=1, join_timeout_s=600, last_call_s=1, lease_s=3)
    return LinkRouter(Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0))


def hear(server: LinkRouter, link: int, message: Any) -> list[Any]:
    return server.observe(Arrived(link=link, message=message), 0.0)


def question(op: str, *keys: str, **how: Any) -> StoreAsk:
    return StoreAsk(node="n-1", ask=1, round=0, op=op, keys=keys, **how)


def test_a_link_that_asks_the_store_is_no_member_s_and_nobody_waits_for_it_at_the_end(server):
    assert server.store is None, "a job that never asks has none"
    server.observe(LinkUp(link=5, ours=False), 0.0)
    (action,) = hear(server, 5, question("set", "a", values=(b"1",)))
    assert isinstance(action, Transmit) and action.link == 5 and action.message == StoreAnswer(ask=1)
    assert server.idle and server.links == {}
    assert hear(server, 5, question("wait", "b", wait_s=2.0)) == [] and server.deadline() == 2.0
    server.observe(LinkDown(link=5, reason="closed"), 0.0)
    assert server.store is not None and server.store.count == 0 and not server.askers


def test_who_asks_the_store_can_say_nothing_as_a_member_over_that_link(server):
    server.observe(LinkUp(link=5, ours=False), 0.0)
    hear(server, 5, question("check", "a"))
    join = Join(node="n-1", name="n", addr="127.0.0.1", master_port=1, nproc=1, role="default")
    assert hear(server, 5, join) == [] and server.rendezvous.seats == {}


def test_a_member_s_link_does_not_carry_the_store(server):
    server.observe(LinkUp(link=5, ours=False), 0.0)
    hear(server, 5, Join(node="n-1", name="n", addr="127.0.0.1", master_port=1, nproc=1, role="default"))
    said = hear(server, 5, question("set", "a", values=(b"1",)))
    assert not any(isinstance(action, Transmit) and isinstance(action.message, StoreAnswer) for action in said)
    assert server.store is None


def test_who_waits_in_the_store_hears_when_time_is_over_or_the_round(server):
    server.observe(LinkUp(link=5, ours=False), 0.0)
    hear(server, 5, question("wait", "b", wait_s=7.0))
    (told,) = [action for action in server.observe(Tick(), 7.0) if isinstance(action, Transmit)]
    assert told.message.error == TIMEOUT
    hear(server, 5, question("wait", "b", wait_s=60.0))
    server.rendezvous.round = 2
    (told,) = [action for action in server.observe(Tick(), 8.0) if isinstance(action, Transmit)]
    assert told.message.error == OVER
