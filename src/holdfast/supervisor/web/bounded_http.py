"""HTTP with a time limit for each request; nobody keeps others out by opening connections.

A connection that waits for the rest of its request, or of TLS's handshake, costs a descriptor. Who gives way when there are too
many says `runtime.net.admission`. A normal request arrives whole at once, so it is answered however many connections others
hold.
"""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from ssl import SSLContext
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.runtime.net.addresses import origin
from holdfast.runtime.net.admission import Admission, Limits

REQUEST_S = 10.0
"""How long a client may take to send a request, head and body; the first includes TLS's handshake."""

MOST_WAITING, MOST_CONNECTIONS = 256, 1000
"""Connections that may wait for the rest of a request, or for its beginning; and in all."""


class BoundedProtocol(H11Protocol):
    """One connection. `guests` are all connections of one server: each proves itself by a whole request. `context`: of TLS. It
    begins here, since asyncio would tell of no connection before the handshake is done. None: no TLS."""

    guests: Admission[BoundedProtocol]
    context: SSLContext | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if transport.get_extra_info("sslcontext") is None:
            self._enter(transport)
        if self.context is None or transport.get_extra_info("sslcontext") is not None:
            super().connection_made(transport)
        else:
            tunnel = Tunnel(self, self.context)
            transport.set_protocol(tunnel)
            tunnel.connection_made(transport)

    def _enter(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._wait()
        sock, address = transport.get_extra_info("socket"), transport.get_extra_info("peername")
        whose = origin(sock, str(address[0]) if address else "")
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
        self.leave()

    def leave(self) -> None:
        """It is gone, or going."""
        self._arrived()
        self.guests.leave(self)

    def give_up(self) -> None:
        """Close the connection: its request does not come."""
        self.leave()
        self.transport.abort()

    def _wait(self) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(REQUEST_S, self.give_up)

    def _arrived(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
            self.guests.prove(self)


class Tunnel(SSLProtocol):
    """TLS of one connection, which hears of its end also where the handshake has come to none."""

    def __init__(self, guest: BoundedProtocol, context: SSLContext) -> None:
        waiter: Any = None  # nobody waits for the handshake
        super().__init__(guest.loop, guest, context, waiter, server_side=True, ssl_handshake_timeout=int(REQUEST_S))
        self.guest = guest

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.guest.leave()


def protocol(context: SSLContext | None) -> type[BoundedProtocol]:
    """The protocol for one server."""
    limits = Limits(unproved=MOST_WAITING, in_all=MOST_CONNECTIONS)
    return type("OneServersProtocol", (BoundedProtocol,), {"guests": Admission(limits), "context": context})
