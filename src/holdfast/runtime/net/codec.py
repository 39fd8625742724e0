"""How does a message become bytes, and bytes a message? JSON, every field checked against its annotation.

Only jobs of several nodes load this module: msgspec takes longer to import than everything else on the way to the first
worker.
"""

from __future__ import annotations

import functools
import operator
import re
import types
import typing
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from holdfast.core.errors import ProtocolError
from holdfast.core.job import failure, report
from holdfast.core.value import Required, Value, fields_of, quicken, to_plain
from holdfast.core.wire import messages
from holdfast.core.wire.messages import LONGEST_LEASE_S, Message

V = TypeVar("V", bound=Value)


@cache
def words_of(family: type[Message]) -> dict[str, type[Message]]:
    """The messages of one kind of link, by name. Families of their own (`core.wire.fleet`) are not among an agent's."""
    return {kind.__name__: kind for kind in family.__subclasses__() if not kind.__subclasses__()}


MESSAGES = words_of(Message)


class Encoded:
    """The last roster that was sent, as JSON: when a round has formed, thousands are told the same within a second."""

    def __init__(self) -> None:
        self.roster: messages.Roster | None = None
        self.raw = msgspec.Raw()

    def plain(self, value: Any) -> Any:
        """`to_plain`, or the JSON that was worked out for the member before."""
        if not isinstance(value, messages.Roster):
            return to_plain(value)
        if value is not self.roster:
            self.roster, self.raw = value, msgspec.Raw(msgspec.json.encode(to_plain(value)))
        return self.raw


_encoder = msgspec.json.Encoder(enc_hook=Encoded().plain)
_NAMES = vars(typing) | vars(failure) | vars(report) | vars(messages)
"""What the annotations may name: modules import some names for type checkers only."""


LONGEST = {"node": 300, "name": 255, "addr": 255, "role": 255, "master_addr": 255, "job": 1000, "domain": 255, "group": 255}
LONGEST |= {"target": 255, "unhealthy": 500, "life": 255, "endpoint": 300, "stash_at": 300, "logs_at": 300, "warm": 4096}
LONGEST |= {"python": 4096, "proof": 64}
LONGEST |= {"spare_because": 500, "unfit": 500, "waits": 2000}
"""Most characters of what names something: it is kept for the job's life, told to others and shown to people."""

MANY = {"electorates": 64, "line": 64, "names": 64, "elector_of": 64, "terms": 64, "switches": 64, "verdicts": 256}
MANY |= {"longest_s": 256, "calculated_s": 256, "typical_s": 4096, "modules": 1 << 20, "nodes": 1 << 17, "ranks": 1024}
MANY |= {"limits": 64, "members": 1 << 14}
SOME, ITEM_CHARS = 1 << 13, 1 << 14
"""Most entries of what a message lists, and characters of each: `SOME` where `MANY` says nothing else. A node lists its own
ranks; what is told of all nodes is told of those that failed."""

SMALL_BYTES = 1 << 16
"""A longer message is read as plain data first, so that no list is gone through before its length is looked at."""

LONG = frozenset({
    "Join", "Failed", "Stopped", "Succeeded", "Positions", "Reply", "StoreAsk", "StoreAnswer", "Imports", "ToImport", "Seek",
    "Assigned", "Renewed", "Finish", "Pace", "Paced", "Calculated", "Standing",
})  # fmt: skip
"""Messages that may be so long."""

STANDING_BYTES = 4 << 20
"""The longest of an agent's reports to the supervisor, which keeps the newest of each: the names of 16,384 nodes, and
1,024 ranks."""

ADDRESSES = ("addr", "master_addr", "endpoint", "stash_at", "logs_at")
PRINTED = r"^[^\x00-\x1f\x7f]*$"
"""No address has a control character: workers get it in their environment, which takes no NUL."""

RANGES = {"round": (0, 2**31), "known_round": (0, 2**31), "master_port": (0, 65535), "nproc": (1, 65536)}
"""Least and greatest of numbers that we count on with; any other fits into a machine's word."""
ANY_NUMBER = -(2**63), 2**63 - 1

