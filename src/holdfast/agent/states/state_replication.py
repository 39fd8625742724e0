"""Copies stashed states to partner nodes' memory, and back to a replacement node.

By threads of the agent, so that it goes on when a rank dies: one for each local rank, which sends what is new to the partners
that the coordinator has named, one after the other, and one for each link from elsewhere, which takes or gives. Each question
is answered before the next:

    {"put": LOCAL_RANK, "generation": {…}, "agreed": …, …}         {} · {"has": true} · {"no": why}   chunks   {"whole": …}   {}
    {"get": LOCAL_RANK, "generation": [ROUND, STEP, RANK], …}      {"generation": {…}} · {"no": why}  chunks   {"whole": …}

Each shows the coordinator's ticket: in this "round" the ranks, "of" which there are so many, are the asker's. Others get
nothing, and can bring nothing.

A rank waits with its next save until its partners have the last one, or cannot be given it (`AT_PARTNER`): so nodes are never
further apart than the generations that are kept, and nothing is sent that is being overwritten.
"""

from __future__ import annotations

import socket
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from hmac import compare_digest
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.group.messages import Stashed
from holdfast.core.errors import HoldfastError, ProtocolError
from holdfast.core.machine import Observation
from holdfast.core.page import stash as layout
from holdfast.core.page.stash import Generation
from holdfast.core.value import to_plain
from holdfast.core.wire.messages import Assigned
from holdfast.rendezvous.placement.partners import ticket
from holdfast.runtime.hardware.memory import room_bytes
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.blocking_link import BlockingLink
from holdfast.runtime.net.blocking_server import BlockingServer
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.secrets import Shelter
from holdfast.runtime.shm import pages as shm
from holdfast.runtime.shm.stash import CHUNK_BYTES, Filling, chunks, clear, generations, held, words

LOOK_S = 0.01  # Between two looks at whether a rank has saved something.
ANSWER_S, AGAIN_S = 10.0, 5.0
"""How long the other side may say nothing, and how long after that it is not asked again in the same round."""
IDLE_S = 1e6  # How long a partner may have nothing to say: as long as the job. Keep-alive finds a dead link.
MOST_LINKS = 256  # From elsewhere, at a time, for each copy: a node has a link for each rank, and one may be fetched for.
SPARE_SHARE = 0.05  # Of this host's memory, what is never taken.


class Keep:
    """What is kept of one other node's ranks, in a file of its own."""

    def __init__(self) -> None:
        self.file = shm.nameless_file("holdfast-replicas")
        shm.keep_length(self.file)
        self.base_rank, self.ranks = -1, 0  # Of the node that sends to it, or sent last: its first rank, and how many.
        self.round = -1  # In which that one began to.
        self.coming: dict[int, Filling] = {}  # What comes, or came last, for each rank of that node.

    def take_over(self, base_rank: int, ranks: int, round: int) -> None:
        """Another node sends to it from now on. What is there is overwritten one by one, if it fits."""
        if ranks != self.ranks:
            for filling in self.coming.values():
                filling.call_off()
            clear(self.file, self.ranks, layout.REPLICAS)
        self.base_rank, self.ranks, self.round = base_rank, ranks, round


