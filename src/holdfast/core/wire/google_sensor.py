"""What does a host's daemon say to Google's sensor, controller and actuator? The messages about hosts, for both sides.

    RegisterHost(HostInfo)   Heartbeat(HostInfo)   ReportEvent(EventReports)

gRPC over HTTP/2 without TLS, unary; the replies say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.value import Value
from holdfast.core.wire.google_wire import LONGEST_TEXT, WorkerInfo, WorkloadInfo
from holdfast.core.wire.protobuf import BYTES, Message, as_number, as_text, fields, number, text, varint

SENSOR, CONTROLLER, ACTUATOR = (f"supervisor_core_proto.{name}Service" for name in ("Sensor", "Controller", "Actuator"))

WORKER_HB, HANG, XID, ECC = 1, 3, 5, 6
"""Of `EventType`, what a daemon may report. WORKER_HB: a worker has failed, or is not heard."""

REGISTER, HEARTBEAT, REPORT = "RegisterHost", "Heartbeat", "ReportEvent"


class HostNames(Value):
    """What a host is called."""

    address: str
    """Where its daemon takes commands, as `host:port`."""
    name: str
    """The node's, in Kubernetes."""


def host_info(host: HostNames, state: int, workers: Iterable[WorkerInfo], workload: WorkloadInfo | None) -> bytes:
    """A HostInfo. `state`: a `DeviceState`."""
    parts = [text(1, host.address), text(2, host.name), text(4, host.name), number(8, state)]
    parts += [_nested(9, worker.encode()) for worker in workers]
    return b"".join(parts) + (_nested(10, workload.encode()) if workload is not None else b"")


def worker_event(what: str, device: str, host: bytes) -> bytes:
    """EventReports of one. `what`: in words; `host`: a HostInfo."""
    return _nested(1, number(1, WORKER_HB) + text(2, what) + _nested(3, host) + text(5, device))


def _nested(field: int, message: bytes) -> bytes:
    return varint(field << 3 | BYTES) + varint(len(message)) + message


class HostInfo(Message):
    """A host, as its daemon tells of it."""

    address: str = ""
    name: str = ""
    state: int = 0
    """A `DeviceState`."""
    workers: tuple[WorkerInfo, ...] = ()
    workload: WorkloadInfo = WorkloadInfo()
    """Without a name: it has none, or was reset."""

    @classmethod
    def decode(cls, data: bytes) -> HostInfo:
        said = list(fields(data))
        one = dict(said)
        return cls(
            address=_text(one.get(1, b"")),
            name=_text(one.get(4, b"")),
            state=as_number(one.get(8, 0)),
            workers=tuple(WorkerInfo.decode(_bytes(value)) for field, value in said if field == 9),
            workload=WorkloadInfo.decode(_bytes(one.get(10, b""))),
        )


class EventReport(Message):
    """Something that has happened on a host."""

    kind: int = 0
    """An `EventType`."""
    what: str = ""
    xid: int = 0
    device: str = ""
    host: HostInfo = HostInfo()

    @classmethod
    def decode(cls, data: bytes) -> EventReport:
        one = dict(fields(data))
        what, device = _text(one.get(2, b"")), _text(one.get(5, b""))
        host = HostInfo.decode(_bytes(one.get(3, b"")))
        return cls(kind=as_number(one.get(1, 0)), what=what, host=host, xid=as_number(one.get(4, 0)), device=device)


class EventReports(Message):
    """Some of them."""

    reports: tuple[EventReport, ...] = ()

    @classmethod
    def decode(cls, data: bytes) -> EventReports:
        return cls(reports=tuple(EventReport.decode(_bytes(value)) for field, value in fields(data) if field == 1))


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a message belongs")
    return value


def _text(value: int | bytes) -> str:
    return as_text(value)[:LONGEST_TEXT]
