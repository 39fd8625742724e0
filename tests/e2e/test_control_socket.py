"""The agent's socket: who may ask, in what words, and that no client can hold the agent up."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agent.control.control_client import ask
from holdfast.agent.control.control_client import connect as connect_to
from holdfast.agent.control.control_socket import SEATS, ControlSocket, Request
from holdfast.core.errors import ProtocolError
from holdfast.telemetry.record.state_dir import running_nodes

PATIENCE_S = 30.0


def answer(request: Request) -> None:
    if request.ask == "status":
        request.reply({"state": "running", "given": request.arguments})
    elif request.ask == "big":
        request.reply({"text": "x" * 3_000_000})
    elif request.ask != "nothing":
        request.refuse(f"what is {request.ask}?")


class Loop:
    """A control socket with an agent's loop around it, in a thread."""

    def __init__(self, path: Path) -> None:
        self.control = ControlSocket(str(path))
        self.wakes = 0
        self._wake, self._wake_end = os.pipe()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        loop = select.epoll()
        loop.register(self.control.fileno(), select.EPOLLIN)
        loop.register(self._wake, select.EPOLLIN)
        while all(fd != self._wake for fd, _ in loop.poll()):
            self.wakes += 1
            for request in self.control.requests():
                answer(request)
        loop.close()

    def close(self) -> None:
        os.write(self._wake_end, b"x")
        self._thread.join(PATIENCE_S)
        self.control.close()
        os.close(self._wake)
        os.close(self._wake_end)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Loop]:
    served = Loop(tmp_path / "agent-n1.sock")
    yield served
    served.close()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[], socket.socket]]:
    """A client that can misbehave."""
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connect_to(opened[-1], str(tmp_path / "agent-n1.sock"), PATIENCE_S)
        opened[-1].settimeout(PATIENCE_S)
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def read_all(client: socket.socket) -> bytes:
    pieces = []
    while piece := client.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.usefixtures("agent")
def test_a_question_is_answered(tmp_path: Path) -> None:
    assert ask(str(tmp_path), "n1", {"ask": "status", "wide": True}, PATIENCE_S) == {
        "ok": True,
        "state": "running",
        "given": {"wide": True},
    }


def test_an_agent_can_be_asked_from_its_first_moment(holdfast, wait_until) -> None:
    job = holdfast.start("run", "--no-python", "sleep", 60)
    [(folder, node)] = wait_until(lambda: [(str(job), node) for job in holdfast.jobs() for node in running_nodes(str(job))])
    assert ask(folder, node, {"ask": "stop", "reason": "a change of mind"})["ok"]
    assert job.wait().returncode == 1


def test_a_reason_that_is_no_text_is_refused_and_the_job_goes_on(holdfast, wait_until) -> None:
    job = holdfast.start("run", "--no-python", "sleep", 60)
    [(folder, node)] = wait_until(lambda: [(str(job), node) for job in holdfast.jobs() for node in running_nodes(str(job))])
    wait_until(lambda: holdfast.events("WorkerStarted"))
    for said in (5, ["a"], {"b": 1}, True):
        for asked in ({"ask": "stop"}, {"ask": "restart"}, {"ask": "exclude", "node": node}):
            told = ask(folder, node, asked | {"reason": said})
            assert not told["ok"] and told["error"].startswith("reason is ") and "no text" in told["error"]
    assert "no text" in ask(folder, node, {"ask": "exclude", "node": 5})["error"]
    assert ask(folder, node, {"ask": "status"})["ok"]
    assert ask(folder, node, {"ask": "stop", "reason": None})["ok"]
    assert job.wait().returncode == 1


def test_a_grace_that_is_no_time_is_refused_and_the_job_goes_on(holdfast, wait_until) -> None:
    job = holdfast.start("run", "--no-python", "sleep", 60)
    [(folder, node)] = wait_until(lambda: [(str(job), node) for job in holdfast.jobs() for node in running_nodes(str(job))])
    wait_until(lambda: holdfast.events("WorkerStarted"))
    for said in (10**400, float("inf"), float("nan"), -1, "5"):
        told = ask(folder, node, {"ask": "stop", "grace_s": said})
        assert not told["ok"] and "which is not a number of seconds" in told["error"]
    assert ask(folder, node, {"ask": "stop", "grace_s": 5})["ok"]
    assert job.wait().returncode == 1 and "Traceback" not in job.stderr


