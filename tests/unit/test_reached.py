"""How far the job has come, as one node can tell: by a file, by steps that were told, by steps that were counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.workers.progress_iteration import ProgressIteration
from holdfast.core.processes import ProcessGone
from holdfast.telemetry.record.io_thread import IoThread


@pytest.fixture
def io_thread() -> Iterator[IoThread]:
    made = IoThread()
    yield made
    made.close()


@pytest.fixture
def said() -> list[str]:
    """What was complained of."""
    return []


def round_of(job_progress: ProgressIteration, *steps: int | None, told: bool = True) -> int | None:
    """Ranks with these last steps run and end."""
    for pid, step in enumerate(steps, 1):
        job_progress.ended(ProcessGone(pid=pid, exitcode=1, step=step, step_told=told))
    return job_progress.reached().reached


def test_steps_that_the_script_tells_are_the_job_s_and_the_furthest_counts(io_thread: IoThread, said: list[str]) -> None:
    job_progress = ProgressIteration(None, io_thread, said.append)
    assert [round_of(job_progress), round_of(job_progress, 99, None, 100), round_of(job_progress, 40)] == [None, 100, 40]


def test_steps_that_were_counted_begin_anew_in_each_process_and_add_up(io_thread: IoThread, said: list[str]) -> None:
    job_progress = ProgressIteration(None, io_thread, said.append)
    assert [round_of(job_progress, 30, 31, told=False), round_of(job_progress, 5, 5, told=False)] == [31, 36]


def test_a_rank_that_made_no_step_is_known_to_have_made_none(io_thread: IoThread, said: list[str]) -> None:
    job_progress = ProgressIteration(None, io_thread, said.append)
    assert [round_of(job_progress, None, None), said] == [None, []]


def test_the_file_says_it_whatever_the_ranks_do(io_thread: IoThread, said: list[str], tmp_path: Path) -> None:
    file = tmp_path / "latest"
    job_progress = ProgressIteration(str(file), io_thread, said.append)
    assert round_of(job_progress) is None and said == []  # a job that begins has no checkpoint yet
    file.write_text(" 1200\n")
    assert round_of(job_progress, 3000) == 1200


def test_a_file_without_a_number_is_told_of_once(io_thread: IoThread, said: list[str], tmp_path: Path) -> None:
    file = tmp_path / "latest"
    file.write_text("release")
    job_progress = ProgressIteration(str(file), io_thread, said.append)
    assert [round_of(job_progress) for _ in range(4)] == [None] * 4
    (one,) = said
    assert str(file) in one and "it does not hold a whole number: b'release'" in one
