"""Who has to go when too many come: whoever has proved nothing, of who has most; and nobody keeps others out."""

from __future__ import annotations

import resource
from functools import partial
from socket import socket

import pytest

from holdfast.runtime.net.addresses import origin
from holdfast.runtime.net.admission import FEW, Admission, Limits


def at(name: str) -> tuple[str, str]:
    return name, name


def crowd(count: int, whose: str = "many", **limits: int) -> Admission[str]:
    """So many strangers of one origin."""
    guests: Admission[str] = Admission(Limits(**limits))
    for number in range(count):
        guests.enter(f"{whose}{number}", at(whose), float(number))
    return guests


def test_the_oldest_stranger_of_the_origin_that_has_most_goes_first():
    guests = crowd(3, unproved=4)
    assert guests.enter("one", at("few"), 9.0) is None
    assert guests.enter("two", at("few"), 9.0) == "many0"
    assert guests.unproved == 4


def test_an_origin_with_many_addresses_is_one_and_within_it_the_address_that_has_most_gives_way():
    guests: Admission[str] = Admission(Limits(unproved=4))
    for name, address in (("x1", "::1:1"), ("x2", "::1:2"), ("x3", "::1:2"), ("lone", "::2:1")):
        guests.enter(name, (address[:3], address), 0.0)
    assert guests.enter("next", ("::3", "::3:1"), 0.0) == "x2"


def test_who_has_proved_itself_goes_only_when_nobody_else_is_left_and_the_silent_ones_before_the_others():
    guests = crowd(3, in_all=3)
    guests.prove("many0")
    guests.prove("many1")
    guests.speak("many1")
    assert [guests.enter("new1", at("new"), 1.0), guests.enter("new2", at("new"), 1.0)] == ["many2", "new1"]
    guests.prove("new2")
    assert guests.enter("new3", at("new"), 1.0) == "many0", "silent, of an origin with as many, and older"
    for name in ("new2", "new3"):
        guests.prove(name)
        guests.speak(name)
    assert guests.enter("new4", at("new"), 1.0) == "new4", "whose origin has most is not let in"
    assert guests.enter("other", at("other"), 1.0) == "new3", "the newest of the origin that has most"


def test_of_members_in_one_network_the_address_that_has_most_gives_way_to_another():
    guests: Admission[str] = Admission(Limits(in_all=3))
    for number in range(3):
        guests.enter(f"many{number}", ("2001:db8::/64", "2001:db8::1"), 0.0)
        guests.prove(f"many{number}")
        guests.speak(f"many{number}")
    assert guests.enter("again", ("2001:db8::/64", "2001:db8::1"), 1.0) == "again"
    assert guests.enter("node", ("2001:db8::/64", "2001:db8::2"), 1.0) == "many2"


def test_who_holds_back_the_rest_of_long_messages_goes_when_all_hold_too_much():
    guests = crowd(4, held_bytes=100)
    guests.enter("member", at("member"), 0.0)
    assert guests.hold("many0", 40) == guests.hold("many1", 40) == guests.hold("member", 20) == []
    assert guests.hold("member", 50) == ["many0"], "the origin that holds most; who began first"
    assert guests.hold("many2", 10) == guests.hold("member", 0) == guests.hold("member", 50) == []
    assert guests.hold("many0", 90) == [], "who has gone holds nothing"


def test_of_those_in_one_network_the_address_that_holds_most_goes():
    guests: Admission[str] = Admission(Limits(held_bytes=100))
    for name, address in (("node", "2001:db8::1"), ("many0", "2001:db8::2"), ("many1", "2001:db8::2")):
        guests.enter(name, ("2001:db8::/64", address), 0.0)
    assert guests.hold("node", 40) == guests.hold("many0", 30) == []
    assert guests.hold("many1", 31) == ["many0"]


def test_nodes_that_come_at_once_wait_outside_while_those_inside_are_young_and_none_has_many():
    guests = crowd(4, unproved=4, crowd=4)
    assert guests.is_crowded(0.5) and not guests.is_crowded(1.5)
    assert not crowd(4, unproved=4, crowd=3).is_crowded(0.5)
    guests.prove("many0")
    assert not guests.is_crowded(0.5)


def test_those_who_have_proved_nothing_for_long_are_late():
    guests = crowd(3)
    guests.prove("many0")
    assert guests.late(2.0) == ["many1"] and guests.late(2.0) == [] and len(guests) == 2


def test_the_last_descriptors_are_for_no_guest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    guests = crowd(FEW)
    assert guests.enter("high", at("other"), 0.0, fd=750) == "many0"
    assert guests.enter("low", at("other"), 0.0, fd=20) == "many1", "it got the number of one who has gone: there are no more"
    for number in range(FEW):
        guests.leave(f"many{number}")
    assert guests.enter("later", at("other"), 0.0, fd=21) is None
    assert crowd(FEW - 1).enter("few", at("other"), 0.0, fd=990) is None, "as few as these are always let in"


def test_no_more_than_an_eighth_of_the_open_files_is_for_strangers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    assert crowd(9).unproved == 8


def test_an_address_counts_for_itself_and_of_ipv6_its_network():
    with socket() as here:  # it came to no address of theirs
        of = partial(origin, here)
        assert of("192.0.2.7") == (*of("::ffff:192.0.2.7")[:1], "192.0.2.7")
        assert of("2001:db8::1")[0] == of("2001:db8::ffff:2")[0] != of("2001:db8:0:1::1")[0]