@pytest.mark.usefixtures("agent")
def test_what_cannot_be_done_is_refused_with_a_reason(tmp_path: Path) -> None:
    assert ask(str(tmp_path), "n1", {"ask": "fly"}, PATIENCE_S) == {"ok": False, "error": "what is fly?"}


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("line", [b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"ask"\n', b"\xff\xfe\n", b"[" * 60_000 + b"\n"])
def test_nonsense_is_answered_with_the_form(connect: Callable[[], socket.socket], line: bytes) -> None:
    client = connect()
    client.sendall(line)
    said = json.loads(read_all(client))
    assert said["ok"] is False and '"ask"' in said["error"]


@pytest.mark.usefixtures("agent")
def test_an_endless_request_is_cut_off(connect: Callable[[], socket.socket], tmp_path: Path) -> None:
    client = connect()
    with pytest.raises(OSError):
        while True:
            client.sendall(b"x" * 65_536)
    assert ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)["ok"]


@pytest.mark.usefixtures("agent")
def test_a_request_may_come_in_pieces(connect: Callable[[], socket.socket], tmp_path: Path) -> None:
    client = connect()
    client.sendall(b'{"ask": "sta')
    assert ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)["ok"]
    client.sendall(b'tus"}\n')
    assert json.loads(read_all(client))["state"] == "running"


@pytest.mark.usefixtures("agent")
def test_who_shuts_the_writing_half_down_still_gets_the_answer(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    client.sendall(b'{"ask": "status"}\n')
    client.shutdown(socket.SHUT_WR)
    assert json.loads(read_all(client))["ok"]


@pytest.mark.usefixtures("agent")
def test_an_answer_longer_than_the_socket_holds_arrives_whole(tmp_path: Path) -> None:
    assert len(ask(str(tmp_path), "n1", {"ask": "big"}, PATIENCE_S)["text"]) == 3_000_000


@pytest.mark.usefixtures("agent")
def test_a_client_that_does_not_read_its_answer_holds_nobody_up(connect: Callable[[], socket.socket], tmp_path: Path) -> None:
    connect().sendall(b'{"ask": "big"}\n')
    assert ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)["ok"]


@pytest.mark.usefixtures("agent")
def test_silent_clients_make_room_for_the_one_who_asks(connect: Callable[[], socket.socket], tmp_path: Path) -> None:
    silent = [connect() for _ in range(3 * SEATS)]
    assert ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)["ok"]
    assert silent[0].recv(1) == b""


def test_a_client_that_waits_costs_no_turns_of_the_loop(
    agent: Loop, connect: Callable[[], socket.socket], tmp_path: Path
) -> None:
    waiting = connect()
    waiting.sendall(b'{"ask": "nothing"}\n')
    waiting.shutdown(socket.SHUT_WR)
    for _ in range(20):
        ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)
    assert agent.wakes < 200


def test_no_answer_in_time_is_a_timeout(agent: Loop, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        ask(str(tmp_path), "n1", {"ask": "nothing"}, 0.05)


def test_a_dead_agents_socket_refuses_and_a_new_agent_takes_it_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "agent-n1.sock"))
    with pytest.raises(ConnectionRefusedError):
        ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)
    served = Loop(tmp_path / "agent-n1.sock")
    assert ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)["ok"]
    served.close()
    assert not (tmp_path / "agent-n1.sock").exists()


def test_a_path_longer_than_an_address_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["long" * 10] * 5)
    deep.mkdir(parents=True)
    served = Loop(deep / "agent-n1.sock")
    assert ask(str(deep), "n1", {"ask": "status"}, PATIENCE_S)["ok"]
    served.close()
    assert list(deep.iterdir()) == []


@pytest.fixture
def public() -> Iterator[Path]:
    """The socket of an agent in a folder that everybody may enter: pytest's are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as folder:
        os.chmod(folder, 0o755)
        path = Path(folder, "agent-n1.sock")
        served = Loop(path)
        path.chmod(0o777)
        yield path
        served.close()


@pytest.mark.root
def test_another_user_is_not_listened_to(public: Path) -> None:
    probe = (
        "import os, socket, sys\nos.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "client = socket.socket(socket.AF_UNIX); client.settimeout(30); client.connect(sys.argv[1])\n"
        'try:\n    client.sendall(b\'{"ask": "status"}\\n\'); print(client.recv(100))\n'
        "except OSError as error:\n    print(b'')"
    )
    command = [sys.executable, "-c", probe, str(public)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "b''"


def test_an_answer_that_is_none_is_a_protocol_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(str(tmp_path / "agent-n1.sock"))
        stranger.listen()

        def say_hello() -> None:
            connection, _ = stranger.accept()
            connection.recv(1000)
            connection.sendall(b"hello\n")
            connection.close()

        thread = threading.Thread(target=say_hello)
        thread.start()
        with pytest.raises(ProtocolError, match="hello"):
            ask(str(tmp_path), "n1", {"ask": "status"}, PATIENCE_S)
        thread.join()
