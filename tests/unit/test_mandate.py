"""May the coordinator still lead? Its side of succession: loyalty, marks, leases, and electorates that change."""

from __future__ import annotations

import pytest

from holdfast.core.machine import NEVER
from holdfast.core.wire.messages import Past, Renewed, Roster
from holdfast.rendezvous.election.leader_lease import FEW, LOOK_S, SMALL, Body, Mandate, promise_of

LEASE_S = 3.0
PROMISE_S = promise_of(LEASE_S)


class Office:
    """A coordinator at a, and members that can be heard and answered."""

    def __init__(self, *others: str, witness: bool = False, now: float = 0.0) -> None:
        self.mandate = Mandate("a", term=0, lease_s=LEASE_S, witness=witness)
        for other in others:
            self.mandate.joined(other, 0, ())
        self.mandate.change(("a", *others), now)

    def hear(self, *members: str, mark: float, now: float, holds: int | None = None) -> None:
        for member in members:
            self.mandate.renewed(member, mark, self.mandate.version if holds is None else holds, now)

    def tell(self, member: str, now: float) -> Renewed | None:
        return self.mandate.answer(Renewed(lease_s=LEASE_S, sent_at=0.0), member, lambda now: Past(life="L"), now)

    def roster(self, member: str, now: float) -> Roster:
        said = self.tell(member, now)
        assert said is not None and said.roster is not None
        return said.roster


def test_a_promise_covers_every_lease_that_is_granted_while_its_mark_is_on_the_way():
    assert promise_of(3.0) == 4.5 and promise_of(0.3) == 0.3 + 2 * 0.1


def test_a_mark_from_the_future_makes_nobody_loyal_beyond_a_promise():
    office = Office("b", "c", now=1.0)
    office.hear("b", "c", mark=2.0, now=2.5)
    office.hear("b", "c", mark=1e9, now=3.0)
    assert office.mandate.ends(3.0) == 2.0 + PROMISE_S


def test_before_anybody_can_elect_another_the_mandate_has_no_end():
    assert Mandate("a", term=0, lease_s=LEASE_S).ends(1e9) == NEVER


def test_those_who_hold_no_roster_yet_are_counted_on_for_a_promise_and_then_for_what_they_say():
    """Others may hand it on to them: see test_succession.py."""
    office = Office("b", "c", now=1.0)
    assert office.mandate.ends(2.0) == 1.0 + PROMISE_S
    office.hear("c", mark=4.0, now=5.0, holds=0)
    assert office.mandate.ends(6.0) == 4.0 + PROMISE_S


def test_with_half_of_the_electorate_loyal_it_may_lead_and_with_less_it_may_not():
    office = Office("b", "c")
    for member in "bc":
        office.roster(member, 0.0)
    assert office.mandate.ends(1.0) == PROMISE_S
    office.hear("b", mark=3.0, now=4.0)
    assert office.mandate.ends(6.0) == 3.0 + PROMISE_S
    assert office.mandate.ends(8.1) <= 8.1


def test_a_tie_is_the_coordinator_s_so_that_one_of_two_goes_on():
    office = Office("b")
    office.roster("b", 0.0)
    assert office.mandate.ends(1e9) == NEVER


def test_loyalty_counts_from_the_mark_and_not_from_when_it_was_heard():
    office = Office("b", "c")
    for member in "bc":
        office.roster(member, 0.0)
    office.hear("b", "c", mark=1.0, now=4.9)
    assert office.mandate.ends(5.5) == 1.0 + PROMISE_S


def test_no_lease_outlives_the_mandate():
    office = Office("b", "c")
    for member in "bc":
        office.roster(member, 0.0)
    whole, short = office.tell("b", 1.0), office.tell("b", PROMISE_S - 1.0)
    assert whole is not None and whole.lease_s == LEASE_S
    assert short is not None and short.lease_s == 1.0
    assert office.tell("b", PROMISE_S) is None


