"""Limits from observed intervals: the same numbers as NVRx's from the same events."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys

import pytest

OPEN, CLOSE, CLOSE_ALL = "OPEN", "CLOSE", "CLOSE_ALL"


@pytest.fixture
def calc(ft):
    """`calc(sections, start, events, factor)`: a calculator that has seen `events`, each (action, section, time)."""
    module, actions = ft("timeouts_calc"), ft("data").SectionAction

    def made(sections=None, start=0.0, events=(), factor=1.0):
        seen = module.TimeoutsCalc(sections=sections, start_time=start, safety_factor=factor)
        for action, section, at in events:
            seen.update_on_section_event(section=section, action=actions[action], event_time=at)
        return seen

    made.error = module.TimeoutsCalcError
    made.heartbeats = ft("data").HeartbeatTimeouts
    made.sections = ft("data").SectionTimeouts
    made.action = actions
    return made


def told(limits):
    return (
        dict(limits.section),
        limits.out_of_section,
        set(limits.calculated_sections),
        limits.is_out_of_section_calculated,
        limits.were_calculated,
    )


# Heartbeats.


@pytest.fixture
def beaten(calc):
    """Heartbeats at 10, 11, 18 and 20, and a factor of 2."""
    seen = calc(factor=2.0)
    for at in (10, 11, 18, 20):
        seen.update_on_heartbeat(hb_time=at)
    return seen


def test_a_limit_is_the_longest_interval_times_the_factor(beaten):
    assert dataclasses.astuple(beaten.get_hb_timeouts()) == (20, 14, True)


def test_one_heartbeat_is_too_little_for_a_limit(calc):
    seen = calc()
    assert seen.can_get_hb_timeouts() is False
    seen.update_on_heartbeat(hb_time=3)
    assert seen.can_get_hb_timeouts() is False
    with pytest.raises(calc.error):
        seen.get_hb_timeouts()


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        ((99, 99, False), (20, 14)),
        ((None, None, False), (20, 14)),
        ((21, 15, True), (20.5, 14.5)),
    ],
    ids=["configured ones are replaced", "so is none", "calculated ones are averaged with"],
)
def test_what_becomes_of_the_limits_that_are_in_force(calc, beaten, current, expected):
    assert dataclasses.astuple(beaten.get_hb_timeouts(current=calc.heartbeats(*current))) == (*expected, True)


def test_calculated_limits_without_a_value_are_an_error(calc, beaten):
    with pytest.raises((calc.error, AssertionError)):
        beaten.get_hb_timeouts(current=calc.heartbeats(None, None, were_calculated=True))


# Sections.

NESTED = [(OPEN, "one", 10), (OPEN, "two", 13), (CLOSE, "two", 23), (CLOSE, "one", 40)]


def test_sections_nest_and_the_time_outside_of_them_counts_from_the_start(calc):
    seen = calc(["one", "two"], start=5, events=NESTED)
    assert seen.can_get_section_timeouts() is True
    assert told(seen.get_section_timeouts()) == ({"one": 30, "two": 10}, 5, {"one", "two"}, True, True)


def test_a_shorter_stay_changes_no_limit_and_a_longer_time_outside_does(calc):
    seen = calc(["one", "two"], start=5, events=[*NESTED, (OPEN, "one", 100), (CLOSE, "one", 120)])
    assert told(seen.get_section_timeouts())[:2] == ({"one": 30, "two": 10}, 60)
    seen.maybe_bump_oos_time(curr_time=220)
    assert told(seen.get_section_timeouts())[:2] == ({"one": 30, "two": 10}, 100)


def test_time_outside_is_not_counted_while_a_section_is_open(calc):
    seen = calc(["one"], events=[(OPEN, "one", 1)])
    assert seen.is_out_of_section is False
    seen.maybe_bump_oos_time(curr_time=50)
    assert told(calc(["one"], events=[(OPEN, "one", 1), (CLOSE, "one", 9)]).get_section_timeouts())[1] == 1


@pytest.mark.parametrize(
    "wrong",
    [(OPEN, "unknown", 50), (OPEN, "one", 50), (CLOSE, "two", 50)],
    ids=["a section that nobody listed", "opened twice", "closed while it is not open"],
)
def test_a_section_out_of_turn_is_an_error(calc, wrong):
    seen = calc(["one", "two"], events=[(OPEN, "one", 10), (OPEN, "two", 13), (CLOSE, "two", 23)])
    action, section, at = wrong
    with pytest.raises(calc.error):
        seen.update_on_section_event(section=section, action=calc.action[action], event_time=at)


def test_all_sections_can_be_ended_at_once(calc):
    opened = [(OPEN, "one", 1), (OPEN, "two", 3), (OPEN, "three", 6)]
    seen = calc(["one", "two", "three"], events=[*opened, (CLOSE_ALL, None, 10)])
    assert told(seen.get_section_timeouts())[:2] == ({"one": 9, "two": 7, "three": 4}, 1)
    for action, section, at in [(OPEN, "one", 12), (OPEN, "two", 21), (OPEN, "three", 23), (CLOSE_ALL, None, 30)]:
        seen.update_on_section_event(section=section, action=calc.action[action], event_time=at)
    assert told(seen.get_section_timeouts())[:2] == ({"one": 18, "two": 9, "three": 7}, 2)


def test_sections_may_be_selected(calc):
    seen = calc(["one", "two"], start=1, events=[(OPEN, "one", 10), (CLOSE, "one", 20)])
    ready = [seen.can_get_section_timeouts(which, out) for which in (None, ["one"], ["two"]) for out in (True, False)]
    assert ready == [False, False, True, True, False, False]
    for action, at in ((OPEN, 25), (CLOSE, 36)):
        seen.update_on_section_event(section="two", action=calc.action[action], event_time=at)
    assert told(seen.get_section_timeouts()) == ({"one": 10, "two": 11}, 9, {"one", "two"}, True, True)
    assert told(seen.get_section_timeouts(["one"])) == ({"one": 10, "two": None}, 9, {"one"}, True, False)
    assert told(seen.get_section_timeouts(None, False)) == ({"one": 10, "two": 11}, None, {"one", "two"}, False, False)
    assert told(seen.get_section_timeouts([], False)) == ({"one": None, "two": None}, None, set(), False, False)


MERGES = {
    "configured limits give way, the others stay": ((102, 222, 123), set(), False, (101, 222, 9), {"one"}, False),
    "what was calculated before stays calculated": ((102, 222, 10), {"two"}, True, (101, 222, 9.5), {"one", "two"}, True),
    "calculated twice is averaged": ((102, 223, 10), {"one", "two"}, True, (101.5, 223, 9.5), {"one", "two"}, True),
}


@pytest.mark.parametrize(("was", "calculated", "out_too", "now", "calculated_now", "all_of_them"), MERGES.values(), ids=MERGES)
def test_what_becomes_of_section_limits_in_force(calc, was, calculated, out_too, now, calculated_now, all_of_them):
    seen = calc(["one", "two"], start=1, events=[(OPEN, "one", 10), (CLOSE, "one", 111)])
    current = calc.sections({"one": was[0], "two": was[1]}, was[2], calculated, out_too)
    merged = told(seen.get_section_timeouts(["one"], True, current))
    assert merged == ({"one": now[0], "two": now[1]}, now[2], calculated_now, True, all_of_them)


# Both, side by side.

HOUR_S = 3600.0


def calculated(names, steps):
    """The limits after each calculation, merged with those before. `steps`: (what happens, seconds after the one before)."""
    actions = names("data").SectionAction
    seen = names("timeouts_calc").TimeoutsCalc(sections=["one", "two"], start_time=0.0, safety_factor=5.0)
    beats, sections, now, found = None, None, 0.0, []
    for what, seconds in steps:
        now += seconds
        if what == "beat":
            seen.update_on_heartbeat(now)
        elif what == "calculate":
            seen.maybe_bump_oos_time(now)
            beats = seen.get_hb_timeouts(beats) if seen.can_get_hb_timeouts() else beats
            sections = seen.get_section_timeouts(None, True, sections) if seen.can_get_section_timeouts() else sections
            found.append((beats and dataclasses.astuple(beats), sections and told(sections)))
        else:
            action = actions.CLOSE if what in seen.open_sections else actions.OPEN
            seen.update_on_section_event(what, action, now)
    return found


@pytest.mark.torch
@pytest.mark.parametrize("seed", range(10))
def test_within_a_day_both_calculate_the_same_whatever_happens(nvrx, ours_ft, seed):
    lots = random.Random(seed)
    happens = [(lots.choice(("beat", "one", "two", "calculate")), lots.uniform(0.0, HOUR_S)) for _ in range(20)]
    limits = calculated(ours_ft, [*happens, ("calculate", 1.0)])
    assert limits == calculated(nvrx, [*happens, ("calculate", 1.0)]) and limits[-1] != (None, None)


@pytest.mark.torch
def test_ours_forgets_an_outlier_after_a_day_and_nvrxs_never_does(nvrx, ours_ft):
    day = [*[("beat", 60.0)] * 60, ("calculate", 0.0)] * 24
    first, second, third = ([("beat", 60.0), ("beat", HOUR_S), *day], day, day)
    assert calculated(nvrx, [*first, *second, *third])[-1][0][1] == 5 * HOUR_S
    limits = [beats[1] for beats, _ in calculated(ours_ft, [*first, *second, *third])]
    assert set(limits[:20]) == {5 * HOUR_S} and limits[-1] == pytest.approx(5 * 60.0)


def test_what_comes_once_is_kept_and_what_comes_once_per_epoch_too(ours_ft):
    hour = [*[("beat", 60.0)] * 50, ("calculate", 0.0)]
    epoch = [("one", 0.0), ("one", 20.0), ("beat", 600.0), *hour * 20]
    limits = calculated(ours_ft, [("two", 0.0), ("two", 90.0), ("beat", 0.0), *epoch * 5])
    assert {(beats[1], sections[0]["one"], sections[0]["two"]) for beats, sections in limits} == {(3100.0, 100.0, 450.0)}


# All ranks together.


def test_without_a_process_group_nothing_is_synchronised(calc):
    with pytest.raises(calc.error):
        calc().synchronize_all()


RANK = """
import importlib, os, sys
import torch.distributed as dist
store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
%s
dist.barrier()
os._exit(0)  # gloo aborts a rank whose peer is gone while its own threads still listen
"""

BEGINS = """
calc = importlib.import_module("{package}.timeouts_calc")
action = importlib.import_module("{package}.data").SectionAction
seen = calc.TimeoutsCalc(sections=["one", "two"], start_time=0, safety_factor=2.0)
"""

LONGEST = """
if rank:  # the other has seen nothing
    for at in (20, 22):
        seen.update_on_heartbeat(hb_time=at)
    for name, begin, end in (("one", 20, 22), ("two", 33, 41)):
        seen.update_on_section_event(name, action.OPEN, begin)
        seen.update_on_section_event(name, action.CLOSE, end)
