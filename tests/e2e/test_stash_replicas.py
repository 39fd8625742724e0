"""What a node's ranks have stashed outlives the node: another one has it too, and gives it to whoever takes its place."""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kit.certificates import Certificates
from kit.jobs.lockstep import LOCKSTEP, Said, lose, tree

from holdfast.agent.states.state_replication import Replicas
from holdfast.client import stash as client
from holdfast.client.stash_memory import Region
from holdfast.core.errors import ProtocolError
from holdfast.core.machine import NEVER
from holdfast.core.page import stash as layout
from holdfast.core.wire.messages import Assigned
from holdfast.rendezvous.placement.partners import ticket
from holdfast.runtime.net.addresses import host_and_port
from holdfast.runtime.net.blocking_link import BlockingLink
from holdfast.runtime.net.frames import Identity, Turned
from holdfast.runtime.net.tls import shelter
from holdfast.runtime.shm.pages import nameless_file
from holdfast.runtime.shm.stash import held


def listening(pid: int) -> list[tuple[str, int]]:
    """Where a process listens, on this host's own addresses of the fourth version."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(os.readlink(descriptor))
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:
            address, port = local.split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            found.append((host if host != "0.0.0.0" else "127.0.0.1", int(port, 16)))
    return found


TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    pytest.importorskip("trustme", reason="trustme is not installed: it makes the certificates")
    return Certificates(tmp_path / "ours")


@pytest.fixture
def others(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "others")


def sheltered(own: Certificates, ca: Certificates | None = None, **how: Any) -> Any:
    """Links of a node with a certificate of `own`, which lets in those of `ca`."""
    _, cert, _, key, *_ = own.flags(**how)
    return shelter(cert, key, str((ca or own).ca_file))


@pytest.mark.parametrize("secured", ["no token", "token", "TLS"])
def test_a_lost_node_s_ranks_go_on_elsewhere_and_lose_a_step_at_most(
    holdfast: Any, script: Any, free_port: int, wait_until: Any, tmp_path: Path, secured: str, request: Any
) -> None:
    program, folder = script(LOCKSTEP), tmp_path / "ranks"
    folder.mkdir()
    env = {"HOLDFAST_TOKEN": TOKEN} if secured != "no token" else {}
    tls = request.getfixturevalue("ours") if secured == "TLS" else None
    agents: dict[str, Any] = {}
    said = Said(agents)

    def agent(name: str) -> None:
        agents[name] = holdfast.start(
            *("run", "--nnodes", "2", "--nproc-per-node", 2, "--node-name", name, "--rdzv-id", "swap", "--stash-replicate"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--max-restarts", 3),
            *(*(tls.flags(name) if tls else ()), program, folder),
            env=env,
        )

    def nodes_of(round: int) -> set[str]:
        formed = (event for event in holdfast.events("RoundFormed") if event["round"] == round)
        return {event["node"] for event in formed}

    agent("a")
    wait_until(lambda: holdfast.events("NodeJoined"))
    agent("b")
    wait_until(lambda: said.steps_of_all(1) >= 0)
    for spare in ("c", "d"):
        agent(spare)
        wait_until(lambda name=spare: any(event["node"] == name for event in holdfast.events("AgentStarted")))
    if tls:  # who has the token, and no certificate or another CA's
        _, agent_pid, *_ = tree(agents["b"].pid)  # the first is its guardian
        ports = listening(agent_pid)
        strange = sheltered(request.getfixturevalue("others"), tls)
        assert len(ports) == 2, ports  # of its succession, and of what is stashed
        for port, how in ((port, how) for port in ports for how in (None, strange)):
            with pytest.raises((ProtocolError, OSError)):
                BlockingLink(socket.create_connection(port), Identity("swap", TOKEN.encode()), how, ours=True)
        for why in ("it does not use TLS, and this job does", "its certificate is not accepted"):
            agents["b"].wait_for_output(why)
    for round in (1, 2):
        newest = said.steps_of_all(round)
        wait_until(lambda: said.steps_of_all(round) >= newest + 10)  # noqa: B023
        (other,) = nodes_of(round) - {"a"}
        lose(agents[other])
        made = said.steps_of_all(round)
        wait_until(lambda: said.steps_of_all(round + 1) >= 0)  # noqa: B023
        found = said.of(round + 1, "found")
        assert len(found) == 4 and len({steps[0] for steps in found.values()}) == 1, found
        assert found[0][0] >= made - 1, "more than a step is lost"
    (folder / "end").touch()
    assert agents["a"].wait().returncode == 0, agents["a"].wait().output


def test_with_two_copies_two_nodes_may_be_lost_at_once(
    holdfast: Any, script: Any, free_port: int, wait_until: Any, tmp_path: Path
) -> None:
    program, folder = script(LOCKSTEP), tmp_path / "ranks"
    folder.mkdir()
    agents: dict[str, Any] = {}
    said = Said(agents, ranks=3)
    for number, name in enumerate("abcde"):  # the last two are spares
        agents[name] = holdfast.start(
            *("run", "--nnodes", "3", "--node-name", name, "--rdzv-id", "swap", "--stash-replicas", 2, "--max-restarts", 3),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", program, folder),
        )
        event, whose = ("NodeJoined", "a") if number < 3 else ("AgentStarted", name)
        count = number + 1 if number < 3 else 1
        wait_until(lambda: sum(one["node"] == whose for one in holdfast.events(event)) >= count)  # noqa: B023
    wait_until(lambda: said.steps_of_all(1) >= 10)
    for name in ("b", "c"):
        lose(agents[name])
    made = said.steps_of_all(1)
    wait_until(lambda: any(said.steps_of_all(round) >= 0 for round in (2, 3)))
    round = next(round for round in (2, 3) if said.steps_of_all(round) >= 0)
    found = said.of(round, "found")
    assert len(found) == 3 and len({steps[0] for steps in found.values()}) == 1 and found[0][0] >= made - 1, (found, made)
    (folder / "end").touch()
    assert agents["a"].wait().returncode == 0, agents["a"].wait().output


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., client.Stash]]:
    """`rank(fd, round=1)`: the stash of a node's only rank."""

    def live(
        fd: int, round: int = 1, agreed: str = "", limit: str = "1000000000", rank: int = 0, world: int = 2, copies: int = 1
    ) -> client.Stash:
        told = {"HOLDFAST_ROUND": round, "RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": 1}
        told |= {layout.AGREED_VARIABLE: agreed}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        return client.Stash(Region(f"/proc/self/fd/{fd}", 0, limit, 1), copies)

    yield live


