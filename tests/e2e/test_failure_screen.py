"""What a failed job says fits one screen for any number of ranks, and what is not there is said before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

EIGHT = ("run", "--nproc-per-node", 8, "--node-name", "n1")
MISSING = """
import os
def load():
    open(f"/data/shard-{os.environ['RANK']}.bin")
load()
"""
TOGETHER = """
import os, pathlib, signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
here = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parent.parent
(here / f"met-{os.environ['RANK']}").touch()
while len(list(here.glob("met-*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
"""  # What the others' end cannot cut short.


def test_eight_ranks_with_one_error_take_one_screen(holdfast: Any, script: Any) -> None:
    done = holdfast(*EIGHT, script(MISSING))
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) <= 25, done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "    open(f\"/data/shard-{os.environ['RANK']}.bin\")" in lines, "the user's own line"


def test_each_attempt_shows_its_error_and_each_record_keeps_it(holdfast: Any, script: Any) -> None:
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", 1, script(MISSING))
    assert done.stderr.count("Traceback (most recent call last)") == 2, "one an attempt"
    assert holdfast("report").stdout.count("Traceback (most recent call last)") >= 1
    assert all(path.stat().st_size for path in holdfast.jobs()[-1].rglob("error.json"))


def test_the_error_is_shown_though_the_rank_that_began_to_show_it_is_killed(holdfast: Any, script: Any) -> None:
    ends_while_it_shows = """
import sys
class Killed:
    def write(self, text): os.kill(os.getpid(), signal.SIGKILL)
    def flush(self): pass
if os.environ["RANK"] == "1":
    sys.stderr = Killed()
else:
    while not list(here.glob(".shown-*")):
        time.sleep(0.005)
raise ValueError("x")
"""
    done = holdfast("run", "--nproc-per-node", 2, script(TOGETHER + ends_while_it_shows))
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr


def test_different_errors_are_all_shown(holdfast: Any, script: Any) -> None:
    program = script(TOGETHER + "raise (KeyError if os.environ['RANK'] == '1' else ValueError)('x')")
    done = holdfast("run", "--nproc-per-node", 4, program)
    assert "KeyError: 'x'\n" in done.stderr and done.stderr.count("Traceback (most recent call last)") == 2, done.stderr


@pytest.mark.parametrize("shown", ["ValueError('x')", "ConnectionResetError('another')"])
def test_who_lost_its_connection_to_another_shows_nothing_once_an_error_is_shown(
    holdfast: Any, script: Any, shown: str
) -> None:
    """Not even if its traceback is ready before it is stopped, as on a busy node."""
    loses_it = f"""
if os.environ["RANK"] != "1":
    while not any(mark.read_text().endswith("shown") for mark in here.glob(".shown-*")):
        time.sleep(0.005)
    raise RuntimeError("gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59064")
raise {shown}
"""
    done = holdfast("run", "--nproc-per-node", 4, script(TOGETHER + loses_it))
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
    assert "rank 1 (local 1)" in done.stderr and "Connection closed by peer" in done.stderr, "said in the report"


@pytest.mark.parametrize("how", ["--redirects", "--tee"])
def test_a_log_of_a_rank_s_own_has_its_traceback(holdfast: Any, script: Any, how: str) -> None:
    program = script(TOGETHER + "raise ValueError('x')")
    holdfast("run", "--nproc-per-node", 2, how, 2, program)
    logs = list(holdfast.jobs()[-1].rglob("stderr.log"))
    assert len(logs) == 2 and all("ValueError: x" in log.read_text() for log in logs)


def test_the_box_of_torchrun_s_kind_comes_on_request_at_the_very_end(holdfast: Any, script: Any) -> None:
    path = script("raise ValueError('x')")
    assert "Root Cause" not in holdfast("run", path).stderr
    done = holdfast("run", "--failure-box", path)
    assert f"{path} FAILED" in done.stderr and done.stderr.rstrip().endswith("=" * 60)


def test_the_short_report_is_a_few_lines(holdfast: Any, script: Any) -> None:
    done = holdfast("run", "--brief", script("raise ValueError('x')"))
    assert "First failure" not in done.stderr and "Decision\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["trian.py"], "the script trian.py is not there (looked for in ", "did you mean train.py?"),
        (["/nowhere/train.py"], "the script /nowhere/train.py is not there", "is its file system mounted on this node?"),
        (["folder"], "the script folder is a folder without a __main__.py", "check the path"),
        (["-m", "no_such.module"], "there is no module no_such for ", "check its name"),
        (["-m", "train.py"], "there is no module train.py for ", "without -m"),
        (["-m", "package.missing"], "there is no module package.missing for ", "check its name"),
        (["-m", "package"], "package is a package without a module __main__", "-m package.train"),
        (["--no-python", "no-such-program"], "the program no-such-program is in no directory of PATH", "give its path"),
        (["--no-python", "./train.py"], "the program ./train.py is not there, or may not be executed", "chmod +x"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_is_not_there_is_said_before_anything_starts(
    holdfast: Any, tmp_path: Path, words: list[str], what: str, hint: str
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('nobody imports it')")
    done = holdfast("run", "--max-restarts", 3, *words, cwd=tmp_path)
    assert done.returncode == 2 and what in done.stderr and hint in done.stderr, done.stderr
    assert holdfast.jobs() == []


@pytest.mark.parametrize(
    "words", ["folder", "-m folder", "-m package", "-m package.inner", "-m a.b.c.inner", "-m train", "train.py"]
)
def test_what_is_there_starts(holdfast: Any, tmp_path: Path, words: str) -> None:
    package = ("package/__init__.py", "package/__main__.py", "package/inner.py")
    for name in ("train.py", "folder/__main__.py", *package, "a/b/c/inner.py"):
        os.makedirs((tmp_path / name).parent, exist_ok=True)
        (tmp_path / name).write_text("")
    done = holdfast("run", *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
