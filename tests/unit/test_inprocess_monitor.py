"""When a rank of `inprocess` is late, gone or its neighbour silent, and what its monitor does about it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from holdfast.inprocess.attribution import Interruption, InterruptionRecord, reasons
from holdfast.inprocess.monitor_machine import (
    Beat,
    Began,
    EndRank,
    Gone,
    Heard,
    Interrupt,
    Left,
    Limits,
    Progress,
    Protection,
    StandIn,
    Tick,
    Waiting,
    Watch,
)

pytestmark = pytest.mark.torch
LIMITS = Limits(soft_s=10, hard_s=20, heartbeat_s=1, silent_s=5)
SOFT, HARD = Interrupt(1, Interruption.SOFT_TIMEOUT), Interrupt(1, Interruption.HARD_TIMEOUT)


@pytest.fixture
def watch() -> Watch:
    """Rank 1 of 3 has begun at 100."""
    watch = Watch(LIMITS)
    assert watch.observe(Began(1, 3), 100) == [Beat(1, 2)]
    return watch


def quietly(watch: Watch, *seen: object, now: float) -> list[object]:
    """What is done about it, but for what is done about the neighbour."""
    done = [action for one in seen for action in watch.observe(one, now)]  # type: ignore[arg-type]
    return [action for action in done if not isinstance(action, Beat) and getattr(action, "rank", 1) == 1]


def test_a_late_rank_is_interrupted_once_and_then_ended_once(watch: Watch) -> None:
    assert quietly(watch, Tick(), now=109.9) == []
    assert quietly(watch, Tick(), Tick(), now=110) == [SOFT]
    assert quietly(watch, Tick(), Tick(), now=120) == [HARD, EndRank()]


def test_progress_puts_it_off_and_what_the_function_says_counts_once_it_has_begun_to(watch: Watch) -> None:
    assert quietly(watch, Progress(109, None), now=109) == []
    assert quietly(watch, Tick(), now=118) == []
    assert quietly(watch, Progress(118, 108), now=118) == [SOFT]


def test_once_it_was_interrupted_only_leaving_the_function_saves_it(watch: Watch) -> None:
    assert quietly(watch, Tick(), now=110) == [SOFT]
    assert quietly(watch, Progress(119, None), now=119) == []
    assert quietly(watch, Tick(), now=120) == [HARD, EndRank()]


def test_time_begins_anew_for_the_stages_after_the_function_and_what_was_seen_before_counts_no_more(watch: Watch) -> None:
    assert quietly(watch, Tick(), now=110) == [SOFT]
    assert quietly(watch, Left(), Progress(110, 101), Tick(), now=119) == []
    assert quietly(watch, Tick(), now=129) == [SOFT]
    assert quietly(watch, Tick(), now=139) == [HARD, EndRank()]


def test_who_waits_for_the_others_is_not_late(watch: Watch) -> None:
    assert quietly(watch, Tick(), now=110) == [SOFT]
    assert quietly(watch, Waiting(), Tick(), now=119) == []
    assert quietly(watch, Tick(), now=1000) == []
    assert quietly(watch, Began(1, 3), now=1000) == []
    assert quietly(watch, Tick(), now=1010) == [SOFT]


def test_without_protection_nobody_is_late_and_the_clock_begins_anew_with_it(watch: Watch) -> None:
    assert quietly(watch, Protection(False), now=101) == []
    assert quietly(watch, Tick(), now=200) == []
    assert quietly(watch, Protection(True), now=200) == []
    assert quietly(watch, Tick(), now=209) == []
    assert quietly(watch, Tick(), now=210) == [SOFT]


def test_who_is_gone_is_stood_in_for_once(watch: Watch) -> None:
    assert watch.observe(Gone(), 101) == [Interrupt(1, Interruption.TERMINATED), StandIn(1)]
    assert quietly(watch, Gone(), Tick(), now=900) == []


def test_one_that_ends_before_its_first_life_is_nobody_s_business() -> None:
    assert Watch(LIMITS).observe(Gone(), 1) == []


def test_a_neighbour_that_says_nothing_is_given_up_once(watch: Watch) -> None:
    assert Interrupt(2, Interruption.UNRESPONSIVE) not in watch.observe(Heard(7.0), 104)
    assert Interrupt(2, Interruption.UNRESPONSIVE) not in watch.observe(Heard(7.0), 108.9)
    done = [*watch.observe(Heard(7.0), 109), *watch.observe(Heard(7.0), 109.5)]
    assert [one for one in done if not isinstance(one, Beat)] == [Interrupt(2, Interruption.UNRESPONSIVE), StandIn(2)]


def test_the_last_rank_looks_at_the_first_and_one_alone_at_nobody() -> None:
    assert Watch(LIMITS).observe(Began(2, 3), 0) == [Beat(2, 0)]
    assert Watch(LIMITS).observe(Began(0, 1), 0) == [Beat(0, None)]


def test_it_wakes_when_something_is_due(watch: Watch) -> None:
    assert watch.deadline() == 101
    watch.observe(Gone(), 100.5)
    assert watch.deadline() == 101


def test_reasons_are_told_and_read() -> None:
    records = [InterruptionRecord(3, Interruption.EXCEPTION), InterruptionRecord(1, Interruption.EXCEPTION)]
    assert [InterruptionRecord.from_str(str(one)) for one in records] == records
    assert (
        reasons([*records, InterruptionRecord(2, Interruption.HARD_TIMEOUT)]) == "ranks 1, 3: exception, rank 2: hard timeout"
    )
    with pytest.raises(ValueError):
        InterruptionRecord.from_str("rank=1, Interruption.NOTHING")