NODE = "a-1-0123456789abcdef"  # The id of each node here.


def replicas(
    *, limit: str = "1000000000", token: bytes = b"", complaints: list[str] | None = None, shelter: Any = None, copies: int = 1
) -> Replicas:
    tell = (complaints if complaints is not None else []).append
    return Replicas(Identity("job", token), shelter, "127.0.0.1", node=NODE, nproc=1, limit=limit, copies=copies, tell=tell)


def link_to(partner: Replicas, token: bytes, shelter: Any = None) -> BlockingLink:
    sock = socket.create_connection(("127.0.0.1", int(partner.at.rpartition(":")[2])))
    return BlockingLink(sock, Identity("job", token), shelter, ours=True)


class Tap:
    """Somebody on the wire: hands on to `partner` what comes, and back, and keeps it all. Without one, it says nothing."""

    def __init__(self, partner: str = "") -> None:
        self.partner, self.heard, self.asked = partner, b"", b""
        """What both sides have said; and what whoever came has."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.at = f"127.0.0.1:{self.listener.getsockname()[1]}"
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            came, _ = self.listener.accept()
            on = socket.create_connection(("127.0.0.1", int(self.partner.rpartition(":")[2]))) if self.partner else None
            for one, other in ((came, on), (on, came)):
                if one is not None:
                    Thread(target=self._hand_on, args=(one, other, one is came), daemon=True).start()

    def _hand_on(self, one: socket.socket, other: socket.socket | None, has_come: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.heard += data
                self.asked += data if has_come else b""
                if other is not None:
                    other.sendall(data)
        if other is not None:
            other.close()


def put(base_rank: int = 0, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """A question: three bytes of a node's first rank are brought."""
    made = {"slot": 0, "sequence": 1, "round": 1, "step": 9, "rank": base_rank, "world_size": 4}
    made |= {"header_bytes": 1, "bytes_at": 0, "size": 3, "saved_unix_ns": 1, "header_crc": 1}
    shown = {"round": 1, "ticket": ticket(NODE, 1, base_rank, ranks)}
    return {"put": 0, "of": ranks, "agreed": None, "generation": made | more} | shown


