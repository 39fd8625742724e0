"""An environment variable that must be there, a socket on a free port, and `${local_rank}` in arguments."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from string import Template
from typing import Any


def get_env_variable_or_raise(env_name: str) -> str:
    """The variable's value, which may be empty; `ValueError` when it is not set."""
    if env_name not in os.environ:
        raise ValueError(f"Environment variable {env_name} expected, but not set")
    return os.environ[env_name]


def get_socket_with_port() -> socket.socket:
    """A socket that listens on a free port of this host's loopback address; the caller closes it."""
    refused: OSError | None = None
    for family, kind, proto, _, _ in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM):
        held = None
        try:
            held = socket.socket(family, kind, proto)  # fails where the kernel has no IPv6, though the name has such an address
            held.bind(("localhost", 0))
            held.listen(0)
            return held
        except OSError as error:
            refused = error
            if held is not None:
                held.close()
    raise RuntimeError("Failed to create a socket") from refused


class macros:
    """What may stand in a worker's arguments for a value known only when it starts."""

    local_rank = "${local_rank}"

    @staticmethod
    def substitute(args: Iterable[Any], local_rank: str) -> list[Any]:
        """`args` with `${local_rank}` (or `$local_rank`) filled in; other `$names` stay, `$$` becomes `$`."""
        return [Template(arg).safe_substitute(local_rank=local_rank) if isinstance(arg, str) else arg for arg in args]
