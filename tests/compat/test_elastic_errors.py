"""How a worker's exception is written, read back and printed. torch's and ours alike, the failure box to the letter."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import pickle
import signal
from pathlib import Path

import pytest

FILE = "TORCHELASTIC_ERROR_FILE"


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv(FILE, str(path))
    return path


def failure(names, exitcode, error_file="nothing there", local_rank=0, pid=4711):
    return names("multiprocessing.errors").ProcessFailure(local_rank, pid, exitcode, str(error_file))


def recorded(path: Path, text="boom", at="1795209654"):
    message = {"message": f"RuntimeError: {text}", "extraInfo": {"py_callstack": f"Traceback\n  {text}\n", "timestamp": at}}
    path.write_text(json.dumps({"message": message}))
    return path


def boom():
    raise RuntimeError("boom")


def told(ours, monkeypatch, **hooks):
    """A handler that keeps what it is told, and is the one in use."""
    said = []

    class Handler(ours("multiprocessing.errors").ErrorHandler):
        def set_entrypoint_fn_name(self, fn_name):
            said.append(("name", fn_name))

        def initialize(self):
            said.append(("initialize",))

        def record_exception(self, e):
            said.append(("exception", str(e)))

        def record_success(self):
            said.append(("success",))

    for name, hook in hooks.items():
        setattr(Handler, name, hook)
    handler = Handler()
    monkeypatch.setattr(ours("multiprocessing.errors"), "get_error_handler", lambda: handler)
    return handler, said


# Written.


def test_what_leaves_a_recorded_function_is_written_and_raised(names, error_file):
    with pytest.raises(RuntimeError):
        names("multiprocessing.errors").record(boom)()
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "RuntimeError: boom"
    assert "in boom" in message["extraInfo"]["py_callstack"] and message["extraInfo"]["timestamp"].isdigit()


@pytest.mark.parametrize("stop", [SystemExit(3), KeyboardInterrupt()])
def test_exits_and_interrupts_are_not_exceptions_to_be_recorded(names, error_file, stop):
    def leave():
        raise stop

    with pytest.raises(type(stop)):
        names("multiprocessing.errors").record(leave)()
    assert not error_file.exists()


def test_exit_0_becomes_a_return(names, error_file):
    def leave():
        raise SystemExit(0)

    assert names("multiprocessing.errors").record(leave)() is None


def test_a_recorded_function_keeps_its_name_arguments_and_value(names, error_file):
    def add(a, b=1):
        """Adds."""
        return a + b

    wrapped = names("multiprocessing.errors").record(add)
    assert wrapped(2, b=3) == 5 and (wrapped.__name__, wrapped.__doc__) == ("add", "Adds.") and not error_file.exists()


def test_without_an_error_file_nothing_is_written(names, monkeypatch):
    monkeypatch.delenv(FILE, raising=False)
    with pytest.raises(RuntimeError, match="boom"):
        names("multiprocessing.errors").record(boom)()


def test_a_handler_of_ones_own_can_be_given(names):
    seen = []

    class Mine(names("multiprocessing.errors").ErrorHandler):
        def initialize(self):
            seen.append("initialize")

        def record_exception(self, e):
            seen.append(str(e))

    with pytest.raises(RuntimeError):
        names("multiprocessing.errors").record(boom, Mine())()
    assert seen == ["initialize", "boom"]


def leave():
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("function", "name", "end"),
    [
        (dict, "dict", ("success",)),
        (leave, "leave", ("success",)),
        (boom, "boom", ("exception", "boom")),
        (functools.partial(dict), None, ("success",)),
    ],
)
def test_a_handler_is_told_the_name_first_and_how_it_ended(ours, monkeypatch, function, name, end):
    handler, said = told(ours, monkeypatch)
    with contextlib.suppress(RuntimeError):
        ours("multiprocessing.errors").record(function, handler)()
    assert said == [("name", name), ("initialize",), end]


def test_what_a_handler_raises_at_success_is_no_failure_of_the_function(ours, monkeypatch):
    def fail(self):
        raise OSError("no room")

    handler, said = told(ours, monkeypatch, record_success=fail)
    with pytest.raises(OSError, match="no room"):
        ours("multiprocessing.errors").record(dict, handler)()
    assert said == [("name", "dict"), ("initialize",)]


def test_a_handler_may_be_built_on_an_older_one(ours):
    class Older:
        def initialize(self):
            pass

    assert ours("multiprocessing.errors").record(dict, Older())(a=1) == {"a": 1}


def test_the_name_is_for_the_log_not_for_the_error_file(ours, error_file, caplog):
    caplog.set_level(logging.DEBUG, logger=ours("multiprocessing.errors").ErrorHandler.__module__)
    ours("multiprocessing.errors").record(dict)()
    assert "dict" in caplog.text and not error_file.exists()
    with pytest.raises(RuntimeError):
        ours("multiprocessing.errors").record(boom)()
    assert "boom" in caplog.text and list(json.loads(error_file.read_text())) == ["message"]


def test_an_error_file_that_cannot_be_written_does_not_hide_the_exception(ours, monkeypatch, tmp_path):
    monkeypatch.setenv(FILE, str(tmp_path / "no" / "such" / "directory" / "error.json"))
    with pytest.raises(RuntimeError, match="boom"), pytest.warns(UserWarning, match="Unable to write error"):
        ours("multiprocessing.errors").record(boom)()


def test_an_agent_passes_the_first_failure_on_with_its_exit_code(names, error_file, tmp_path):
    errors = names("multiprocessing.errors")
    late = failure(names, 1, recorded(tmp_path / "late.json", "late", "200"), local_rank=0)
    early = failure(names, -9, recorded(tmp_path / "early.json", "early", "100"), local_rank=1)

    @errors.record
    def agent():
        raise errors.ChildFailedError("trainer", {0: late, 1: early})

    error_file.write_text("from before")
    with pytest.raises(errors.ChildFailedError):
        agent()
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "RuntimeError: early" and message["errorCode"] == -9


def test_an_agent_whose_worker_left_no_record_writes_none(names, error_file):
    errors = names("multiprocessing.errors")

    @errors.record
    def agent():
        raise errors.ChildFailedError("trainer", {0: failure(names, 1)})

    with pytest.raises(errors.ChildFailedError):
        agent()
    assert not error_file.exists()


# Read.


def test_a_record_gives_message_and_time(names, tmp_path):
    read = failure(names, 1, recorded(tmp_path / "e.json"))
    assert read.message["message"] == "RuntimeError: boom" and read.timestamp == 1795209654
    assert read.error_file_data == {"message": read.message} and read.error_file == str(tmp_path / "e.json")


def test_a_message_may_be_plain_text_with_the_time_beside_it(names, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"message": "out of disk", "timestamp": "10"}))
    assert (failure(names, 1, path).message, failure(names, 1, path).timestamp) == ("out of disk", 10)
    path.write_text(json.dumps({"message": "out of disk"}))
    assert failure(names, 1, path).timestamp == 0


def test_without_a_record_the_exit_code_speaks(names):
    by_signal, by_exit = failure(names, -signal.SIGSEGV), failure(names, 138)
    assert by_signal.message == "Signal 11 (SIGSEGV) received by PID 4711" and by_signal.signal_name() == "SIGSEGV"
    assert by_exit.message == "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    assert by_exit.signal_name() == "<N/A>" == by_exit.error_file and by_exit.error_file_data["message"] == "<NONE>"
    assert by_exit.error_file_data["errorTraits"] == {"category": "system_terminated_error", "retryability": "False"}


def test_a_signal_without_a_name_has_none(names):
    assert failure(names, -200).signal_name() == "<N/A>"


def test_a_file_that_is_no_record_raises(names, tmp_path):
    path = tmp_path / "e.json"
    path.write_text(json.dumps({"something": "else"}))
    with pytest.raises(KeyError):
        failure(names, 1, path)


def test_failures_without_a_record_share_nothing(ours):
    by_exit, by_signal = failure(ours, 1), failure(ours, -9)
    assert "errorTraits" in by_exit.error_file_data and by_signal.error_file_data == {"message": "<NONE>"}


def test_a_record_that_was_cut_short_does_not_end_the_launcher(ours, tmp_path):
    path = tmp_path / "e.json"
    path.write_text('{"message": {"mess')
    assert failure(ours, -9, path).message == "Signal 9 (SIGKILL) received by PID 4711"


# Printed.


def groups(names, tmp_path):
    """Failures by global rank: with and without record, by signal, the first in time not the first in the map."""
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"message": "out of disk", "timestamp": 1795209700}))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"message": {"message": "RuntimeError: bare", "extraInfo": {"timestamp": 1795209701}}}))
    late, early = recorded(tmp_path / "late.json", "late", "1795209660"), recorded(tmp_path / "early.json", "early " * 20)
    return [
        {3: failure(names, 1, plain)},
        {0: failure(names, -11, plain, pid=1)},
        {4: failure(names, 1, late), 7: failure(names, 2, early, local_rank=3), 9: failure(names, -15, bare, local_rank=1)},
    ]


@pytest.mark.torch
def test_the_box_is_torchs_to_the_letter(ours, tmp_path):
    from test_elastic_signatures import TORCH

    for mine, theirs in zip(groups(ours, tmp_path), groups(TORCH, tmp_path), strict=True):
        for delimiters in ((), ("*", "~")):
            box = ours("multiprocessing.errors").ChildFailedError("train.py", mine).format_msg(*delimiters)
            assert box == TORCH("multiprocessing.errors").ChildFailedError("train.py", theirs).format_msg(*delimiters)


def test_the_box_names_the_first_failure_last(names, tmp_path):
    error = names("multiprocessing.errors").ChildFailedError("train.py", groups(names, tmp_path)[-1])
    rank, first = error.get_first_failure()
    lines = str(error).split("\n")
    assert rank == 7 and first.exitcode == 2 and error.name == "train.py"
    assert lines[0] == "" and lines[1] == lines[-1] == "=" * 60 and lines[2] == "train.py FAILED"
    assert lines.index("[0]:") < lines.index("[2]:") < lines.index("Root Cause (first observed failure):") < lines.index("[1]:")
    assert "  exitcode  : -15 (pid: 4711)  (SIGTERM)" in lines and "  exitcode  : 2 (pid: 4711) " in lines


def test_a_handler_may_say_more_of_the_signal_that_came_first(ours, monkeypatch, tmp_path):
    asked = []

    def say(self, message, error_file):
        asked.append((message, error_file))
        return f"{message}\nout of memory"

    told(ours, monkeypatch, maybe_enrich_signal_failure_message=say)
    killed, left = failure(ours, -9, tmp_path / "none.json"), failure(ours, 1)
    killed.timestamp, left.timestamp = 10, 20
    plain = killed.message
    box = str(ours("multiprocessing.errors").ChildFailedError("train.py", {0: killed, 1: failure(ours, -15), 2: left}))
    assert box.count("out of memory") == 1 and f"  traceback : {plain}\nout of memory\n" in box.split("Root Cause")[1]
    assert asked == [(plain, killed.error_file)] and killed.message == plain
    assert "out of memory" not in str(ours("multiprocessing.errors").ChildFailedError("train.py", {2: left}))


def test_what_a_handler_raises_there_does_not_hide_the_failure(ours, monkeypatch):
    def fail(self, message, error_file):
        raise OSError("no room")

    told(ours, monkeypatch, maybe_enrich_signal_failure_message=fail)
    killed = failure(ours, -9)
    assert f"  traceback : {killed.message}" in str(ours("multiprocessing.errors").ChildFailedError("train.py", {0: killed}))


def test_a_worker_cannot_write_to_the_terminal_through_the_box(ours, tmp_path):
    record = tmp_path / "e.json"
    record.write_text(json.dumps({"message": "\x1b]0;owned\x07", "timestamp": 1}))
    box = str(ours("multiprocessing.errors").ChildFailedError("train.py", {0: failure(ours, 1, record)}))
    assert "  traceback : \\x1b]0;owned\\x07" in box and "\x1b" not in box


def test_an_error_without_failures_is_a_mistake_of_the_caller(names):
    with pytest.raises(AssertionError):
        names("multiprocessing.errors").ChildFailedError("train.py", {})


def test_the_error_survives_a_process_boundary(ours):
    error = ours("multiprocessing.errors").ChildFailedError("train.py", {2: failure(ours, -9)})
    copy = pickle.loads(pickle.dumps(error))
    assert copy.failures == error.failures and str(copy) == str(error)
