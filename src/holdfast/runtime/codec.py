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
from holdfast.core.value import Value, to_plain

V = TypeVar("V", bound=Value)

MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in Message.__subclasses__()}

_encoder = msgspec.json.Encoder()
_NAMES = vars(typing) | vars(failure) | vars(report) | vars(messages)
"""What the annotations may name: modules import some names for type checkers only."""


def encode(message: Message) -> bytes:
    """`message` as one JSON object with its type's name under `is`."""
    return _encoder.encode({"is": type(message).__name__, **to_plain(message)})


def decode(data: bytes) -> Message:
    """The message in `data`. Raises ProtocolError for anything that is not exactly one."""
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
        kind = MESSAGES[plain.pop("is")]
        return build(kind, plain)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a message: {data[:60]!r} ({error})") from error


def build(kind: type[V], plain: dict[str, Any]) -> V:
    """A value of `kind` from plain data; an unknown, missing or wrongly typed field is a ValueError or MsgspecError."""
    hints = _hints(kind)
    if unknown := plain.keys() - hints.keys():
        raise ValueError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    return kind(**{field: msgspec.convert(item, hints[field], dec_hook=_value) for field, item in plain.items()})


def _value(kind: type, plain: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Value) and isinstance(plain, dict):
        return build(kind, plain)
    raise NotImplementedError(f"{kind} cannot come over a wire")


@cache
def _hints(kind: type[Value]) -> dict[str, Any]:
    hints = get_type_hints(kind, localns=_NAMES)
    return {field: hints[field] for field in kind.__fields__}
