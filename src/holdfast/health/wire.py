"""How do the two messages of a node health service look on the wire? Protocol Buffers, by hand: five fields need no compiler.

    service nvhcd.HealthCheckService { rpc RunHealthCheck(HealthCheckRequest) returns (HealthCheckResponse) }
    HealthCheckRequest  { repeated string args = 1 }
    HealthCheckResponse { bool success = 1; int32 exit_code = 2; string output = 3; string error = 4 }

Fields that we do not know are passed over, as Protocol Buffers ask (`core.wire.protobuf`).
"""

from __future__ import annotations

from holdfast.core.value import Value
from holdfast.core.wire.protobuf import Message, as_text, fields, text

SERVICE = "nvhcd.HealthCheckService"
METHOD = f"/{SERVICE}/RunHealthCheck"


class Request(Value):
    """HealthCheckRequest."""

    args: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return b"".join(text(1, arg) for arg in self.args)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """From bytes. ValueError: they are no message."""
        return cls(args=tuple(as_text(value) for field, value in fields(data) if field == 1))


class Response(Message):
    """HealthCheckResponse."""

    success: bool = False
    exit_code: int = 0
    output: str = ""
    error: str = ""
