"""What can somebody do to a supervisor, or a host's daemon, who reaches its port and knows nothing? Nothing that lasts."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from kit.certificates import Certificates
from kit.network.security_peer import TOKEN, Peer
from kit.ports import port_of

from holdfast.core.errors import ProtocolError
from holdfast.core.wire.fleet import FLEET, FleetMessage, Heed, RankSaid, Standing
from holdfast.core.wire.google_wire import METHODS, SERVICE
from holdfast.runtime.net.admission import UNPROVED
from holdfast.runtime.net.codec import decode
from holdfast.runtime.net.frames import frame

FILES = 256  # That a daemon may open.


class Door:
    """A supervisor's port."""

    def __init__(self, holdfast: Any, folder: Path) -> None:
        self.holdfast, self.state = holdfast, folder / "fleet"
        where = ("--listen", "127.0.0.1:0", "--http", "off", "--state", self.state)
        self.running = holdfast.start("supervisor", *where, env={"HOLDFAST_SUPERVISOR_TOKEN": TOKEN})
        self.port = port_of(self.running)

    def member(self, name: str) -> Peer:
        """An agent as good as any."""
        peer = Peer(self.port)
        peer.prove(FLEET)
        peer.say(standing(name))
        assert isinstance(decode(peer.seals[1].take(peer.hear()), FleetMessage), Heed)
        return peer

    def is_well(self, name: str) -> None:
        """An agent that comes now is heard, and so are people."""
        self.member(name).sock.close()
        told = self.holdfast.run("nodes", "--json", "--state", self.state)
        assert told.returncode == 0 and f'"{name}"' in told.stdout, told.output
        assert not self.running.ended and "Traceback" not in self.running.stderr


def standing(name: str, node: str = "") -> Standing:
    ranks = (RankSaid(rank=0, local_rank=0, state="running"),)
    return Standing(node=node or f"{name}-1", number=1, name=name, job="train", state="running", round=1, ranks=ranks)


@pytest.fixture
def door(holdfast: Any, tmp_path: Path) -> Door:
    return Door(holdfast, tmp_path)


def noise(rng: random.Random) -> bytes:
    """Bytes: any, a frame of any, a frame that says that it is longer than it is, or than may be."""
    some = rng.randbytes(rng.choice((1, 3, 17, 300, 5000)))
    return rng.choice((some, frame(some), frame(some)[: rng.randrange(1, 9)], b"\xff\xff\xff\xff" + some, b"\0\0\0\0" * 50))


def test_random_bytes_are_turned_away(door):
    rng = random.Random(7)
    for _ in range(300):
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", door.port), timeout=30) as sock:
            sock.sendall(noise(rng))
            if rng.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                sock.recv(100)
    door.is_well("after")
    assert len(door.running.stderr.splitlines()) < 60, "a flood of noise fills no log"


def test_half_open_connections_and_slow_ones_keep_no_agent_out(door):
    before = door.member("before")
    idle = [socket.create_connection(("127.0.0.1", door.port), timeout=30) for _ in range(UNPROVED + 20)]
    try:
        for sock in idle[-200:]:
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"\0")  # the first byte of a length: the next may come in an hour
        door.is_well("among")
    finally:
        for sock in idle:
            sock.close()
    before.say(standing("before"))
    assert before.hear(), "who was there before is heard all the same"
    before.sock.close()


def test_a_member_that_speaks_nonsense_loses_its_link_and_nothing_else(door):
    heed = b'{"is":"Heed","lease_s":1e999,"generation":1}'
    for what in (b"", b"[]", b"{}", b'{"is":"Order"}', heed, b'{"is":"Standing","node":[]}'):
        peer = Peer(door.port)
        peer.prove(FLEET)
        peer.say(what)
        peer.until_closed()
    door.is_well("after")


