"""HTTP with a time limit for each request; nobody keeps others out by opening connections.

A connection that waits for the rest of its request costs a descriptor. When too many wait, the oldest one of the address with
the most gives way. A normal request arrives whole at once, so it is answered however many connections others hold.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""How long a client may take to send a request, head and body."""

MOST_WAITING = 256
"""Connections that may wait for the rest of a request, or for its beginning."""


class BoundedProtocol(H11Protocol):
    """One connection. `waiting` is what all connections of one server share."""

    waiting: dict[BoundedProtocol, str]
    """The connections whose request has not arrived whole, oldest first → the client's address."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.waiting) > MOST_WAITING:
            (address, _), *_ = Counter(self.waiting.values()).most_common(1)
            next(one for one, whose in self.waiting.items() if whose == address).give_up()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0]):
            self._wait()
        elif state is not h11.IDLE:
            self._arrived()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._arrived()  # uvicorn closes a connection that sends no further request

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._arrived()

    def give_up(self) -> None:
        """Close the connection: its request does not come."""
        self._arrived()
        self.transport.abort()

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(REQUEST_S, self.give_up)
            self.waiting[self] = self.client[0] if self.client else ""

    def _arrived(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
            del self.waiting[self]


def protocol() -> type[BoundedProtocol]:
    """The protocol for one server."""
    return type("OneServersProtocol", (BoundedProtocol,), {"waiting": {}})
