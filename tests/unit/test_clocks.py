"""What is known of nodes' wall clocks, by what their leases' renewals bring."""

from __future__ import annotations

import pytest
from kit.stages.round_stage import Job

from holdfast.core.wire.messages import Renew, Renewed
from holdfast.rendezvous.clocks import AFRESH_S, OF_MOST, OF_ONE, Compared

UNIX = 1_700_000_000.0


@pytest.fixture
def clock() -> Compared:
    """Of a host whose wall clock is `UNIX` ahead of its monotonic one."""
    compared = Compared()
    compared.set(UNIX)
    return compared


def test_a_clock_is_compared_half_way_between_question_and_answer(clock: Compared) -> None:
    assert clock.lead is None
    clock.heard(100.0, at_unix=UNIX + 97.0, middle_s=None, now=100.4)
    lead = clock.lead
    assert lead is not None and lead.of == OF_ONE
    assert (lead.ahead_s, lead.error_s) == (pytest.approx(3.2), pytest.approx(0.2)), "between 3.0 and 3.4, as it happened"


def test_the_shortest_way_counts_and_is_forgotten_in_time(clock: Compared) -> None:
    clock.heard(100.0, UNIX + 97.0, None, now=100.01)
    clock.heard(101.0, UNIX + 98.0, None, now=102.5)
    assert clock.ahead_s == pytest.approx(3.005)
    for second in range(103, 120):
        clock.heard(second, UNIX + second, None, now=second + 0.02)
    assert clock.ahead_s == pytest.approx(0.01)


def test_where_the_driver_does_not_say_what_time_it_is_nothing_is_compared() -> None:
    mute = Compared()
    mute.heard(100.0, at_unix=UNIX, middle_s=None, now=100.1)
    assert mute.lead is None and mute.ahead_s is None


def test_a_clock_that_is_set_is_compared_afresh(clock: Compared) -> None:
    clock.heard(100.0, UNIX + 100.0, None, now=100.01)
    clock.set(UNIX + 0.001)  # it is only steered
    assert clock.ahead_s is not None
    clock.set(UNIX + 60.0)
    assert clock.ahead_s is None
    clock.heard(101.0, UNIX + 101.0, None, now=101.01)
    assert clock.ahead_s == pytest.approx(60.0, abs=0.01)


def renew(job: Job, node: str, ahead_s: float | None, now: float) -> Renewed:
    (answer,) = job.hear(Renew(node=node, round=1, sent_at=1.0, ahead_s=ahead_s), now)
    assert isinstance(answer, Renewed)
    return answer


def test_the_coordinator_tells_its_clock_and_the_middle_of_all_and_its_own_may_be_the_wrong_one() -> None:
    job = Job("4:4")
    for node in "abcd":
        job.join(node)
    first = renew(job, "a", None, 1.0)
    assert (first.at_unix, first.middle_s) == (1001.0, None), "its wall clock was at 1000 at its start"
    job.machine.ahead_unix += 7.0
    assert renew(job, "a", 0.0, 2.0).at_unix == 1009.0
    for node, ahead_s in (("b", -50.0), ("c", -50.2), ("d", -49.9)):
        renew(job, node, ahead_s, 2.0 + AFRESH_S)
    assert renew(job, "b", -50.0, 4.0 + AFRESH_S).middle_s == pytest.approx(-49.95)


def test_of_two_nodes_nobody_says_whose_clock_is_wrong() -> None:
    job = Job("2:2")
    for node in "ab":
        job.join(node)
    assert renew(job, "b", 5.0, 1.0).middle_s is None and renew(job, "a", 0.0, 3.0).middle_s is None


def test_what_no_clock_shows_is_not_believed(clock: Compared) -> None:
    job = Job("3:3")
    for node in "abc":
        job.join(node)
    for now, node in enumerate("abcabc"):
        answer = renew(job, node, 1e300 if node == "c" else 0.0, 2.0 * now)
    assert answer.middle_s is None


def test_most_others_are_what_a_node_is_compared_with_where_they_are_known(clock: Compared) -> None:
    clock.heard(100.0, at_unix=UNIX + 97.0, middle_s=3.1, now=100.0)
    lead = clock.lead
    assert lead is not None and (lead.ahead_s, lead.of) == (pytest.approx(-0.1), OF_MOST)
