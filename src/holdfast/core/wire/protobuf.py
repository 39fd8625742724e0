"""How are numbers and texts written in Protocol Buffers? By hand: messages of a few fields need no compiler.

Encoding: protobuf.dev/programming-guides/encoding. What the fields mean is for the modules that name them to say
(`health.wire`, `core.wire.google_wire`).
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    M = TypeVar("M", bound="Message")

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WORD = 1 << 64

MOST_FIELDS = 2048
"""Of one message: a host's largest has one for each of its ranks. A megabyte of empty ones would take seconds to read."""


def number(field: int, value: int) -> bytes:
    """An integer, a truth value or an enumeration's: `value` may be negative."""
    return varint(field << 3) + varint(value % WORD)


def text(field: int, value: str) -> bytes:
    """A text."""
    data = value.encode(errors="replace")
    return varint(field << 3 | BYTES) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first. `value` is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number and value, in their order. ValueError: `data` is no message, or has too many."""
    at = count = 0
    while at < len(data):
        if (count := count + 1) > MOST_FIELDS:
            raise ValueError(f"a message of more than {MOST_FIELDS} fields")
        tag, at = _read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value: int | bytes
            value, at = _read_varint(data, at)
        elif kind == BYTES:
            length, at = _read_varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"field {field} has an unknown protobuf type: {kind}")
        if at > len(data):
            raise ValueError(f"field {field} is cut short")
        yield field, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value % WORD, at
    raise ValueError("a number has more than ten bytes")


def as_text(value: int | bytes) -> str:
    """What `fields` has found, as text. ValueError: it is a number."""
    if not isinstance(value, bytes):
        raise ValueError("a number where text belongs")
    return value.decode(errors="replace")


def as_number(value: int | bytes) -> int:
    """The same, as a signed number. ValueError: it is text."""
    if not isinstance(value, int):
        raise ValueError("text where a number belongs")
    return value - WORD if value >= WORD // 2 else value


class Message(Value):
    """Base of messages of texts, numbers and truth values, numbered from 1 in the order in which the class has them.

    What has its default is not written, as proto3 has it, and fields that we do not know are passed over."""

    def encode(self) -> bytes:
        parts = []
        for field, name in enumerate(self.__fields__, 1):
            if value := getattr(self, name):
                parts.append(text(field, value) if isinstance(value, str) else number(field, int(value)))
        return b"".join(parts)

    @classmethod
    def decode(cls: type[M], data: bytes) -> M:
        """From bytes. ValueError: they are no such message."""
        names = dict(enumerate(cls.__fields__, 1))
        found: dict[str, Any] = {}
        for field, value in fields(data):
            if (name := names.get(field)) is None:
                continue
            default = cls.__fields__[name]
            found[name] = as_text(value) if isinstance(default, str) else type(default)(as_number(value))
        return cls(**found)
