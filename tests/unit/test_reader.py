"""Reading events: one story out of several nodes' files, whatever their clocks, versions and last lines are like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.job.events import (
    CATALOGUE,
    AgentStarted,
    ControlKind,
    Decided,
    Event,
    ExcludedBy,
    FailureSeen,
    HealthState,
    NodeJoined,
    RoundFormed,
    SignalReceived,
    WorkerExited,
)
from holdfast.core.job.failure import Failure
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.job.xid import DeviceFault
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.reader import Record, Tail, follow, merge, parse, read
from holdfast.telemetry.record.recorder import Recorder


class Node:
    """Records what happens on one node, whose clock may be ahead."""

    def __init__(self, folder: Path, name: str, ahead_s: float = 0.0) -> None:
        self.path = folder / f"events-{name}.jsonl"
        self.recorder = Recorder(str(self.path), name, io_thread=IoThread(patience_s=60.0))
        self.ahead_s = ahead_s

    def saw(self, at: float, event: Event, round: int = 0, attempt: int = 0) -> None:
        self.recorder.record(event, at_unix=at + self.ahead_s, round=round, attempt=attempt)
        self.recorder.flush()


def formed(number: int, nodes: tuple[str, ...] = ("a", "b"), group_rank: int = 0) -> RoundFormed:
    return RoundFormed(
        round=number, nodes=nodes, group_rank=group_rank, world_size=2, master_addr="a", master_port=1, waited_s=0.0, reason=""
    )


def started() -> AgentStarted:
    return AgentStarted(
        pid=1, host="h", version="1", argv=(), min_nodes=1, max_nodes=1, nproc=1, max_restarts=0, backend="embedded"
    )


def mark(text: str) -> SignalReceived:
    return SignalReceived(signal=text)


def marks(records: list[Record]) -> list[str]:
    return [record.event.signal for record in records if isinstance(record.event, SignalReceived)]


# ---- one line


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    failure = Failure(
        node="a", rank=1, at_unix=5.0, exitcode=-9, cause="signal", log_tail=("x", "y"), error_record={"message": {"a": [1]}}
    )
    events: list[Event] = [started(), formed(1), FailureSeen(failure=failure), Decided(decision="stop", reason="rank 1 died")]
    node = Node(tmp_path, "a")
    for number, event in enumerate(events):
        node.saw(float(number), event, round=1)
    assert [record.event for record in read(str(tmp_path))] == events


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.__name__)
def test_every_event_of_the_catalogue_survives_the_disk(kind: type[Event], tmp_path: Path) -> None:
    samples = {
        "int": 3, "float": 1.5, "bool": True, "str": "s", "str | None": None, "int | None": 4,
        "tuple[str, ...]": ("s", "t"), "tuple[int, ...]": (1, 2), "tuple[float, ...]": (1.5,),
        "float | None": 2.5, "dict[str, float]": {"beat": 1.5},
        "Failure": Failure(node="a", rank=0, at_unix=1.0), "Outcome": Outcome.FAILED, "Verdict": Verdict.REJOIN,
        "ControlKind": ControlKind.STOP, "ExcludedBy": ExcludedBy.OPERATOR, "HealthState": HealthState.FIT,
        "tuple[DeviceFault, ...]": (DeviceFault(device="0000:9b:00", what="Xid 79", xid=79), DeviceFault(device="d", what="w")),
    }  # fmt: skip
    event = kind(**{field: samples[hint] for field, hint in kind.__annotations__.items()})
    Node(tmp_path, "a").saw(1.0, event, round=3)
    assert [record.event for record in read(str(tmp_path))] == [event]


def test_an_event_of_a_newer_version_is_kept_as_it_stands() -> None:
    record = parse('{"seq": 1, "at_unix": 2.0, "node": "a", "round": 1, "attempt": 0, "event": "Dreamt", "of": "sheep"}')
    assert record and record.event is None and record.name == "Dreamt" and record.fields == {"of": "sheep"}


def test_a_field_of_a_newer_version_is_left_out_of_the_event_and_kept_beside() -> None:
    record = parse('{"seq": 1, "at_unix": 2.0, "event": "NodeJoined", "name": "b", "mood": "good"}')
    assert record and record.event == NodeJoined(name="b") and record.fields["mood"] == "good"


def test_a_failure_whose_cause_a_newer_version_named_is_still_a_failure() -> None:
    told = {"node": "a", "rank": 1, "at_unix": 2.0, "cause": "quantum"}
    record = parse(json.dumps({"seq": 1, "at_unix": 2.0, "event": "FailureSeen", "failure": told}))
    assert record and isinstance(record.event, FailureSeen) and record.event.failure.cause == "quantum"
    nonsense = parse(json.dumps({"seq": 1, "at_unix": 2.0, "event": "FailureSeen", "failure": told | {"cause": 7}}))
    assert nonsense and nonsense.event is None


@pytest.mark.parametrize("fields", ['"rank": 1', '"rank": "one", "local_rank": 1, "pid": 1, "exitcode": 1'])
def test_an_event_of_another_shape_is_kept_as_it_stands(fields: str) -> None:
    record = parse(f'{{"seq": 1, "at_unix": 2.0, "event": "{WorkerExited.__name__}", {fields}}}')
    assert record and record.event is None and "rank" in record.fields


@given(st.one_of(st.text(), st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)))
def test_nonsense_is_no_record(line: str | bytes) -> None:
    assert parse(line) is None


@given(st.dictionaries(st.sampled_from(["seq", "at_unix", "node", "round", "event", "failure", "rank"]), st.none() | st.text()))
def test_a_damaged_line_never_raises(fields: dict[str, object]) -> None:
    parse(json.dumps({"event": "FailureSeen", "at_unix": 1.0} | fields))


# ---- one file


def test_a_line_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "events-a.jsonl"
    line = json.dumps({"seq": 1, "at_unix": 1.0, "event": "SignalReceived", "signal": "one"}) + "\n"
    path.write_text(line + line[:20])
    tail = Tail(str(path), "a")
    assert marks(tail.read()) == ["one"]
    path.write_text(line + line.replace("one", "two"))
    assert marks(tail.read()) == ["two"]
    assert tail.read() == []


def test_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    line = json.dumps({"seq": 1, "at_unix": 1.0, "event": "SignalReceived", "signal": "one"}) + "\n"
    (tmp_path / "events-a.jsonl").write_text(line + '{"seq": 2, "at_u\n' + line)
    assert marks(read(str(tmp_path))) == ["one", "one"]


def test_a_job_without_records_is_an_empty_story(tmp_path: Path) -> None:
    assert read(str(tmp_path)) == read(str(tmp_path / "gone")) == []


# ---- several nodes


def test_nodes_are_merged_by_time_within_a_round(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a"), Node(tmp_path, "b")
    a.saw(1.0, mark("a1"), round=1)
    a.saw(3.0, mark("a3"), round=1)
    b.saw(2.0, mark("b2"), round=1)
    b.saw(4.0, mark("b4"), round=1)
    assert marks(read(str(tmp_path))) == ["a1", "b2", "a3", "b4"]


def test_rounds_go_before_clocks(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a"), Node(tmp_path, "b", ahead_s=1000.0)
    b.saw(1.0, mark("b, round 1"), round=1)
    a.saw(5.0, mark("a, round 2"), round=2)
    assert marks(read(str(tmp_path))) == ["b, round 1", "a, round 2"]


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0])
def test_a_clock_that_is_off_is_corrected_by_the_rounds(tmp_path: Path, ahead_s: float) -> None:
    a, b = Node(tmp_path, "a"), Node(tmp_path, "b", ahead_s=ahead_s)
    for node in (a, b):
        node.saw(1.0, formed(1), round=1)
    b.saw(2.0, mark("b2"), round=1)
    a.saw(3.0, mark("a3"), round=1)
    b.saw(4.0, mark("b4"), round=1)
    story = read(str(tmp_path))
    assert marks(story) == ["b2", "a3", "b4"]
    assert [record.at for record in story[-3:]] == [2.0, 3.0, 4.0]
    assert story[-1].at_unix == 4.0 + ahead_s


def test_a_clock_that_is_slightly_off_is_left_alone(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a"), Node(tmp_path, "b", ahead_s=0.05)
    for node in (a, b):
        node.saw(1.0, formed(1), round=1)
    assert {record.skew_s for record in read(str(tmp_path))} == {0.0}


def test_a_clock_that_was_set_back_does_not_change_a_nodes_own_order(tmp_path: Path) -> None:
    a = Node(tmp_path, "a")
    for number, at in enumerate([10.0, 11.0, 2.0, 3.0]):
        a.saw(at, mark(str(number)), round=1)
    assert marks(read(str(tmp_path))) == ["0", "1", "2", "3"]


def test_an_agent_that_comes_later_stands_in_the_round_it_joins(tmp_path: Path) -> None:
    a, c = Node(tmp_path, "a"), Node(tmp_path, "c")
    for number in (1, 2, 3):
        a.saw(10.0 * number, formed(number), round=number - 1)
    c.saw(25.0, mark("c waits"), round=0)
    c.saw(30.0, formed(3), round=0)
    names = [(record.node, record.round if isinstance(record.event, RoundFormed) else "mark") for record in read(str(tmp_path))]
    assert names.index(("c", "mark")) > names.index(("a", 2))


def test_a_replacement_on_the_same_node_stands_after_the_dead_agent(tmp_path: Path) -> None:
    a, b = Node(tmp_path, "a"), Node(tmp_path, "b")
    b.saw(0.0, started())
    for number in (1, 2):
        b.saw(10.0 * number, formed(number), round=number)
    b.saw(22.0, mark("b, after a was lost"), round=2)
    a.saw(0.0, started())
    a.saw(10.0, formed(1), round=1)
    a.saw(15.0, started())
    a.saw(16.0, mark("a again"))
    a.saw(20.0, formed(2), round=2)
    assert marks(read(str(tmp_path))) == ["a again", "b, after a was lost"]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100)), max_size=8), max_size=4))
def test_merging_keeps_every_record_and_each_nodes_order(nodes: list[list[tuple[int, float]]]) -> None:
    stories = [
        [
            Record(seq=i, at_unix=at, node=str(n), round=round, attempt=0, name="X", event=None, fields={})
            for i, (round, at) in enumerate(story)
        ]
        for n, story in enumerate(nodes)
    ]
    merged = merge(stories)
    assert len(merged) == sum(map(len, stories))
    for n, story in enumerate(stories):
        assert [record for record in merged if record.node == str(n)] == story


# ---- following


def test_following_ends_with_the_job_and_misses_nothing(tmp_path: Path) -> None:
    a = Node(tmp_path, "a")
    a.saw(1.0, mark("before"))
    looks = 0

    def is_over() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            Node(tmp_path, "b").saw(2.0, mark("a new node"))
        if looks == 3:
            a.saw(3.0, mark("the last word"))
        return looks == 3

    assert marks(list(follow(str(tmp_path), is_over, wait_s=0.0))) == ["before", "a new node", "the last word"]
