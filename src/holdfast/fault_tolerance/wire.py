"""How do the words of `data` travel between processes of one host? As JSON behind a length; nothing is ever unpickled.

NVRx sends pickles, so a process that may connect to its sockets may run code in the launcher. Here the receiver builds only the
classes of `_words`, and each side checks that the other runs as the same user, or root, before it reads a byte. A frame is 4
bytes of length, big-endian, and then that many of UTF-8.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
from enum import Enum
from functools import cache
from typing import Any

from holdfast.fault_tolerance import data
from holdfast.fault_tolerance.config import FaultToleranceConfig

LARGEST_FRAME = 16 * 1024 * 1024  # Bytes. A configuration is some kilobytes; a peer of ours announces no more than this.

_TAG = "$"


class WireError(ValueError):
    """What arrived is no word of ours, or what was to be sent cannot be."""


@cache
def _words() -> dict[str, type]:
    """What may travel, by name: the classes of `data`, and the configuration."""
    classes = {name: cls for name, cls in vars(data).items() if isinstance(cls, type) and cls.__module__ == data.__name__}
    return {**classes, FaultToleranceConfig.__name__: FaultToleranceConfig}


def dumps(word: Any) -> bytes:
    """`word` as JSON: plain data, tuples, sets, bytes, and the words of `data`. WireError for anything else."""
    try:
        return json.dumps(_plain(word)).encode()
    except (TypeError, RecursionError) as error:
        raise WireError(f"{type(word).__name__} cannot be sent: {error}") from None


def loads(text: bytes) -> Any:
    """What `dumps` was given. WireError if `text` is nothing that it writes."""
    try:
        return _restored(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"not a Holdfast message: {error}") from None


def _plain(word: Any) -> Any:
    kind = type(word)
    if isinstance(word, dict):
        pairs = [[_plain(key), _plain(value)] for key, value in word.items()]
        return {_TAG: "dict", "v": pairs} if _TAG in word or any(type(key) is not str for key in word) else _fields(word)
    if kind is tuple or kind in (set, frozenset):
        return {_TAG: "tuple" if kind is tuple else "set", "v": [_plain(item) for item in word]}
    if kind is bytes:
        return {_TAG: "bytes", "v": base64.b64encode(word).decode()}
    if _words().get(kind.__name__) is kind:
        return {_TAG: kind.__name__, "v": word.name if isinstance(word, Enum) else _fields(vars(word))}
    if isinstance(word, list):
        return [_plain(item) for item in word]
    return word  # JSON's own, or json.dumps says that it is not


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in given.items()}


def _restored(seen: Any) -> Any:
    if isinstance(seen, list):
        return [_restored(item) for item in seen]
    if not isinstance(seen, dict):
        return seen
    if _TAG not in seen:
        return {name: _restored(value) for name, value in seen.items()}
    name, inner = seen[_TAG], seen["v"]
    match name:
        case "tuple":
            return tuple(_restored(inner))
        case "set":
            return set(_restored(inner))
        case "dict":
            return {key: value for key, value in _restored(inner)}
        case "bytes":
            return base64.b64decode(inner)
    cls = _words()[name]
    return cls[inner] if issubclass(cls, Enum) else cls(**_restored(inner))


def frame(word: Any) -> bytes:
    """`word` as it goes over a socket."""
    text = dumps(word)
    return len(text).to_bytes(4, "big") + text


def length_of(head: bytes) -> int:
    """The length that a frame's first four bytes announce. WireError if no peer of ours would."""
    length = int.from_bytes(head, "big")
    if length > LARGEST_FRAME:
        raise WireError(f"a message of {length} bytes is not from Holdfast")
    return length


def peer_pid(connection: socket.socket) -> int:
    """Pid of who is at the other end; PermissionError unless it runs as our user or as root."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"process {pid} of user {uid} is at the other end, and we are user {os.geteuid()}")
    return int(pid)


def listen(path: str, backlog: int = 16) -> socket.socket:
    """A socket at `path` that only our user may connect to; a dead one that lies there is replaced. OSError if it cannot be."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path):
            os.unlink(path)
        server.bind(path)
        os.chmod(path, 0o600)  # nobody can have connected before: it does not listen yet
        server.listen(backlog)
    except OSError:
        server.close()
        raise
    return server
