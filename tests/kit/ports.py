"""Free ports beside the one that a test has, and those that commands have got for themselves."""

from __future__ import annotations

import contextlib
import random
import re
import socket
from typing import Any


def another_port(port: int) -> int:
    """A TCP port above `port` that is free on this host now, below those that the kernel gives to outgoing connections."""
    for other in range(port + 1, port + 10_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", other))
            return other
    raise RuntimeError("no other port is free")


def ports(count: int) -> list[int]:
    """TCP ports that are free now, and that nobody's outgoing connection is given."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def port_of(running: Any, says: str = "listening at") -> int:
    """Of a command that was told to take any port: the one that it says it has."""
    running.wait_for_output(says)
    found = re.search(rf"{says} \S+:(\d+)", running.stdout)
    assert found, running.stdout
    return int(found[1])