def assigned(round: int = 1, base_rank: int = 0, world_size: int = 2, **more: Any) -> Assigned:
    shown = ticket(NODE, round, base_rank, 1)
    return Assigned(
        stash_tickets=dict.fromkeys((*more.get("stash_partners", ()), more.get("stash_from", "")), shown),
        round=round,
        restart_count=0,
        group_rank=0,
        group_world_size=2,
        base_rank=base_rank,
        world_size=world_size,
        role_base_rank=0,
        role_world_size=2,
        master_addr="",
        master_port=0,
        nodes=(),
        reason="",
        **more,
    )


def test_the_partner_has_the_last_three_and_a_replacement_is_given_them(rank: Any, wait_until: Any) -> None:
    mine, others, partner = nameless_file("a"), nameless_file("b"), replicas()
    one, replacement = replicas(), replicas()
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    for step in range(5):
        assert stash.save(step, {"step": step, "much": bytes([step]) * 3_000_000}, False)
    stash._await_partners()
    assert partner.kept() == ((1, 2, 0, 2, 1), (1, 3, 0, 2, 1), (1, 4, 0, 2, 1))
    replacement.begin(assigned(2, stash=(1, 4), stash_from=partner.at, stash_partners=(partner.at,)), others)
    step, state = rank(others, round=2, agreed="1:4").latest(None, None)
    assert step == 4 and state == {"step": 4, "much": b"\4" * 3_000_000}


def test_two_partners_have_it_and_each_keeps_for_two(rank: Any, wait_until: Any) -> None:
    nodes = [replicas(copies=2) for _ in range(3)]
    files, stashes = [nameless_file(name) for name in "abc"], []
    for at, node in enumerate(nodes):
        node.begin(assigned(1, at, 3, stash_partners=(nodes[(at + 1) % 3].at, nodes[(at + 2) % 3].at)), files[at])
        stashes.append(rank(files[at], rank=at, world=3, copies=2))
    for step in range(4):
        for at, stash in enumerate(stashes):
            assert stash.save(step, bytes([at, step]) * 1_000_000, False)
    for stash in stashes:
        stash._await_partners()
    for at, node in enumerate(nodes):
        assert {*node.kept()} == {(1, step, base, 3, 1) for step in (1, 2, 3) for base in range(3) if base != at}
    # Any two may be lost: the third gives both replacements what was theirs.
    for at in (0, 1):
        replacement, file = replicas(copies=2), nameless_file("d")
        replacement.begin(assigned(2, at, 3, stash=(1, 3), stash_from=nodes[2].at), file)
        assert rank(file, round=2, agreed="1:3", rank=at, world=3).latest(None, None) == (3, bytes([at, 3]) * 1_000_000)


def test_what_is_kept_of_more_nodes_than_it_keeps_for_takes_the_place_of_the_oldest(rank: Any, wait_until: Any) -> None:
    keeper = replicas(copies=2)
    for round, base in ((1, 0), (1, 1), (2, 2), (2, 1)):
        node, file = replicas(copies=2), nameless_file("a")
        node.begin(assigned(round, base, 3, stash_partners=(keeper.at,)), file)
        stash = rank(file, round=round, rank=base, world=3, copies=1)
        for step in range(3):
            assert stash.save(step, b"x", False)
        stash._await_partners()
    assert len(keeper.keeps) == 2
    assert {one[2:3] + one[:1] for one in keeper.kept()} == {(2, 2), (1, 2)}


