"""Hostile connections, so many a second, from eight addresses: `attacker.py PORT PER_S`. Says so after half a second of them.

They are silent, send noise, HTTP, a part of a TLS hello, or our own first frame in plain text. Each stays until it is closed
by the other side, or two thousand later ones have come.
"""

import socket
import sys
import time
from collections import deque

ADDRESSES = [f"127.0.0.{last}" for last in range(2, 10)]
PLAIN = b'{"holdfast": 6, "nonce": "' + b"ab" * 16 + b'"}'
WORDS = (
    b"",
    b"\x00\xff" * 100,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    len(PLAIN).to_bytes(4, "big") + PLAIN,
)


def main(port: int, per_s: int) -> None:
    while socket.socket().connect_ex(("127.0.0.1", port)):
        time.sleep(0.01)  # it is about to listen
    open_ones: deque[socket.socket] = deque()
    begun, made, is_said = time.monotonic(), 0, False
    while True:
        due = int((time.monotonic() - begun) * per_s)
        while made < due:
            made += 1
            sock = socket.socket()
            try:
                sock.bind((ADDRESSES[made % len(ADDRESSES)], 0))
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", port))
                open_ones.append(sock)
                if made > 1 and (word := WORDS[made % len(WORDS)]):
                    sock.send(word)
            except OSError:
                pass  # refused, or closed at once: what it is there for
            if len(open_ones) > 2000:
                open_ones.popleft().close()
        if made >= per_s / 2 and not is_said:
            is_said = True
            print("at that pace", flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
