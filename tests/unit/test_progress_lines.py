"""Which lines of a log mean progress? Read piece by piece as it grows; files, but no process and no sleep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.monitor.progress import CHUNK, LogProgress


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_lines_are_counted_once_and_the_last_named_step_is_known(log: Path) -> None:
    progress = LogProgress([str(log)], r"step[= ](?P<step>\d+)")
    assert not progress.look(), "there is no file yet"
    append(log, "loading\nstep 1 loss 3\nstep=2 lo")
    assert progress.look() and (progress.lines, progress.step) == (1, 1)
    assert not progress.look()
    append(log, "ss 2\n")
    assert progress.look() and (progress.lines, progress.step) == (2, 2)
    progress.close()


def test_what_a_progress_bar_redraws_is_a_line_each(log: Path) -> None:
    progress = LogProgress([str(log)], r"(?P<step>\d+)/100")
    append(log, "\r 1/100\r 2/100\r 3/100")
    assert progress.look() and progress.lines == 2
    progress.close()


def test_a_file_that_was_truncated_is_read_from_its_new_start(log: Path) -> None:
    progress = LogProgress([str(log)], "ok")
    append(log, "ok\nok\nok\n")
    assert progress.look()
    os.truncate(log, 0)
    append(log, "ok\n")
    assert progress.look() and progress.lines == 4
    progress.close()


def test_of_a_log_that_grows_too_fast_the_newest_is_read(log: Path) -> None:
    progress = LogProgress([str(log)], r"step (?P<step>\d+)")
    append(log, "".join(f"step {number}\n" for number in range(100_000)))
    assert log.stat().st_size > 2 * CHUNK
    assert progress.look() and progress.step == 99_999 and progress.lines < 100_000
    progress.close()


def test_an_expression_without_the_group_tells_of_no_step(log: Path) -> None:
    progress = LogProgress([str(log)], "epoch")
    append(log, "epoch 1\n")
    assert progress.look() and progress.step is None
    progress.close()


def test_what_is_no_regular_file_is_left_alone() -> None:
    progress = LogProgress([os.devnull], "x")
    assert not progress.look()
    progress.close()
