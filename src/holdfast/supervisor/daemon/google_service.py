"""How do Google's clients reach the host table? A gRPC server on loopback: every method answers OK, and from memory.

A gRPC error blocks Google's client, and with it the agent, for seven seconds; a slow answer as long as it takes. So what cannot
be read is answered with OK too. This wire has no authentication, so the kernel tells which user says it: others than ours, root
and those who are named are not heard. Nothing that is said here acts on another host. Where an operator has asked for it, an
address that other hosts reach takes the two commands of Google's actuator, from anybody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import HoldfastError
from holdfast.core.wire.google_wire import METHODS, OWN_SERVICE, SERVICE, HostResponse, Method, WorkerInfo
from holdfast.core.wire.protobuf import Message
from holdfast.runtime.net.admission import soft_limit
from holdfast.runtime.peer_user import Address, socket_between

AT_ONCE = 4
"""Calls that are answered at a time; each takes microseconds."""

HANDSHAKE_MS, IDLE_MS = 2_000, 60_000
"""How long a connection may take to speak HTTP/2, and may stay without a call. A client connects anew when it calls again."""

CONNECTIONS_SHARE = 2
"""gRPC asks nobody who comes, so it gets half of the descriptors: the daemon has the others for its table and its socket."""

Services = Mapping[str, Mapping[str, type[Message]]]
"""By service and method: what it takes."""

SERVICES: Services = {SERVICE: METHODS, OWN_SERVICE: {Method.GOODBYE: WorkerInfo}}
"""What the ranks of this host call, and Google's actuator."""

COMMANDS: Services = {SERVICE: {method: METHODS[method] for method in (Method.TRIGGER_RESET, Method.TRIGGER_CORDON)}}
"""What only the actuator calls, from another host."""


def serve(
    host: str,
    port: int,
    hear: Callable[[str, str, Message], None],
    may_speak: Callable[[int | None], bool],
    services: Services = SERVICES,
    largest: int = 1 << 20,
) -> tuple[Any, int]:
    """Listen at `host:port` (0: any); gRPC's server, which runs until its `stop`, and the port. `hear` is called with peer,
    method and message, in some thread; `may_speak` is asked of each user; `largest`: bytes of a message. HoldfastError: it
    cannot listen."""
    grpc = installed_grpc()

    def handler(method: str, kind: type[Message]) -> Any:
        def answer(data: bytes, context: Any) -> bytes:
            found = socket_of(context.peer(), (host, bound))
            if not may_speak(found[0] if found is not None else None):
                return HostResponse(response=f"{method}: not heard from this user").encode()
            try:
                hear(context.peer(), method, kind.decode(data))
            except ValueError:
                return HostResponse(response=f"this is no {kind.__name__}").encode()
            return HostResponse(response=f"{method}: heard").encode()

        return grpc.unary_unary_rpc_method_handler(answer)  # bytes both ways

    # Without SO_REUSEPORT: two daemons at one port would each hear half.
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", largest)]
    options += [("grpc.server_handshake_timeout_ms", HANDSHAKE_MS), ("grpc.max_connection_idle_ms", IDLE_MS)]
    options += [("grpc.max_allowed_incoming_connections", soft_limit() // CONNECTIONS_SHARE)]
    server = grpc.server(ThreadPoolExecutor(AT_ONCE), options=options)
    for service, methods in services.items():
        handlers = {method: handler(method, kind) for method, kind in methods.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    try:
        bound = server.add_insecure_port(shown_endpoint(host, port))
    except RuntimeError:
        bound = 0
    if not bound:
        raise HoldfastError(
            f"cannot listen at {host}:{port}: the port is in use, or not an address of this host",
            hint=f"`ss -ltnp sport = :{port}` shows which process has it",
        )
    server.start()
    return server, int(bound)


def installed_grpc() -> Any:
    """gRPC's module. HoldfastError: it is not there."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said by us
    try:
        import grpc  # type: ignore[import-untyped]
    except ImportError as error:
        raise HoldfastError("grpcio is not installed", hint="pip install 'holdfast[grpc]'") from error
    return grpc


def socket_of(peer: str, here: Address) -> tuple[int, int] | None:
    """User and inode of a client's socket, by gRPC's name for it: `ipv4:127.0.0.1:4000` or `ipv6:%5B::1%5D:4000`."""
    address = unquote(peer).partition(":")[2]
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return None
    host = host.strip("[]")
    ours = "::1" if ":" in host else "127.0.0.1" if here[0] == "localhost" else here[0]
    return socket_between((ours, here[1]), (host, int(port)))
