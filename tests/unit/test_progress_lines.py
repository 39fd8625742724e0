"""Which lines of a log mean progress? Read piece by piece as it grows; files, but no process and no sleep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.monitor.log_progress import CHUNK, LONGEST_LINE, LogProgress


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


@pytest.fixture
def reading(log: Path) -> Iterator[Callable[[str], LogProgress]]:
    """`reading(pattern)`: the log's progress by that expression."""
    made: list[LogProgress] = []

    def read(pattern: str) -> LogProgress:
        made.append(LogProgress([str(log)], pattern))
        return made[-1]

    yield read
    for one in made:
        one.close()


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def seen(progress: LogProgress) -> tuple[int, int | None]:
    """(lines, the last step), now that somebody has looked."""
    progress.look()
    return progress.lines, progress.step


def test_lines_are_counted_once_and_the_last_named_step_is_known(log: Path, reading: Callable[[str], LogProgress]) -> None:
    progress = reading(r"step[= ](?P<step>\d+)")
    assert seen(progress) == (0, None), "there is no file yet"
    append(log, "loading\nstep 1 loss 3\nstep=2 lo")
    assert seen(progress) == (1, 1)
    assert seen(progress) == (1, 1)
    append(log, "ss 2\n")
    assert seen(progress) == (2, 2)


def test_what_a_progress_bar_redraws_is_a_line_each(log: Path, reading: Callable[[str], LogProgress]) -> None:
    append(log, "\r 1/100\r 2/100\r 3/100")
    assert seen(reading(r"(?P<step>\d+)/100")) == (2, 2)


def test_a_file_that_was_truncated_is_read_from_its_new_start(log: Path, reading: Callable[[str], LogProgress]) -> None:
    progress = reading("ok")
    append(log, "ok\nok\nok\n")
    assert seen(progress) == (3, None)
    os.truncate(log, 0)
    append(log, "ok\n")
    assert seen(progress) == (4, None)


def test_of_a_log_that_grows_fast_nothing_is_skipped(log: Path, reading: Callable[[str], LogProgress]) -> None:
    """The one line that means progress may be the oldest of those that are new."""
    append(log, "step 7\n" + "still retrying\n" * 100_000)
    assert log.stat().st_size > 2 * CHUNK
    assert seen(reading(r"step (?P<step>\d+)")) == (1, 7)


def test_of_a_long_line_the_beginning_counts_in_however_many_pieces_it_comes(
    log: Path, reading: Callable[[str], LogProgress]
) -> None:
    progress = reading(r"step (?P<step>\d+)")
    append(log, "step 8 " + "x" * LONGEST_LINE)
    assert seen(progress) == (0, None), "it has not come to its end"
    append(log, "step 9\n")
    assert seen(progress) == (1, 8)


def test_an_expression_without_the_group_tells_of_no_step(log: Path, reading: Callable[[str], LogProgress]) -> None:
    append(log, "epoch 1\n")
    assert seen(reading("epoch")) == (1, None)


def test_what_is_no_regular_file_is_left_alone() -> None:
    progress = LogProgress([os.devnull], "x")
    assert seen(progress) == (0, None)
    progress.close()
