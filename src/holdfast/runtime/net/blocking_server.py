"""How does an agent take links that no event loop serves? Each by a thread of its own, which waits for what comes.

For what may be large or slow, and must not stand before a lease's renewal, as states (`agent.states.state_replication`). The
links are as all others (`runtime.net.blocking_link`). A stranger costs a thread until its time for the proof is over, and a
line.
"""

from __future__ import annotations

import socket
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from errno import EAGAIN

from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import ProtocolError
from holdfast.core.machine import Observation
from holdfast.runtime.net.addresses import bind_addresses, looked_up, origin
from holdfast.runtime.net.admission import NO_ROOM, Admission, Limits, RejectionLog, dismiss
from holdfast.runtime.net.blocking_link import BlockingLink, InTurn, Turn
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.wire import KEEPALIVE
from holdfast.runtime.secrets import Shelter

BACKLOG = 512  # Links that wait to be taken.
REST_S = 0.5  # How long no link is taken when there is no descriptor for one.
UNPROVED = 64  # Links that have proved nothing: each has a thread.


class Visit:
    """What the admission is told of one link's frames."""

    def __init__(self, guests: Admission[socket.socket], guest: socket.socket) -> None:
        self.guests, self.guest = guests, guest

    def holds(self, size: int) -> None:
        """See `Place`."""
        for gone in self.guests.hold(self.guest, size):
            dismiss(gone)

    def speaks(self) -> None:
        """See `Place`."""
        self.guests.speak(self.guest)


class BlockingServer:
    """Listens at `address` for the life of the process, and serves links (`serve`) as a part of the agent. OSError: it
    cannot."""

    def __init__(
        self,
        identity: Identity,
        shelter: Shelter | None,
        addr: str,
        port: int,
        *,
        most: int,
        largest: int,
        tell: Callable[[str], None],
        turn: Turn | None = None,
    ) -> None:
        """`addr`: this host's. `port`: 0 for any. `most`: links at a time. `largest`: frame, in bytes. `tell` tells a person,
        from the agent's thread (`due`). `turn`: of the links' threads; None: they are few."""
        self.identity, self.shelter = identity, shelter
        self.largest, self.tell, self.turn = largest, tell, turn
        self.guests: Admission[socket.socket] = Admission(Limits(unproved=UNPROVED, in_all=most))
        self.complaints: list[str] = []  # What the threads want said.
        self.rejections = RejectionLog(self.complaints.append)
        family, address = bind_addresses(addr, port, looked_up(addr, port))[0]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if port:  # else it might be one that an agent only holds (`runtime.net.ports`)
                self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind(address)
            self.listener.listen(BACKLOG)
        except OSError:
            self.listener.close()
            raise
        self.address = shown_endpoint(addr, self.listener.getsockname()[1])
        try:
            start_new_thread(self._listen, ())
        except RuntimeError as error:  # as many as are allowed are there
            self.listener.close()
            raise OSError(EAGAIN, str(error)) from error

    def serve(self, link: BlockingLink) -> None:
        """Talk to a peer that has proved itself, until one of the two wants no more. Called by the link's own thread. The first
        word is due within `HANDSHAKE_S`."""
        raise NotImplementedError

    def deadline(self) -> float:
        """What the threads want said can wait until the loop wakes up; how many more were turned away, until it is time."""
        return self.rejections.tell_at

    def due(self) -> list[Observation]:
        """Say it: nothing for the group."""
        self.rejections.due(time.monotonic())
        while self.complaints:
            self.tell(self.complaints.pop(0))
        return []

    # --- the threads ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        never = allocate_lock()
        never.acquire()
        while True:
            try:
                sock, address = self.listener.accept()
            except OSError as error:
                if error.errno in NO_ROOM:
                    never.acquire(timeout=REST_S)
                continue
            peer = str(address[0])
            gone = self.guests.enter(sock, origin(sock, peer), time.monotonic(), sock.fileno())
            if gone is sock:
                sock.close()
                continue
            if gone is not None:
                dismiss(gone)
            try:
                start_new_thread(self._take_in, (sock, peer))
            except (RuntimeError, MemoryError):  # no thread is left
                self._close(sock)

    def _take_in(self, sock: socket.socket, peer: str) -> None:
        if self.turn is not None:
            with self.turn.lock:
                return self._talk(sock, InTurn(sock, self.turn), peer)
        return self._talk(sock, sock, peer)

    def _talk(self, guest: socket.socket, sock: socket.socket | InTurn, peer: str) -> None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            link = BlockingLink(sock, self.identity, self.shelter, ours=False, place=Visit(self.guests, guest))
            link.channel.allow(self.largest)
            self.guests.prove(guest)
            self.serve(link)
        except ProtocolError as error:
            self.rejections.note(peer, f"turned away a connection from {peer}: {error.what}", time.monotonic())
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError):
            pass  # it is gone, or means something else: the other side tells
        finally:
            self._close(guest)

    def _close(self, guest: socket.socket) -> None:
        self.guests.leave(guest)
        guest.close()