class Replicas(BlockingServer, Component):
    """This node's part in it."""

    def __init__(
        self,
        identity: Identity,
        shelter: Shelter | None,
        addr: str,
        *,
        node: str,
        nproc: int,
        limit: str,
        copies: int = 1,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node`: this node's id, which the coordinator alone knows, too."""
        self.node = node
        self.nproc, self.limit, self.clock = nproc, limit, clock
        self.copies = copies  # How many others have what a node's ranks save: for so many does this one keep, too.
        self.stash = -1
        self.keeps = [Keep()]  # What is kept for other nodes; never more than `copies`.
        self.assigned: Assigned | None = None  # The round whose ranks run, or ran last. None: none has.
        self.lost = False  # What was to be fetched could not be: this node has no part in it any more.
        self.lock = allocate_lock()  # Over the slots of what is kept.
        self.fetched: dict[int, Filling] = {}  # What is fetched, or was last, for each of our ranks.
        super().__init__(identity, shelter, addr, 0, most=MOST_LINKS * copies, largest=CHUNK_BYTES, tell=tell)

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
            return tuple((*one, keep.ranks) for keep in self.keeps if keep.ranks for one in held(keep.file, keep.ranks))

    def begin(self, assigned: Assigned, stash: int) -> None:
        """The ranks of a round are about to be started, with `stash` as their file."""
        first = self.assigned is None
        for local_rank in range(self.nproc):
            words(stash, local_rank)[layout.FETCHED] = layout.COMING if assigned.stash_from else layout.HERE
        if len(assigned.stash_partners) < self.copies and not self.lost:
            fewer = f" to {self.copies} nodes, but to {len(assigned.stash_partners)}" if assigned.stash_partners else ""
            needs = f"{self.copies + 1} or more nodes, all with --stash-replicas {self.copies}"
            self.complaints.append(f"states are not replicated{fewer}: that needs {needs}")
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
        links: dict[str, BlockingLink] = {}
        at: Assigned | None = None
        done: Generation | None = None
        not_before: dict[str, float] = {}
        while True:
            assigned = self.assigned
            assert assigned is not None
            if assigned is not at:
                links, at, done, not_before = {}, assigned, None, {}
            one = newest(page, assigned)
            if one is None or one == done:
                never.acquire(timeout=LOOK_S)
                continue
            for partner in assigned.stash_partners:
                if self.clock() < not_before.get(partner, 0.0):
                    continue
                try:
                    link = links[partner] = links.get(partner) or self._link(partner)
                    self._send(link, partner, local_rank, one, assigned)
                except Exception as error:  # whatever it is, the rank is not to wait for it
                    links.pop(partner, None)
                    not_before[partner] = self.clock() + AGAIN_S
                    self._complain(f"states are not replicated at present: {partner}", error)
            done = one
            page[layout.AT_PARTNER] = one.sequence

    def _shows(self, assigned: Assigned, at: str) -> dict[str, Any]:
        """What shows there that these ranks are this node's."""
        return {"of": self.nproc, "round": assigned.round, "ticket": assigned.stash_tickets.get(at, "")}

    def _send(self, link: BlockingLink, partner: str, local_rank: int, one: Generation, assigned: Assigned) -> None:
        asked = {"put": local_rank, "generation": to_plain(one), "agreed": assigned.stash}
        answer = _ask(link, asked | self._shows(assigned, partner), self.clock)
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
            asked = {"get": local_rank, "generation": [round, step, assigned.base_rank + local_rank]}
            answer = _ask(link, asked | self._shows(assigned, assigned.stash_from), self.clock)
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
                round, step, rank = (int(part) for part in asked["generation"])
                self._refuse_others(asked, rank, local_rank := int(asked["get"]))
                self._hand_out(link, local_rank, round, step, rank)

    def _refuse_others(self, asked: dict[str, Any], rank: int, local_rank: int) -> None:
        """ProtocolError: who asks does not show that this is a rank of its own."""
        round, ranks = int(asked["round"]), int(asked["of"])
        if not 0 <= local_rank < ranks <= 4096:
            raise ValueError("no such rank")
        is_late = self.assigned is not None and round < self.assigned.round - 1  # a round that has ended here may go on there
        shown = str(asked["ticket"]).encode("utf-8", "replace")
        if is_late or not compare_digest(shown, ticket(self.node, round, rank - local_rank, ranks).encode()):
            raise ProtocolError(f"it is not the node of rank {rank}, whose state it asks for or brings")

    def _keep(self, link: BlockingLink, asked: dict[str, Any]) -> None:
        local_rank, ranks, made = int(asked["put"]), int(asked["of"]), _generation(asked["generation"])
        self._refuse_others(asked, made.rank, local_rank)
        with self.lock:
            keep = self._keep_of(made.rank - local_rank, ranks, made.round)
            there = generations(keep.file, local_rank)
            if any((one.round, one.step, one.rank) == (made.round, made.step, made.rank) for one in there):
                return link.say({"has": True})
            if why := self._no_room(made.size, ranks, len(there)):
                return link.say({"no": why})
            round, step = asked["agreed"] or (0, 0)
            agreed = int(round), int(step)
            if local_rank in keep.coming:
                keep.coming[local_rank].call_off()
            filling = keep.coming[local_rank] = Filling(keep.file, local_rank, made, layout.REPLICAS, agreed)
        link.say({})
        _take(link, filling, self.clock)
        link.say({})

    def _keep_of(self, base_rank: int, ranks: int, round: int) -> Keep:
        """Where to keep what comes of the node with these ranks: with what came of it before, else in place of what has been
        there longest."""
        keep = next((keep for keep in self.keeps if (keep.base_rank, keep.ranks) == (base_rank, ranks)), None)
        if keep is None:
            if len(self.keeps) < self.copies and all(keep.ranks for keep in self.keeps):
                self.keeps.append(Keep())
            keep = min(self.keeps, key=lambda keep: keep.round)
        keep.take_over(base_rank, ranks, round)
        return keep

    def _no_room(self, size: int, ranks: int, there: int) -> str:
        room, total = room_bytes()
        limit = int(total * float(self.limit[:-1]) / 100) if self.limit.endswith("%") else int(self.limit)
        share = limit / (1 + self.copies)  # its own ranks have one as well
        if size * ranks * layout.REPLICAS > share:
            more = f"more than 1/{1 + self.copies} of its --stash-limit, {share / 1e9:.1f}GB"
            return f"{layout.REPLICAS} generations of {ranks} such ranks are {more}"
        if there < layout.REPLICAS and size > room - SPARE_SHARE * total:
            return f"it lacks memory for {size / 1e9:.1f}GB more"
        return ""

    def _hand_out(self, link: BlockingLink, local_rank: int, *wanted: int) -> None:
        for keep in self.keeps:
            for one in generations(keep.file, local_rank):
                if (one.round, one.step, one.rank) == wanted:
                    link.say({"generation": to_plain(one)})
                    return _give(link, keep.file, local_rank, one)
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
    """What the other side says of one. ValueError: it cannot be."""
    fields = {field: int(told[field]) for field in Generation.__fields__}
    made = Generation(**fields)
    if not all(0 <= value < 1 << 63 for value in fields.values()) or not made.header_bytes <= made.size <= layout.SLOT_BYTES:
        raise ValueError("no such generation")
    return made


def _ask(link: BlockingLink, asked: dict[str, Any], clock: Callable[[], float]) -> dict[str, Any]:
    link.say(asked)
    return _heard(link, clock)


def _heard(link: BlockingLink, clock: Callable[[], float]) -> dict[str, Any]:
    return link.heard(clock() + ANSWER_S)
