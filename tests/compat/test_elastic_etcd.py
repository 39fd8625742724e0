"""The etcd backends of torch elastic's names, over a real etcd: the shared state, the handlers, and the server for tests."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.servers import etcd as infra
from kit.stages.backend_contract import BackendContract

from holdfast.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    etcd_rendezvous,
    etcd_rendezvous_backend,
)
from holdfast.elastic.rendezvous.etcd_connection import client_for, text
from holdfast.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend, create_backend
from holdfast.elastic.rendezvous.etcd_server import EtcdServer
from holdfast.elastic.rendezvous.etcd_store import EtcdStore
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler

pytestmark = infra.NEEDED


@pytest.fixture
def client(etcd: infra.Etcd) -> Any:
    return client_for(etcd.endpoints, {})


@pytest.fixture
def backend(client: Any, request: pytest.FixtureRequest) -> EtcdRendezvousBackend:
    return EtcdRendezvousBackend(client, request.node.name, "/tests")


def params(etcd: infra.Etcd, backend: str, run_id: str, nodes: int = 1, **config: Any) -> RendezvousParameters:
    return RendezvousParameters(backend, config.pop("endpoint", etcd.endpoints), run_id, nodes, nodes, **config)


# --- the shared state -------------------------------------------------------------------------------------------------------


class TestTheSharedState(BackendContract):
    name = "etcd-v2"


def test_a_token_of_another_kind_writes_nothing(backend):
    assert backend.set_state(b"x", "of another kind") is None and backend.get_state() is None


def test_of_many_who_write_with_one_token_one_wins(backend, client, request):
    _, first, _ = backend.set_state(b"x")
    others = [EtcdRendezvousBackend(client, request.node.name, "/tests") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        wrote = [found[2] for found in pool.map(lambda one: one.set_state(str(id(one)).encode(), first), others)]
    assert sorted(wrote) == [False, False, False, True]


def test_what_is_no_state_is_an_error(backend, client):
    client.ask("/kv/put", {"key": text(backend._key), "value": text("non_base64")})
    with pytest.raises(RendezvousStateError):
        backend.get_state()


def test_a_state_goes_when_nobody_writes_it_any_more(client, request, wait_until):
    backend = EtcdRendezvousBackend(client, request.node.name, "/tests", ttl=1)
    backend.set_state(b"x")
    wait_until(lambda: backend.get_state() is None)
    assert backend.set_state(b"y")[2]


def test_a_backend_needs_a_job(client):
    with pytest.raises(ValueError, match="run id"):
        EtcdRendezvousBackend(client, "")


def test_an_etcd_that_goes_is_a_connection_error(tmp_path):
    server = infra.Etcd(tmp_path)
    try:
        backend = EtcdRendezvousBackend(client_for(server.endpoints, {}), "job", "/tests")
        backend.set_state(b"x")
    finally:
        server.stop()
    for call in (backend.get_state, lambda: backend.set_state(b"y")):
        with pytest.raises(RendezvousConnectionError, match="connection to etcd has failed"):
            call()


# --- handlers ---------------------------------------------------------------------------------------------------------------


def test_a_backend_and_its_store_are_made_from_parameters(etcd, client):
    backend, store = create_backend(params(etcd, "etcd-v2", "made", protocol=" hTTp ", read_timeout="10"))
    assert isinstance(store, EtcdStore) and store.timeout.total_seconds() == 10 and backend.name == "etcd-v2"
    backend.set_state(b"x")
    assert EtcdRendezvousBackend(client, "made", "/torch/elastic/rendezvous").get_state() is not None


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"protocol": "dummy"}, ValueError, r"^The protocol must be HTTP or HTTPS.$"),
        ({"read_timeout": "0"}, ValueError, r"^The read timeout must be a positive integer.$"),
        ({"read_timeout": "-10"}, ValueError, r"^The read timeout must be a positive integer.$"),
    ],
)
@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_what_is_wrong_with_the_parameters_is_said(etcd, backend, config, error, said):
    with pytest.raises(error, match=said):
        get_rendezvous_handler(params(etcd, backend, "wrong", **config))


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_an_etcd_out_of_reach_is_said_in_torch_s_words_and_its_cause_names_it(etcd, backend, free_port):
    said = r"^The connection to etcd has failed. See inner exception for details.$"
    with pytest.raises(RendezvousConnectionError, match=said) as failed:
        get_rendezvous_handler(params(etcd, backend, "wrong", endpoint=f"127.0.0.1:{free_port}"))
    assert f"127.0.0.1:{free_port}: Connection refused" in str(failed.value.__cause__)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_two_nodes_agree_and_share_a_store_of_their_round(etcd, backend, caplog, wait_until, free_port):
    for module in (etcd_rendezvous, etcd_rendezvous_backend):
        caplog.set_level(logging.INFO, module.__name__)
    config = {"endpoint": f"127.0.0.1:{free_port},{etcd.endpoints}"}  # the first member is down
    pair = [get_rendezvous_handler(params(etcd, backend, f"two-{backend}", 2, **config)) for _ in range(2)]
    assert "over etcd's version 3 API" in caplog.text
    with ThreadPoolExecutor(2) as pool:
        for number in range(2):
            infos = sorted(pool.map(lambda handler: handler.next_rendezvous(), pair), key=lambda info: info.rank)
            assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
            assert not infos[0].store.check(["key"]), "each round begins with an empty store"
            infos[0].store.set("key", str(number))
            assert infos[1].store.get("key") == str(number).encode()
            assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
    assert [(handler.get_backend(), handler.get_run_id()) for handler in pair] == [(backend, f"two-{backend}")] * 2
    assert pair[0].num_nodes_waiting() == 0 and not pair[1].is_closed()
    pair[0].set_closed()
    wait_until(pair[1].is_closed)
    with pytest.raises(RendezvousClosedError):
        pair[1].next_rendezvous()
    assert all(handler.shutdown() for handler in pair)


SUMS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
os.write(1, f"{os.environ['RANK']} of {int(total)} {os.environ['TORCHELASTIC_USE_AGENT_STORE']}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_a_command_line_for_torch_s_etcd_backends_trains(etcd, backend, script):
    flags = ["--nnodes=2", "--nproc-per-node=1", f"--rdzv-backend={backend}", f"--rdzv-endpoint={etcd.endpoints}"]
    flags += ["--rdzv-conf=last_call_timeout=1", f"--rdzv-id=line-{backend}", "--monitor-interval=0.05", str(script(SUMS))]
    command = [sys.executable, "-m", "holdfast.elastic.run", *flags]
    agents = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [agent.communicate(timeout=90) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sorted("".join(out for out, _ in said).splitlines()) == ["0 of 2 False", "1 of 2 False"], said


def test_a_prefix_keeps_jobs_of_one_name_apart(etcd, client):
    for prefix in ("/one", "/two/"):
        handler = get_rendezvous_handler(params(etcd, "etcd", "same", etcd_prefix=prefix, last_call_timeout=1))
        assert handler.next_rendezvous().rank == 0
        assert EtcdStore(client, prefix).num_keys() > 1
        handler.shutdown()


def test_credentials_are_used(tmp_path, monkeypatch):
    server = infra.Etcd(tmp_path)
    try:
        server.demand_credentials("s3cret")
        with pytest.raises(RendezvousConnectionError):
            create_backend(params(server, "etcd-v2", "job"))
        backend, _ = create_backend(params(server, "etcd-v2", "job", user="root", password="s3cret"))
        assert backend.set_state(b"x")[2]
    finally:
        server.stop()


def test_the_barrier_of_torch_s_first_protocol_is_a_round(client):
    rendezvous = etcd_rendezvous.EtcdRendezvous(client, "/tests", "barrier", 1, 1, timeout=30, last_call_timeout=1)
    assert [rendezvous.rendezvous_barrier() for _ in range(2)] == [(0, 0, 1), (1, 0, 1)]


# --- the server for tests ---------------------------------------------------------------------------------------------------


def test_a_server_starts_answers_and_leaves_nothing(tmp_path):
    folder = tmp_path / "data"
    server = EtcdServer(str(folder))
    assert server.get_port() == -1
    server.start(timeout=30, stderr=subprocess.DEVNULL)
    assert server.get_endpoint() == f"{server.get_host()}:{server.get_port()}" and folder.exists()
    assert server.get_host() == "localhost"
    assert server.get_client().version.startswith("3.")
    store = EtcdStore(server.get_client(), "x")
    store.set("k", "v")
    assert store.get("k") == b"v"
    process = server._etcd_proc
    server.stop()
    server.stop()
    assert process is not None and process.returncode is not None and not folder.exists()


def test_a_server_that_cannot_start_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", "/bin/false")
    with pytest.raises(RuntimeError, match="etcd exited with code 1 before it answered"):
        EtcdServer(str(tmp_path / "data")).start(num_retries=2)
    monkeypatch.delenv("TORCHELASTIC_ETCD_BINARY_PATH")
    monkeypatch.setenv("PATH", str(Path(tmp_path)))
    with pytest.raises(RuntimeError, match="etcd is not installed: apt-get install etcd-server"):
        EtcdServer().start()
    EtcdServer().stop()
