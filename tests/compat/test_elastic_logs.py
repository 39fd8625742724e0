"""Where the workers' streams go: the little language of `-r` and `-t`, the layout of files, redirecting and following."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def reify(names, log_dir, nproc=2, env=None, **options):
    """(where things go, the environments) for one start."""
    envs = {rank: {"TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_RESTART_COUNT": "1"} | (env or {}) for rank in range(nproc)}
    return names("multiprocessing").DefaultLogsSpecs(str(log_dir), **options).reify(envs), envs


# The little language.


@pytest.mark.parametrize(
    ("text", "meant"), [("0", 0), ("3", 3), ("0:1", {0: 1}), ("0:3,1:0,2:1,3:2", {0: 3, 1: 0, 2: 1, 3: 2})]
)
def test_streams_are_named_for_all_or_by_rank(names, text, meant):
    assert names("multiprocessing").Std.from_str(text) == meant


@pytest.mark.parametrize("text", ["", "4", "11", "0:1,", "1,0:1", "0:4", "a:1", "0:1\n0:2"])
def test_what_names_no_streams_is_refused(names, text):
    with pytest.raises(ValueError, match="does not match"):
        names("multiprocessing").Std.from_str(text)


def test_ranks_above_9_can_be_named(ours):
    assert ours("multiprocessing").Std.from_str("10:1,127:3") == {10: 1, 127: 3}


def test_ranks_that_are_left_out_have_none(names):
    api = names("multiprocessing")
    assert api.to_map(api.Std.OUT, 2) == {0: 1, 1: 1}
    assert api.to_map({1: api.Std.ERR, 5: api.Std.ALL}, 3) == {0: 0, 1: 2, 2: 0}


# The layout.


def test_files_lie_by_run_attempt_and_rank(names, tmp_path):
    std = names("multiprocessing").Std
    dest, envs = reify(names, tmp_path / "new" / "logs", redirects={0: std.OUT}, tee={1: std.ERR})
    run = Path(dest.error_files[0]).parents[2]
    attempt = run / "attempt_1"
    assert run.parent == tmp_path / "new" / "logs" and run.name.startswith("job7_")
    assert dest.stdouts == {0: str(attempt / "0" / "stdout.log"), 1: ""}
    assert dest.stderrs == {0: "", 1: str(attempt / "1" / "stderr.log")}
    assert dest.tee_stdouts == {} and dest.tee_stderrs == {1: dest.stderrs[1]}
    assert dest.error_files == {rank: envs[rank]["TORCHELASTIC_ERROR_FILE"] for rank in (0, 1)}
    assert dest.filtered_stdout == str(attempt / "filtered_stdout.log")
    assert (attempt / "1").is_dir()


def test_ranks_that_are_filtered_out_are_silent_on_the_console_only(names, tmp_path):
    std = names("multiprocessing").Std
    dest, _ = reify(names, tmp_path, nproc=3, tee={0: std.OUT, 2: std.OUT}, local_ranks_filter={0, 1})
    assert list(dest.tee_stdouts) == [0] and dest.stdouts[2].endswith("2/stdout.log")
    assert dest.stdouts[1] == "" and dest.stderrs == {0: "", 1: "", 2: os.devnull}


def test_the_null_device_means_no_files_at_all(names):
    std = names("multiprocessing").Std
    dest, envs = reify(names, os.devnull, redirects=std.ALL, tee=std.ALL)
    assert dest.stdouts == dest.stderrs == {0: "", 1: ""}
    assert dest.error_files == {0: os.devnull, 1: os.devnull} and envs[0]["TORCHELASTIC_ERROR_FILE"] == ""


def test_a_log_directory_must_not_be_a_file(names, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError):
        names("multiprocessing").DefaultLogsSpecs(str(file))


def test_specs_are_equal_when_their_settings_are(names, tmp_path):
    specs = names("multiprocessing").DefaultLogsSpecs
    assert specs(str(tmp_path)) == specs(str(tmp_path)) != specs(str(tmp_path), local_ranks_filter={1})
    assert specs(str(tmp_path)).root_log_dir == str(tmp_path) and str(tmp_path) in repr(specs(str(tmp_path)))


def test_a_second_start_with_the_same_restart_count_erases_nothing(ours, tmp_path):
    specs = ours("multiprocessing").DefaultLogsSpecs(str(tmp_path))
    first, second, third = (Path(specs.reify({0: {}}).error_files[0]) for _ in range(3))
    assert [path.parts[-3] for path in (first, second, third)] == ["attempt_0", "attempt_0.2", "attempt_0.3"]
    assert first.parent.is_dir()


def test_a_relative_log_directory_still_works_for_a_worker_that_changes_directory(ours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dest, envs = reify(ours, "logs")
    assert os.path.isabs(dest.error_files[0]) and os.path.isabs(envs[0]["TORCHELASTIC_ERROR_FILE"])


@pytest.mark.parametrize("used", [False, True])
def test_a_temporary_log_directory_is_left_only_if_there_is_something_in_it(ours, tmp_path, used):
    use = f"""
        from holdfast.elastic.multiprocessing import DefaultLogsSpecs
        dest = DefaultLogsSpecs().reify({{0: {{}}}})
        if {used}:
            open(dest.error_files[0], "w").close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(use)], env=os.environ | {"TMPDIR": str(tmp_path)}, check=True)
    assert len(list(tmp_path.iterdir())) == used


