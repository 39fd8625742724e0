"""How do the lines of other nodes' ranks get into the log here? Over links of their own, with a thread for each.

A link brings the lines of one node and cycle (`agent.logs.sender`). A piece is answered once it is in the file:

    {"cycle": N, "stream": NAME, "at": NUMBER,        {"have": NUMBER}
     "node": ID}
    NUMBER, 8 bytes; whole lines                      {"have": NUMBER + 1} · {"no": why}
    NUMBER, 8 bytes; nothing: that was all            {"have": NUMBER}

A stream outlives its links: a piece whose answer was lost is not written twice. The sender names a cycle and never a path:
only the files of this agent's own prefix are written. A node's id is known to the coordinator and itself: who says one that has
a place in the job may have output of its ranks for as long as they have, and the job's end waits for it.
"""

from __future__ import annotations

import os
import time
from _queue import Empty, SimpleQueue
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from errno import EADDRINUSE
from functools import partial

from holdfast.agent.component import Component
from holdfast.agent.group.messages import LogsTaken
from holdfast.agent.logs.app_log import LOOK_S
from holdfast.agent.logs.nonblocking_writer import open_log
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.errors import UsageError
from holdfast.core.job.cycles import cycle_of, log_path
from holdfast.core.machine import NEVER, Observation
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.runtime.net.blocking_link import HANDSHAKE_S, BlockingLink, Turn
from holdfast.runtime.net.blocking_server import BlockingServer
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.secrets import Shelter

PIECE_BYTES = 1 << 20
"""The largest piece. A line has 128 KiB at most, five times as much where each byte of it is shown as <NUL>."""
MOST_LINKS, LINKS, LINKS_PER_NODE = 8192, 32, 4
"""At a time: a node has one, and for a while after a restart another. Each has a thread, of which a container may have few."""
FILES_PER_NODE = 3  # Its link to the coordinator, the one that brings its lines, and the file that they go to.
MOST_STREAMS, NAME_CHARS, NODE_CHARS = 4 * MOST_LINKS, 64, 255  # That are remembered, the newest; and of their names.
DISK_S = 5.0  # How long a piece waits for the one before it, over an older link, until its sender is told to try again.
BEGIN_S = 5.0
"""How long after the job's end to wait for a node that has not connected at all. It tries as its ranks start, so it has failed
by then, and keeps its lines."""
SILENT_S = 5.0
"""How long after the last piece the job's end waits for whom the coordinator does not know by its id: it may be anybody with
the token. A node sends what it has at once, and keeps what is not taken."""
IDLE_S = 1e6  # How long ranks may say nothing: as long as the job. Keep-alive finds a dead link.


class Stream:
    """The lines of one node in one cycle."""

    def __init__(self, path: str, cycle: int, have: int, node: str) -> None:
        self.path, self.cycle, self.node = path, cycle, node
        self.have = have  # So many pieces are in the file.
        self.written = 0  # And so many bytes of the next: a disk that was full took no more.
        self.links = 0  # Over which it comes at present: one, or a dead one too.
        self.heard_at = -NEVER  # When a link or a piece came last.
        self.lock = allocate_lock()  # Over what has been written.

    def link_up(self, at: int, now: float) -> None:
        """Another link brings it, from piece `at` on: where that is further than here, others have taken what came between."""
        if at > self.have:
            self.have, self.written = at, 0
        self.links += 1
        self.heard(now)

    def heard(self, now: float) -> None:
        self.heard_at = now

    def link_down(self) -> None:
        self.links -= 1

    def append(self, fd: int, number: int, lines: bytes) -> dict[str, object]:
        """Write a piece, unless it has been written; the answer. OSError: the file does not take it."""
        if not self.lock.acquire(timeout=DISK_S):
            return {"no": "its disk accepts no writes"}
        try:
            if number == self.have:
                while self.written < len(lines):
                    self.written += os.write(fd, lines[self.written :])
                self.have, self.written = number + 1, 0
            return {"have": self.have}
        finally:
            self.lock.release()


