"""What a receiver of deeds is told: each deed when it is decided and when it is over, in order, again until it is taken."""

from __future__ import annotations

from typing import Any

from holdfast.core.machine import NEVER
from holdfast.supervisor.notify.delivery_queue import LONGEST_S, PATIENCE_S, WAITING, DeliveryQueue, Notification


def deed(id: str, at_unix: float = 100.0, outcome: str = "", act: str = "swap") -> dict[str, Any]:
    return {"id": id, "act": act, "at_unix": at_unix, "outcome": outcome, "ended_at_unix": at_unix + 1 if outcome else 0.0}


def sent(box: DeliveryQueue, now: float = 0.0) -> list[str]:
    """All that can be sent now, taken."""
    ids = []
    while (notification := box.due(now)) is not None:
        ids.append(notification.id)
        box.taken(notification)
    return ids


def test_a_deed_is_told_when_it_is_decided_and_when_it_is_over():
    box = DeliveryQueue({}, 0.0)
    box.hear([deed("1")])
    box.hear([deed("1"), deed("2")])
    box.hear([deed("1", outcome="done")])
    assert sent(box) == ["1.begun", "2.begun", "1.ended"]
    box.hear([deed("1", outcome="done"), deed("2")])
    assert sent(box) == [] and box.deadline() == NEVER, "nothing is told twice"


def test_what_is_over_when_it_is_first_heard_of_is_told_once():
    box = DeliveryQueue({}, 0.0)
    box.hear([deed("1", outcome="done")])
    assert sent(box) == ["1.ended"]


def test_a_decision_to_do_nothing_is_not_told():
    box = DeliveryQueue({}, 0.0)
    box.hear([deed("1", act="none", outcome="nothing was to be done")])
    assert sent(box) == []


def test_what_is_not_taken_is_tried_again_later_each_time_and_the_rest_waits_behind_it():
    box, now, pauses = DeliveryQueue({}, 0.0), 0.0, []
    box.hear([deed("1"), deed("2")])
    for _ in range(9):
        assert (notification := box.due(now)) is not None and notification.id == "1.begun"
        pauses.append(box.failed(now))
        assert box.due(now + pauses[-1] - 0.01) is None and box.deadline() == now + pauses[-1]
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S, LONGEST_S]
    assert sent(box, now) == ["1.begun", "2.begun"]
    assert box.failed(now) == 1.0, "a success begins anew"


def test_a_receiver_that_wants_to_be_left_alone_is_but_not_for_ever():
    box = DeliveryQueue({}, 0.0)
    assert box.failed(0.0, wait_s=30.0) == 30.0 and box.failed(0.0, wait_s=1e9) == PATIENCE_S


def test_another_life_goes_on_where_this_one_ended():
    box = DeliveryQueue({}, 0.0)
    box.hear([deed("1", outcome="done"), deed("2"), deed("3")])
    for _ in range(2):
        notification = box.due(0.0)
        assert notification is not None
        box.taken(notification)
    again = DeliveryQueue(box.told, 1e9)
    again.hear([deed("1", outcome="done"), deed("2", outcome="done"), deed("3")])
    assert sent(again) == ["2.ended", "3.begun"]


def test_a_new_receiver_hears_of_nothing_that_was_over_before_nor_does_its_next_life():
    box = DeliveryQueue(None, 1000.0)
    box.hear([deed("old", 900.0, "done"), deed("open", 950.0), deed("new", 1001.0)])
    assert sent(box) == ["new.begun"]
    again = DeliveryQueue(box.told, 2000.0)
    later = {**deed("open", 950.0, "done"), "ended_at_unix": 2001.0}
    again.hear([deed("old", 900.0, "done"), later, deed("new", 1001.0)])
    assert sent(again) == ["open.ended"]


def test_too_many_push_out_the_oldest_and_are_counted():
    box = DeliveryQueue({}, 0.0)
    box.hear(deed(str(number)) for number in range(WAITING + 5))
    assert box.dropped == 5 and len(box.notifications) == WAITING and sent(box)[0] == "5.begun"


def test_of_a_deed_that_the_supervisor_has_forgotten_nothing_is_remembered():
    box = DeliveryQueue({"1": "ended", "2": "begun"}, 0.0)
    box.forget([deed("2")])
    assert box.told == {"2": "begun"}


def test_one_that_only_wants_what_is_over():
    box = DeliveryQueue({}, 0.0, phases=("ended",))
    box.hear([deed("1"), deed("2", outcome="done")])
    assert sent(box) == ["2.ended"]
    box.hear([deed("1", outcome="done")])
    assert sent(box) == ["1.ended"]


def test_a_letter_names_its_deed_and_phase():
    box = DeliveryQueue({}, 0.0)
    box.hear([deed("7-3")])
    assert box.due(0.0) == Notification(id="7-3.begun", phase="begun", deed=deed("7-3"))
