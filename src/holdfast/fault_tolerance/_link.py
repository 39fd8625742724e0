"""How does a standalone server hear a rank or a launcher without ever waiting for it?"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from holdfast.fault_tolerance import wire


class Link:
    """One connection: frames in, frames out, never waiting."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.pid = wire.peer_pid(connection)
        self.page_fd = -1  # Handed over, and not yet taken.
        self._buffer = b""

    def hear(self) -> list[Any] | None:
        """The messages that have arrived. None: the peer is gone, or sends something else."""
        try:
            data, fds, _, _ = socket.recv_fds(self.connection, 65536, 4)
        except BlockingIOError:
            return []
        except OSError:
            return None
        for fd in fds:
            self.take_page(close=True)
            self.page_fd = fd
        self._buffer += data
        words = []
        try:
            while len(self._buffer) >= 4 and len(self._buffer) >= (end := 4 + wire.length_of(self._buffer[:4])):
                words.append(wire.loads(self._buffer[4:end]))
                self._buffer = self._buffer[end:]
        except wire.WireError:
            return None
        return words if data else words or None

    def take_page(self, *, close: bool = False) -> int:
        """The descriptor that was handed over, once; -1: none was. With `close` it is given up instead."""
        fd, self.page_fd = self.page_fd, -1
        if close and fd >= 0:
            os.close(fd)
        return fd

    def say(self, word: Any) -> None:
        """Send it. A peer that does not read its answers loses them."""
        with contextlib.suppress(OSError):
            self.connection.send(wire.frame(word))

    def close(self) -> None:
        self.take_page(close=True)
        self.connection.close()