def test_where_the_state_cannot_be_fetched_the_rank_says_so(rank: Any, wait_until: Any) -> None:
    complaints: list[str] = []
    replacement, file = replicas(complaints=complaints), nameless_file("b")
    replacement.begin(assigned(2, stash=(1, 4), stash_from=replicas().at, stash_partners=(replicas().at,)), file)
    with pytest.raises(RuntimeError, match="the state of step 4, from which all ranks go on, could not be fetched"):
        rank(file, round=2, agreed="1:4").latest(None, None)
    replacement.due()
    assert "no longer has it" in complaints[0] and replacement.at == ""


def test_a_partner_that_is_gone_holds_up_nobody_for_long_and_is_named(rank: Any, wait_until: Any) -> None:
    complaints: list[str] = []
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        one, mine = replicas(complaints=complaints), nameless_file("a")
        one.begin(assigned(stash_partners=(f"127.0.0.1:{nobody.getsockname()[1]}",)), mine)
        stash = rank(mine)
        for step in range(3):
            assert stash.save(step, step, False)
    one.due()
    assert len(complaints) == 1 and "states are not replicated at present: 127.0.0.1:" in complaints[0]


def test_a_partner_without_room_says_so_and_keeps_what_it_has(rank: Any, wait_until: Any) -> None:
    complaints: list[str] = []
    one, partner, mine = replicas(complaints=complaints), replicas(limit="8000000"), nameless_file("a")
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    assert stash.save(1, b"x" * 1_000_000, False) and stash.save(2, b"x" * 1_400_000, False)
    stash._await_partners()
    one.due()
    assert "3 generations of 1 such ranks are more than 1/2 of its --stash-limit" in complaints[0]
    assert partner.kept() == ((1, 1, 0, 2, 1),)


def test_where_states_are_replicated_a_node_s_own_take_half_of_the_limit(rank: Any) -> None:
    one, partner, mine = replicas(), replicas(), nameless_file("a")
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine, limit="8000000")
    assert stash.save(1, b"x" * 1_300_000, False)  # three of them
    with pytest.warns(RuntimeWarning, match=r"6 generations of 1\.4MB are more than .* 8\.0MB: give --stash-limit 8\.4MB"):
        assert not stash.save(2, b"x" * 1_400_000, False)


def test_what_is_kept_is_bounded_and_given_back_when_it_is_another_node_s(rank: Any, wait_until: Any) -> None:
    one, partner, mine = replicas(), replicas(), nameless_file("a")
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    for step in range(6):
        assert stash.save(step, b"x" * 20_000_000, False)
    stash._await_partners()
    assert os.fstat(partner.keeps[0].file).st_blocks * 512 < 61_000_000
    link = link_to(partner, b"")
    link.say(put(base_rank=2, ranks=2))
    assert link.next(time.monotonic() + 10) == b"{}"
    assert partner.kept() == () and os.fstat(partner.keeps[0].file).st_blocks * 512 < 1_000_000
    link.send(b"abc")
    link.send(b'{"whole": false}')  # it was overwritten over there
    with pytest.raises(OSError, match="closed the link"):  # by when it has been weighed
        link.next(time.monotonic() + 10)
    assert partner.kept() == ()


SECRET = b"what nobody but the partner is to read"
ALSO = {"put": 1, "of": 2, "round": 1}
"""Another local rank of the same node."""


