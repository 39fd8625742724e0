"""What takes longer than a test may, or needs a kernel in distress: the network's own clock and errors, with real sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from kit.network.security_peer import Peer
from kit.waiting import PATIENCE_S

from holdfast.core.machine import NEVER, Observation
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Leave, StoreAsk
from holdfast.runtime.host import Host
from holdfast.runtime.net.admission import AGAIN_S, IN_ALL, LIMITS, LONGEST_S, PER_PEER, Limits, RejectionLog
from holdfast.runtime.net.codec import encode
from holdfast.runtime.net.frames import SEAL_BYTES, Identity, frame
from holdfast.runtime.net.network import GUESTS_FROM, HANDSHAKE_S, LEAST_BYTES, LOOK_BYTES, READ_BYTES, Network
from holdfast.runtime.net.wire import PAUSE_BYTES


class Place:
    """A host and its network, with what a person was told."""

    def __init__(self, port: int, token: bytes = b"secret", limits: Limits = LIMITS) -> None:
        self.told: list[str] = []
        self.host = Host(self.told.append)
        self.network = Network(self.host, Identity("job", token), ("127.0.0.1", port), limits=limits)

    def close(self) -> None:
        self.network.close()
        self.host.close()


@pytest.fixture
def place(free_port: int) -> Iterator[Callable[..., Place]]:
    places: list[Place] = []

    def make(**how: Any) -> Place:
        places.append(Place(free_port, **how))
        return places[-1]

    yield make
    for made in places:
        made.close()


def turn(*places: Place, until: Callable[[], bool], wait_until: Callable[..., object]) -> dict[Place, list[Observation]]:
    """Let each have turns until it is so."""
    seen: dict[Place, list[Observation]] = {place: [] for place in places}

    def is_so() -> bool:
        for place in places:
            seen[place] += place.host.wait(place.host.now())
        return until()

    wait_until(is_so)
    return seen


def test_who_has_no_use_for_a_link_any_more_proves_itself_before_it_hangs_up(place, free_port, wait_until):
    """As a seeker whose coordinator has answered: the node that it was about to ask is told of no stranger."""
    here, there = place(), place()
    assert here.network.listen()
    there.network.connect(7)
    turn(there, until=lambda: 7 in there.network.wires, wait_until=wait_until)
    there.network.hang_up(7)
    seen = turn(here, there, until=lambda: not there.network.wires and not here.network.wires, wait_until=wait_until)
    assert not [one for one in seen[there] if isinstance(one, LinkUp)] and here.told == []


def test_a_wrong_token_is_told_to_who_is_slow_to_hear_it(place, wait_until):
    """A member without a token looks whose process says no: that holds the connection until the member has heard it."""
    here, there = place(), place(token=b"")
    assert here.network.listen()
    there.network.connect(7)
    seen = turn(here, there, until=lambda: not there.network.wires, wait_until=wait_until)
    (gone,) = seen[there]
    assert isinstance(gone, LinkDown) and gone.final and gone.reason.startswith("wrong job token"), gone
    turn(here, until=lambda: not here.network.wires, wait_until=wait_until)
    assert len(here.told) == 1 and "wrong job token" in here.told[0] and not here.network.guests.unproved


def test_who_drips_bytes_is_dropped_when_the_time_is_over(place, free_port, wait_until):
    here = place()
    assert here.network.listen()
    with socket.create_connection(("127.0.0.1", free_port)) as loris:
        before = here.host.now()
        turn(here, until=lambda: bool(here.network.wires), wait_until=wait_until)
        due, after = here.network.deadline(), here.host.now()
        assert before <= due - HANDSHAKE_S <= after
        for byte in b"\0\0\0":
            loris.sendall(bytes([byte]))
            turn(here, until=lambda: True, wait_until=wait_until)
        assert here.network.deadline() == due, "bytes gain it nothing"
        assert here.network.expire(due - 1) == [] and here.network.wires
        assert here.network.expire(due) == [] and not here.network.wires
    assert here.told == ["turned away a connection from 127.0.0.1: no proof that it belongs to the job within 10 s"]
    assert here.network.deadline() == NEVER and not here.network.guests.unproved


def test_who_does_not_close_after_our_goodbye_is_dropped(place, wait_until):
    here, there = place(), place()
    here.network.listen()
    there.network.connect(1)
    met = lambda: 1 in there.network.wires and not there.network.timed and here.network.guests.unproved == 0
    seen = turn(here, there, until=met, wait_until=wait_until)
    assert LinkUp(link=GUESTS_FROM, ours=False, peer="127.0.0.1") in seen[here]
    here.network.hang_up(GUESTS_FROM)
    (gone,) = here.network.expire(here.host.now() + HANDSHAKE_S)
    assert isinstance(gone, LinkDown) and not gone.final and not here.network.wires


def test_what_is_lost_on_the_way_is_sent_again_at_even_intervals(place, wait_until):
    """Or an interface that is down for half a lease would cost the lease."""
    here, there = place(), place()
    here.network.listen()
    there.network.connect(1)
    turn(here, there, until=lambda: 1 in there.network.wires and not there.network.timed, wait_until=wait_until)
    thin_linear_timeouts, rto_max_ms = 16, 44
    for sock in (here.network.wires[GUESTS_FROM].sock, there.network.wires[1].sock):
        assert sock.getsockopt(socket.IPPROTO_TCP, thin_linear_timeouts) == 1
        with contextlib.suppress(OSError):  # older than Linux 6.15
            assert sock.getsockopt(socket.IPPROTO_TCP, rto_max_ms) == 1000


@pytest.mark.parametrize("trouble", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_without_a_free_descriptor_it_rests_and_goes_on(place, free_port, wait_until, trouble):
    here = place()
    here.network.listen()
    with socket.create_connection(("127.0.0.1", free_port)), socket.create_connection(("127.0.0.1", free_port)):
        turn(here, until=lambda: len(here.network.wires) == 2, wait_until=wait_until)

        class Full:
            def accept(self) -> None:
                raise OSError(trouble, "no room")

        (listener,) = here.network.listeners
        here.network._accept(Full(), 0)
        assert len(here.network.wires) == 1, "the oldest stranger makes room"
        assert listener.fileno() not in here.host.handlers and here.network.deadline() < here.host.now() + 1
        here.network.expire(here.network.rest_until)
        assert listener.fileno() in here.host.handlers and here.network.rest_until == NEVER
    assert "cannot accept a connection: no room" in here.told


def test_many_nodes_that_come_at_once_are_let_in_one_after_the_other(place, wait_until):
    here = place(limits=Limits(unproved=4, crowd=12, young_s=PATIENCE_S))  # here they all have one address
    there = place()
    here.network.listen()
    for link in range(1, 13):
        there.network.connect(link)
    seen: list[Observation] = []

    def everybody_is_in() -> bool:
        for one in (here, there):
            seen.extend(one.host.wait(one.host.now()))
            seen.extend(one.network.expire(one.host.now()))
        assert here.network.guests.unproved <= 4
        return len(here.network.wires) == 12 and not here.network.guests.unproved

    wait_until(everybody_is_in)
    assert here.told == there.told == [] and not any(isinstance(one, LinkDown) for one in seen)


def test_members_that_say_much_at_once_are_heard_in_small_parts_and_whole(place, wait_until):
    """So that an agent renews its own lease and hears of its ranks' ends meanwhile."""
    here, there, links, words = place(), place(), 20, 5000
    here.network.listen()
    for link in range(1, links + 1):
        there.network.connect(link)
    is_in = lambda: len(here.network.pool.handlers) == links and not there.network.timed
    turn(here, there, until=is_in, wait_until=wait_until)
    said = Leave(node="n", round=1, reason="?")
    for link in range(1, links + 1):
        for _ in range(words):
            there.network.transmit(link, said, more=True)
    most = links * LEAST_BYTES // len(encode(said)) + READ_BYTES // len(encode(said))
    heard = 0

    def all_is_heard() -> bool:
        nonlocal heard
        for wire in list(there.network.wires.values()):
            wire.flush()
        seen = [one for one in here.host.wait(here.host.now()) if isinstance(one, Arrived)]
        assert len(seen) <= most, "one look takes in too much"
        heard += len(seen)
        return heard == links * words

    wait_until(all_is_heard)