def test_a_member_is_sent_a_roster_once_and_its_own():
    office = Office("b", "c")
    assert office.roster("b", 0.0).electorates[0].mine
    office.hear("b", mark=0.5, now=1.0)
    said = office.tell("b", 1.0)
    assert said is not None and said.roster is None and said.mark == 1.0
    assert not office.roster("late", 1.0).electorates[0].mine


def test_those_who_are_told_the_same_are_told_one_roster_until_something_of_it_changes():
    office, told = Office("b", "c"), Renewed(lease_s=LEASE_S, sent_at=0.0)
    past = Past(life="L", round=1)
    answer = lambda member, past: office.mandate.answer(told, member, lambda now: past, 0.0).roster
    assert answer("b", past) is answer("c", past) and not answer("late", past).electorates[0].mine
    assert answer("b", Past(life="L", round=2)).past.round == 2
    before = answer("b", past).version
    office.mandate.change(("a", "c"), 0.0)
    assert answer("b", past).version > before


def test_of_many_only_the_first_few_in_line_are_told():
    many = [f"n{i}" for i in range(SMALL)]
    assert len(Office(*many[1:]).roster("n1", 0.0).line) == SMALL
    roster = Office(*many).roster("n1", 0.0)
    assert roster.line == ("a", *many)[:FEW] and roster.electorates[0].size == SMALL + 1


def test_an_older_electorate_has_a_say_until_half_of_it_have_heard_of_the_newer():
    office = Office("b", "c", "d", "e")
    for member in "bcde":
        office.roster(member, 0.0)
    office.hear("b", "c", "d", "e", mark=1.0, now=1.0)
    before = office.mandate.version
    office.mandate.change(("a", "b", "c"), 2.0)
    assert [body.size for body in office.mandate.bodies] == [3, 5]
    office.hear("a", mark=2.0, now=2.0, holds=office.mandate.version)
    office.hear("b", mark=2.0, now=2.1, holds=office.mandate.version)
    office.hear("c", mark=2.0, now=2.1, holds=before)
    assert len(office.mandate.bodies) == 2, "two of five, and the other three could still elect another"
    office.hear("c", mark=2.0, now=2.3, holds=office.mandate.version)
    assert [body.size for body in office.mandate.bodies] == [3]
    assert len(office.roster("b", 2.4).electorates) == 1


def test_one_change_waits_for_the_other():
    office = Office("b", "c")
    for member in "bc":
        office.roster(member, 0.0)
    office.hear("b", "c", mark=1.0, now=1.0)
    office.mandate.change(("a", "b", "c", "d"), 1.1)
    office.mandate.change(("a", "b", "c", "d", "e"), 1.2)
    assert [body.size for body in office.mandate.bodies] == [4, 3]
    office.hear("a", mark=1.2, now=1.2)
    office.hear("b", mark=1.2, now=1.3)
    assert [body.size for body in office.mandate.bodies] == [5, 4]


def test_an_electorate_is_drawn_up_only_once_enough_of_it_are_loyal():
    office = Office("b", witness=True)
    office.roster("b", 0.0)
    office.mandate.change(("a",), 6.0)
    office.mandate.claimed(office.mandate.bodies[-1].id)
    office.hear("a", mark=6.0, now=6.0)
    assert [body.size for body in office.mandate.bodies] == [1]
    office.mandate.change(("a", "b"), 7.0)
    assert [body.size for body in office.mandate.bodies] == [1], "b is back, and has not renewed yet"
    office.hear("b", mark=7.1, now=8.0)
    assert office.mandate.bodies[0].size == 2


