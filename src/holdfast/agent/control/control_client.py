"""Sends one question to an agent's control socket, and reads the answer: one JSON line there, one back.

Also how both ends name a socket whose path is longer than an address may be.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.errors import ProtocolError
from holdfast.telemetry.record.file_watch import Watch
from holdfast.telemetry.record.state_dir import running_nodes

MAX_REPLY = 256 << 20  # Bytes of a reply: a supervisor tells of ten thousand nodes of eight ranks in some 30 MB.

OPENS_S = 2.0
"""How long to wait for the socket of an agent that lives but has none yet: it opens it some moments after its start, and later
on a busy machine."""

ADDRESS_LIMIT = 107  # Bytes of a Unix socket's address (sun_path, less its final zero).


def ask(
    job_dir: str, node: str, request: Mapping[str, Any], timeout_s: float = 5.0, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The answer of `node`'s agent, whose job lies in `job_dir`.

    OSError: nobody listens there (the agent is gone, or on another host), or no answer came within `timeout_s`
    (TimeoutError). ProtocolError: the answer is not one.
    """
    path = os.path.join(job_dir, f"agent-{node}.sock")
    until = clock() + min(OPENS_S, timeout_s)
    if not os.path.exists(path):
        with Watch(job_dir) as watch:
            while not os.path.exists(path) and clock() < until and node in running_nodes(job_dir):
                watch.wait(0.1)  # nothing is written there when the agent dies
    return ask_at(path, f"the agent of node {node}", request, timeout_s, clock)


def ask_at(
    path: str, whom: str, request: Mapping[str, Any], timeout_s: float = 5.0, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The answer of the program that listens at the socket `path`; the same errors. `whom`: its name, for messages."""
    text = _exchange(path, json.dumps(dict(request)).encode() + b"\n", timeout_s, clock)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError(f"{whom} gave an invalid answer: {text[:80]!r}")
    return answer


def _exchange(path: str, line: bytes, timeout_s: float, clock: Callable[[], float]) -> bytes:
    until = clock() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, Reachable(path) as address:
        connect(connection, address, timeout_s)
        connection.settimeout(timeout_s)
        connection.sendall(line)
        answer = bytearray()
        while not answer.endswith(b"\n") and len(answer) <= MAX_REPLY:
            if (left_s := until - clock()) <= 0:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            connection.settimeout(left_s)
            piece = connection.recv(1 << 16)
            if not piece:
                break
            answer += piece
    return bytes(answer)


def connect(connection: socket.socket, address: str, timeout_s: float) -> None:
    """Connect, and while the agent's backlog is full wait in the kernel: a socket with Python's timeout would give up."""
    limit = struct.pack("@ll", int(timeout_s), int(timeout_s % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        connection.connect(address)
    except BlockingIOError as error:
        raise TimeoutError(f"the agent accepted no connection within {timeout_s:g} s") from error


class Reachable:
    """An address of at most 107 bytes for a socket at any path: through a descriptor of its directory where it is longer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= ADDRESS_LIMIT:
            return self._path
        folder, name = os.path.split(self._path)
        # Not chdir: it would move the whole process, other threads included.
        self._folder = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._folder}/{name}"

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)
