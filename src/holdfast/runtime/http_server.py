"""A small HTTP server of threads that answers in JSON. Nobody can use up its threads, its descriptors or its time.

A client that sends no whole request costs a thread for `REQUEST_S`. Who gives way when all places are taken says
`runtime.net.admission`; a guest proves itself by a whole request. A normal one arrives whole at once, so it is answered.
"""

from __future__ import annotations

import json
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.runtime.net.addresses import origin
from holdfast.runtime.net.admission import NO_ROOM, Admission, Limits, dismiss, last_descriptor, turn_away

REQUEST_S = 5.0
"""How long a client may take to send its request, head and body."""


class BoundedHttpServer(ThreadingHTTPServer):
    """Serves at most `most` clients at a time."""

    daemon_threads = True
    block_on_close = False  # a silent client must not hold anybody up at the end
    request_queue_size = 512
    """Connections that wait to be taken. With socketserver's 5, the kernel drops most of a crowd, and each of them asks again
    after 1, 3, 7 s."""

    def __init__(self, address: tuple[str, int], handler: type[JsonHandler], *, most: int) -> None:
        """OSError: it cannot listen there."""
        self.guests: Admission[socket.socket] = Admission(Limits(unproved=most, in_all=most))
        self._reserve = last_descriptor()
        super().__init__(address, handler)
        self.socket.setblocking(False)

    def arrived(self, connection: socket.socket) -> None:
        """Its request is here: it keeps its place until it is answered, unless its origin has more than others."""
        self.guests.prove(connection)
        self.guests.speak(connection)

    # --- called by socketserver -----------------------------------------------------------------------------------------

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._reserve = turn_away(self.socket, self._reserve)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        whose = origin(request, str(client_address[0]))
        gone: Any = self.guests.enter(request, whose, time.monotonic(), request.fileno())
        if gone is request:
            request.close()
            return
        if gone is not None:
            dismiss(gone)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        for connection in self.guests.late(time.monotonic() - REQUEST_S):
            dismiss(connection)

    def shutdown_request(self, request: Any) -> None:
        self.guests.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone, or no thread for one: nobody needs to hear of that."""


class JsonHandler(BaseHTTPRequestHandler):
    """One request. A class of its own answers it, by `reply`."""

    server: BoundedHttpServer
    timeout = REQUEST_S

    def parse_request(self) -> bool:
        is_one = super().parse_request()
        if is_one and self.command != "POST":
            self.server.arrived(self.connection)
        return is_one

    def body(self, most: int) -> bytes | None:
        """What was sent. None: it is longer than `most` bytes, or the request does not say how long."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > most:
            return None
        body = self.rfile.read(int(length))
        self.server.arrived(self.connection)
        return body

    def reply(self, status: int, said: Any) -> None:
        """Answer."""
        body = json.dumps(said, default=str).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: clients ask every few seconds."""
