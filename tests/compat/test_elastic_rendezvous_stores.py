"""The stores that rendezvous stand on: c10d's backend over torch's and ours, the static rendezvous, the one in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from base64 import b64encode
from datetime import timedelta
from unittest.mock import patch

import pytest
from kit.jobs.ranks import FAILS_ONCE
from kit.stages.backend_contract import BackendContract

from holdfast.elastic.rendezvous.memory_store import MemoryStore

SECOND = timedelta(seconds=1)


def make_params(names, backend="c10d", endpoint="localhost:0", max_nodes=1, **config):
    return names("rendezvous").RendezvousParameters(backend, endpoint, "job", 1, max_nodes, **config)


# The shared state in a store. One contract for every store.


@pytest.fixture(params=["memory", pytest.param("tcp", marks=pytest.mark.torch), pytest.param("file", marks=pytest.mark.torch)])
def store(request, tmp_path):
    """A store of each kind."""
    if request.param == "memory":
        return MemoryStore()
    dist = pytest.importorskip("torch.distributed")
    return dist.TCPStore("localhost", 0, is_master=True) if request.param == "tcp" else dist.FileStore(str(tmp_path / "store"))


@pytest.fixture
def backend(names, store):
    """A c10d backend over it."""
    return names("rendezvous.c10d_rendezvous_backend").C10dRendezvousBackend(store, "job")


class TestTheSharedState(BackendContract):
    name = "c10d"


def test_a_backend_needs_a_job(names, store):
    with pytest.raises(ValueError, match="run id"):
        names("rendezvous.c10d_rendezvous_backend").C10dRendezvousBackend(store, "")


def test_what_is_no_state_is_an_error(backend, names, store):
    store.set("torch.rendezvous.job", "non_base64")
    with pytest.raises(names("rendezvous").RendezvousStateError):
        backend.get_state()


# Which store it is.


@pytest.mark.torch
@pytest.mark.parametrize(("is_host", "read_timeout", "expected_s"), [("true", "10", 10), (None, None, 60)])
def test_a_store_is_served(names, free_port, is_host, read_timeout, expected_s):
    config = {key: value for key, value in (("is_host", is_host), ("read_timeout", read_timeout)) if value}
    params = make_params(names, endpoint=f"localhost:{free_port}", store_type="tCp", **config)
    backend, store = names("rendezvous.c10d_rendezvous_backend").create_backend(params)
    assert (store.host, store.port, store.timeout) == ("localhost", free_port, expected_s * SECOND)
    backend.set_state(b"state")
    assert store.get("torch.rendezvous.job") == b64encode(b"state")


@pytest.mark.torch
@pytest.mark.parametrize("is_host", ["false", None])
def test_a_store_that_is_there_is_joined(names, free_port, is_host):
    dist = pytest.importorskip("torch.distributed")
    there = dist.TCPStore("localhost", free_port, is_master=True)
    params = make_params(names, endpoint=f"localhost:{free_port}", **({"is_host": is_host} if is_host else {}))
    _, store = names("rendezvous.c10d_rendezvous_backend").create_backend(params)
    store.set("key", "value")
    assert there.get("key") == b"value"


@pytest.mark.torch
def test_an_endpoint_without_a_port_gets_the_default_one(names, free_port):
    with patch(names.path("rendezvous.c10d_rendezvous_backend", "DEFAULT_PORT"), free_port):
        _, store = names("rendezvous.c10d_rendezvous_backend").create_backend(
            make_params(names, endpoint="localhost", is_host=True)
        )
    assert store.port == free_port


@pytest.mark.torch
def test_a_file_can_be_the_store(names, tmp_path):
    create = names("rendezvous.c10d_rendezvous_backend").create_backend
    _, store = create(make_params(names, endpoint=str(tmp_path / "f"), store_type="fIlE"))
    assert store.path == str(tmp_path / "f")
    _, anywhere = create(make_params(names, endpoint="", store_type="file"))
    assert anywhere.path.startswith("/")


@pytest.mark.torch
def test_what_is_wrong_with_a_store_is_said(names, free_port):
    rendezvous, module = names("rendezvous"), names("rendezvous.c10d_rendezvous_backend")
    lost = "^The connection to the C10d store has failed. See inner exception for details.$"
    for config in (
        {"is_host": "false", "read_timeout": 1},
        {"endpoint": "no-such-host.invalid:1", "is_host": "true", "read_timeout": 1},
    ):
        with pytest.raises(rendezvous.RendezvousConnectionError, match=lost):
            module.create_backend(make_params(names, **{"endpoint": f"localhost:{free_port}"} | config))
    with pytest.raises(ValueError, match=r"^Invalid store type given. Currently only supports file and tcp.$"):
        module.create_backend(make_params(names, store_type="other"))
    with pytest.raises(ValueError, match=r"^The read timeout must be a positive integer.$"):
        module.create_backend(make_params(names, read_timeout="0"))
    with (
        patch("tempfile.mkstemp", side_effect=OSError),
        pytest.raises(rendezvous.RendezvousError, match="file creation for C10d store"),
    ):
        module.create_backend(make_params(names, endpoint="", store_type="file"))
    with (
        patch.object(module, "FileStore", side_effect=RuntimeError),
        pytest.raises(rendezvous.RendezvousConnectionError, match=lost),
    ):
        module.create_backend(make_params(names, endpoint="x", store_type="file"))


@pytest.mark.torch
def test_a_store_that_breaks_is_a_lost_connection(names):
    module = names("rendezvous.c10d_rendezvous_backend")
    store = MemoryStore()
    backend = module.C10dRendezvousBackend(store, "job")
    lost = pytest.raises(names("rendezvous").RendezvousConnectionError)
    with patch.object(store, "get", side_effect=RuntimeError("broken pipe")), lost:
        backend.get_state()


# The static rendezvous.


@pytest.mark.parametrize(
    "given",
    [{"endpoint": "localhost", "rank": 0}, {"endpoint": "", "rank": 0}, {"endpoint": "localhost:1"}, {"endpoint": "[::1]:90"}],
)
def test_a_static_rendezvous_must_be_told_all(names, given):
    with pytest.raises(ValueError):
        names("rendezvous.static_tcp_rendezvous").create_rdzv_handler(make_params(names, "static", **given))


@pytest.mark.torch
def test_a_static_rendezvous_of_one_node(names, free_port):
    params = make_params(names, "static", f"127.0.0.1:{free_port}", rank=0, timeout=60)
    handler = names("rendezvous.registry").get_rendezvous_handler(params)
    for _ in range(2):
        agreed = handler.next_rendezvous()
        assert (agreed.rank, agreed.world_size) == (0, 1)
        assert agreed.bootstrap_store_info == names("rendezvous").RendezvousStoreInfo("127.0.0.1", free_port)
        agreed.store.set("key", "value")
    assert handler.get_backend() == "static" and handler.use_agent_store and handler.num_nodes_waiting() == 0
    assert handler.get_run_id() == "job" and not handler.is_closed() and handler.shutdown()


@pytest.mark.torch
def test_a_restart_of_one_node_is_a_round_of_all_and_starts_with_a_clean_store(ours, free_port, monkeypatch, wait_until):
    dist = pytest.importorskip("torch.distributed")
    static = ours("rendezvous.static_tcp_rendezvous")
    monkeypatch.setattr(static, "LOOK_EVERY_S", 0.0)
    handlers = [static.StaticTCPRendezvous("127.0.0.1", free_port, rank, 2, "job", 60) for rank in range(2)]
    agreed = [None, None]

    def enter(rank):
        agreed[rank] = handlers[rank].next_rendezvous()

    def entering(rank):
        thread = threading.Thread(target=enter, args=(rank,))
        thread.start()
        return thread

    for thread in [entering(rank) for rank in range(2)]:
        thread.join()
    for round_store in agreed:
        round_store.store.set("of this round", "")
    worker = dist.TCPStore("127.0.0.1", free_port, is_master=False)
    worker.set("address of a worker that dies now", "somewhere")
    restarting = entering(1)
    wait_until(lambda: handlers[0].num_nodes_waiting() == 1)
    enter(0)
    restarting.join()
    assert not worker.check(["address of a worker that dies now"])
    assert [each.store.check(["of this round"]) for each in agreed] == [False, False]
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    replaced = static.StaticTCPRendezvous("127.0.0.1", free_port, 1, 2, "job", 60)  # another process takes over rank 1
    replaced._store = worker
    handlers[1] = replaced
    restarting = entering(1)
    wait_until(lambda: handlers[0].num_nodes_waiting() == 1)
    enter(0)
    restarting.join()


# Without torch.


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from holdfast.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler

def handler(backend, nodes, **config):
    return get_rendezvous_handler(RendezvousParameters(backend, "localhost:12345", "job", nodes, nodes, **config))

for alone in (handler("c10d", 1), handler("static", 1, rank=0)):
    first, second = alone.next_rendezvous(), alone.next_rendezvous()
    first.store.set("key", "value")
    assert not second.store.check(["key"]) and not alone.use_agent_store, "the worker of rank 0 serves the store"
    alone.shutdown()
try:
    handler("static", 2, rank=0).next_rendezvous()
except RendezvousConnectionError as error:
    assert "torch is not installed here" in str(error) and "the backend `holdfast`" in str(error), error
else:
    raise AssertionError("static")
"""


