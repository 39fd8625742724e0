"""One TCP connection of an event loop: a socket that never blocks, and the channel over it."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.host import Ready
from holdfast.runtime.net.channel import Channel
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.secrets import Shelter

KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
"""A peer that lost its power says no goodbye: its descriptor comes back after 40 s."""

AGAIN = ((16, 1), (44, 1000))
"""TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS (Linux 2.6.34 and 6.15, linux/tcp.h). Over a link that says a word a second TCP
notices a loss by its clock alone, and doubles its patience each time: 0.2, 0.6, 1.4, 3.0 s, so that an interface that was down
for half a lease would cost the lease. With these it tries six times at even intervals, and then once a second at least."""


PAUSE_BYTES = 1 << 20
"""Who came to us, and leaves so much of what we say unread, is not heard meanwhile: it might ask for more and more."""


class Wire(Channel):
    """One connection, which is a channel too: one place in memory for each of thousands, not three."""

    __slots__ = (
        "_events",
        "_handler",
        "_watched_by",
        "closing",
        "connecting",
        "leaving",
        "link",
        "owes",
        "peer",
        "sock",
        "until",
    )

    def __init__(
        self,
        sock: socket.socket,
        link: int,
        identity: Identity,
        shelter: Shelter | None,
        *,
        ours: bool,
        until: float,
        peer: str,
    ) -> None:
        """`until`: when it must be proven."""
        super().__init__(identity, shelter, ours=ours)
        self.sock = sock
        self.link = link
        self.peer = peer
        self.until = until  # When it must be proven, or have said what it owes, or be gone after our goodbye.
        self.connecting = ours
        self.leaving = False  # It is to be hung up once we have proved who we were.
        self.closing = False  # We have said goodbye.
        self.owes = False  # A guest: its first word, or the rest of one.
        self._events = select.EPOLLIN | (select.EPOLLOUT if ours else 0)
        self._watched_by: Ready
        self._handler: Callable[[int], list[Observation]]
        _keep_alive(sock)

    @property
    def is_stranger(self) -> bool:
        """Somebody who came to us and has proved nothing."""
        return not self.ours and not self.is_proven

    @property
    def weight(self) -> int:
        """Bytes that are held for it: of a message that has not come whole, and of those that it leaves unread."""
        return self.held + len(self.unsent)

    def owe(self, until: float) -> None:
        """Its first word, or the rest of one, is due by then; NEVER: it owes nothing."""
        self.owes, self.until = until != NEVER, until

    def watch(self, where: Ready, handler: Callable[[int], list[Observation]]) -> None:
        """Have `handler` called, by `where`, whenever there is something to read or room to write."""
        self._watched_by, self._handler = where, handler
        where.watch(self.sock.fileno(), self._events, handler)

    def move(self, where: Ready) -> None:
        """Be watched by another from now on."""
        self._watched_by.unwatch(self.sock.fileno())
        self.watch(where, self._handler)

    def is_watched_by(self, where: Ready) -> bool:
        """Whether `where` calls the handler."""
        return self._watched_by is where

    def connected(self) -> str:
        """The attempt to connect has come to an end: why it failed; empty: it has not."""
        if self.connecting and (code := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            return os.strerror(code)
        self.connecting = False
        return ""

    def leave(self) -> None:
        """Hang up once we are proven: before that, the other side would take us for a stranger."""
        self.leaving = True

    def say_goodbye(self, until: float) -> None:
        """Say no more: the other side has until then to hear the rest and close."""
        self.closing, self.until = True, until
        self.flush()

    def flush(self) -> str:
        """Send what the kernel takes now: why nothing more can be sent; empty: it can."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
            if self.closing and not self.unsent:
                self.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError as error:
            return error.strerror or "broken"
        listens = self.ours or len(self.unsent) < PAUSE_BYTES
        events = (select.EPOLLIN if listens else 0) | (select.EPOLLOUT if self.unsent else 0)
        if events != self._events:
            self._events = events
            self._watched_by.rewatch(self.sock.fileno(), events)
        return ""

    def close(self) -> None:
        """Give the descriptor back, and the memory: the handler is a circle, and the agent collects none for long."""
        self._watched_by.unwatch(self.sock.fileno())
        self.sock.close()
        self._handler = _deaf


def _deaf(events: int) -> list[Observation]:
    return []


def _keep_alive(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (*KEEPALIVE, *AGAIN):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        pass  # it is gone already, or the kernel has no such option: neither is worth more than being slower
