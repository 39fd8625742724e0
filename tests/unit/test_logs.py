from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.logs.attempt_logs import LogPlan, prefixes
from holdfast.agent.logs.tail import TAIL_BYTES, tail_of
from holdfast.core.config.config import RunConfig
from holdfast.core.errors import UsageError


def config(**given: Any) -> RunConfig:
    return RunConfig(
        **({"training_script": "train.py", "nproc_per_node": 2, "rdzv_id": "job7", "state_dir": "/nowhere"} | given)
    )


def plan(tmp_path: Path, **given: Any) -> LogPlan:
    return LogPlan.of(config(**given), str(tmp_path / "job"), "n0")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_without_a_log_dir_the_files_lie_private_in_the_jobs_state(tmp_path: Path):
    logs = plan(tmp_path, redirects={0: 3, 1: 0})
    assert not (tmp_path / "job").exists(), "a plan makes nothing"
    attempt = logs.open_attempt(0, 1, 2)
    home = tmp_path / "job/logs/n0/attempt_0"
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == ["0", "0/stderr.log", "0/stdout.log", "1"]
    assert attempt[0].error_file == str(home / "0/error.json") and attempt[1].dir == str(home / "1")
    assert mode(home) == mode(home / "1") == 0o700 and mode(home / "0/stderr.log") == 0o600
    attempt.release()


def test_a_log_dir_gets_a_directory_per_run_as_torchruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    logs = plan(tmp_path, log_dir="a/b")
    attempts = [logs.open_attempt(count, count + 1, 1) for count in (0, 1)]
    (run,) = (tmp_path / "a/b").iterdir()
    assert run.name.startswith("job7_") and len(run.name) == len("job7_") + 8 and mode(run) == 0o700
    assert [attempt.dir for attempt in attempts] == [str(run / "attempt_0"), str(run / "attempt_1")]
    assert os.path.isabs(attempts[0][0].error_file), "a worker that changes its directory must still find it"
    assert logs.root == str(run) and plan(tmp_path, log_dir="a/b").open_attempt(0, 1, 1).dir != attempts[0].dir


def test_an_attempt_is_never_erased(tmp_path: Path):
    logs = plan(tmp_path, redirects={0: 1})
    names = [Path(logs.open_attempt(1, round, 1).dir or "").name for round in (2, 3, 3, 4)]
    assert names == ["attempt_1", "attempt_1.r3", "attempt_1.r3.2", "attempt_1.r4"]


@pytest.mark.parametrize(
    ("redirect", "tee", "visible", "filed", "shown"),
    [
        (0, 0, True, "", ""),
        (1, 0, True, "stdout", ""),
        (2, 0, True, "stderr", ""),
        (3, 1, True, "stdout stderr", "stdout"),
        (0, 3, True, "stdout stderr", "stdout stderr"),
        (0, 0, False, "", ""),
        (2, 0, False, "stderr", ""),
        (0, 1, False, "stdout", ""),
    ],
)
def test_redirect_tee_and_filter_decide_where_a_stream_goes(
    tmp_path: Path, redirect: int, tee: int, visible: bool, filed: str, shown: str
):
    ranks = None if visible else frozenset({1})
    attempt = plan(tmp_path, redirects={0: redirect}, tee={0: tee}, local_ranks_filter=ranks).open_attempt(0, 1, 1)
    paths = attempt[0].paths
    fds = {"stdout": attempt[0].stdout_fd, "stderr": attempt[0].stderr_fd}
    for stream, fd in fds.items():
        path = getattr(paths, stream).path
        if stream in filed:
            assert fd is not None and path == f"{attempt[0].dir}/{stream}.log" and os.fstat(fd).st_ino == os.stat(path).st_ino
        elif visible:
            assert fd is None and path is None
        else:
            assert fd is not None and os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev
    assert {name for name in ("stdout", "stderr") if getattr(paths, name).is_shown} == set(shown.split())
    attempt.release()


def test_the_null_device_keeps_nothing_and_hides_nobody(tmp_path: Path):
    logs = plan(tmp_path, log_dir=os.devnull, redirects={0: 3}, tee={0: 3, 1: 3}, local_ranks_filter=frozenset({1}))
    attempt = logs.open_attempt(0, 1, 2)
    assert [(rank.stdout_fd, rank.stderr_fd, rank.error_file, rank.dir) for rank in attempt.ranks] == [
        (None, None, "", None)
    ] * 2
    assert attempt.tee(["a", "b"]) is None and attempt.tail_lines(0) == () and list(tmp_path.iterdir()) == []


def test_what_cannot_work_is_said_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot keep logs in .*file") as caught:
        plan(tmp_path, log_dir=str(tmp_path / "file")).open_attempt(0, 1, 1)
    assert "--log-dir" in caught.value.hint
    with pytest.raises(UsageError, match="need files"):
        plan(tmp_path, log_dir=os.devnull, duplicate_stderr_filters=("x",))
    (warning,) = plan(tmp_path, redirects={0: 2}, duplicate_stdout_filters=("x",), duplicate_stderr_filters=("x",)).warnings
    assert "--duplicate-stdout-filters" in warning and "-t 1" in warning


def test_names_from_outside_stay_inside_their_directory(tmp_path: Path):
    logs = LogPlan.of(config(rdzv_id="../../x" + "ü" * 300, log_dir=str(tmp_path / "logs")), "/nowhere", "n")
    assert Path(logs.open_attempt(0, 1, 1).dir or "").parent.parent == tmp_path / "logs"
    other = LogPlan.of(config(), str(tmp_path / "job"), "..")
    assert other.open_attempt(0, 1, 1).dir == str(tmp_path / "job/logs/_../attempt_0")


def test_the_last_lines_come_from_stderr_if_it_says_anything(tmp_path: Path):
    attempt = plan(tmp_path, redirects={0: 3}).open_attempt(0, 1, 1)
    assert attempt[0].stdout_fd is not None and attempt[0].stderr_fd is not None
    os.write(attempt[0].stdout_fd, b"out\n")
    assert attempt.tail_lines(0) == ("out",)
    os.write(attempt[0].stderr_fd, b"one\ntwo\nthree")
    attempt.release()
    assert attempt.tail_lines(0, 2) == ("two", "three") and attempt[0].log_path == attempt[0].paths.stderr.path


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", ()),
        (b"a\n\nb\n", ("a", "", "b")),
        (b"\xff\n", ("\ufffd",)),
        (b"\r 1%\r 50%\r100%\ndone\r\n", ("100%", "done")),
        (b"x" * TAIL_BYTES + b"\nlast\n", ("last",)),
        (b"x" * 2 * TAIL_BYTES, ("x" * 2000,)),
    ],
)
def test_the_last_lines_are_what_was_on_the_screen(tmp_path: Path, text: bytes, lines: tuple[str, ...]):
    (tmp_path / "log").write_bytes(text)
    assert tail_of(str(tmp_path / "log"), 20) == lines


def test_a_log_that_is_gone_or_no_file_has_no_last_lines(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert tail_of(str(tmp_path / "none"), 20) == tail_of(str(tmp_path / "pipe"), 20) == tail_of(str(tmp_path), 20) == ()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, ["[default0]:", "[default1]:"]),
        ("", ["[default0]:", "[default1]:"]),
        ("<${role_name} $rank/$local_rank $other>", ["<default 4/0 $other>", "<default 6/1 $other>"]),
    ],
)
def test_each_line_begins_with_its_rank(monkeypatch: pytest.MonkeyPatch, template: str | None, said: list[str]):
    monkeypatch.delenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", raising=False)
    if template is not None:
        monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", template)
    assert prefixes("default", [4, 6]) == said
