"""Which checks a command line asks for, in our words and in ft_launcher's."""

from __future__ import annotations

import re

import pytest
from kit.stages.command_lines import config, error, told

from holdfast.core.config.grammar import join_paths, split_paths
from holdfast.core.errors import UsageError
from holdfast.health.check import wanted


def test_nothing_is_checked_unless_somebody_says_so():
    for made in (config(), told(command="ft_launcher").config):
        assert (made.check_before, made.check_after, made.check_during, made.check_every_s) == ((), (), (), 60.0)


def test_lists_of_our_own_with_a_comma_in_an_argument():
    made = config(
        "--check-before", "gpu,command=a,,b", "--check-during", "nic", "--check-every", "5", env={"HOLDFAST_CHECK_AFTER": "xid"}
    )
    assert made.check_before == ("gpu", "command=a,b")
    assert (made.check_after, made.check_during, made.check_every_s) == (("xid",), ("nic",), 5.0)


@pytest.mark.parametrize(
    ("words", "before", "during"),
    [
        (("--ft-enable-nic-healthcheck", "true"), ("nic",), ()),
        (("--ft-enable-nic-healthcheck", "false"), (), ()),
        (("--ft-enable-dist-storage-healthcheck", "true"), ("mounts",), ()),
        (("--ft-storage-health-check-path", "/a,/b"), ("paths=/a:/b",), ()),
        (("--ft-storage-health-check-path", "/a:1,/b,/c:/d"), (r"paths=/a:1:/b:/c\:/d",), ()),
        (("--ft-segment-health-check-dir", "/shared/health"), ("segment=/shared/health",), ()),
        (("--ft-node-health-check-endpoint", "/run/x.sock"), ("node-service=/run/x.sock",), ()),
        (("--ft-enable-nic-monitor", "true"), (), ("nic",)),
        (
            ("--ft-enable-nic-monitor", "true", "--ft-link-down-path-template", "/sys/{nic}/d"),
            (),
            ("nic=:/sys/{nic}/d",),
        ),
        (
            ("--ft-enable-nic-healthcheck", "1", "--ft-link-state-path-template", "/0000:3b:00/:/s"),
            (r"nic=/0000:3b:00/\:/s",),
            (),
        ),
        (("--check-before", "gpu,mounts", "--ft-enable-dist-storage-healthcheck", "true"), ("gpu", "mounts"), ()),
    ],
)
def test_ft_launcher_s_flags_ask_for_our_checks(words, before, during):
    for command in ("run", "ft_launcher"):
        made = told(*words, command=command).config
        assert (made.check_before, made.check_during) == (before, during)


def test_ft_launcher_s_interval_is_how_often_the_gpus_are_looked_at():
    made = config("--ft-node-health-check-interval", "7")
    assert (made.check_during, made.check_every_s) == (("gpu",), 7.0)
    assert config("--ft-node-health-check-interval", "7", "--check-every", "9").check_every_s == 9.0


def test_where_each_list_came_from_is_known():
    given = told("--check-before", "gpu", "--ft-storage-health-check-path", "/a")
    assert given.origins["check_before"] == "--check-before, --ft-storage-health-check-path"


def test_any_check_s_deadline_and_how_many_answers_count_stand_in_brackets():
    (one,) = wanted(["command[deadline=2.5 bad=2 good=3]=test [ -e /x=y ]"])
    assert (one.check.deadline_s, one.check.bad_in_a_row, one.check.good_in_a_row) == (2.5, 2, 3)
    assert (one.label, one.argument) == ("command=test [ -e /x=y ]", "test [ -e /x=y ]")
    assert config("--check-before", "memory[bad=2],gpu").check_before == ("memory[bad=2]", "gpu")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("memory[bad=0]", "check memory: bad: 0 is too small give 1 or more"),
        ("memory[good=1.5]", "check memory: good: '1.5' is not a whole number"),
        ("memory[deadline=soon]", "check memory: deadline: 'soon' is not a number of seconds"),
        ("memory[dedline=3]", "no option 'dedline'.*did you mean deadline"),
        ("memory[bad=2", "no check 'memory.bad=2'"),
    ],
)
def test_what_stands_wrong_in_brackets_is_refused(word, why):
    with pytest.raises(UsageError) as refused:
        wanted([word])
    assert re.search(why, f"{refused.value.what} {refused.value.hint}", re.S)


def test_what_makes_no_sense_is_refused():
    assert error("--check-every", "0").startswith("--check-every")
    assert "not absolute" in error("--ft-storage-health-check-path", "data")


def test_jobs_of_another_rendezvous_are_told_that_nothing_is_checked():
    said = told("--check-before", "gpu", "--rdzv-backend", "zoo", "--rdzv-endpoint", "z:1").notices
    assert any("--check-before ignored" in notice.text for notice in said)


def test_a_path_may_have_a_colon():
    paths = ["/a:1", "/b", "/c:/d", "/e:"]
    assert split_paths(join_paths(paths)) == paths
    (check,) = wanted([f"paths={join_paths(paths)}"])
    assert split_paths(check.argument) == paths
