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
from holdfast.runtime.net.addresses import bind_addresses, looked_up
from holdfast.runtime.net.blocking_link import BlockingLink, InTurn, Turn
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.unauthenticated import RejectionLog
from holdfast.runtime.net.wire import KEEPALIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Shelter  # `ssl` is heavy, and most jobs use none

REST_S = 5.0  # How long no link is taken when there is no room for one.


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
        tell: Callable[[str], None],
        turn: Turn | None = None,
    ) -> None:
        """`addr`: this host's. `port`: 0 for any. `most`: links at a time. `tell` tells a person, from the agent's thread
        (`due`). `turn`: of the links' threads; None: they are few."""
        self.identity, self.shelter = identity, shelter
        self.most, self.tell, self.turn = most, tell, turn
        self.links = 0
        self.complaints: list[str] = []  # What the threads want said.
        self.rejections = RejectionLog(self.complaints.append)
        family, address = bind_addresses(addr, port, looked_up(addr, port))[0]
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            if port:  # else it might be one that an agent only holds (`runtime.net.ports`)
                self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind(address)
            self.listener.listen(most)
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
        """Talk to a peer that has proved itself, until one of the two wants no more. Called by the link's own thread."""
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
            except OSError:
                never.acquire(timeout=REST_S)  # no descriptor is left, for example
                continue
            if self.links >= self.most:
                sock.close()
                continue
            self.links += 1
            try:
                start_new_thread(self._take_in, (sock, str(address[0])))
            except RuntimeError:  # no thread is left
                self.links -= 1
                sock.close()

    def _take_in(self, sock: socket.socket, peer: str) -> None:
        if self.turn is not None:
            with self.turn.lock:
                return self._talk(InTurn(sock, self.turn), peer)
        return self._talk(sock, peer)

    def _talk(self, sock: socket.socket | InTurn, peer: str) -> None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            self.serve(BlockingLink(sock, self.identity, self.shelter, ours=False))
        except ProtocolError as error:
            self.rejections.note(peer, f"turned away a connection from {peer}: {error.what}", time.monotonic())
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it is gone, or means something else: the other side tells
        finally:
            self.links -= 1
            sock.close()
