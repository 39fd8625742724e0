"""The recorder: what lies on disk, when, and what becomes of a job whose disk is full."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.job.events import CATALOGUE, Decided, Degraded, Event, FailureSeen, JobEnded, RoundFormed, SignalReceived
from holdfast.core.job.failure import Failure
from holdfast.telemetry.record import io_thread
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.recorder import HELD_LIMIT, Recorder
from holdfast.telemetry.record.state_dir import running_nodes

TERM, HUP = SignalReceived(signal="SIGTERM"), SignalReceived(signal="SIGHUP")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def patient() -> IoThread:
    """Each write is waited for, however busy the machine is, and not for a tenth of a second."""
    return IoThread(patience_s=60.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events-n1.jsonl"


@pytest.fixture
def recorder(path: Path) -> Iterator[Recorder]:
    recorder = Recorder(str(path), "n1", io_thread=patient())
    yield recorder
    recorder.close()


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Meanwhile no file of this process may grow past 200 bytes. Only meanwhile: pytest's own output may be a file."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that write() says so
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_nothing_is_written_before_a_flush(recorder: Recorder, path: Path) -> None:
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    assert not path.exists()
    recorder.flush()
    recorder.record(HUP, at_unix=2.0, round=0, attempt=0)
    assert [line["signal"] for line in lines(path)] == ["SIGTERM"]
    recorder.flush()
    assert [(line["seq"], line["signal"]) for line in lines(path)] == [(1, "SIGTERM"), (2, "SIGHUP")]


def test_however_long_nobody_flushes_memory_is_bounded(recorder: Recorder, path: Path) -> None:
    for _ in range(HELD_LIMIT):
        recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    assert path.exists()


def test_the_envelope_comes_first_and_an_event_keeps_its_own_fields(recorder: Recorder, path: Path) -> None:
    recorder.record(Decided(decision="restart", reason="rank 1 died"), at_unix=2.5, round=3, attempt=1)
    recorder.close()
    [line] = lines(path)
    assert list(line)[:6] == ["seq", "at_unix", "node", "round", "attempt", "event"]
    assert line == {
        "seq": 1, "at_unix": 2.5, "node": "n1", "round": 3, "attempt": 1, "event": "Decided",
        "decision": "restart", "reason": "rank 1 died", "delay_s": 0.0, "restarts_left": None,
    }  # fmt: skip


def test_an_event_about_a_round_belongs_to_that_round(recorder: Recorder, path: Path) -> None:
    formed = RoundFormed(
        round=4, nodes=("n1",), group_rank=0, world_size=2, master_addr="n1", master_port=1, waited_s=0.0, reason="all are here"
    )
    recorder.record(formed, at_unix=1.0, round=3, attempt=0)
    recorder.close()
    assert lines(path)[0]["round"] == 4


@pytest.mark.parametrize("event", CATALOGUE.values(), ids=lambda event: event.__name__)
def test_no_event_has_a_field_that_the_envelope_needs(event: type[Event]) -> None:
    assert not {"seq", "at_unix", "node", "attempt", "event"} & event.__fields__.keys()


def test_a_failure_is_recorded_whole(recorder: Recorder, path: Path) -> None:
    failure = Failure(node="n1", rank=1, at_unix=3.0, exitcode=-9, cause="signal", log_tail=("a", "b"))
    recorder.record(FailureSeen(failure=failure), at_unix=3.0, round=1, attempt=0)
    recorder.close()
    assert lines(path)[0]["failure"]["log_tail"] == ["a", "b"] and lines(path)[0]["failure"]["exitcode"] == -9


def test_bytes_that_are_no_text_do_not_stop_it(recorder: Recorder, path: Path) -> None:
    recorder.record(SignalReceived(signal=os.fsdecode(b"\xff\xfe")), at_unix=1.0, round=0, attempt=0)
    recorder.close()
    assert os.fsencode(lines(path)[0]["signal"]) == b"\xff\xfe"


def test_a_later_agent_of_the_node_goes_on_with_the_numbers(path: Path) -> None:
    for signal_name in ("SIGTERM", "SIGHUP"):
        recorder = Recorder(str(path), "n1", io_thread=patient())
        recorder.record(SignalReceived(signal=signal_name), at_unix=1.0, round=0, attempt=0)
        recorder.close()
    assert [line["seq"] for line in lines(path)] == [1, 2]


def test_a_line_torn_by_a_killed_agent_does_not_swallow_the_next(path: Path) -> None:
    path.write_text('{"seq": 7, "event": "SignalReceived"}\n{"seq": 8, "ev')
    recorder = Recorder(str(path), "n1", io_thread=patient())
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    recorder.close()
    assert json.loads(path.read_text().splitlines()[-1])["seq"] == 8


def test_a_full_disk_costs_one_line_and_no_exception(path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(str(path), "n1", complain=said.append, io_thread=patient())
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    recorder.flush()
    with full_disk():
        for _ in range(3):
            recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
            recorder.flush()
        recorder.close()
    assert len(said) == 1 and str(path) in said[0] and "the job goes on" in said[0].lower()


def test_when_there_is_room_again_it_records_what_was_missed(path: Path) -> None:
    recorder = Recorder(str(path), "n1", complain=lambda line: None, io_thread=patient())
    with full_disk():
        for _ in range(4):
            recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
            recorder.flush()
    recorder.record(HUP, at_unix=2.0, round=0, attempt=0)
    recorder.close()
    whole = []
    for line in path.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            continue
    assert [line["event"] for line in whole[-2:]] == [Degraded.__name__, SignalReceived.__name__]
    assert whole[-2]["what"].startswith("3 events")


@pytest.mark.parametrize("is_moved", [False, True])
def test_where_the_folder_is_removed_or_moved_the_record_goes_on_at_its_place(tmp_path: Path, is_moved: bool) -> None:
    said: list[str] = []
    folder = tmp_path / "job"
    folder.mkdir()
    path = folder / "events-n1.jsonl"
    recorder = Recorder(str(path), "n1", complain=said.append, io_thread=patient())
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    recorder.flush()
    folder.rename(tmp_path / "moved")
    if not is_moved:
        shutil.rmtree(tmp_path / "moved")
    for _ in range(2):
        recorder.record(HUP, at_unix=2.0, round=0, attempt=0)
        recorder.flush()
    assert [line["event"] for line in lines(path)] == [Degraded.__name__] + [SignalReceived.__name__] * 2
    assert [line["seq"] for line in lines(path)] == [2, 3, 4] and "removed, or moved" in lines(path)[0]["what"]
    assert running_nodes(str(folder)) == ["n1"]
    recorder.close()
    assert len(said) == 1 and str(path) in said[0]


def test_a_folder_that_does_not_exist_is_a_bad_disk_too(tmp_path: Path) -> None:
    said: list[str] = []
    recorder = Recorder(str(tmp_path / "gone" / "events-n1.jsonl"), "n1", complain=said.append, io_thread=patient())
    recorder.record(JobEnded(outcome="succeeded", exit_code=0, reason="all exited with 0"), at_unix=1.0, round=1, attempt=0)
    recorder.close()
    assert len(said) == 1


@pytest.fixture
def hanging(path: Path) -> Iterator[int]:
    """A place that takes nothing until the descriptor is read: a pipe that is full."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\n" * 4096)
    yield fd
    os.close(fd)