def test_long_messages_that_end_at_once_are_decoded_one_at_a_look(place, free_port, wait_until):
    """So that an agent renews its own lease between two of them, however many links have held back their last bytes."""
    here, links = place(), 4
    here.network.listen()
    peers = [Peer(free_port, host="127.0.0.1") for _ in range(links)]
    with ThreadPoolExecutor() as others:
        proofs = [others.submit(peer.prove, "job", "secret") for peer in peers]
        turn(here, until=lambda: all(one.done() for one in proofs), wait_until=wait_until)
        said = encode(StoreAsk(node="n", ask=1, round=0, op="set", keys=("k",), values=(bytes(LOOK_BYTES),)))
        for peer in peers:
            others.submit(peer.send, frame(peer.seals[0].put(said))[:-1])
        all_but_the_ends = links * (len(said) + SEAL_BYTES + 3)
        held = lambda: sum(wire.held for wire in here.network.wires.values())
        turn(here, until=lambda: held() == all_but_the_ends, wait_until=wait_until)
    for peer in peers:
        peer.send(said[-1:])
    heard: list[int] = []

    def all_is_heard() -> bool:
        for look in (here.host.wait(here.host.now()), here.network.due()):
            heard.append(sum(isinstance(one, Arrived) for one in look))
        return sum(heard) == links

    wait_until(all_is_heard)
    assert max(heard) == 1


