"""Messages between processes of one host: as with NVRx's, but nothing is unpickled, and strangers are not heard."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from multiprocessing import get_context

import pytest


@pytest.fixture
def connector(ft, tmp_path):
    made = ft("ipc_connector").IpcConnector(str(tmp_path / "connector"))
    yield made
    made.stop_receiving()


def _send(root, path, rank):
    connector = __import__(f"{root}.ipc_connector", fromlist=["IpcConnector"]).IpcConnector(path)
    for text in ("first", "second", "STOP"):
        connector.send((rank, text))


def _from_processes(ft, connector):
    """Three messages from each of three processes."""
    context = get_context("fork")
    senders = [context.Process(target=_send, args=(ft.root, connector.socket_path, rank)) for rank in range(3)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(60)
    return {(rank, text) for rank in range(3) for text in ("first", "second", "STOP")}


def test_messages_of_many_processes_arrive(ft, connector):
    connector.start_receiving()
    for _ in range(2):
        sent = _from_processes(ft, connector)
        assert set(connector.peek_received()) == sent == set(connector.peek_received())
        connector.clear()
        assert connector.peek_received() == []
        sent = _from_processes(ft, connector)
        received = connector.fetch_received()
        assert len(received) == len(sent) and set(received) == sent
        assert connector.fetch_received() == []


def test_nothing_received_is_nothing(connector):
    connector.start_receiving()
    connector.clear()
    assert connector.peek_received() == connector.fetch_received() == []


def test_it_listens_once(connector):
    connector.start_receiving()
    with pytest.raises(RuntimeError):
        connector.start_receiving()


def test_it_leaves_no_socket_behind(connector):
    connector.start_receiving()
    connector.stop_receiving()
    assert not os.path.exists(connector.socket_path)
    connector.stop_receiving()


def test_it_may_listen_again(connector):
    for text in ("one", "two"):
        connector.start_receiving()
        connector.send(text)
        assert connector.fetch_received() == [text]
        connector.stop_receiving()


def test_with_nobody_there_a_sender_is_told(connector):
    with pytest.raises(OSError):
        connector.send("hello")


def test_a_request_arrives_as_it_is(ft, connector):
    connector.start_receiving()
    connector.send((3, ft().WorkloadControlRequest(ft().WorkloadAction.ExcludeThisNode, "broken GPU")))
    [(rank, request)] = connector.fetch_received()
    assert (rank, request.action, request.description) == (3, ft().WorkloadAction.ExcludeThisNode, "broken GPU")
    assert str(request) == "WorkloadControlRequest(action=WorkloadAction.ExcludeThisNode, description=broken GPU)"


# Ours alone.


@pytest.fixture
def listening(ours_ft, tmp_path):
    made = ours_ft("ipc_connector").IpcConnector(str(tmp_path / "connector"))
    made.start_receiving()
    yield made
    made.stop_receiving()


def test_a_pickle_is_not_opened(listening, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    text = pickle.dumps(Bomb())
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(listening.socket_path)
        stranger.sendall(len(text).to_bytes(4, "big") + text)
        assert stranger.recv(1) == b""  # it hung up
    listening.send("still there")
    assert listening.fetch_received() == ["still there"] and not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\0\0\0\x02{]"], ids=["too long", "no JSON"])
def test_nonsense_costs_the_others_nothing(listening, head):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(listening.socket_path)
        stranger.sendall(head)
        assert stranger.recv(1) == b""
    listening.send("still there")
    assert listening.fetch_received() == ["still there"]


STRANGER = """
import os, socket, sys
os.setuid(65534)
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
try:
    one.sendall(b"\\0\\0\\0\\x04true")
    sys.exit(len(one.recv(1)))
except ConnectionError:
    pass  # hung up already
