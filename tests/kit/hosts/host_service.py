"""A host daemon of nobody's, over real gRPC: it writes down what it hears, and answers as it is told to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from holdfast.core.wire.google_wire import METHODS, WorkerInfo, WorkloadInfo, state_name
from holdfast.core.wire.protobuf import fields


class HostService:
    """Listens on loopback from the start; `error`: a gRPC status that every call gets; `hangs`: no call gets an answer."""

    def __init__(self, port: int = 0, error: grpc.StatusCode | None = None, hangs: bool = False) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.error, self.free = error, threading.Event()
        if not hangs:
            self.free.set()
        self._server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers((_Any(self),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def methods(self) -> list[str]:
        """Of all calls, in their order."""
        return [method.rpartition("/")[2] for method, _ in self.calls]

    def states(self, local_rank: int = 0) -> list[str]:
        """What that rank has said, without repetition."""
        found: list[str] = []
        for method, data in self.calls:
            if method.endswith("Heartbeat"):
                worker = WorkerInfo.decode(data)
                if worker.local_rank == local_rank and found[-1:] != [state_name(worker.state)]:
                    found.append(state_name(worker.state))
        return found

    def workloads(self) -> list[WorkloadInfo]:
        """Every one that was registered, in their order."""
        return [WorkloadInfo.decode(data) for method, data in self.calls if method.endswith("RegisterWorkload")]

    def hosts(self) -> list[tuple[Any, WorkloadInfo | None]]:
        """State and workload of daemons, where this is their sensor: the fields 8 and 10 of a HostInfo."""
        said = [dict(fields(data)) for method, data in self.calls if method.endswith("SensorService/Heartbeat")]
        return [(one.get(8, 0), WorkloadInfo.decode(one[10]) if 10 in one else None) for one in said]

    def close(self) -> None:
        """Take no more calls."""
        self.free.set()
        self._server.stop(None).wait()


class _Any(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, whose: HostService) -> None:
        self.whose = whose

    def service(self, details: Any) -> Any:
        """gRPC's name for: who answers this call?"""
        return _handler(self.whose, details.method)


def _handler(service: HostService, method: str) -> Any:
    def answer(data: bytes, context: Any) -> bytes:
        service.calls.append((method, data))
        service.free.wait()
        if service.error is not None:
            context.abort(service.error, "no")
        if method.rpartition("/")[2] not in {*METHODS, "RegisterHost", "ReportEvent", "SendState"}:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        return b"\x0a\x02ok"

    return grpc.unary_unary_rpc_method_handler(answer)