@pytest.mark.parametrize(
    "asked",
    [
        put(1) | {"ticket": ticket(NODE, 1, 0, 1)},
        put() | {"ticket": ticket("b-2-fedcba9876543210", 1, 0, 1)},
        put() | {"ticket": ticket(NODE, 2, 0, 1)},
        put() | {"ticket": ""},
        put() | {"ticket": "\ud800"},
        put() | ALSO,
        {"get": 0, "of": 1, "round": 1, "ticket": ticket(NODE, 1, 1, 1), "generation": [1, 4, 0]},
        {"get": 0, "of": 1, "round": 1, "ticket": "", "generation": [1, 4, 0]},
    ],
    ids=["another rank", "another holder", "another round", "none", "no text", "more ranks", "get another's", "get without"],
)
def test_a_member_gets_and_brings_no_other_node_s_state(rank: Any, wait_until: Any, asked: dict[str, Any]) -> None:
    one, mine, complaints = replicas(), nameless_file("a"), list[str]()
    partner = replicas(complaints=complaints)
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    assert stash.save(4, SECRET, False)
    stash._await_partners()
    link = link_to(partner, b"")
    link.say(asked)
    with pytest.raises(OSError, match="closed the link"):
        link.next(time.monotonic() + 10)
    assert partner.kept() == ((1, 4, 0, 2, 1),)
    wait_until(lambda: [partner.due(), complaints][1])
    assert "it is not the node of rank" in complaints[0]


@pytest.mark.parametrize(
    "change", [("size", 1 << 50), ("size", -1), ("header_bytes", 4), ("step", 1 << 64), ("round", -1)], ids=str
)
def test_what_cannot_be_a_state_is_not_taken(change: tuple[str, int]) -> None:
    partner = replicas()
    link = link_to(partner, b"")
    link.say(put(**dict([change])))
    with pytest.raises(OSError, match="closed the link"):
        link.next(time.monotonic() + 10)
    assert partner.kept() == () and not partner.keeps[0].coming


@pytest.mark.parametrize("proven", [False, True], ids=["strangers", "members"])
def test_idle_links_keep_no_node_out(rank: Any, proven: bool) -> None:
    one, partner, mine = replicas(token=b"right"), replicas(token=b"right"), nameless_file("a")
    idle: list[Any] = []
    for _ in range(300):
        with suppress(OSError):
            idle.append(link_to(partner, b"right") if proven else socket.create_connection(host_and_port(partner.at)))
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    assert stash.save(4, SECRET, False)
    stash._await_partners()
    assert partner.kept() == ((1, 4, 0, 2, 1),)
    for link in idle:
        link.close()


def test_without_the_token_nothing_is_given_and_nothing_is_taken(wait_until: Any) -> None:
    complaints: list[str] = []
    partner = replicas(token=b"right", complaints=complaints)
    with pytest.raises(Turned, match="wrong job token"):
        link_to(partner, b"wrong")
    wait_until(lambda: partner.complaints)
    partner.due()
    turned_away = f"turned away a connection from 127.0.0.1: {Identity('job', b'x').wrong}"
    assert complaints == [turned_away] and partner.deadline() == NEVER
    for _ in range(2):
        with pytest.raises(Turned, match="wrong job token"):
            link_to(partner, b"wrong")
    wait_until(lambda: partner.rejections.unsaid == 2)
    assert partner.deadline() > time.monotonic()
    partner.rejections.tell_at = time.monotonic()
    partner.due()
    assert complaints[1:] == [f"such connections came 2 times more; the last: {turned_away}"]


@pytest.mark.parametrize("encrypted", [True, False], ids=["TLS", "in the clear"])
def test_what_is_stashed_crosses_the_wire_encrypted_where_tls_is_given(rank: Any, ours: Any, encrypted: bool) -> None:
    how = partial(replicas, shelter=sheltered(ours)) if encrypted else replicas
    mine, others = nameless_file("a"), nameless_file("b")
    one, partner, replacement = how(), how(), how()
    there, back = Tap(partner.at), Tap(partner.at)
    one.begin(assigned(stash_partners=(there.at,)), mine)
    stash = rank(mine)
    assert stash.save(4, SECRET * 100_000, False)
    stash._await_partners()
    assert partner.kept() == ((1, 4, 0, 2, 1),)
    replacement.begin(assigned(2, stash=(1, 4), stash_from=back.at, stash_partners=(there.at,)), others)
    assert rank(others, round=2, agreed="1:4").latest(None, None) == (4, SECRET * 100_000)
    for tap in (there, back):
        assert len(tap.heard) > 100_000 * len(SECRET)
        for word in (SECRET, b"generation", b"holdfast"):
            assert (word in tap.heard) != encrypted, word


