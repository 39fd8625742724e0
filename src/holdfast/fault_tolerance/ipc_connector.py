"""How do processes of one host leave messages for another, which looks at them when it likes?

One receives on a socket, in a thread; any number send. A message is plain data, a tuple, or a class of `data` (`wire`). Only
processes of the same user, or root's, are heard.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections import deque
from typing import Any

from holdfast.fault_tolerance import wire
from holdfast.fault_tolerance.utils import read_obj_from_ipc_socket, write_object_to_ipc_socket

_log = logging.getLogger(__name__)

SENDER_PATIENCE_S = 10.0  # How long a sender may take over its message: the next one waits behind it.


class IpcConnector:
    """Both ends: `send` here, `start_receiving` and the rest there."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.received_messages: deque[Any] = deque()
        self._server: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start_receiving(self) -> None:
        """Listen, in a thread of our own. RuntimeError if we do already."""
        if self._thread is not None:
            raise RuntimeError(f"{self.socket_path}: this connector already receives messages")
        self._server = wire.listen(self.socket_path)
        self._thread = threading.Thread(target=self._receive, args=(self._server,), daemon=True, name="ipc-connector")
        self._thread.start()

    def _receive(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return  # closed by stop_receiving
            with connection:
                try:
                    connection.settimeout(SENDER_PATIENCE_S)
                    wire.peer_pid(connection)
                    message = read_obj_from_ipc_socket(connection, raise_exc=True)
                    self.received_messages.append(message)
                    write_object_to_ipc_socket(b"ok", connection)
                except (OSError, wire.WireError) as error:
                    # One bad sender must not deafen us to the others.
                    _log.warning("a message on %s was not received: %s", self.socket_path, error)

    def send(self, message: Any) -> None:
        """Leave `message`, and wait until it was received. OSError when nobody is there; WireError when it cannot be sent."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(SENDER_PATIENCE_S)
            client.connect(self.socket_path)
            wire.peer_pid(client)
            write_object_to_ipc_socket(message, client)
            answer = read_obj_from_ipc_socket(client, raise_exc=True)
            if answer != b"ok":
                raise RuntimeError(f"{self.socket_path} answered {answer!r} to a message")

    def fetch_received(self) -> list[Any]:
        """All messages so far; they are taken away."""
        return [self.received_messages.popleft() for _ in range(len(self.received_messages))]

    def peek_received(self) -> list[Any]:
        """All messages so far; they stay."""
        return list(self.received_messages)

    def clear(self) -> None:
        """Drop all messages so far."""
        self.received_messages.clear()

    def stop_receiving(self) -> None:
        """Stop listening, and drop what was not fetched. No harm when nobody listens."""
        if self._server is not None and self._thread is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread out of accept
            self._server.close()
            self._thread.join(SENDER_PATIENCE_S)
            self._server = self._thread = None
            self.clear()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)
