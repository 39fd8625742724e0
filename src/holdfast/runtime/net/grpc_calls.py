"""How is a gRPC service called with nothing but the standard library? What one connection has to write and to read, as bytes.

Small unary calls from and to loopback: HTTP/2 by prior knowledge (RFC 9113), headers as literals (RFC 7541, 6.2.2). Replies'
headers are not decoded: that a call has succeeded is seen from the message that came before its end, which gRPC promises for
status 0 and no server does for another. So there is neither Huffman coding nor a table to keep.

`Calls` has no socket and no clock; who holds both is `host_reports`.
"""

from __future__ import annotations

import struct

from holdfast.core.errors import ProtocolError

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_TABLE, NO_PUSH = struct.pack("!HI", 0x1, 0), struct.pack("!HI", 0x2, 0)
MOST_FRAME = 16_384  # Bytes of a frame, as long as neither side has said otherwise; we never do.
WINDOW = 65_535  # Bytes that may be on their way at first, by the connection.
LAST_STREAM = 1 << 30  # Then another connection is due: numbers of streams end at 2³¹.


class Calls:
    """One connection, our side. Send what is in `out`, clear it, and show `receive` whatever comes."""

    def __init__(self, authority: str, deadline: str = "") -> None:
        """`authority`: `host:port`; `deadline`: as gRPC writes one (`2S`), told with each call."""
        self.out = bytearray(PREFACE + _frame(SETTINGS, 0, 0, NO_TABLE + NO_PUSH))
        self.window = WINDOW  # Bytes that the peer still takes.
        self._authority, self._deadline = authority, deadline
        self._next = 1
        self._has_left = False
        self._answered: set[int] = set()  # Open calls to which a message has come.
        self._blocks: dict[str, bytes] = {}
        self._read = bytearray()

    @property
    def is_over(self) -> bool:
        """Another call needs another connection."""
        return self._has_left or self._next > LAST_STREAM or self.window < MOST_FRAME

    def call(self, path: str, message: bytes) -> int:
        """Write a call of `path` (`/service/Method`); its number."""
        stream, self._next = self._next, self._next + 2
        body = struct.pack("!BI", 0, len(message)) + message
        self.out += _frame(HEADERS, END_HEADERS, stream, self._headers(path))
        for at in range(0, len(body), MOST_FRAME):
            end = END_STREAM if at + MOST_FRAME >= len(body) else 0
            self.out += _frame(DATA, end, stream, body[at : at + MOST_FRAME])
        self.window -= len(body)
        return stream

    def goodbye(self) -> None:
        """Write that no more calls will come."""
        self.out += _frame(GOAWAY, 0, 0, bytes(8))

    def receive(self, data: bytes) -> list[tuple[int, bool]]:
        """Calls that are over with this: number, and whether each has succeeded. ProtocolError: this is no HTTP/2."""
        self._read += data
        over, at = [], 0
        while len(self._read) - at >= 9:
            high, low, kind, flags, stream = struct.unpack_from("!BHBBI", self._read, at)
            length = high << 16 | low
            if length > MOST_FRAME:
                raise ProtocolError(f"a frame of {length} bytes: the peer does not speak valid HTTP/2")
            if len(self._read) - at < 9 + length:
                break
            payload = bytes(self._read[at + 9 : at + 9 + length])
            at += 9 + length
            if (ended := self._take(kind, flags, stream & 0x7FFFFFFF, payload)) is not None:
                over.append(ended)
        del self._read[:at]
        return over

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> tuple[int, bool] | None:
        if kind == SETTINGS and not flags & ACK:
            self.out += _frame(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self.out += _frame(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE and stream == 0 and len(payload) == 4:
            self.window += int.from_bytes(payload, "big") & 0x7FFFFFFF
        elif kind == GOAWAY:
            self._has_left = True
        elif kind == DATA and payload:
            self._answered.add(stream)
            self.out += _frame(WINDOW_UPDATE, 0, 0, len(payload).to_bytes(4, "big"))
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            succeeded = stream in self._answered and kind != RST_STREAM
            self._answered.discard(stream)
            return stream, succeeded
        return None

    def _headers(self, path: str) -> bytes:
        if (block := self._blocks.get(path)) is None:
            pairs = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "holdfast"),
            ]
            pairs += [("grpc-timeout", self._deadline)] if self._deadline else []
            block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in pairs)
            self._blocks[path] = block
        return block


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload)
    return struct.pack("!BHBBI", length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    """A string as it is: its length in 7 bits, with more bytes where those do not do."""
    data = text.encode("ascii")
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    prefix, length = bytearray((127,)), length - 127
    while length > 127:
        prefix.append(length & 127 | 128)
        length >>= 7
    return bytes((*prefix, length)) + data