def test_one_node_needs_no_torch_and_several_static_ones_say_so():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=60)


# `holdfast`'s own rendezvous, several nodes, without torch.

LAUNCHES = """
import sys
sys.modules["torch"] = None
from holdfast.elastic.launcher import LaunchConfig, elastic_launch

config = LaunchConfig(
    2, 2, 1, rdzv_backend=sys.argv[3], rdzv_endpoint=sys.argv[1], run_id="job", max_restarts=3,
    rdzv_configs={"node_name": sys.argv[2], "last_call_timeout": 1},
)
elastic_launch(config, sys.executable)(*sys.argv[4:])
assert sys.modules["torch"] is None
"""
SAYS_SO = """
import os
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"{rank} {os.environ['WORLD_SIZE']} {attempt} {os.environ['TORCHELASTIC_USE_AGENT_STORE']}\\n".encode())
"""


@pytest.mark.parametrize("backend", ["holdfast", "c10d"])
def test_agents_of_several_nodes_share_a_store_without_torch_and_restart_in_a_fresh_one(backend, free_port, script, tmp_path):
    program, worker = script(LAUNCHES, "launches.py"), script(SAYS_SO + FAILS_ONCE, "worker.py")
    ours = [backend, worker, tmp_path / "life"]
    commands = [[sys.executable, program, f"127.0.0.1:{free_port}", name, *ours] for name in "ab"]
    agents = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    said = [agent.communicate(timeout=60) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    lines = "".join(out for out, _ in said).splitlines()
    assert {"0 2 0 False", "1 2 0 False"} <= set(lines) and len(lines) == 4, lines
    assert all(("c10d is served by Holdfast's own" in err) == (backend == "c10d") for _, err in said), said
