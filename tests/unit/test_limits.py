"""How long is long for a job? What is learned from its ranks, when it counts, and when it is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER
from holdfast.core.page.signs import SectionSigns, Signs
from holdfast.core.page.silences import BEAT, FIRST, OUT, WINDOW_S, WINDOWS, Lately
from holdfast.core.value import replace
from holdfast.monitor.glimpse import Glimpse, durations, learn
from holdfast.monitor.limits import Learned, Limits

FT = FaultTolerance(least_limit=10.0, most_limit=1000.0, still_limit=500.0, safety_factor=5.0)


def taught(gap_s: float, beats: int = 100, ft: FaultTolerance = FT) -> Limits:
    return Limits(ft=ft, learned=Learned().saw(BEAT, gap_s, beats, 0.0))


def test_a_learned_limit_is_a_multiple_of_the_longest() -> None:
    bound = taught(8.0).beat(Signs())
    assert (bound.limit_s, bound.still_s, bound.busy_s) == (40.0, 10.0, 1000.0) and not bound.is_sure


@given(st.floats(0.0, 1e6), st.integers(1, 1000))
def test_a_learned_limit_is_never_microscopic(gap_s: float, beats: int) -> None:
    bound = taught(gap_s, beats).beat(Signs())
    assert bound.limit_s >= FT.least_limit and bound.busy_s >= bound.limit_s >= 5.0 * gap_s


def test_little_experience_is_no_experience() -> None:
    assert taught(0.1, beats=19).beat(Signs()).limit_s == 500.0
    assert taught(200.0, beats=2).beat(Signs()).limit_s == 1000.0, "but what has been seen is allowed"
    assert taught(0.1, beats=20).beat(Signs()).limit_s == 10.0


def test_what_the_job_knows_needs_no_experience() -> None:
    limits = Limits(ft=FT, learned=Learned(job_s={BEAT: 8.0, "section save": 30.0}))
    assert limits.beat(Signs()).limit_s == 40.0
    assert limits.section(SectionSigns(name="save", open_since=1.0), Signs()).limit_s == 150.0
    assert limits.out(Signs()).limit_s == 500.0, "of that nothing is known"


def test_nobody_who_is_busy_is_accused_by_a_limit_that_rests_on_little() -> None:
    """One `torch.save` at its beginning, and then two hours of work that shows nothing: no hang."""
    once = SectionSigns(name="checkpoint", count=1, took_s=1.0, longest_s=1.0)
    limits = Limits(ft=FT)
    for bound in (limits.out(Signs(sections=(once,))), limits.section(once, Signs()), limits.beat(Signs()), limits.first(None)):
        assert bound.busy_s == NEVER
    assert taught(200.0, beats=2).beat(Signs()).busy_s == NEVER


def test_limits_may_be_switched_off() -> None:
    off = replace(FT, most_limit=None, still_limit=None)
    assert Limits(ft=off).first(None).still_s == NEVER
    bound = Limits(ft=off).beat(Signs())
    assert (bound.limit_s, bound.busy_s) == (NEVER, NEVER)


def test_an_outlier_is_forgotten_after_a_day() -> None:
    lately = Lately()
    lately.add(1000.0, 0.0)
    for hour in range(1, 24):
        lately.add(2.0, hour * 3600.0)
        assert lately.longest_s == 1000.0
    lately.add(2.0, WINDOW_S * WINDOWS + 1.0)
    assert lately.longest_s == 2.0


def test_after_a_long_silence_what_was_known_is_not_kept_for_ever() -> None:
    lately = Lately()
    lately.add(5.0, 0.0)
    lately.add(3.0, 100 * WINDOW_S)
    assert lately.longest_s == 3.0 and len(lately.windows) <= WINDOWS


# --- from two looks -----------------------------------------------------------------------------------------------------------


def beaten(at: float, beat_at: float, beats: int, longest_gap_s: float = 0.0, **more: object) -> Glimpse:
    signs = Signs(first_beat_at=1.0, beat_at=beat_at, beats=beats, longest_gap_s=longest_gap_s, **more)  # type: ignore[arg-type]
    return Glimpse(at=at, signs=signs)


def test_the_first_sign_is_learned_from_the_start_of_the_process() -> None:
    learned = Learned()
    learned = learn(learned, 0.25, Glimpse(at=0.5), beaten(2.0, 1.9, 3))
    assert learned.longest_s(FIRST) == 0.75


def test_a_gap_is_learned_when_it_is_over_and_not_before() -> None:
    learned = Learned()
    before, during, after = beaten(2.0, 2.0, 5, 0.5), beaten(8.0, 2.0, 5, 0.5), beaten(12.0, 12.0, 7, 9.0)
    learned = learn(learned, 0.0, before, during)
    assert learned.longest_s(BEAT) == 0.0
    learned = learn(learned, 0.0, during, after)
    assert learned.longest_s(BEAT) == 9.0


def test_a_rank_that_begins_and_hangs_between_two_looks_has_taught_its_gaps() -> None:
    learned = Learned()
    learned = learn(learned, 0.0, Glimpse(at=1.0), beaten(3.0, 2.5, 30, 0.25))
    assert learned.longest_s(BEAT) == 0.25 and learned.is_ready(BEAT)


def test_later_gaps_are_known_though_a_longer_one_came_before_them() -> None:
    """The page has the longest of a whole life only: what the looks have seen themselves is good to a glance."""
    learned = Learned()
    learned = learn(learned, 0.0, beaten(109.0, 100.0, 50, 60.0), beaten(111.0, 110.5, 52, 60.0))
    assert 9.0 <= learned.longest_s(BEAT) < 10.5


def test_sections_and_the_time_between_them() -> None:
    learned = Learned()
    one = SectionSigns(name="save", count=1, took_s=4.0, longest_s=4.0)
    two = SectionSigns(name="save", count=6, took_s=3.0, longest_s=6.0)
    three = SectionSigns(name="save", count=7, took_s=2.0, longest_s=6.0)
    looks = [
        Glimpse(at=float(at), signs=Signs(sections=(section,), longest_out_s=out_s))
        for at, (section, out_s) in enumerate(((one, 1.0), (two, 2.5), (three, 2.5)))
    ]
    learned = learn(learned, 0.0, looks[0], looks[1])
    assert (learned.longest_s("section save"), learned.longest_s(OUT)) == (6.0, 2.5)
    assert learned.known_s() == {"section save": 6.0, OUT: 2.5}
    assert durations(looks[1], looks[2]) == {"save": 2.0}


def test_steps_take_what_they_take_on_average() -> None:
    assert durations(beaten(1.0, 1.0, 1, step=10, step_at=1.0), beaten(3.0, 3.0, 5, step=14, step_at=3.0)) == {
        "step": pytest.approx(0.5)
    }