def test_a_partner_of_another_ca_is_given_nothing_and_nor_is_one_without_tls(
    rank: Any, ours: Any, others: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    for partner, why in (
        (replicas(shelter=sheltered(others)), "its certificate is not accepted: "),
        (replicas(shelter=sheltered(others, ours)), "its certificate is not accepted: "),
        (replicas(), "the other side does not use TLS, and this node does"),
        (Tap(), "the other side does not answer"),
    ):
        if isinstance(partner, Tap):  # it never answers
            monkeypatch.setattr("holdfast.runtime.net.blocking_link.HANDSHAKE_S", 1.0)
        complaints: list[str] = []
        one, mine = replicas(shelter=sheltered(ours), complaints=complaints), nameless_file("a")
        tap = Tap(partner.at) if isinstance(partner, Replicas) else partner
        one.begin(assigned(stash_partners=(tap.at,)), mine)
        stash = rank(mine)
        assert stash.save(1, SECRET, False)
        stash._await_partners()
        one.due()
        (said,) = complaints
        assert said.startswith(f"states are not replicated at present: {tap.at}: {why}"), said
        wait_until(lambda tap=tap: tap.asked)  # its thread may come to read it only now
        assert tap.asked.startswith(b"\x16\x03") and SECRET not in tap.heard
        assert not isinstance(partner, Replicas) or partner.kept() == ()


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("strange", "here", "there"),
    [
        ("another CA's", "its certificate is not accepted: ", "its CA did not sign ours"),
        ("expired", "its certificate is not accepted: certificate has expired", "ours has expired"),
        ("no TLS", "it does not use TLS, and this job does", "127.0.0.1:"),
    ],
)
def test_who_has_no_good_certificate_gets_nothing_and_both_sides_say_why(
    rank: Any, ours: Any, others: Any, wait_until: Any, strange: str, here: str, there: str
) -> None:
    complaints: list[str] = []
    one, partner = replicas(shelter=sheltered(ours)), replicas(shelter=sheltered(ours), complaints=complaints)
    mine = nameless_file("a")
    one.begin(assigned(stash_partners=(partner.at,)), mine)
    stash = rank(mine)
    assert stash.save(4, SECRET, False)
    stash._await_partners()
    comes = None
    if strange != "no TLS":
        comes = sheltered(others, ours) if strange == "another CA's" else sheltered(ours, not_after=LONG_AGO)
    said: list[str] = []
    replacement, file = replicas(shelter=comes, complaints=said), nameless_file("b")
    replacement.begin(assigned(2, stash=(1, 4), stash_from=partner.at, stash_partners=(partner.at,)), file)
    with pytest.raises(RuntimeError, match="could not be fetched"):
        rank(file, round=2, agreed="1:4").latest(None, None)
    replacement.due()
    assert there in said[0], said
    wait_until(lambda: [partner.due(), complaints][1], what="the partner's word")  # it may hear of it a little later
    assert [line for line in complaints if line.startswith(f"turned away a connection from 127.0.0.1: {here}")], complaints


def test_a_second_one_on_its_way_takes_the_first_one_s_place(rank: Any) -> None:
    from holdfast.runtime.shm.stash import Filling

    file = nameless_file("b")
    stash = rank(nameless_file("a"))
    stash.saved = 0
    stash.save(1, b"abc", False)
    (made,) = stash._whole()
    first = Filling(file, 0, made, 2, None)
    first.call_off()
    with pytest.raises(OSError, match="another one has taken its place"):
        first.take(memoryview(b"a"))
    first.seal()
    assert held(file, 1) == ()
