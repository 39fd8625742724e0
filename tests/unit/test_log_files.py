"""Workers start with their log files, or without: a disk that is full or does not answer holds up nobody and ends no job."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.stages.made_up import assigned

from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Ended, LogsOpened, OpenLogs, StartWorkers, Told
from holdfast.agent.group.state import State
from holdfast.agent.logs.attempt_logs import AttemptLogs, LogPlan, RankPaths
from holdfast.agent.logs.log_files import FIRST_S, NEXT_S, LogFiles
from holdfast.agent.workers.ends import EVIDENCE_S, End, Ends
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError
from holdfast.core.processes import LastSigns
from holdfast.core.wire.messages import Join


class Disk:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.is_late, self.late = False, 0.0
        self.asked: list[tuple[Callable[[], Any], Callable[[Any], list[Any]]]] = []

    def ask(self, task: Callable[[], Any], then: Callable[[Any], list[Any]]) -> list[Any]:
        self.asked.append((task, then))
        return []

    def late_s(self) -> float:
        return self.late

    def do(self, task: Callable[[], Any]) -> None:
        self.ask(task, lambda answer: [])

    def answer(self, answer: Any = None) -> list[Any]:
        task, then = self.asked.pop(0)
        return then(task() if answer is None else answer)


class Stage:
    """A host whose clock is set by hand, and a disk."""

    def __init__(self, tmp_path: Path, **config: Any) -> None:
        self.now, self.said, self.disk = 0.0, list[str](), Disk()
        self.host: Any = SimpleNamespace(now=lambda: self.now, complain=self.said.append)
        self.config = RunConfig(training_script="t.py", state_dir=str(tmp_path), log_dir=str(tmp_path / "logs"), **config)
        self.files = LogFiles(LogPlan.of(self.config, str(tmp_path), "n"), 1, self.host, self.disk)  # type: ignore[arg-type]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, redirects={0: 3})


def test_workers_start_once_their_files_are_there(stage: Stage) -> None:
    assert stage.files.open(assigned(1)) == []
    assert stage.disk.answer() == [LogsOpened(round=1)] and stage.files.due() == []
    files = stage.files.take()
    assert files[0].stdout_fd is not None and files.dir is not None and not os.path.exists(f"{files.dir}/.room")
    files.release()


@pytest.mark.parametrize("is_first, wait_s", [(True, FIRST_S), (False, NEXT_S)])
def test_a_disk_that_does_not_answer_is_waited_for_a_while_and_then_they_start_without(
    stage: Stage, is_first: bool, wait_s: float
) -> None:
    if not is_first:
        stage.files.take().forget()
    stage.files.open(assigned(1))
    stage.now = stage.files.due_at
    assert stage.now == wait_s and stage.files.due() == [LogsOpened(round=1)]
    (said,) = stage.said
    assert "logs" in said and "its disk does not answer" in said
    files = stage.files.take()
    assert (files.dir, files[0].stdout_fd) == (None, None), "they write to our own streams"
    files.forget()


def test_what_comes_too_late_is_let_go_and_disturbs_no_later_round(stage: Stage) -> None:
    stage.files.open(assigned(1))
    stage.now = stage.files.due_at
    stage.files.due()
    stage.disk.is_late = True
    assert stage.files.open(assigned(2)) == [LogsOpened(round=2)], "who does not answer is not waited for again"
    assert stage.disk.answer() == []
    stage.disk.answer()  # what was opened is closed there
    assert stage.files.take().dir is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_is_full_or_broken_is_said_and_the_next_round_tries_again(stage: Stage, number: int) -> None:
    stage.files.open(assigned(1))
    assert stage.disk.answer(OSError(number, os.strerror(number))) == [LogsOpened(round=1)]
    assert os.strerror(number) in stage.said[0]
    stage.files.take().forget()
    stage.files.open(assigned(2))
    assert stage.disk.answer() == [LogsOpened(round=2)]
    files = stage.files.take()
    assert files.dir is not None
    files.release()


def test_a_place_that_was_named_wrongly_ends_the_first_start_and_no_later_one(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "logs").write_text("a file")
    stage.files.open(assigned(1))
    with pytest.raises(UsageError) as raised:
        stage.files.plan.open_attempt(0, 1, 1)
    wrong = raised.value
    with pytest.raises(UsageError, match="cannot keep logs in"):
        stage.disk.answer(wrong)
    stage.files.take().forget()
    stage.files.open(assigned(2))
    assert stage.disk.answer(wrong) == [LogsOpened(round=2)] and "logs" in stage.said[0]


def test_a_rank_that_local_ranks_filter_hides_stays_hidden_where_there_are_no_files(tmp_path: Path) -> None:
    stage = Stage(tmp_path, local_ranks_filter=frozenset((1,)))
    paths = stage.files.plan.without_files(2)
    assert [rank.paths.stdout.path for rank in (paths[0], paths[1])] == [os.devnull, None]
    paths.release()
    paths.forget()


# --- what a rank has left ---------------------------------------------------------------------------------------------------


def end(exitcode: int = 1, *, gone: bool = False) -> End:
    return End(0, 7, exitcode, gone, 0.0, LastSigns())


def on_disk(stage: Stage, tmp_path: Path) -> tuple[Ends, AttemptLogs]:
    (tmp_path / "error.json").write_text('{"message": "boom"}')
    paths = RankPaths(dir=str(tmp_path), error_file=str(tmp_path / "error.json"))
    return Ends(stage.host, stage.disk), AttemptLogs([paths])  # type: ignore[arg-type]


def told(seen: list[Any]) -> list[tuple[bool, str]]:
    return [(one.gone, one.evidence.message or one.evidence.trouble) for one in seen if isinstance(one, Ended)]


def test_an_end_is_told_with_what_the_rank_has_left(stage: Stage, tmp_path: Path) -> None:
    ends, attempt = on_disk(stage, tmp_path)
    assert ends.add(end(), attempt) == []
    assert ends.add(end(gone=True), attempt) == []
    assert told(stage.disk.answer()) == [(False, "boom"), (True, "boom")]


def test_where_its_disk_does_not_answer_it_is_told_without(stage: Stage, tmp_path: Path) -> None:
    ends, attempt = on_disk(stage, tmp_path)
    ends.add(end(), attempt)
    stage.now = ends.due_at
    assert stage.now == EVIDENCE_S
    ((gone, said),) = told(ends.due())
    assert not gone and said == f"what it has left in {tmp_path} is not known: that disk does not answer"
    stage.disk.late = EVIDENCE_S
    assert told(ends.add(end(gone=True), attempt)) == [(True, said)], "nobody waits for it twice"
    assert stage.disk.answer() == []


def test_a_disk_that_was_late_a_moment_ago_is_waited_for_all_the_same(stage: Stage, tmp_path: Path) -> None:
    """On a busy host a task misses its turn of 20 ms at any time: the first failure's record would be lost by that."""
    ends, attempt = on_disk(stage, tmp_path)
    stage.disk.is_late, stage.disk.late = True, 0.03
    assert ends.add(end(), attempt) == [] and told(stage.disk.answer()) == [(False, "boom")]


def test_an_error_record_in_memory_is_read_whatever_the_disk_does(stage: Stage) -> None:
    attempt = stage.files.plan.without_files(1)
    stage.disk.late = EVIDENCE_S
    assert told(Ends(stage.host, stage.disk).add(end(), attempt)) == [(False, "")]  # type: ignore[arg-type]
    Path(attempt[0].error_file).write_text('{"message": "boom"}')
    assert told(Ends(stage.host, stage.disk).add(end(), attempt)) == [(False, "boom")]  # type: ignore[arg-type]
    attempt.forget()


# --- in the group -----------------------------------------------------------------------------------------------------------


def test_a_node_starts_the_workers_of_the_round_whose_files_are_there() -> None:
    join = Join(node="n-id", name="n", addr="n", master_port=0, nproc=1, role="default")
    group = Group(State(join=join, grace_s=10.0, hosting=False))
    group.begin(0.0)
    assert group.observe(Told(message=assigned(2)), 1.0)[-1] == OpenLogs(assigned=assigned(2))
    assert group.observe(LogsOpened(round=1), 1.1) == []
    assert group.observe(LogsOpened(round=2), 1.2) == [StartWorkers(assigned=assigned(2))]
