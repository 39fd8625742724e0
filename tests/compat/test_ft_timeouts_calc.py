"""Limits from observed intervals: the same numbers as NVRx's from the same events."""

from __future__ import annotations

import dataclasses
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


# All ranks together.


def test_without_a_process_group_nothing_is_synchronised(calc):
    with pytest.raises(calc.error):
        calc().synchronize_all()


RANK = """
import importlib, os, sys
import torch.distributed as dist
package, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
calc = importlib.import_module(package + ".timeouts_calc")
action = importlib.import_module(package + ".data").SectionAction
seen = calc.TimeoutsCalc(sections=["one", "two"], start_time=0, safety_factor=2.0)
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
dist.barrier()
os._exit(0)  # gloo aborts a rank whose peer is gone while its own threads still listen
"""


@pytest.mark.torch
def test_every_rank_has_the_longest_of_all(ft, tmp_path):
    command = [sys.executable, "-c", RANK, ft.root, str(tmp_path / "store")]
    ranks = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    ended = [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks]
    assert [code for _, code in ended] == [0, 0], ended
