"""How do the lines of this node's ranks get to the coordinator's node, and what if they cannot?

A thread for each cycle (`agent.logs.app_log`) reads the ranks' own files and gives the lines to a `LogSender`, which stands
where a file would. It sends them in pieces (`agent.logs.receiver`), each once the one before it is in the file there, and reads
no more meanwhile: what waits, waits on this node's disk, and not in memory.

Where the coordinator's node is out of reach, it tries again every few seconds, and at once where the coordinator has moved.
What has not been taken `patience_s` after the ranks' end, or at the job's end, goes to a file of the same name on this node.
"""

from __future__ import annotations

import os
import socket
import time
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress

from holdfast.agent.logs.nonblocking_writer import Console, open_log
from holdfast.core.errors import HoldfastError
from holdfast.core.machine import NEVER
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.blocking_link import BlockingLink
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.secrets import Shelter

PIECE_BYTES, BATCH_S = 1 << 18, 0.5
"""A piece is sent when it is so large, or waits for so long. ft_launcher: 256 KiB, 1 s. A thousand nodes that all say a little
are two thousand pieces in a second for the one that takes them."""
CONNECT_S, ANSWER_S, AGAIN_S = 5.0, 10.0, 5.0
"""Seconds for a connection, for an answer, and until the next attempt after either has failed."""