def drained(fd: int, lines: int) -> list[dict[str, Any]]:
    """What comes out of the pipe, when so many lines have."""
    text, more = b"", select.poll()
    more.register(fd, select.POLLIN)
    while sum(bool(line) for line in text.split(b"\n")[:-1]) < lines:
        more.poll()
        text += os.read(fd, 1 << 20)
    return [json.loads(line) for line in text.split(b"\n") if line]


def test_a_file_system_that_hangs_does_not_hang_the_agent_and_gets_the_events_when_it_answers(path: Path, hanging: int) -> None:
    said: list[str] = []
    recorder = Recorder(str(path), "n1", complain=said.append)
    for number in range(30):
        recorder.record(TERM, at_unix=float(number), round=0, attempt=0)
        recorder.flush()
    assert recorder.io_thread.is_late and len(said) == 1 and "takes no events" in said[0]
    assert [line["seq"] for line in drained(hanging, 30)] == [*range(1, 31)]
    recorder.close()
    assert not recorder.io_thread.is_late and len(said) == 1


def test_what_finds_no_room_to_wait_is_counted(path: Path, hanging: int) -> None:
    recorder = Recorder(str(path), "n1", io_thread=IoThread(limit=5))
    for number in range(12):
        recorder.record(TERM, at_unix=float(number), round=0, attempt=0)
        recorder.flush()
    drained(hanging, 5)
    recorder.record(HUP, at_unix=12.0, round=0, attempt=0)
    recorder.flush()
    missed, last = drained(hanging, 2)
    assert missed["what"].startswith("7 events") and last["signal"] == "SIGHUP"
    recorder.close()


def test_what_never_got_to_disk_is_said_at_the_end(path: Path, hanging: int) -> None:
    said: list[str] = []
    recorder = Recorder(str(path), "n1", complain=said.append, io_thread=IoThread(close_s=0.01))
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    recorder.close()
    assert len(said) == 1 and "were not recorded" in said[0]
    drained(hanging, 1)


def test_where_no_thread_can_be_had_it_writes_itself(recorder: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(io_thread._thread, "start_new_thread", refuse)
    recorder.record(TERM, at_unix=1.0, round=0, attempt=0)
    recorder.flush()
    assert [line["signal"] for line in lines(path)] == ["SIGTERM"]


def test_two_writers_of_one_file_do_not_mix_their_lines(path: Path) -> None:
    recorders = [Recorder(str(path), "n1", io_thread=patient()) for _ in range(2)]
    for number in range(50):
        for recorder in recorders:
            recorder.record(SignalReceived(signal="x" * 1000 * (number % 5)), at_unix=1.0, round=0, attempt=0)
            recorder.flush()
    for recorder in recorders:
        recorder.close()
    assert len(lines(path)) == 100
