"""How do the two messages of a node health service look on the wire? Protocol Buffers, by hand: five fields need no compiler.

    service nvhcd.HealthCheckService { rpc RunHealthCheck(HealthCheckRequest) returns (HealthCheckResponse) }
    HealthCheckRequest  { repeated string args = 1 }
    HealthCheckResponse { bool success = 1; int32 exit_code = 2; string output = 3; string error = 4 }

Encoding: protobuf.dev/programming-guides/encoding. Fields that we do not know are passed over, as it asks.
"""

from __future__ import annotations

from holdfast.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICE = "nvhcd.HealthCheckService"
METHOD = f"/{SERVICE}/RunHealthCheck"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WORD = 1 << 64


class Request(Value):
    """HealthCheckRequest."""

    args: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As bytes."""
        return b"".join(_text(1, arg) for arg in self.args)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """From bytes. ValueError: they are no message."""
        return cls(args=tuple(_as_text(value) for number, value in _fields(data) if number == 1))


class Response(Value):
    """HealthCheckResponse."""

    success: bool = False
    exit_code: int = 0
    output: str = ""
    error: str = ""

    def encode(self) -> bytes:
        """As bytes; what has its default is left out."""
        numbers = ((1, int(self.success)), (2, self.exit_code))
        parts = [_varint(number << 3) + _varint(value % WORD) for number, value in numbers if value]
        return b"".join(parts) + b"".join(_text(number, text) for number, text in ((3, self.output), (4, self.error)) if text)

    @classmethod
    def decode(cls, data: bytes) -> Response:
        """From bytes. ValueError: they are no message."""
        found = dict(_fields(data))
        code = _as_number(found.get(2, 0))
        return cls(
            success=bool(_as_number(found.get(1, 0))),
            exit_code=code - WORD if code >= WORD // 2 else code,
            output=_as_text(found.get(3, b"")),
            error=_as_text(found.get(4, b"")),
        )


def _text(number: int, text: str) -> bytes:
    data = text.encode(errors="replace")
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
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
            raise ValueError(f"field {number} is of a kind that protobuf has not: {kind}")
        if at > len(data):
            raise ValueError(f"field {number} is cut short")
        yield number, value


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


def _as_text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a number where text belongs")
    return value.decode(errors="replace")


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("text where a number belongs")
    return value
