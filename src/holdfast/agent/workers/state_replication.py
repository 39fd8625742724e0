"""Copies stashed states to a partner node's memory, and back to a replacement node.

By threads of the agent, so that it goes on when a rank dies: one for each local rank, which sends what is new to the partner
that the coordinator has named, and one for each link from elsewhere, which takes or gives. Each question is answered before the
next:

    {"put": LOCAL_RANK, "of": N, "generation": {…}, "agreed": …}   {} · {"has": true} · {"no": why}   chunks   {"whole": …}   {}
    {"get": LOCAL_RANK, "generation": [ROUND, STEP, RANK]}         {"generation": {…}} · {"no": why}  chunks   {"whole": …}

A rank waits with its next save until its partner has the last one, or cannot be given it (`AT_PARTNER`): so nodes are never
further apart than the generations that are kept, and nothing is sent that is being overwritten.
"""

from __future__ import annotations

import socket
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.group.messages import Stashed
from holdfast.core.errors import HoldfastError
from holdfast.core.machine import Observation
from holdfast.core.page import stash as layout
from holdfast.core.page.stash import Generation
from holdfast.core.value import to_plain
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.hardware.memory import room_bytes
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.blocking_link import BlockingLink
from holdfast.runtime.net.blocking_server import BlockingServer
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.shm import pages as shm
from holdfast.runtime.shm.stash import CHUNK_BYTES, Filling, chunks, clear, generations, held, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Shelter

LOOK_S = 0.01  # Between two looks at whether a rank has saved something.
ANSWER_S, AGAIN_S = 10.0, 5.0
"""How long the other side may say nothing, and how long after that it is not asked again in the same round."""
IDLE_S = 1e6  # How long a partner may have nothing to say: as long as the job. Keep-alive finds a dead link.
MOST_LINKS = 256  # From elsewhere, at a time: a node has one partner, with a link for each rank, and one may be fetched for.
SPARE_SHARE = 0.05  # Of this host's memory, what is never taken.


