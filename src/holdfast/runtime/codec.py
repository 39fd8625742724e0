"""How does a message become bytes, and bytes a message? JSON, every field checked against its annotation.

Only jobs of several nodes load this module: msgspec takes longer to import than everything else on the way to the first
worker.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgspec

from holdfast.core import failure, messages, report
from holdfast.core.errors import ProtocolError
from holdfast.core.messages import Message
from holdfast.core.value import Required, Value, quicken, to_plain

V = TypeVar("V", bound=Value)

MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}

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
LONGEST |= {"unhealthy": 500, "life": 255}
"""Most characters of what names something: it is kept for the job's life, told to others and shown to people."""

RANGES = {"round": (0, 2**31), "known_round": (0, 2**31), "master_port": (0, 65535), "nproc": (1, 65536)}
"""Least and greatest of numbers that we count on with; any other fits into a machine's word."""
ANY_NUMBER = -(2**63), 2**64

MOMENTS, LAST_MOMENT = ("at_unix", "started_at_unix", "ended_at_unix"), 253402300799.0
"""Times are shown, never counted with: one that no calendar has becomes the calendar's end, the year 9999."""

LINES, CHARS, FAILURES = 20, 2000, 1000
"""What is left of a message that would not fit into a frame: lines of a log, characters of a text, failures of a report."""


def encode(message: Message, limit: int | None = None) -> bytes:
    """`message` as one JSON object with its type's name under `is`, cut down to `limit` bytes if need be.

    What a worker left behind may hold what JSON cannot, and more than a frame can: it must not cost us the message.
    """
    try:
        fields = {field: getattr(message, field) for field in message.__fields__}
        data = _encoder.encode({"is": type(message).__name__, **fields})
        if limit is None or len(data) <= limit:
            return data
    except (UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        pass
    return _encoder.encode({"is": type(message).__name__, **_cut(to_plain(_without_records(message)))})


def _without_records(value: Any) -> Any:
    """Error records are free in form, size and depth; everything else is ours."""
    if isinstance(value, tuple):
        return tuple(_without_records(item) for item in value)
    if not isinstance(value, Value):
        return value
    kept = {field: getattr(value, field) for field in value.__fields__}
    return type(value)(**{field: None if field == "error_record" else _without_records(item) for field, item in kept.items()})


def _cut(plain: Any, field: str = "") -> Any:
    if isinstance(plain, dict):
        return {key: _cut(item, key) for key, item in plain.items()}
    if isinstance(plain, list):
        least = FAILURES if field == "failures" else LINES if field == "log_tail" else len(plain)
        return [_cut(item) for item in (plain[-least:] if field == "log_tail" else plain[:least])]
    return plain[:CHARS].encode(errors="replace").decode() if isinstance(plain, str) else plain


def decode(data: bytes) -> Message:
    """The message in `data`. Raises ProtocolError for anything that is not exactly one."""
    try:
        body = _decoder().decode(data)
        return _made(MESSAGES[type(body).__name__], body)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message: {data[:60]!r} ({str(error)[:200]})") from error


def build(kind: type[V], plain: dict[str, Any]) -> V:
    """A value of `kind` from plain data; an unknown, missing or wrongly typed field is a ValueError or MsgspecError."""
    return _made(kind, msgspec.convert(plain, _shape(kind), dec_hook=_value))


def _made(kind: type[V], body: msgspec.Struct) -> V:
    """The value whose fields, of the right types, `body` has."""
    fields = {field: getattr(body, field) for field in kind.__fields__}
    for field in _with_limits(kind):
        fields[field] = _checked(field, fields[field])
    return kind(**fields)


@cache
def _with_limits(kind: type[Value]) -> tuple[str, ...]:
    """The fields that `_checked` may have something against."""
    hints = _hints(kind).items()
    return tuple(field for field, hint in hints if field in LONGEST or field in MOMENTS or "int" in str(hint))


def _checked(field: str, value: Any) -> Any:
    """ValueError for a name or a number that we would not want to live with."""
    if isinstance(value, str):
        if field in LONGEST and len(value) > LONGEST[field]:
            raise ValueError(f"{field} has {len(value)} characters, at most {LONGEST[field]} are allowed")
    elif isinstance(value, int):
        least, most = RANGES.get(field, ANY_NUMBER)
        if not least <= value <= most:
            raise ValueError(f"{field} is not within {least:g} to {most:g}")
    elif field in MOMENTS:
        return min(max(value, 0.0), LAST_MOMENT)
    return value


def _value(kind: type, plain: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Value) and isinstance(plain, dict):
        return build(kind, plain)
    raise NotImplementedError(f"{kind} cannot come over a wire")


def warm() -> None:
    """Work out every message's types now: the first failure should not have to wait for it (some 3 ms)."""
    for kind in (failure.Failure, report.JobReport):
        _shape(kind)
    quicken(messages.Renew, messages.Renewed)
    _decoder()


@cache
def _decoder() -> msgspec.json.Decoder[msgspec.Struct]:
    """Of any message: one pass in C finds its kind and checks the types of its fields."""
    return msgspec.json.Decoder(typing.Union[tuple(_shape(kind) for kind in MESSAGES.values())], dec_hook=_value)  # noqa: UP007


@cache
def _shape(kind: type[Value]) -> type[msgspec.Struct]:
    """`kind` as msgspec knows it, named by `is` where it is a message."""
    hints = _hints(kind)
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
