"""How a job is to be watched: the limits of what is learned, and which output is looked at for progress."""

from __future__ import annotations

import pytest
from kit.stages.command_lines import config, error


def test_learned_limits_are_bounded_by_default():
    ft = config().ft
    assert (ft.monitor, ft.least_limit, ft.most_limit, ft.still_limit) == ("auto", 600.0, 3600.0, 3600.0)


def test_the_bounds_can_be_told_and_some_taken_away():
    ft = config("--least-limit", "5", "--most-limit", "none", env={"HOLDFAST_STILL_LIMIT": "90"}).ft
    assert (ft.least_limit, ft.most_limit, ft.still_limit) == (5.0, None, 90.0)


@pytest.mark.parametrize(("flag", "text"), [("--least-limit", "none"), ("--least-limit", "0"), ("--most-limit", "soon")])
def test_a_bound_that_makes_no_sense_is_refused(flag, text):
    assert error(flag, text).startswith(flag)


def test_output_that_is_to_be_looked_at_is_put_into_files():
    found = config("--nproc-per-node", "3", "--progress-regex", "step", "-r", "1:2")
    assert found.tee == {0: 3, 1: 0, 2: 3} and found.redirects[1] == 2
    assert config("--nproc-per-node", "2").tee == {0: 0, 1: 0}


def test_where_nothing_is_kept_nothing_can_be_looked_at():
    assert "--progress-regex needs the ranks' output in files" in error("--progress-regex", "step", "--log-dir", "/dev/null")
