"""A slow cable: every frame that comes in at one interface goes out at the other so many seconds later, and the same back.

    python relay.py ONE OTHER SECONDS        runs until it is killed; prints `ready` once it is

A veth leaves checksums, and the cutting of large segments, to hardware that is not there. So each frame is taken with the
kernel's header about what is still to be done to it, and handed on with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR = 263, 15  # linux/if_packet.h


def cable(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.bind((interface, 0))
    sock.setblocking(False)
    return sock


def main(one: str, other: str, seconds: float) -> None:
    ends = cable(one), cable(other)
    across = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    """(when, where to, what): all wait equally long, so the first in is the first out."""
    os.write(1, b"ready\n")
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(ends, [], [], patience)
        now = time.monotonic()
        for sock in readable:
            frame, address = sock.recvfrom(1 << 17)
            if address[2] != socket.PACKET_OUTGOING:  # what we have sent ourselves
                waiting.append((now + seconds, across[sock], frame))
        while waiting and waiting[0][0] <= now:
            _, sock, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # its interface is down: so is the cable
                sock.send(frame)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
