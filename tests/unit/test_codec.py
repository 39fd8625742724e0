"""Messages over a wire: what is sent arrives as it was; what was not sent by us is refused, and nothing worse."""

from __future__ import annotations

import json
import typing
from contextlib import suppress
from types import UnionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import ProtocolError
from holdfast.core.failure import Failure
from holdfast.core.messages import Join, Message, Renew
from holdfast.core.report import JobReport
from holdfast.core.value import Value
from holdfast.runtime.codec import MESSAGES, _hints, decode, encode

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that an annotation allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Value):
        return of_value(hint)
    if origin in (UnionType, typing.Union):
        return st.one_of(*(of_type(part) for part in parts))
    if origin is tuple:
        return st.lists(of_type(parts[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, st.none() | TEXT | st.integers(-9, 9) | st.lists(TEXT, max_size=2), max_size=2)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        int: st.integers(-(2**53), 2**53),
        float: NUMBERS,
        bool: st.booleans(),
        type(None): st.none(),
    }
    return simple[hint]


def of_value(kind: type[Value]) -> st.SearchStrategy[Any]:
    fields = {field: of_type(hint) for field, hint in _hints(kind).items()}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=lambda kind: kind.__name__)
def test_every_message_arrives_as_it_was_sent(kind: type[Message]) -> None:
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


@given(of_value(Join), st.data())
def test_a_message_with_a_byte_changed_is_a_message_or_a_protocol_error(message: Message, choice: st.DataObject) -> None:
    wire = bytearray(encode(message))
    wire[choice.draw(st.integers(0, len(wire) - 1))] = choice.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decode(bytes(wire))


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
    ],
    ids=lambda wire: wire[:50].decode(),
)
def test_what_is_not_exactly_a_message_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a message"):
        decode(wire)


def test_a_field_that_is_left_out_has_its_default() -> None:
    assert decode(b'{"is": "Renew", "node": "n", "round": 1}') == Renew(node="n", round=1, sent_at=0.0)
