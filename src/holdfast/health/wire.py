"""How do the two messages of a node health service look on the wire? Protocol Buffers, by hand: five fields need no compiler.

    service nvhcd.HealthCheckService { rpc RunHealthCheck(HealthCheckRequest) returns (HealthCheckResponse) }
    HealthCheckRequest  { repeated string args = 1 }
    HealthCheckResponse { bool success = 1; int32 exit_code = 2; string output = 3; string error = 4 }

Fields that we do not know are passed over, as Protocol Buffers ask (`core.wire.protobuf`).
"""

from __future__ import annotations

from holdfast.core.value import Value
from holdfast.core.wire.protobuf import as_number, as_text, fields, number, text

SERVICE = "nvhcd.HealthCheckService"
METHOD = f"/{SERVICE}/RunHealthCheck"


class Request(Value):
    """HealthCheckRequest."""

    args: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As bytes."""
        return b"".join(text(1, arg) for arg in self.args)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """From bytes. ValueError: they are no message."""
        return cls(args=tuple(as_text(value) for field, value in fields(data) if field == 1))


class Response(Value):
    """HealthCheckResponse."""

    success: bool = False
    exit_code: int = 0
    output: str = ""
    error: str = ""

    def encode(self) -> bytes:
        """As bytes; what has its default is left out."""
        numbers = ((1, int(self.success)), (2, self.exit_code))
        parts = [number(field, value) for field, value in numbers if value]
        return b"".join(parts) + b"".join(text(field, said) for field, said in ((3, self.output), (4, self.error)) if said)

    @classmethod
    def decode(cls, data: bytes) -> Response:
        """From bytes. ValueError: they are no message."""
        found = dict(fields(data))
        return cls(
            success=bool(as_number(found.get(1, 0))),
            exit_code=as_number(found.get(2, 0)),
            output=as_text(found.get(3, b"")),
            error=as_text(found.get(4, b"")),
        )
