from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.workers.error_files import read
from holdfast.core.job.failure import Failure
from holdfast.telemetry.report.failure_box import entrypoint_name, failure_box

STAMP = "1795209654"


def failure(**given: Any) -> Failure:
    return Failure(
        **({"node": "gpu-07", "rank": 0, "local_rank": 0, "pid": 100, "exitcode": 1, "at_unix": float(STAMP)} | given)
    )


def test_the_box_lists_the_root_cause_last_and_the_stopped_siblings_before_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    box = failure_box("train.py", [failure(rank=1, local_rank=1), failure(pid=99, exitcode=-15, cause="stopped")])
    assert box.split("\n") == [
        "",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "[1]:",
        "  time      : 2026-11-20_21:20:54",
        "  host      : gpu-07",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -15 (pid: 99)  (SIGTERM)",
        "  error_file: <N/A>",
        "  traceback : Signal 15 (SIGTERM) received by PID 99",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-20_21:20:54",
        "  host      : gpu-07",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : 1 (pid: 100) ",
        "  error_file: <N/A>",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "=" * 60,
    ]


def test_a_lone_failure_has_no_others():
    assert "Failures:\n  <NO_OTHER_FAILURES>\n" in failure_box("train.py", [failure()])


def test_of_a_rank_that_hung_it_says_so_and_not_only_by_which_signal_it_ended():
    said = "hung: no heartbeat for 12.3 s (limit 12 s); at step 41, in load (data.py:88)"
    assert f"  traceback : {said}\n" in failure_box("train.py", [failure(exitcode=-9, cause="hung", message=said)])


def test_a_lost_node_keeps_the_numbers_that_tools_look_for():
    box = failure_box(
        "train.py", [failure(rank=-1, local_rank=-1, pid=-1, exitcode=None, cause="node_lost", message="silent for 3 s")]
    )
    assert "  exitcode  : -1 (pid: -1) \n" in box and "  traceback : silent for 3 s\n" in box


def test_a_traceback_of_ours_without_a_record_is_shown():
    assert "  traceback : Traceback\n    a\n  E" in failure_box("x", [failure(traceback="Traceback\n  a\nE")])


def test_a_worker_cannot_write_to_the_terminal():
    box = failure_box("x", [failure(error_record={"message": "\x1b]0;owned\x07\r"})])
    assert "\\x1b]0;owned\\x07\\r" in box and "\x1b" not in box


@pytest.mark.parametrize(
    ("program", "args", "name"),
    [
        ("/py", ("-u", "train.py", "--lr", "1"), "train.py"),
        ("/py", ("-u", "-m", "pkg.train"), "pkg.train"),
        ("/bin/echo", ("hi",), "/bin/echo"),
        ("run_script_path", (), "run_script_path"),
    ],
)
def test_the_job_is_called_after_its_script(program: str, args: tuple[str, ...], name: str):
    assert entrypoint_name(program, args, "/py") == name


TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P"), include_characters="\n "), max_size=80)
RECORDS = st.one_of(
    st.none(),
    st.builds(lambda text: {"message": text, "timestamp": STAMP}, TEXT.filter(bool)),
    st.builds(lambda text: {"message": {"message": text, "extraInfo": {"timestamp": STAMP}}}, TEXT),
    st.builds(
        lambda text, stack: {"message": {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": STAMP}}}, TEXT, TEXT
    ),
)
ENDS = st.tuples(st.sampled_from([1, 2, 7, 255, -1, -6, -9, -11, -15, -34, -40, -64]), RECORDS)


@pytest.mark.torch
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(["a.py", "some.module.with.a.longer.name", "/x" * 40]), ends=st.lists(ENDS, min_size=1, max_size=4))
def test_the_box_is_that_of_torch(tmp_path: Path, name: str, ends: list[tuple[int, dict[str, Any] | None]]):
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    theirs, ours = {}, []
    for rank, (exitcode, record) in enumerate(ends):
        path = tmp_path / f"{rank}.json"
        path.unlink(missing_ok=True)
        if record is not None:
            path.write_text(json.dumps(record))
        seen = errors.ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=exitcode, error_file=str(path))
        seen.timestamp = int(STAMP)
        theirs[10 + rank] = seen
        said = read(str(path))
        written = {"error_file": str(path), "error_record": said.content, "traceback": said.traceback} if said else {}
        who = {"node": errors.socket.getfqdn(), "rank": 10 + rank, "local_rank": rank, "pid": 100 + rank}
        ours.append(failure(exitcode=exitcode, **who, **written))
    assert failure_box(name, ours) == errors.ChildFailedError(name, theirs).format_msg()
