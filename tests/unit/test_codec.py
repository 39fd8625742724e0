"""Messages over a wire: what is sent arrives as it was; what was not sent by us is refused, and nothing worse."""

from __future__ import annotations

import json
import typing
from contextlib import suppress
from enum import StrEnum
from types import UnionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import ProtocolError
from holdfast.core.job.ends import Exited
from holdfast.core.job.failure import DEEPEST_RECORD, Failure
from holdfast.core.job.report import JobReport
from holdfast.core.value import Value, replace, to_plain
from holdfast.core.wire.messages import (
    Failed,
    Finish,
    Join,
    Leave,
    Message,
    Past,
    Renew,
    Renewed,
    Reply,
    Roster,
    Seek,
    Stopped,
)
from holdfast.runtime.net import codec
from holdfast.runtime.net.codec import (
    ADDRESSES,
    ANY_NUMBER,
    DURATIONS,
    LAST_MOMENT,
    LONGEST,
    MEMBERS_VALUES,
    MESSAGES,
    MOMENTS,
    RANGES,
    _hints,
    decode,
    encode,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def of_type(hint: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Anything that an annotation and the limits allow."""
    if hint in (int, float) and field in RANGES:
        return st.integers(*RANGES[field])
    if field in ADDRESSES and hint is str:
        return st.text(st.characters(codec="utf-8", exclude_categories=("Cc",)), max_size=12)
    if field in DURATIONS:
        return st.floats(0.0, DURATIONS[field])
    if field in MOMENTS:
        return st.floats(0, LAST_MOMENT)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Value):
        return of_value(hint)
    if origin in (UnionType, typing.Union):
        return st.one_of(*(of_type(part) for part in parts))
    if origin is tuple and parts[-1] is not ...:
        return st.tuples(*map(of_type, parts))
    if origin is tuple:
        return st.lists(of_type(parts[0]), max_size=2).map(tuple)
    if origin is dict and parts[1] is not Any:
        return st.dictionaries(of_type(parts[0]), of_type(parts[1]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXT, st.none() | TEXT | st.integers(-9, 9) | st.lists(TEXT, max_size=2), max_size=2)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: st.integers(-(2**53), 2**53),
        float: NUMBERS,
        bool: st.booleans(),
        bytes: st.binary(max_size=12),
        type(None): st.none(),
    }
    return simple[hint]


def of_value(kind: type[Value]) -> st.SearchStrategy[Any]:
    fields = {field: of_type(hint, field) for field, hint in _hints(kind).items()}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=lambda kind: kind.__name__)
def test_every_message_arrives_as_it_was_sent(kind: type[Message]) -> None:
    @settings(max_examples=40)  # for each of forty kinds
    @given(of_value(kind))
    def arrives(message: Message) -> None:
        assert decode(encode(message)) == message

    arrives()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(decode(data), Message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
SPEAKING: tuple[type[Value], ...] = (*MESSAGES.values(), Failure, JobReport)
FIELDS = sorted({field for kind in SPEAKING for field in kind.__fields__})


@given(st.sampled_from(sorted(MESSAGES)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8))
def test_a_known_name_with_any_fields_is_a_message_or_a_protocol_error(name: str, fields: dict[str, Any]) -> None:
    try:
        message = decode(json.dumps({"is": name, **fields}).encode())
    except ProtocolError:
        return
    assert type(message) is MESSAGES[name]
    assert decode(encode(message)) == message


@pytest.mark.parametrize("failure", ["null", "3", "[]", '"x"'])
def test_what_is_no_value_in_the_place_of_one_is_a_protocol_error(failure: str) -> None:
    with pytest.raises(ProtocolError, match="is no Failure"):
        decode(f'{{"is": "Failed", "node": "a", "round": 1, "failure": {failure}}}'.encode())


@given(of_value(Join), st.data())
def test_a_message_with_a_byte_changed_is_a_message_or_a_protocol_error(message: Message, choice: st.DataObject) -> None:
    wire = bytearray(encode(message))
    wire[choice.draw(st.integers(0, len(wire) - 1))] = choice.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decode(bytes(wire))


def nested(levels: int) -> bytes:
    """A failure whose error record has so many."""
    failure = b'{"node": "n", "rank": 0, "at_unix": 0, "error_record": ' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"
    return b'{"is": "Failed", "node": "n", "round": 1, "failure": ' + failure + b"}"


def test_a_record_as_deep_as_they_may_be_can_be_told_and_written() -> None:
    failed = decode(nested(DEEPEST_RECORD))
    assert decode(encode(failed)) == failed and to_plain(failed)


@pytest.mark.parametrize(
    "wire",
    [
        b'{"is": "Renew", "node": "n", "round": "1"}',
        b'{"is": "Renew", "node": "n", "round": 1.5}',
        b'{"is": "Renew", "node": "n", "round": true}',
        b'{"is": "Renew", "node": "n", "round": null}',
        b'{"is": "Renew", "node": "n"}',
        b'{"is": "Renew", "node": "n", "round": 1, "sudo": true}',
        b'{"is": "Message"}',
        b'{"is": "Failure", "node": "n", "rank": 0, "at_unix": 0}',
        b'{"is": ["Renew"], "node": "n", "round": 1}',
        b'{"node": "n", "round": 1}',
        b"[" * 100_000,
        b'{"is": "Renew", "node": "n", "round": 1, "sent_at": NaN}',
        b'{"is": "Renew", "node": "n", "round": 1, "sent_at": 1e400}',
        b'{"is": "Renew", "node": "n", "round": -1}',
        b'{"is": "Renew", "node": "n", "round": 4294967296}',
        b'{"is": "Renew", "node": "n", "round": ' + b"9" * 5000 + b"}",
        b'{"is": "Renew", "node": "\\ud800", "round": 1}',
        b'{"is": "Renew", "node": "\xff", "round": 1}',
        nested(DEEPEST_RECORD + 1),
        nested(5000),
    ],
    ids=lambda wire: repr(wire[:70]),
)
def test_what_is_not_exactly_a_message_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(wire)


def test_a_field_that_is_left_out_has_its_default() -> None:
    assert decode(b'{"is": "Renew", "node": "n", "round": 1}') == Renew(node="n", round=1, sent_at=0.0)


JOIN = Join(node="n-1-ab", name="n", addr="h", master_port=1, nproc=1, role="default")


@pytest.mark.parametrize("field", ["node", "name", "addr", "role"])
def test_a_name_that_is_too_long_is_refused(field: str) -> None:
    assert decode(encode(replace(JOIN, **{field: "x" * LONGEST[field]})))
    with pytest.raises(ProtocolError, match=f"length <= {LONGEST[field]} - at `\\$.{field}`"):
        decode(encode(replace(JOIN, **{field: "x" * (LONGEST[field] + 1)})))


def told(message: Message, **changed: Any) -> bytes:
    return json.dumps({**json.loads(encode(message)), **changed}).encode()


SEEK = Seek(node="a", term=1, roster=Roster(version=1, term=1, promise_s=1.0, line=(), electorates=(), past=Past(life="x")))


def test_no_list_is_gone_through_that_is_longer_than_any(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(codec, "build", lambda kind, plain: made.append(kind))
    roster = {**to_plain(SEEK.roster), "electorates": [{"id": 0, "size": 0}] * 100_000}
    with pytest.raises(ProtocolError, match="not a message"):
        decode(told(SEEK, roster=roster))
    failure = to_plain(Failure(rank=0, local_rank=0, node="a", at_unix=0.0))
    with pytest.raises(ProtocolError, match="not a message"):
        decode(told(Stopped(node="a", round=1), failures=[failure] * 100_000))
    assert Failure not in made


def test_a_roster_of_too_many_electorates_is_refused() -> None:
    assert decode(encode(SEEK)) == SEEK
    with pytest.raises(ProtocolError, match="length <= 64"):
        decode(told(SEEK, roster={**to_plain(SEEK.roster), "electorates": [{"id": 0, "size": 0}] * 65}))


def test_a_message_that_is_never_long_is_not_read_when_it_is() -> None:
    with pytest.raises(ProtocolError, match="Leave is never longer than 65536 bytes"):
        decode(encode(Leave(node="a", round=1, reason="x" * (1 << 16))))


def test_an_address_has_no_control_character() -> None:
    join = Join(node="a", name="a", addr="10.0.0.1", master_port=1, nproc=1, role="r")
    with pytest.raises(ProtocolError, match="not a message"):
        decode(told(join, addr="10.0.0.1\0"))


@pytest.mark.parametrize(("field", "value"), [("nproc", 0), ("nproc", 10**9), ("master_port", 65536), ("wanted_rank", 2**65)])
def test_a_number_that_nobody_can_mean_is_refused(field: str, value: int) -> None:
    least, most = RANGES.get(field, ANY_NUMBER)
    assert not least <= value <= most
    with pytest.raises(ProtocolError):
        decode(json.dumps({"is": "Join", **to_plain(JOIN), field: value}).encode())


def test_a_key_twice_is_read_as_the_last_and_checked_like_any() -> None:
    assert decode(b'{"is": "Renew", "node": "n", "round": 1, "round": 2}') == Renew(node="n", round=2)


def test_a_moment_beyond_the_calendar_is_its_end() -> None:
    failure = Failure(node="n", rank=0, at_unix=1e300)
    message = decode(encode(Failed(node="n", round=1, failure=failure)))
    assert isinstance(message, Failed) and message.failure.at_unix == LAST_MOMENT


DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"a": DEEP}


@pytest.mark.parametrize(
    "left",
    [
        {"message": "a lone \ud800 surrogate"},
        {"error_record": {"message": "\udcff"}},
        {"error_record": {"step": 10**40}},
        {"error_record": DEEP},
        {"log_tail": ("\udcff",)},
    ],
    ids=["surrogate", "surrogate in the record", "huge number", "deep record", "surrogate in the log"],
)
def test_whatever_a_worker_left_behind_its_failure_can_be_told(left: dict[str, Any]) -> None:
    failed = Failed(node="n", round=1, failure=Failure(node="n", rank=3, at_unix=1.0, **left))
    told = decode(encode(failed))
    assert isinstance(told, Failed) and (told.node, told.failure.rank) == ("n", 3)


def test_each_is_told_its_own_roster_whatever_was_told_before() -> None:
    both = [
        Roster(version=version, term=0, promise_s=5.0, line=("a",), electorates=(), past=Past(life="L", round=version))
        for version in (1, 2)
    ]
    for roster in (both[0], both[0], both[1], both[0]):
        told = decode(encode(Renewed(lease_s=3.0, mark=1.0, roster=roster)))
        assert isinstance(told, Renewed) and told.roster == roster


def test_a_message_that_is_too_long_is_cut_and_still_told() -> None:
    failures = tuple(
        Failure(
            node="n", rank=rank, at_unix=1.0, message="m" * 5000, log_tail=("l" * 5000,) * 50, error_record={"x": "y" * 10**5}
        )
        for rank in range(40)
    )
    report = JobReport(
        job="j", outcome="failed", exit_code=1, failures=failures, started_at_unix=0, ended_at_unix=1, reason="r"
    )
    wire = encode(Finish(report=report), 4 << 20)
    told = decode(wire)
    assert len(wire) <= 4 << 20 and isinstance(told, Finish)
    assert [failure.rank for failure in told.report.failures] == list(range(40))


MANY = 300_000


@pytest.mark.parametrize(
    "value",
    [
        "[" + "{}," * MANY + "0]",
        "{" + ",".join(f'"{number}":0' for number in range(MANY)) + "}",
        "[" + '"a",' * 2 * MANY + '""]',
        "[" + "1e300," * 300 + "0]",
        "[" + "1E-0308," * 300 + "0]",
        "[" + ("9" * 40 + ",") * 300 + "0]",
        '["' + '\\"' * 5 * MANY,
    ],
    ids=["objects", "keys", "texts", "large floats", "small floats", "long integers", "quotes in an open text"],
)
def test_what_takes_long_to_decode_for_its_size_is_not_decoded(value: str) -> None:
    data = b'{"is":"Join","domain":' + value.encode() + b"}"
    with pytest.raises(ProtocolError, match="too many values, or too many numbers"):
        decode(data, values=MEMBERS_VALUES)


def test_a_text_may_hold_anything_however_much() -> None:
    text = '1e300, [{:"' * 20_000 + "\\" * 1000 + "9" * 20_000
    said = Reply(ask=1, name="a", ok=True, text=text)
    assert decode(encode(said), values=MEMBERS_VALUES) == said


def test_what_a_node_says_of_a_thousand_ranks_is_within_what_a_member_may_say() -> None:
    exited = tuple(Exited(rank=rank, local_rank=rank, pid=rank, at_unix=1.5) for rank in range(1024))
    lines = ("loss: 1.2345e-05, lr: 3e-04, [step 12]",) * 20
    record = {"message": {"extraInfo": {"timestamp": "1"}}}
    failure = Failure(node="a", rank=0, at_unix=1.5, traceback="Traceback, [e100]", log_tail=lines, error_record=record)
    said = Stopped(node="a", round=1, failures=(failure,) * 1024, exited=exited)
    assert decode(encode(said), values=MEMBERS_VALUES) == said