class Upstream:
    """Where this node's lines go: the same for all of its logs, and another place when the coordinator has moved."""

    def __init__(
        self,
        identity: Identity,
        shelter: Shelter | None,
        own: str,
        patience_s: float,
        *,
        node: str = "",
        again_s: float = AGAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity, self.shelter, self.clock = identity, shelter, clock
        self.own, self.node = own, node  # Where this agent takes lines itself, and its node's id, which the coordinator knows.
        self.patience_s, self.again_s = patience_s, again_s
        self.at = ""  # Empty: nowhere, the coordinator's node takes none.
        self.is_over = False  # The job has ended.
        self.named: set[str] = set()  # Addresses that take none, as the user was told.

    @property
    def is_here(self) -> bool:
        """There is nobody to send them to."""
        return self.at in ("", self.own)

    def moves_to(self, at: str) -> None:
        self.at = at

    def end(self) -> None:
        """The job has ended: nobody comes back."""
        self.is_over = True


class LogSender:
    """What `agent.logs.nonblocking_writer.Console` is to a file. Used by one thread, but for `cut`."""

    def __init__(self, upstream: Upstream, cycle: int, path: str, tell: Callable[[str], None]) -> None:
        """`path`: the file here, for what is not taken there. `tell` is called by the thread."""
        self.upstream, self.cycle, self.path, self.tell, self.clock = upstream, cycle, path, tell, upstream.clock
        self.stream = os.urandom(8).hex()
        self.number = 0  # So many pieces have been taken.
        self.piece = b""  # The one that is under way: the same however often it is tried, for half of it may be there already.
        self.held = bytearray()  # What comes after it.
        self.since = NEVER  # When the first of those came.
        self.gone = False
        self.trouble = ""  # As a console's: what goes to the file here goes nowhere.
        self.local: Console | None = None  # The file here. None: all goes to the other side.
        self.link: BlockingLink | None = None
        self.sock: socket.socket | None = None  # That of the link, or of the one that is being made.
        self.tried, self.not_before = "", -NEVER  # Where it was tried in vain, and when it is tried there again.
        self.give_up_at = NEVER  # Known since the ranks' end; infinity: they run.
        self.is_cut = False
        self.never = allocate_lock()
        self.never.acquire()

    # --- as a console ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """True while no more is to be read."""
        if self.local is not None:
            return self.local.pending
        return bool(self.piece) or len(self.held) >= PIECE_BYTES or (self.is_ending and bool(self.held))

    def write(self, text: bytes) -> None:
        """Take whole lines."""
        if self.local is not None:
            self.local.write(text)
        else:
            self.since = min(self.since, self.clock())
            self.held += text
            self.flush()

    def flush(self) -> bool:
        """Send what is due, as long as it is taken. True: nothing is left."""
        while self.local is None and self._is_due():
            self._attempt(self._send)
        if self.local is None and (self.is_cut or self.clock() >= self.give_up_at) and (self.piece or self.held):
            self._keep_here()
        if self.local is not None:
            done = self.local.flush()
            self.gone, self.trouble = self.local.gone, self.local.trouble
            return done
        return not self.piece and not self.held

    def ready(self, timeout_s: float) -> bool:
        """Wait for so long, before it is asked again whether more goes."""
        if self.local is not None:
            return self.local.ready(timeout_s)
        self.never.acquire(timeout=timeout_s)
        return not self.pending

    def close(self) -> None:
        """No more comes: send the rest, or keep it here."""
        self.give_up_at = -NEVER
        self.flush()
        if self.link is not None and self.local is None:
            with suppress(OSError, HoldfastError, ValueError):
                self.link.send(self.number.to_bytes(8, "big"))
                self.link.heard(self.clock() + ANSWER_S)
        self._unlink()
        if self.local is not None:
            self.local.close()

    # --- its life -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first line: let the other side know that some may come."""
        self._attempt(self._connect)

    def _attempt(self, what: Callable[[], object]) -> None:
        try:
            what()
        except (OSError, HoldfastError, ValueError, KeyError, TypeError) as error:
            self._failed(error)

    @property
    def is_ending(self) -> bool:
        """The ranks have ended: nothing waits for more."""
        return self.give_up_at != NEVER

    def end(self) -> None:
        """The ranks have ended."""
        self.give_up_at = self.clock() + self.upstream.patience_s

    def cut(self) -> None:
        """From another thread: wait for the other side no more."""
        self.is_cut = True
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    # --- the link -------------------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        if self.is_cut or not (self.piece or self.held):
            return False
        now = self.clock()
        if not self.piece and len(self.held) < PIECE_BYTES and not self.is_ending and now < self.since + BATCH_S:
            return False
        # At the job's end there is one more try, and no time to wait for another.
        return now >= self.not_before or self.tried != self.upstream.at or self.upstream.is_over

    def _send(self) -> None:
        if not self.piece:
            end = self.held.rfind(b"\n", 0, PIECE_BYTES) + 1 or self.held.find(b"\n") + 1
            self.piece = bytes(self.held[:end])
            del self.held[:end]
            self.since = self.clock() if self.held else NEVER
        link = self.link or self._connect()
        if self.piece:
            link.send(self.number.to_bytes(8, "big") + self.piece)
            self._taken(link.heard(self.clock() + ANSWER_S))

    def _connect(self) -> BlockingLink:
        """A link over which the next piece is to be sent, unless the other side has it: then it is under way no more."""
        upstream = self.upstream
        if upstream.is_here:
            raise ConnectionRefusedError(None, "the coordinator is on this node, or its node takes no lines")
        self.tried = upstream.at
        self.sock = socket.create_connection(host_and_port(self.tried), timeout=CONNECT_S)
        if self.is_cut:  # who cuts may not have seen it
            raise ConnectionAbortedError(None, "the job has ended")
        link = BlockingLink(self.sock, upstream.identity, upstream.shelter, ours=True)
        link.say({"cycle": self.cycle, "stream": self.stream, "at": self.number, "node": upstream.node})
        answer = link.heard(self.clock() + ANSWER_S)
        if answer["have"] != self.number:
            self._taken(answer)
        self.link, self.not_before = link, -NEVER
        return link

    def _taken(self, answer: dict[str, object]) -> None:
        if "no" in answer:
            raise OSError(None, str(answer["no"])[:300])
        if answer["have"] != self.number + 1 or not self.piece:
            raise ValueError(f"it has {answer['have']} pieces, after {self.number}")
        self.number, self.piece = self.number + 1, b""

    def _unlink(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = self.link = None

    def _failed(self, error: Exception) -> None:
        self._unlink()
        self.not_before = self.clock() + self.upstream.again_s
        if self.upstream.is_here:
            return self._keep_here()
        if self.is_cut:
            return None
        if self.tried not in self.upstream.named:
            self.upstream.named.add(self.tried)
            why = error.what if isinstance(error, HoldfastError) else getattr(error, "strerror", None) or str(error)
            self.tell(f"cannot send lines of this node's ranks to {self.tried} for now ({why}); the ranks' own files have them")
        if self.upstream.is_over:
            self._keep_here()
        return None

    def _keep_here(self) -> None:
        """What nobody has taken, and what may come, goes to the file here."""
        try:
            fd = open_log(self.path)
        except OSError as error:
            self.gone, self.trouble = True, error.strerror or str(error)
            self.piece, self.held = b"", bytearray()
            return
        self._unlink()
        self.tell(f"lines of this node's ranks that could not be sent are in {self.path} on this node")
        self.local = Console(fd)
        os.close(fd)
        self.local.write(self.piece + self.held)
        self.piece, self.held = b"", bytearray()