DURATIONS = {"lease_s": LONGEST_LEASE_S, "promise_s": 2 * LONGEST_LEASE_S, "fence_s": 2 * LONGEST_LEASE_S}
"""Longest, in seconds, of what binds who hears it: nobody may take a node out of the job for good, nor overflow a clock."""

MOMENTS, LAST_MOMENT = ("at_unix", "started_at_unix", "ended_at_unix"), 253402300799.0
"""Times are shown, never counted with: one that no calendar has becomes the calendar's end, the year 9999."""

MOST_VALUES, MEMBERS_VALUES = 1 << 20, 1 << 18
"""Most values in a message, and in one of a member: of its own ranks. Each takes a microsecond or less to decode."""

_ALIKE, _SIGNS, _ODD, MOST_ODD = bytes.maketrans(b"123456789E", b"000000000e"), b"+-", (b"0e000", b"0" * 40), 256
"""Numbers that take long to decode (1e300: 8 µs; 4,000 digits: 80 µs), where all digits are alike and there are no signs, and
how many of them there may be. To count them takes less than a pattern's time: many messages of 16 MB may come at once."""

_RECORD = b'"error_record":{'  # Of a worker's own form: nothing else in a message can be costly.

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A text, whole or not: it matches wherever it is tried, so a search goes through the data once."""

LINES, CHARS, FAILURES = 20, 2000, 1000
"""What is left of a message that would not fit into a frame: lines of a log, characters of a text, failures of a report."""


def encode(message: Message, limit: int | None = None) -> bytes:
    """`message` as a JSON object with its type under `is`, cut down to `limit` bytes.

    A worker may leave what JSON cannot hold, more than a frame can, or what the other side would not decode; the message is
    sent all the same."""
    try:
        data = _encoder.encode({"is": type(message).__name__, **fields_of(message)})
        if (limit is None or len(data) <= limit) and not (_RECORD in data and _is_costly(data, MEMBERS_VALUES)):
            return data
    except (UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        pass
    return _encoder.encode({"is": type(message).__name__, **_cut(to_plain(_without_records(message)))})


def _without_records(value: Any) -> Any:
    """Without error records, whose form, size and depth are free."""
    if isinstance(value, tuple):
        return tuple(_without_records(item) for item in value)
    if not isinstance(value, Value):
        return value
    kept = fields_of(value).items()
    return type(value)(**{field: None if field == "error_record" else _without_records(item) for field, item in kept})


def _cut(plain: Any, field: str = "") -> Any:
    if isinstance(plain, dict):
        return {key: _cut(item, key) for key, item in plain.items()}
    if isinstance(plain, list):
        least = FAILURES if field == "failures" else LINES if field == "log_tail" else len(plain)
        return [_cut(item) for item in (plain[-least:] if field == "log_tail" else plain[:least])]
    return plain[:CHARS].encode(errors="replace").decode() if isinstance(plain, str) else plain


def decode(data: bytes, family: type[Message] = Message, *, values: int = MOST_VALUES) -> Message:
    """The message in `data`, of so many values at most. Raises ProtocolError for anything that is not exactly one of that
    family."""
    if _is_costly(data, values):
        raise ProtocolError(f"not a message: {data[:60]!r} (it has too many values, or too many numbers that none of ours has)")
    try:
        body = _decoder(family).decode(data) if len(data) <= SMALL_BYTES else _long(data, family)
        return _made(words_of(family)[type(body).__name__], body)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message: {data[:60]!r} ({str(error)[:200]})") from error


def _is_costly(data: bytes, values: int) -> bool:
    """Whether to decode it would take long for its size. Texts cost little, whatever is in them."""
    if len(data) > values and data.count(b'"') > 4 * values:
        return True
    is_short = len(data) <= SMALL_BYTES  # texts are most of what is longer, and left out first
    return (not is_short or _seems_costly(data, values)) and _seems_costly(_TEXT.sub(b'""', data), values)


def _seems_costly(data: bytes, values: int) -> bool:
    if len(data) > values and sum(map(data.count, (b",", b":", b"[", b"{"))) > values:
        return True
    return len(data) > MOST_ODD and sum(map(data.translate(_ALIKE, _SIGNS).count, _ODD)) > MOST_ODD


def _long(data: bytes, family: type[Message]) -> msgspec.Struct:
    plain = msgspec.json.decode(data)
    if plain["is"] not in LONG or (plain["is"] == "Standing" and len(data) > STANDING_BYTES):
        raise ValueError(f"{plain['is']:.60} is never longer than {SMALL_BYTES} bytes")
    body: msgspec.Struct = msgspec.convert(plain, _any_of(family), dec_hook=_value)
    return body


def build(kind: type[V], plain: dict[str, Any]) -> V:
    """A value of `kind` from plain data; an unknown, missing or wrongly typed field is a ValueError or MsgspecError."""
    return _made(kind, msgspec.convert(plain, _shape(kind), dec_hook=_value))


def _made(kind: type[V], body: msgspec.Struct) -> V:
    fields = msgspec.structs.asdict(body)
    if (record := fields.get("error_record")) is not None and failure.is_too_deep(record):
        raise ValueError(f"its error record is nested deeper than {failure.DEEPEST_RECORD} levels")
    for field in _moments(kind):
        fields[field] = min(max(fields[field], 0.0), LAST_MOMENT)
    return kind(**fields)


@cache
def _moments(kind: type[Value]) -> tuple[str, ...]:
    return tuple(field for field in kind.__fields__ if field in MOMENTS)


def _limited(field: str, hint: Any) -> Any:
    """`hint`, with bounds for names and numbers."""
    if hint is str and field in LONGEST:
        return Annotated[str, msgspec.Meta(max_length=LONGEST[field], pattern=PRINTED if field in ADDRESSES else None)]
    if hint is int:
        least, most = RANGES.get(field, ANY_NUMBER)
        return Annotated[int, msgspec.Meta(ge=least, le=most)]
    if hint is float and field in DURATIONS:
        return Annotated[float, msgspec.Meta(ge=0.0, le=DURATIONS[field])]
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, (_limited(field, one) for one in typing.get_args(hint)))
    held, as_many = typing.get_args(hint), msgspec.Meta(max_length=MANY.get(field, SOME))
    if typing.get_origin(hint) is tuple and held[-1] is Ellipsis:
        of: Any = tuple.__class_getitem__((_item(held[0]), ...))
        return Annotated[of, as_many]
    if typing.get_origin(hint) is dict and held[1] is not Any:
        of = dict.__class_getitem__((_item(held[0]), _item(held[1])))
        return Annotated[of, as_many]
    return hint


def _item(hint: Any) -> Any:
    """The same for what stands in a list."""
    return Annotated[str, msgspec.Meta(max_length=ITEM_CHARS)] if hint is str else _limited("", hint)


def _value(kind: type, plain: Any) -> Any:
    if not issubclass(kind, Value):
        raise NotImplementedError(f"{kind} cannot come over a wire")
    if not isinstance(plain, dict):
        raise ValueError(f"{plain!r:.60} is no {kind.__name__}")
    return build(kind, plain)


def warm(family: type[Message] = Message) -> None:
    """Work out every message's types now: the first failure should not have to wait for it (some 3 ms)."""
    for kind in (failure.Failure, report.JobReport):
        _shape(kind)
    quicken(messages.Renew, messages.Renewed)
    _decoder(family)


@cache
def _decoder(family: type[Message]) -> msgspec.json.Decoder[msgspec.Struct]:
    return msgspec.json.Decoder(_any_of(family), dec_hook=_value)


def _any_of(family: type[Message]) -> Any:
    return typing.Union[tuple(map(_shape, words_of(family).values()))]  # noqa: UP007


@cache
def _shape(kind: type[Value]) -> type[msgspec.Struct]:
    """`kind` as msgspec knows it, named by `is` where it is a message."""
    hints = {field: _limited(field, hint) for field, hint in _hints(kind).items()}
    fields = [
        (field, hint) if (default := kind.__fields__[field]) is Required else (field, hint, default)
        for field, hint in hints.items()
    ]
    tag_field, tag = ("is", kind.__name__) if issubclass(kind, Message) else (None, None)
    return msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True, tag_field=tag_field, tag=tag)


@cache
def _hints(kind: type[Value]) -> dict[str, Any]:
    hints = get_type_hints(kind, localns=_NAMES)
    return {field: hints[field] for field in kind.__fields__}