seen.synchronize_all()
beats, sections = seen.get_hb_timeouts(), seen.get_section_timeouts()
assert (beats.initial, beats.subsequent) == (40, 4), beats
assert (dict(sections.section), sections.out_of_section) == ({"one": 4, "two": 16}, 40), sections
"""

FORGETS = """
beats = [1, 3, *range(4, 31)] if rank else range(1, 31)  # hours; an outlier of two
for at in beats:
    seen.update_on_heartbeat(hb_time=3600 * at)
    if at != 2:
        seen.synchronize_all()
    if 3 <= at < 20:
        assert seen.get_hb_timeouts().subsequent == 2 * 7200, at
assert seen.get_hb_timeouts().subsequent == 2 * 3600, vars(seen.gaps)
"""


def on_two_ranks(tmp_path, *parts):
    """Each part, one after the other, in one group: to load PyTorch takes longest."""
    what = "".join(BEGINS.format(package=names.root) + part for names, part in parts)
    command = [sys.executable, "-c", RANK % what, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    ended = [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks]
    assert [code for _, code in ended] == [0, 0], ended


@pytest.mark.torch
def test_every_rank_has_the_longest_of_all_and_forgets_what_all_forget(ours_ft, tmp_path):
    on_two_ranks(tmp_path, (ours_ft, LONGEST), (ours_ft, FORGETS))


@pytest.mark.torch
def test_every_rank_of_nvrxs_has_the_longest_of_all_too(nvrx, tmp_path):
    on_two_ranks(tmp_path, (nvrx, LONGEST))
