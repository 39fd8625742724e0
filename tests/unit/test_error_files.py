from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.workers.error_files import MAX_BYTES, hand_on, read
from holdfast.core.job.failure import DEEPEST_RECORD, Failure

BOOM = {"message": {"message": "RuntimeError: boom\nmore", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "1000"}}}


def failure(**given: Any) -> Failure:
    return Failure(**({"node": "n", "rank": 3, "local_rank": 1, "pid": 100, "exitcode": 1, "at_unix": 2000.0} | given))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def write(path: Path, content: object, at: float = 1500.0) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (at, at))
    return str(path)


def test_an_exception_record_is_read(path: Path):
    record = read(write(path, BOOM))
    assert record and (record.message, record.traceback) == ("RuntimeError: boom more", "Traceback …")
    assert (record.at_unix, record.content) == (1000.0, BOOM)


def test_a_plain_text_message_has_its_time_beside_it(path: Path):
    record = read(write(path, {"message": "out of luck", "timestamp": "1000"}))
    assert record and (record.message, record.traceback, record.at_unix) == ("out of luck", None, 1000.0)


def test_whole_seconds_are_refined_by_the_time_of_the_file(path: Path):
    record = read(write(path, BOOM, at=1000.75))
    assert record and record.at_unix == 1000.75


def test_of_a_record_that_is_nested_too_deep_the_error_is_kept(path: Path):
    deep: object = 1
    for _ in range(DEEPEST_RECORD):
        deep = [deep]
    record = read(write(path, BOOM | {"deep": deep}))
    assert (record.message, record.content) == ("RuntimeError: boom more", None)
    assert f"nested deeper than {DEEPEST_RECORD} levels" in record.trouble
    assert read(write(path, BOOM | {"deep": deep[0]})).content is not None


@pytest.mark.parametrize(
    "said", [{"message": "x", "timestamp": 0}, {"message": "x", "timestamp": 1_500_000}, {"message": {"message": "x"}}]
)
def test_a_time_far_from_the_file_s_own_is_not_believed(path: Path, said: object):
    record = read(write(path, said, at=1e9))
    assert record and record.message == "x" and record.at_unix is None


def test_no_file_is_no_record(path: Path):
    assert read(str(path)) is read("") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ('{"mess', "is not JSON"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "is not JSON"),
        ("\ud800", "JSON"),
    ],
    ids=["empty", "torn", "a list", "too deep", "not UTF-8"],
)
def test_an_unreadable_record_is_noted_and_never_fatal(path: Path, content: str, said: str):
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    record = read(str(path))
    assert record and record.trouble.startswith(f"error file {path} ") and said in record.trouble
    assert record.message == "" and record.content is None


@pytest.mark.parametrize("content", [{}, {"message": None}, {"message": {"extraInfo": []}}, {"message": {"message": ""}}])
def test_a_record_that_says_nothing_is_noted(path: Path, content: object):
    record = read(write(path, content))
    assert record and record.content == content and record.trouble == f"error file {path} holds no message"


def test_a_huge_file_a_pipe_and_a_directory_are_not_read(path: Path, tmp_path: Path):
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    for place, said in ((path, "too large"), (tmp_path / "pipe", "not a regular file"), (tmp_path, "not a regular file")):
        record = read(str(place))
        assert record and said in record.trouble


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack"]), inner)
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=JSON, exitcode=st.sampled_from([None, 1, -9]))
def test_no_record_breaks_reading_or_handing_on(path: Path, content: object, exitcode: int | None):
    record = read(write(path, content))
    assert record and "\n" not in record.message and (record.at_unix is None or record.at_unix > 0)
    seen = failure(exitcode=exitcode, error_record=record.content)
    assert hand_on(seen, str(path.with_name("ours.json"))) == (record.content is not None)


def test_the_root_cause_is_handed_on_with_its_exit_code(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    path.write_text("an older run's")
    assert hand_on(failure(exitcode=7, error_record=BOOM))
    assert json.loads(path.read_text()) == {"message": BOOM["message"] | {"errorCode": 7}}
    assert "errorCode" not in BOOM["message"] and list(path.parent.iterdir()) == [path]
    assert hand_on(failure(error_record={"message": "plain"})) and json.loads(path.read_text()) == {"message": "plain"}


def test_nothing_is_handed_on_without_a_record_a_place_or_a_disk(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not hand_on(failure(error_record=BOOM))
    assert not hand_on(failure(), str(path)) and not path.exists()
    assert not hand_on(failure(error_record=BOOM), str(path / "no" / "such"))
