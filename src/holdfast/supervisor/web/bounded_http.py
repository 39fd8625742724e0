"""HTTP with a time limit for each request; nobody keeps others out by opening connections.

A connection that waits for the rest of its request costs a descriptor. Who gives way when there are too many says
`runtime.net.admission`. A normal request arrives whole at once, so it is answered however many connections others hold.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.runtime.net.addresses import origin
from holdfast.runtime.net.admission import Admission, Limits

REQUEST_S = 10.0
"""How long a client may take to send a request, head and body."""

MOST_WAITING, MOST_CONNECTIONS = 256, 1000
"""Connections that may wait for the rest of a request, or for its beginning; and in all."""


class BoundedProtocol(H11Protocol):
    """One connection. `guests` are all connections of one server: each proves itself by a whole request."""

    guests: Admission[BoundedProtocol]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        sock = transport.get_extra_info("socket")
        whose = origin(sock, self.client[0] if self.client else "")
        if gone := self.guests.enter(self, whose, self.loop.time(), sock.fileno()):
            gone.give_up()

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
        self.guests.leave(self)

    def give_up(self) -> None:
        """Close the connection: its request does not come."""
        self._arrived()
        self.guests.leave(self)
        self.transport.abort()

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(REQUEST_S, self.give_up)

    def _arrived(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
            self.guests.prove(self)


def protocol() -> type[BoundedProtocol]:
    """The protocol for one server."""
    limits = Limits(unproved=MOST_WAITING, in_all=MOST_CONNECTIONS)
    return type("OneServersProtocol", (BoundedProtocol,), {"guests": Admission(limits)})
