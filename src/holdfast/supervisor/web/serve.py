"""How does the API come to be served? By uvicorn, on a socket of ours, until it is told to end, or its parent ends."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ssl import SSLContext

    from starlette.applications import Starlette

NEEDS = ("starlette", "uvicorn")

BACKLOG = 128
"""Connections that may wait while we are busy, or not yet there. asyncio takes them all before it looks at any."""

LONGEST_HEAD = 32 << 10
"""Bytes of a request's head."""


def missing() -> str:
    """Which of the libraries that it needs are not installed, in words. Empty: all are."""
    return " and ".join(name for name in NEEDS if find_spec(name) is None)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there. HoldfastError: it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        where = shown_endpoint(host, port)
        raise HoldfastError(f"--http: cannot listen at {where}: {error.strerror}", hint="choose another port") from error


def run(app: Starlette, listener: socket.socket, context: SSLContext | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `context`: of TLS; None: without."""
    import uvicorn

    from holdfast.supervisor.web.bounded_http import protocol  # uvicorn may be missing

    config = uvicorn.Config(
        app,
        http=protocol(context),
        backlog=BACKLOG,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listener])