class LogReceiver(BlockingServer, Component):
    """Takes lines from every node that connects."""

    turn: Turn  # There is a thread for each node, and all have something to do when the ranks end.

    def __init__(
        self,
        identity: Identity,
        shelter: Shelter | None,
        addr: str,
        port: int,
        *,
        prefix: str,
        nodes: int,
        patience_s: float,
        tell: Callable[[str], None],
        newest_round: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nodes`: at most, in the job. `patience_s`: see `finish`. `newest_round`: that this node knows of; any thread may
        ask. A log is begun for no cycle that has not begun."""
        self.newest_round, self.prefix, self.patience_s, self.clock = newest_round, prefix, patience_s, clock
        self.streams: dict[str, Stream] = {}
        self.begun: dict[int, int] = {}  # How many streams each cycle has had.
        self.lock = allocate_lock()  # Over both.
        self.changed: SimpleQueue[None] | None = None  # Somebody waits for a stream to begin, or to end.
        most = min(MOST_LINKS, LINKS + LINKS_PER_NODE * nodes)
        super().__init__(identity, shelter, addr, port, most=most, largest=8 + PIECE_BYTES, tell=tell, turn=Turn())

    # --- for the agent's loop -------------------------------------------------------------------------------------------

    def first(self) -> list[Observation]:
        """Say where the lines of other nodes are taken."""
        return [LogsTaken(logs_at=self.address)]

    def is_whole(self, path: str) -> bool:
        """Whether nobody who sends now has more for the log at that path. Any thread may ask."""
        with self.lock:
            return not any(stream.links for stream in self.streams.values() if stream.path == path)

    def finish(self, job: Rendezvous | None, own: str, cut: Callable[[], bool]) -> None:
        """After the ranks' end: wait until all that is sent has come, for `patience_s` at most, and until `cut`. `job`: the
        coordinator, if it is here. `own`: this node's id."""
        cycle, nodes = (0, 0) if job is None else _who_sends(job, own)
        if not self._wait(cycle, nodes, frozenset(job.seats if job is not None else ()), cut):
            until = "a signal ended the wait" if cut() else f"they had {self.patience_s:g} s for it"
            self.tell(f"some nodes have not sent all of their ranks' lines ({until}): the rest is in files on those nodes")
        self.due()

    def _wait(self, cycle: int, nodes: int, members: frozenset[str], cut: Callable[[], bool]) -> bool:
        now, self.changed = self.clock(), SimpleQueue()
        begun_by, until = now + min(BEGIN_S, self.patience_s), now + self.patience_s
        while not self._has_all(cycle, nodes if now < begun_by else 0, members, now):
            if now >= until or cut():
                return False
            with suppress(Empty):
                self.changed.get(True, min(LOOK_S, (begun_by if now < begun_by else until) - now))
            now = self.clock()
        return True

    def _has_all(self, cycle: int, nodes: int, members: frozenset[str], now: float) -> bool:
        with self.lock:
            sending = [stream for stream in self.streams.values() if stream.links]
        awaited = any(stream.node in members or now < stream.heard_at + SILENT_S for stream in sending)
        return self.begun.get(cycle, 0) >= nodes and not awaited

    # --- the threads ----------------------------------------------------------------------------------------------------

    def serve(self, link: BlockingLink) -> None:
        asked = link.heard(self.clock() + HANDSHAKE_S)
        name, stream = self._begin(int(asked["cycle"]), str(asked["stream"]), int(asked["at"]), str(asked.get("node", "")))
        fd = -1
        try:
            link.say({"have": stream.have})
            while True:
                piece = link.next(self.clock() + IDLE_S)
                number, lines = int.from_bytes(piece[:8], "big"), piece[8:]
                stream.heard(self.clock())
                if not lines:
                    break
                if len(lines) > PIECE_BYTES or not lines.endswith(b"\n"):
                    raise ValueError(f"a piece is whole lines of {PIECE_BYTES} bytes at most")
                try:
                    fd = self.turn.meanwhile(open_log, stream.path) if fd < 0 else fd
                    answer = self.turn.meanwhile(stream.append, fd, number, lines)
                except OSError as error:
                    answer = {"no": error.strerror or str(error)}
                    self.complaints.append(f"{stream.path} misses lines of other nodes: {answer['no']}")
                link.say(answer)
            link.say({"have": stream.have})
            with self.lock:
                self.streams.pop(name, None)
        finally:
            if fd >= 0:
                os.close(fd)
            with self.lock:
                stream.link_down()
            self._has_changed()

    def _begin(self, cycle: int, name: str, at: int, node: str) -> tuple[str, Stream]:
        if not 0 <= cycle <= max(0, cycle_of(self.newest_round())) or not 0 <= at < 1 << 63 or len(name) > NAME_CHARS:
            raise ValueError(f"cycle {cycle}, piece {at} and a name of {len(name)} characters are no stream")
        with self.lock:
            stream = self.streams.get(name)
            if stream is None:
                stream = self.streams[name] = Stream(log_path(self.prefix, cycle), cycle, at, node[:NODE_CHARS])
                self.begun[cycle] = self.begun.get(cycle, 0) + 1
                if len(self.streams) > MOST_STREAMS:
                    old = next((name for name, one in self.streams.items() if not one.links), "")
                    self.streams.pop(old, None)
            elif stream.cycle != cycle:
                raise ValueError(f"stream {name} belongs to cycle {stream.cycle}, not {cycle}")
            stream.link_up(at, self.clock())
        self._has_changed()
        return name, stream

    def _has_changed(self) -> None:
        if self.changed is not None:
            self.changed.put(None)


def open_receiver(
    ft: FaultTolerance,
    identity: Identity,
    shelter: Shelter | None,
    addr: str,
    tell: Callable[[str], None],
    newest_round: Callable[[], int],
    nodes: int,
) -> LogReceiver | None:
    """At --ft-log-server-port, else at a free port. None: at neither, as `tell` is told."""
    assert ft.per_cycle_applog_prefix is not None
    if not 0 <= ft.log_server_port < 1 << 16:
        raise UsageError(f"--ft-log-server-port: {ft.log_server_port} is not a port number", hint="0 to 65535; 0: any free one")
    prefix, patience_s = ft.per_cycle_applog_prefix, ft.log_server_graceful_shutdown_timeout
    make = partial(LogReceiver, identity, shelter, addr, prefix=prefix, patience_s=patience_s, tell=tell)
    make = partial(make, newest_round=newest_round, nodes=nodes)
    try:
        try:
            return make(ft.log_server_port)
        except OSError as error:
            if error.errno != EADDRINUSE or not ft.log_server_port:
                raise
        receiver = make(0)
        tell(f"--ft-log-server-port: {ft.log_server_port} is in use; other nodes' lines come to {receiver.address}")
        return receiver
    except OSError as error:
        tell(f"cannot listen for other nodes' lines: {error}")
        return None


def _who_sends(job: Rendezvous, own: str) -> tuple[int, int]:
    """The last cycle, and how many other nodes had a part in it and are not lost."""
    joins = [seat.join for seat in job.seats.values() if seat.assigned is not None and seat.assigned.round == job.round]
    return cycle_of(job.round), sum(join.node != own and bool(join.logs_at) for join in joins)