"""


@pytest.mark.root
def test_another_users_word_is_not_heard(ours_ft):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # where another user can go
        os.chmod(folder, 0o755)
        listening = ours_ft("ipc_connector").IpcConnector(f"{folder}/connector")
        listening.start_receiving()
        os.chmod(listening.socket_path, 0o666)  # as if the file's mode did not keep it out
        done = subprocess.run([sys.executable, "-c", STRANGER, listening.socket_path], timeout=60)
        received = listening.fetch_received()
        listening.stop_receiving()
    assert done.returncode == 0 and received == []


@pytest.mark.parametrize(
    "message",
    [None, True, 3, 2.5, "text", [1, (2, "x")], {"a": (1,), 2: {3}}, {"$": 1}, b"\0bytes", {"s", "t"}, float("inf")],
    ids=lambda message: "set" if isinstance(message, set) else repr(message),  # a set's order is another in each process
)
def test_plain_data_arrives_as_it_was(ours_ft, message):
    wire = ours_ft("wire")
    back = wire.loads(wire.dumps(message))
    assert back == message and type(back) is type(message)


def test_the_words_arrive_as_they_were(ours_ft):
    wire, data, config = ours_ft("wire"), ours_ft("data"), ours_ft().FaultToleranceConfig(rank_section_timeouts={"a": None})
    limits = data.SectionTimeouts({"a": 1.0, "b": None}, 3.0, {"a"}, True)
    for word in (
        data.InitMsg(data.RankInfo(3, 1, "host", 77), iteration=5),
        data.UpdateConfigMsg(data.HeartbeatTimeouts(1.0, None, True), limits, 4),
        data.SectionMsg(0, "step", data.SectionAction.OPEN),
        config,
    ):
        assert wire.loads(wire.dumps(word)) == word
    assert wire.loads(wire.dumps(data.OkMsg(cfg=config))).cfg == config


@pytest.mark.parametrize("message", [object(), print, {1: object()}], ids=["an object", "a function", "inside"])
def test_what_cannot_be_sent_is_said(ours_ft, message):
    with pytest.raises(ours_ft("wire").WireError):
        ours_ft("wire").dumps(message)


@pytest.mark.parametrize("text", [b'{"$": "os.system", "v": {}}', b'{"$": "RankInfo", "v": {"evil": 1}}', b'{"$": 3}', b"\xff"])
def test_what_is_no_word_is_refused(ours_ft, text):
    with pytest.raises(ours_ft("wire").WireError):
        ours_ft("wire").loads(text)


# Small tools.


def test_a_process_is_waited_for(ft):
    utils = ft("utils")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert utils.is_process_alive(child.pid)
        with pytest.raises(Exception, match="alive"):
            utils.wait_until_process_terminated(child.pid, timeout=0.1)
        child.stdin.close()
        utils.wait_until_process_terminated(child.pid, timeout=60)  # a zombie, which is not alive
        assert not utils.is_process_alive(child.pid)


def test_events_are_waited_for_together(ft):
    utils, context = ft("utils"), get_context("fork")
    events = [context.Event(), context.Event()]
    with pytest.raises(RuntimeError):
        utils.wait_for_mp_events(events, timeout=0.05)
    for event in events:
        event.set()
    utils.wait_for_mp_events(events, timeout=60)


RANKS = [
    ({}, False, -1),
    ({"SLURM_PROCID": "7", "GROUP_RANK": "9"}, False, 7),
    ({"GROUP_RANK": "15"}, False, 15),
    ({"CROSS_SLURM_PROCID": "42", "SLURM_PROCID": "10"}, False, 42),
    ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "2", "SLURM_NNODES": "4"}, False, 14),
    ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "compute-4-2-1", "CROSS_SLURM_PROCID": "5"}, False, 421),
    ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "node456", "SLURM_PROCID": "20"}, True, 20),
    ({"SLURM_TOPOLOGY_ADDR": "block5.node10", "SLURM_TOPOLOGY_ADDR_PATTERN": "BLOCK.node"}, False, 50_000_000_010),
    ({"SLURM_TOPOLOGY_ADDR": "block5.node3", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node", "SLURM_PROCID": "10"}, True, 10),
]
"""Environment, whether names do not count, and the rank: the same as NVRx's main gives."""


@pytest.fixture
def nowhere(monkeypatch):
    """An environment of no infrastructure."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "NVRX_", "CROSS_", "OMPI_", "PMI_", "MV2_", "GROUP_RANK", "PET_NODE_RANK", "JOB_")):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(("environ", "skip", "rank"), RANKS)
def test_the_infrastructures_rank(ours_ft, nowhere, environ, skip, rank):
    for name, value in environ.items():
        nowhere.setenv(name, value)
    assert ours_ft("utils").get_infrastructure_rank(skip_nodename_logic=skip) == rank


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"SLURM_JOB_ID": "1"}, RuntimeError),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_PROCID": "0"}, RuntimeError),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1"}, ValueError),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "node"}, ValueError),
        ({"SLURM_TOPOLOGY_ADDR": "block5", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, ValueError),
        ({"SLURM_TOPOLOGY_ADDR": "block1.node10000000000", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}, ValueError),
    ],
)
def test_an_infrastructure_without_sense_is_an_error(ours_ft, nowhere, environ, error):
    for name, value in environ.items():
        nowhere.setenv(name, value)
    with pytest.raises(error):
        ours_ft("utils").get_infrastructure_rank()