def test_a_successor_counts_those_who_have_elected_it_until_its_own_electorate_is_settled():
    mandate = Mandate(
        "b", term=1, lease_s=LEASE_S, version=7, bodies=[Body(7, 3, {"b", "c"}, witness=False)], loyal={"c": PROMISE_S}
    )
    assert mandate.ends(0.0) == PROMISE_S
    mandate.joined("c", 7, (7,))
    mandate.change(("b", "c"), 1.0)
    assert [body.size for body in mandate.bodies] == [2, 3], "its members are known in part only: it is another"
    mandate.renewed("c", 1.0, mandate.version, 1.5)
    assert [body.size for body in mandate.bodies] == [2, 3], "its own node has yet to keep it, for its next life"
    mandate.renewed("b", 1.0, mandate.version, 1.6)
    assert [body.size for body in mandate.bodies] == [2] and mandate.version > 1 << 20


def test_an_elector_that_was_started_again_is_sent_the_roster_that_its_earlier_life_held():
    office = Office("b", "c")
    office.roster("b", 0.0)
    office.hear("b", mark=0.5, now=1.0)
    assert (said := office.tell("b", 1.0)) is not None and said.roster is None
    office.mandate.joined("b", 0, ())
    assert office.roster("b", 1.1).electorates[0].mine


def test_a_person_is_told_of_the_electorate_that_is_lacking_and_not_of_the_newest() -> None:
    office = Office("b", "c", "d", "e")
    for member in "bcde":
        office.roster(member, 0.0)
    office.hear("b", mark=3.0, now=3.0)
    office.mandate.change(("a", "b"), 3.0)
    assert [body.size for body in office.mandate.bodies] == [2, 5]
    assert office.mandate.heard_of(PROMISE_S + 0.1) == (2, 5)


def test_whoever_holds_a_roster_from_elsewhere_is_not_loyal_before_it_says_so():
    mandate = Mandate("b", term=1, lease_s=LEASE_S, bodies=[Body(7, 3, {"b"}, witness=False)], loyal={})
    mandate.joined("c", 7, (7,))
    assert mandate.ends(0.0) == -NEVER
    mandate.renewed("c", 0.5, 7, 1.0)
    assert mandate.ends(1.0) == 0.5 + PROMISE_S


def test_with_a_witness_a_tie_is_nobody_s_until_it_has_spoken():
    office = Office("b", witness=True)
    office.roster("b", 0.0)
    assert office.mandate.ends(0.5) == PROMISE_S and office.mandate.wants_witness(0.5) == 0
    wanted = office.mandate.wants_witness(PROMISE_S - 1.0)
    assert office.mandate.missing(wanted, PROMISE_S - 1.0) == ["b"] and office.mandate.missing(wanted, 0.5) == []
    assert wanted == office.mandate.bodies[0].id
    office.mandate.claimed(wanted)
    assert office.mandate.ends(PROMISE_S) == NEVER


def test_thousands_of_renewals_in_a_second_do_not_have_everybody_counted_for_each(monkeypatch: pytest.MonkeyPatch):
    counted: list[float] = []
    others = [f"n{number}" for number in range(1023)]
    office = Office(*others, witness=True)
    usual = Mandate._ends
    monkeypatch.setattr(Mandate, "_ends", lambda mandate, body: counted.append(now) or usual(mandate, body))
    for number in range(2048):
        now = number / 1024
        office.hear(others[number % 1023], mark=max(now - 1.0, 0.0), now=now)
        office.mandate.wants_witness(now)
        office.tell(others[number % 1023], now)
    assert office.mandate.ends(2.0) > 2.0 + LEASE_S * 2 / 3
    assert len(counted) <= 2 * 2.0 / LOOK_S


def test_a_witness_that_was_needed_for_a_moment_is_let_go():
    office = Office("b", witness=True)
    office.roster("b", 0.0)
    first = office.mandate.bodies[0].id
    office.mandate.claimed(first)
    office.hear("b", mark=4.0, now=4.5)
    office.mandate.ends(4.5)
    assert office.mandate.bodies[0].id > first and not office.mandate.bodies[0].claimed


def test_leading_on_without_a_mandate_has_no_end():
    office = Office("b", "c")
    for member in "bc":
        office.roster(member, 0.0)
    office.mandate.waive()
    assert office.mandate.ends(1e9) == NEVER
