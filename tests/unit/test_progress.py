"""Restarts that bring the job no further: when there are too many of them, who says so, and with which exit code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.stages.round_stage import Job

from holdfast.core.wire.messages import Join, Stopped
from holdfast.recovery.policy import Progress, RestartOnFailure

REACHED = st.one_of(st.none(), st.integers(0, 1000))


def by_file(**kwargs: Any) -> Progress:
    return Progress(**{"cycles": 3, "iterations": 1, "source": "/ckpt/latest.txt", **kwargs})


def after(progress: Progress, *reached: int | None) -> list[str]:
    """Restarts, each at that iteration."""
    return [progress.note(one, restarting=True) for one in reached]


def test_three_restarts_in_a_row_at_the_same_iteration_are_too_many() -> None:
    progress = by_file()
    progress.note(100, restarting=False)
    *before, last = after(progress, 100, 100, 100)
    assert before == ["", ""]
    assert last == "no progress: 3 restarts in a row brought no iteration (iteration 100 by /ckpt/latest.txt)"


def test_the_iteration_that_a_job_begins_with_is_no_progress_of_its_own() -> None:
    progress = by_file(cycles=1)
    progress.note(50_000, restarting=False)
    assert after(progress, 50_000)[0]


def test_any_progress_begins_the_count_anew() -> None:
    progress = by_file()
    assert after(progress, 0, 0, 1, 1, 1)[-1] == "" and after(progress, 1)[0] != ""


def test_less_than_asked_for_is_no_progress() -> None:
    progress = Progress(cycles=2, iterations=200)
    assert after(progress, 150, 349)[-1] == (
        "no progress: 2 restarts in a row brought fewer than 200 iterations (iteration 349)"
    )


def test_a_file_that_cannot_be_read_changes_nothing() -> None:
    progress = by_file()
    assert after(progress, 7, 7, None, None, None, 7) == [""] * 6
    assert after(progress, 7)[0]


def test_ranks_that_report_steps_and_then_die_before_the_first_have_made_none() -> None:
    assert after(Progress(cycles=3), 500, None, None, None)[-1]


def test_a_job_whose_ranks_report_nothing_is_not_judged() -> None:
    assert after(Progress(cycles=1), *[None] * 9) == [""] * 9


def test_a_change_of_members_is_no_restart() -> None:
    progress = by_file(cycles=1)
    assert [progress.note(5, restarting=False) for _ in range(9)] == [""] * 9


def test_nobody_is_promised_a_restart_that_may_be_in_vain() -> None:
    """How far the job has come is known a moment after its failure."""
    policy = RestartOnFailure(max_restarts=9, progress=by_file(cycles=2, iterations=5))
    policy.stalled(100, restarting=False)
    said = []
    for _ in range(2):
        said.append(policy.consider_request("it failed", uptime_s=60.0, now=0.0).reason)
        policy.stalled(100, restarting=True)
    assert said == [
        "it failed; restarting all ranks (8 of 9 restarts left)",
        "it failed; restarting all ranks if the job has reached iteration 105 (7 of 9 restarts left)",
    ]


@pytest.mark.parametrize("progress", [Progress(), by_file(cycles=1)], ids=["no such stop", "nothing is known"])
def test_a_restart_that_depends_on_nothing_is_promised(progress: Progress) -> None:
    policy = RestartOnFailure(max_restarts=1, progress=progress)
    reason = policy.consider_request("it failed", uptime_s=60.0, now=0.0).reason
    assert reason == "it failed; restarting all ranks (0 of 1 restarts left)"


@given(st.integers(0, 4), st.integers(1, 300), st.booleans(), st.lists(REACHED, max_size=30))
def test_it_only_stops_after_so_many_in_a_row(cycles: int, least: int, file: bool, reached: list[int | None]) -> None:
    progress = Progress(cycles=cycles, iterations=least, source="f" if file else "")
    known: list[int] = [0]
    in_a_row = 0
    for one in reached:
        said = progress.note(one, restarting=True)
        if one is not None:
            in_a_row = 0 if one - known[-1] >= least else in_a_row + 1
            known.append(one)
        elif not file and len(known) > 1:
            in_a_row += 1
        else:
            assert not said
            continue
        assert bool(said) == (cycles > 0 and in_a_row >= cycles)


# --- the coordinator --------------------------------------------------------------------------------------------------------


class Stalling(Job):
    """Two nodes; one of them can tell how far the job is."""

    def __init__(self, *, cycles: int) -> None:
        super().__init__(max_restarts=9)
        self.policy = RestartOnFailure(max_restarts=9, progress=by_file(cycles=cycles))
        self.machine.policy = self.policy
        self.both(10)

    def both(self, reached: int | None) -> None:
        for node in "ab":
            given = reached if node == "b" else None
            usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
            self.hear(Join(node=node, round=self.machine.round, reached=given, **usual))

    def again(self, reached: int | None) -> None:
        self.now += 100.0
        self.renew("a", "b")
        self.fail("a")
        for node in "ab":
            self.hear(Stopped(node=node, round=self.machine.round))
        self.both(reached)


@pytest.fixture
def stalling() -> Stalling:
    return Stalling(cycles=2)


def test_the_job_ends_everywhere_with_the_code_that_says_not_to_queue_it_again(stalling: Stalling) -> None:
    stalling.again(10)
    assert stalling.machine.phase == "running"
    stalling.again(10)
    assert (stalling.report.outcome, stalling.report.exit_code) == ("failed", 93)
    assert stalling.decided[-1] == (
        "stop",
        "no progress: 2 restarts in a row brought no iteration (iteration 10 by /ckpt/latest.txt); "
        "it is not restarted again (exit code 93)",
    )
    assert stalling.report.failures and stalling.report.failures[0].node == "a"


def test_the_restart_that_does_not_come_is_not_counted(stalling: Stalling) -> None:
    stalling.again(10)
    stalling.again(10)
    assert stalling.report.restarts_used == 1 and stalling.policy.restarts_left(stalling.now) == 8


def test_as_long_as_it_gets_on_it_restarts(stalling: Stalling) -> None:
    for reached in (20, 30, None, 30, 40, 40):
        stalling.again(reached)
        assert stalling.machine.phase == "running"