# Redirecting.


@pytest.mark.parametrize(("stream", "shell"), [("stdout", "echo from a child"), ("stderr", "echo from a child >&2")])
def test_a_redirected_stream_takes_python_c_and_children_along(names, tmp_path, stream, shell):
    log = tmp_path / "log"
    source = f"""
        import ctypes, os, sys
        from {names.path("multiprocessing.redirects")} import redirect_{stream} as redirect
        say = lambda text: print(text, file=sys.{stream})
        say("before")
        with redirect({str(log)!r}):
            say("from python")
            os.system({shell!r})
            ctypes.CDLL(None).dprintf({1 if stream == "stdout" else 2}, b"from c\\n")
        say("after")
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(log.read_text().splitlines()) == ["from a child", "from c", "from python"]
    assert getattr(done, stream).splitlines()[-2:] == ["before", "after"]


def test_only_stdout_and_stderr_can_be_redirected(names, tmp_path):
    with pytest.raises(ValueError, match="unknown standard stream"), names("multiprocessing.redirects").redirect("stdin", "x"):
        pass


# Following.


def tail(names, files, **options):
    dst = io.StringIO()
    follower = names("multiprocessing.tail_log").TailLog("trainer", files, dst, interval_sec=0.01, **options).start()
    return follower, dst


def test_lines_are_copied_with_the_prefix_of_their_rank(names, tmp_path, wait_until):
    files = {rank: str(tmp_path / f"{rank}.log") for rank in (0, 1)}
    follower, dst = tail(names, files, log_line_prefixes={1: "<one> "})
    for rank, path in files.items():
        Path(path).write_text(f"first of {rank}\nlast of {rank}\n")
    assert not follower.stopped()
    # Torch's follower gives up a file that it has not found yet when it is told to stop.
    wait_until(lambda: dst.getvalue().count("\n") == 4)
    follower.stop()
    assert follower.stopped()
    expected = ["<one> first of 1", "<one> last of 1", "[trainer0]:first of 0", "[trainer0]:last of 0"]
    assert sorted(dst.getvalue().splitlines()) == expected


def test_what_was_written_before_the_stop_is_copied_though_its_file_came_late(ours, tmp_path):
    path = tmp_path / "log"
    follower, dst = tail(ours, {0: str(path)})
    path.write_text("only\n")
    follower.stop()
    assert dst.getvalue() == "[trainer0]:only\n"


def test_only_lines_that_pass_the_filter_are_copied(names, tmp_path):
    path = tmp_path / "log"
    path.write_text("loss 1\nstep 2\nloss 3\n")
    follower, dst = tail(names, {0: str(path)}, log_line_filter=lambda line: "loss" in line)
    follower.stop()
    assert dst.getvalue() == "[trainer0]:loss 1\n[trainer0]:loss 3\n"


def test_a_file_that_never_comes_or_cannot_be_read_stops_nothing(names, tmp_path):
    follower, dst = tail(names, {0: str(tmp_path / "never"), 1: str(tmp_path)})
    follower.stop()
    assert dst.getvalue() == ""


def test_lines_without_an_end_are_never_joined_with_another_ranks(ours, tmp_path, monkeypatch, wait_until):
    monkeypatch.setattr(ours("multiprocessing.tail_log"), "PARTIAL_S", 0.0)
    files = {rank: tmp_path / f"{rank}.log" for rank in (0, 1)}
    follower, dst = tail(ours, {rank: str(path) for rank, path in files.items()})
    files[0].write_text("no end")
    wait_until(lambda: "no end" in dst.getvalue())
    files[1].write_text("whole\n")
    wait_until(lambda: "whole" in dst.getvalue())
    follower.stop()
    assert dst.getvalue().splitlines() == ["[trainer0]:no end", "[trainer1]:whole"]