def test_what_many_links_leave_unread_counts_together_however_little_it_is_of_each(place, wait_until):
    """One member may have a thousand links, and each leave as much unread as is too little to be deaf to it."""
    here, there, links, most = place(limits=Limits(held_bytes=1 << 20)), place(), 12, 400_000
    here.network.listen()
    for link in range(1, links + 1):
        there.network.connect(link)
    is_in = lambda: len(here.network.pool.handlers) == links and not there.network.timed
    turn(here, there, until=is_in, wait_until=wait_until)
    said, seen = Leave(node="n", round=1, reason="x" * 10_000), []
    for wire in list(here.network.wires.values()):
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        while wire.link in here.network.wires and len(wire.unsent) < most < PAUSE_BYTES:
            seen += here.network.transmit(wire.link, said)
    assert sum(len(wire.unsent) for wire in here.network.wires.values()) <= 1 << 20
    assert seen and all(isinstance(one, LinkDown) and "all such hold too much memory" in one.reason for one in seen)


def test_those_who_bring_no_proof_give_way_to_who_waits(place, free_port, wait_until):
    here, there = place(limits=Limits(unproved=4, young_s=0.0)), place()
    here.network.listen()
    idle = [socket.create_connection(("127.0.0.1", free_port)) for _ in range(4)]
    turn(here, until=lambda: here.network.guests.unproved == 4, wait_until=wait_until)
    there.network.connect(1)
    turn(here, there, until=lambda: 1 in there.network.wires and not there.network.timed, wait_until=wait_until)
    assert here.told == ["turned away a connection from 127.0.0.1: too many connections without proof at once"]
    for sock in idle:
        sock.close()


def test_a_wrong_token_ends_a_link_for_good(place, wait_until):
    here, there = place(), place(token=b"another")
    here.network.listen()
    there.network.connect(1)
    seen = turn(here, there, until=lambda: not there.network.wires, wait_until=wait_until)
    why = "wrong job token (--token-file, HOLDFAST_TOKEN, a shared --state-dir), or another job (--rdzv-id)"
    assert seen[there] == [LinkDown(link=1, reason=why, final=True)]
    assert seen[here] == [] and len(here.told) == 1


def test_where_nobody_listens_a_call_is_refused_and_that_is_told(place, wait_until):
    there = place()
    seen: list[Observation] = list(there.network.connect(1))

    def is_down() -> bool:
        seen.extend(there.host.wait(there.host.now()))
        return bool(seen)

    wait_until(is_down)
    assert seen == [LinkDown(link=1, reason="Connection refused", refused=True)]


def test_a_call_without_a_free_descriptor_is_a_link_that_is_down_and_ends_nobody(place, monkeypatch):
    there = place()
    monkeypatch.setattr(socket, "socket", Mock(side_effect=OSError(errno.EMFILE, "no room")))
    assert there.network.connect(1) == [LinkDown(link=1, reason="no room")]


def test_tls_is_loaded_only_where_it_is_configured():
    program = "import sys, holdfast.runtime.net.network, holdfast.agent.agent; sys.exit('ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


# --- the door ---------------------------------------------------------------------------------------------------------------


def test_the_same_complaint_is_said_once_and_then_counted_at_growing_intervals():
    told: list[str] = []
    door = RejectionLog(told.append)
    for _ in range(5):
        door.note("10.0.0.1", "turned away a connection from 10.0.0.1: noise", 0.0)
    assert told == ["turned away a connection from 10.0.0.1: noise"] and door.tell_at == AGAIN_S
    door.due(AGAIN_S - 1)
    assert len(told) == 1
    door.due(AGAIN_S)
    assert "4 times more" in told[1] and door.tell_at == NEVER
    door.note("10.0.0.1", "turned away a connection from 10.0.0.1: noise", 100.0)
    assert door.tell_at == 100.0 + 2 * AGAIN_S
    for _ in range(20):
        door.due(door.tell_at)
        door.note("10.0.0.1", "turned away a connection from 10.0.0.1: noise", 0.0)
    assert door.tell_at == LONGEST_S


def test_neither_one_nor_many_addresses_fill_the_log_or_the_memory():
    told: list[str] = []
    door = RejectionLog(told.append)
    for count in range(1000):
        door.note("10.0.0.1", f"word {count}", 0.0)
    assert len(told) == PER_PEER
    for count in range(1000):
        door.note(f"10.0.1.{count}", "noise", 0.0)
    assert len(told) == IN_ALL and len(door.said) <= IN_ALL
    door.tell()
    assert len(told) == IN_ALL + 1 and f"{2000 - IN_ALL} times more" in told[-1]