def test_what_an_agent_and_a_supervisor_have_said_is_worth_nothing_when_it_is_said_again(door, tmp_path):
    """As bytes that were recorded on the network: to this supervisor, to another with the same token, and to an agent."""
    recorded = Recorded(door.port)
    recorded.prove(FLEET)
    recorded.say(standing("a"))
    heed = recorded.hear()
    assert isinstance(decode(recorded.seals[1].take(heed), FleetMessage), Heed)
    other = Door(door.holdfast, tmp_path / "other")
    for port in (door.port, other.port):
        again = Peer(port)
        again.send(recorded.sent)
        assert b"wrong job token" in again.until_closed()
    again = Peer(door.port)  # it takes itself for an agent: what came from the supervisor then is said to it now
    again.prove(FLEET)
    with pytest.raises(ProtocolError, match="a wrong seal"):
        again.seals[1].take(heed)
    again.sock.close()
    other.is_well("after")


class Recorded(Peer):
    """An agent whose bytes somebody records."""

    sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data
        super().send(data)


def test_a_name_is_shown_and_does_nothing_to_the_terminal(door):
    peer = door.member("a")
    peer.say(standing("a", node="\x1b[2J\nholdfast supervisor: all is well"))
    peer.until_closed()
    door.running.wait_for_output("its link is closed")
    assert "\x1b" not in door.running.stderr and "\nholdfast supervisor: all is well" not in door.running.stderr


def test_a_node_is_not_taken_from_another_address(door):
    peer = door.member("a")
    thief = Peer(door.port, source="127.0.0.2")
    thief.prove(FLEET)
    thief.say(standing("a", node="thief"))
    thief.until_closed()
    door.running.wait_for_output("127.0.0.2 says that it is a, which is heard from 127.0.0.1")
    peer.sock.close()


def test_a_certificate_has_to_be_for_its_node(holdfast, tmp_path, script, wait_until):
    pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")
    ours, state, end = Certificates(tmp_path / "ours"), tmp_path / "fleet", tmp_path / "end"
    where = ("--listen", "127.0.0.1:0", "--http", "off", "--state", state, "--tls-names")
    supervisor = holdfast.start("supervisor", *where, *ours.flags("supervisor"))
    port = port_of(supervisor)
    waits = script(f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.02)")
    for name in ("a", "b"):
        holdfast.start("run", "--node-name", name, "--supervisor", f"localhost:{port}", *ours.flags("a"), waits)
    supervisor.wait_for_output("says that it is b, and has a certificate for a.example")
    wait_until(lambda: '"a"' in holdfast.run("nodes", "--json", "--state", state).stdout)
    assert '"b"' not in holdfast.run("nodes", "--json", "--state", state).stdout
    end.touch()


def test_google_s_wire_is_for_this_host_only_and_noise_on_it_ends_nothing(holdfast, tmp_path):
    pytest.importorskip("grpc", reason="grpcio is not installed")
    refused = holdfast.run("daemon", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2 and "loopback" in refused.stderr
    daemon = holdfast.start("daemon", "--port", "0")
    port = port_of(daemon)
    rng = random.Random(7)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(200)]
    for sock in idle:
        with contextlib.suppress(OSError):
            sock.sendall(rng.choice((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(100), noise(rng))))
    told = holdfast.run("daemon", "--status")
    assert told.returncode == 0 and not daemon.ended, told.output
    for sock in idle:
        sock.close()


def test_connections_to_google_s_wire_take_no_descriptor_that_the_daemon_needs(holdfast, wait_until):
    """gRPC asks nobody who comes: more than there are files, half of which speak HTTP/2. The silent ones go within seconds."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    few = type(holdfast)(holdfast.folder / "few", ("prlimit", f"--nofile={FILES}"))  # this process may have more open than that
    daemon = few.start("daemon", "--port", "0", env={"HOLDFAST_STATE_DIR": str(holdfast.state_dir)})
    port = port_of(daemon)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(FILES + FILES // 2)]
    try:
        for sock in idle[: FILES // 4]:
            with contextlib.suppress(OSError):
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        told = holdfast.run("daemon", "--status")
        assert told.returncode == 0 and not daemon.ended, told.output
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_reconnect_backoff_ms", 500)]) as channel:
            register = channel.unary_unary(f"/{SERVICE}/{next(iter(METHODS))}")
            wait_until(lambda: is_answered(grpc, register), what="a client of Google's to be answered")
    finally:
        for sock in idle:
            sock.close()
        few.stop_all()


def is_answered(grpc: Any, call: Any) -> bool:
    try:
        return bool(call(b"", timeout=5))
    except grpc.RpcError:
        return False