class Replicas(BlockingServer, Component):
    """This node's part in it."""

    def __init__(
        self,
        identity: Identity,
        shelter: Shelter | None,
        addr: str,
        *,
        nproc: int,
        limit: str,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nproc, self.limit, self.clock = nproc, limit, clock
        self.stash = -1
        self.file = shm.nameless_file("holdfast-replicas")  # What is kept for another node.
        self.kept_ranks = 0  # How many ranks that one has. 0: nothing is kept.
        self.assigned: Assigned | None = None  # The round whose ranks run, or ran last. None: none has.
        self.lost = False  # What was to be fetched could not be: this node has no part in it any more.
        self.lock = allocate_lock()  # Over the slots of what is kept.
        self.coming: dict[int, Filling] = {}  # What comes, or came last, for each rank of that other node.
        self.fetched: dict[int, Filling] = {}  # The same, for each of ours.
        super().__init__(identity, shelter, addr, 0, most=MOST_LINKS, tell=tell)

    # --- for the agent's loop -------------------------------------------------------------------------------------------

    def first(self) -> list[Observation]:
        """Say where others reach this."""
        return [Stashed(stash=(), stash_at=self.at)]

    @property
    def at(self) -> str:
        """Where others reach this; empty: it has no part in it."""
        return "" if self.lost else self.address

    def kept(self) -> tuple[layout.Kept, ...]:
        with self.lock:
            return tuple((*one, self.kept_ranks) for one in held(self.file, self.kept_ranks)) if self.kept_ranks else ()

    def begin(self, assigned: Assigned, stash: int) -> None:
        """The ranks of a round are about to be started, with `stash` as their file."""
        first = self.assigned is None
        for local_rank in range(self.nproc):
            words(stash, local_rank)[layout.FETCHED] = layout.COMING if assigned.stash_from else layout.HERE
        if not assigned.stash_partner and not self.lost:
            self.complaints.append("states are not replicated: that needs two or more nodes, all with --stash-replicate")
        with self.lock:
            self.stash, self.assigned = stash, assigned
            for filling in self.fetched.values():
                filling.call_off()  # what was to be fetched for a round that is over
        for local_rank in range(self.nproc):
            if assigned.stash_from:
                start_new_thread(self._fetch, (assigned, local_rank))
            if first:
                start_new_thread(self._send_all, (local_rank,))

    # --- threads that send ----------------------------------------------------------------------------------------------

    def _send_all(self, local_rank: int) -> None:
        page, never = words(self.stash, local_rank), allocate_lock()
        never.acquire()
        link: BlockingLink | None = None
        at: Assigned | None = None
        done: Generation | None = None
        not_before = 0.0
        while True:
            assigned = self.assigned
            assert assigned is not None
            if assigned is not at:
                link, at, done, not_before = None, assigned, None, 0.0
            one = newest(page, assigned)
            if one is None or one == done:
                never.acquire(timeout=LOOK_S)
                continue
            if assigned.stash_partner and self.clock() >= not_before:
                try:
                    link = link or self._link(assigned.stash_partner)
                    self._send(link, local_rank, one, assigned)
                except Exception as error:  # whatever it is, the rank is not to wait for it
                    link, not_before = None, self.clock() + AGAIN_S
                    self._complain(f"states are not replicated at present: {assigned.stash_partner}", error)
            done = one
            page[layout.AT_PARTNER] = one.sequence

    def _send(self, link: BlockingLink, local_rank: int, one: Generation, assigned: Assigned) -> None:
        asked = {"put": local_rank, "of": self.nproc, "generation": to_plain(one), "agreed": assigned.stash}
        answer = _ask(link, asked, self.clock)
        if answer.get("no"):
            raise OSError(None, str(answer["no"])[:300])
        if not answer.get("has"):
            _give(link, self.stash, local_rank, one)
            _heard(link, self.clock)

    def _fetch(self, assigned: Assigned, local_rank: int) -> None:
        page = words(self.stash, local_rank)
        try:
            assert assigned.stash is not None
            link = self._link(assigned.stash_from)
            round, step = assigned.stash
            answer = _ask(link, {"get": local_rank, "generation": [round, step, assigned.base_rank + local_rank]}, self.clock)
            if "generation" not in answer:
                raise OSError(None, str(answer.get("no"))[:300])
            with self.lock:
                if self.assigned is not assigned:
                    return
                made = _generation(answer["generation"])
                filling = self.fetched[local_rank] = Filling(self.stash, local_rank, made, layout.SLOTS, None)
            _take(link, filling, self.clock)
            link.close()
            became = layout.HERE
        except Exception as error:  # whatever it is, the rank is not to wait for it
            if self.assigned is assigned:
                self.lost = True
                self._complain(f"cannot fetch the state that all ranks resume from: {assigned.stash_from}", error)
            became = layout.LOST
        with self.lock:
            if self.assigned is assigned:
                page[layout.FETCHED] = became

    def _link(self, address: str) -> BlockingLink:
        sock = socket.create_connection(host_and_port(address), timeout=ANSWER_S)
        return BlockingLink(sock, self.identity, self.shelter, ours=True)

    def _complain(self, what: str, error: Exception) -> None:
        said = error.what if isinstance(error, HoldfastError) else getattr(error, "strerror", None) or str(error)
        self.complaints.append(f"{what}: {said}")

    # --- threads that take, and give ------------------------------------------------------------------------------------

    def serve(self, link: BlockingLink) -> None:
        while True:
            asked = link.heard(self.clock() + IDLE_S)
            if "put" in asked:
                self._keep(link, asked)
            else:
                self._hand_out(link, int(asked["get"]), *(int(part) for part in asked["generation"]))

    def _keep(self, link: BlockingLink, asked: dict[str, Any]) -> None:
        local_rank, ranks, made = int(asked["put"]), int(asked["of"]), _generation(asked["generation"])
        if not 0 <= local_rank < ranks <= 4096:
            raise ValueError("no such rank")
        with self.lock:
            if ranks != self.kept_ranks:
                for filling in self.coming.values():
                    filling.call_off()
                clear(self.file, self.kept_ranks, layout.REPLICAS)
                self.kept_ranks = ranks
            there = generations(self.file, local_rank)
            if any((one.round, one.step, one.rank) == (made.round, made.step, made.rank) for one in there):
                return link.say({"has": True})
            if why := self._no_room(made.size, ranks, len(there)):
                return link.say({"no": why})
            round, step = asked["agreed"] or (0, 0)
            agreed = int(round), int(step)
            if local_rank in self.coming:
                self.coming[local_rank].call_off()
            filling = self.coming[local_rank] = Filling(self.file, local_rank, made, layout.REPLICAS, agreed)
        link.say({})
        _take(link, filling, self.clock)
        link.say({})

    def _no_room(self, size: int, ranks: int, there: int) -> str:
        room, total = room_bytes()
        limit = int(total * float(self.limit[:-1]) / 100) if self.limit.endswith("%") else int(self.limit)
        if size * ranks * layout.REPLICAS > limit / 2:  # the other half is its own ranks'
            more = f"more than half of its --stash-limit, {limit / 2e9:.1f}GB"
            return f"{layout.REPLICAS} generations of {ranks} such ranks are {more}"
        if there < layout.REPLICAS and size > room - SPARE_SHARE * total:
            return f"it lacks memory for {size / 1e9:.1f}GB more"
        return ""

    def _hand_out(self, link: BlockingLink, local_rank: int, *wanted: int) -> None:
        for one in generations(self.file, local_rank):
            if (one.round, one.step, one.rank) == wanted:
                link.say({"generation": to_plain(one)})
                return _give(link, self.file, local_rank, one)
        link.say({"no": "it no longer has it"})


def newest(page: memoryview, assigned: Assigned) -> Generation | None:
    """What a partner is to have: the newest of this round, or what all ranks have gone on from. None: there is neither."""
    ours = [one for one in layout.generations(page) if one.round == assigned.round or (one.round, one.step) == assigned.stash]
    return ours[-1] if ours else None


def _give(link: BlockingLink, fd: int, local_rank: int, one: Generation) -> None:
    for chunk in chunks(fd, local_rank, one):
        link.send_bulk(chunk)
    link.say({"whole": any(now == one for now in generations(fd, local_rank))})


def _take(link: BlockingLink, filling: Filling, clock: Callable[[], float]) -> None:
    room = memoryview(bytearray(CHUNK_BYTES))
    while filling.at < filling.made.size:
        filling.take(link.next_bulk(room, clock() + ANSWER_S))
    if not _heard(link, clock).get("whole"):
        raise OSError(None, "it was overwritten meanwhile")
    filling.seal()


def _generation(told: Any) -> Generation:
    return Generation(**{field: int(told[field]) for field in Generation.__fields__})


def _ask(link: BlockingLink, asked: dict[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
    link.say(asked)
    return _heard(link, clock)


def _heard(link: BlockingLink, clock: Callable[[], float]) -> dict[str, Any]:
    return link.heard(clock() + ANSWER_S)
