"""The `holdfast` rendezvous as a handler, without a launcher around it: several nodes in threads of this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest

from holdfast.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from holdfast.elastic.rendezvous.holdfast_rendezvous import create_handler, get_handler
from holdfast.elastic.rendezvous.registry import get_rendezvous_handler
from holdfast.elastic.rendezvous.round_store import EXIT_BARRIER

torch_needed = pytest.mark.torch


class Nodes:
    """Handlers of one job at one endpoint, each used by a thread of its own."""

    def __init__(self, port: int, pool: ThreadPoolExecutor) -> None:
        self.port, self.pool = port, pool
        self.handlers: list[Any] = []

    def node(self, low: int, high: int, **conf: Any) -> Any:
        settings = {"node_name": f"n{len(self.handlers)}", "last_call_timeout": 0.2, "run_id": "job"} | conf
        parameters = RendezvousParameters("holdfast", f"127.0.0.1:{self.port}", settings.pop("run_id"), low, high, **settings)
        handler = get_rendezvous_handler(parameters)
        self.handlers.append(handler)
        return handler

    def entering(self, *handlers: Any) -> list[Future[RendezvousInfo]]:
        return [self.pool.submit(handler.next_rendezvous) for handler in handlers]

    def enter(self, *handlers: Any) -> list[RendezvousInfo]:
        return [entered.result(30) for entered in self.entering(*handlers)]

    @property
    def known(self) -> int:
        """Nodes that the coordinator knows: a spare that it does not know yet when the job ends is of the next run."""
        host = next(handler for handler in self.handlers if handler._attendant.hosting)
        return len(host._attendant.node.server.rendezvous.seats)

    def power_off(self, handler: Any) -> None:
        """Its process is gone: nothing is said any more."""
        handler._shut = True
        handler._attendant.close()
        handler._servers.clear()


@pytest.fixture
def nodes(free_port: int, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    if request.node.get_closest_marker("torch"):
        import_module("torch")  # in one of their threads it would keep the others from renewing their leases
    with ThreadPoolExecutor(8) as pool:
        nodes = Nodes(free_port, pool)
        yield nodes
        for handler in sorted(nodes.handlers, key=lambda handler: handler._attendant.hosting):  # hosts wait for the others
            if not handler._shut:
                handler._leave_at_exit()


def test_it_is_found_under_torchrun_s_entry_point_group():
    (found,) = (entry for entry in entry_points(group="torchrun.handlers") if entry.name == "holdfast")
    assert found.load() is get_handler and get_handler() is create_handler


def test_one_node_needs_neither_torch_nor_a_socket(nodes, monkeypatch):
    monkeypatch.setattr("holdfast.elastic.rendezvous.round_store.torch_is_loaded", lambda: False)
    alone = nodes.node(1, 1)
    (info,) = nodes.enter(alone)
    assert (info.rank, info.world_size, alone.use_agent_store) == (0, 1, False)
    info.store.set("key", "value")
    assert info.store.get("key") == b"value"
    (again,) = nodes.enter(alone)
    assert not again.store.check(["key"])
    assert again.bootstrap_store_info.master_port != info.bootstrap_store_info.master_port


@pytest.mark.parametrize("name", ["embedded", "memory"])
def test_it_has_the_names_that_holdfast_run_gives_it(free_port, name):
    handler = get_rendezvous_handler(RendezvousParameters(name, f"127.0.0.1:{free_port}", "job", 1, 1))
    info = handler.next_rendezvous()
    info.store.set("key", "value")
    assert (handler.get_backend(), info.rank, info.world_size, info.store.get("key")) == (name, 0, 1, b"value")
    with socket.socket() as somebody:
        others_can_come = somebody.connect_ex(("127.0.0.1", free_port)) == 0
    assert others_can_come == (name == "embedded")
    handler.set_closed()
    assert handler.shutdown()


def test_in_memory_no_nodes_meet():
    with pytest.raises(ValueError, match="memory is for one node, and up to 2 are asked for"):
        get_rendezvous_handler(RendezvousParameters("memory", "", "job", 1, 2))


@torch_needed
def test_each_round_has_a_fresh_store_and_workers_may_use_it(nodes):
    import torch.distributed as dist

    pair = nodes.node(2, 2), nodes.node(2, 2)
    seen = set()
    for number in range(3):
        infos = nodes.enter(*pair)
        assert sorted(info.rank for info in infos) == [0, 1]
        assert [info.store.add("agents", 1) for info in infos] == [1, 2]
        (at,) = {(info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port) for info in infos}
        worker = dist.TCPStore(*at, is_master=False, wait_for_workers=False)
        assert worker.add("workers", 1) == 1 and all(handler.use_agent_store for handler in pair)
        seen.add(at)
        assert [handler.num_nodes_waiting() for handler in pair] == [0, 0], number
    assert len(seen) == 3


@torch_needed
def test_a_lost_node_and_a_newcomer_both_call_the_others(nodes, wait_until):
    host, other = nodes.node(1, 2, lease=1), nodes.node(1, 2, lease=1)
    nodes.enter(host, other)
    nodes.power_off(other)
    wait_until(lambda: host.num_nodes_waiting() == 1)
    (alone,) = nodes.enter(host)
    assert alone.world_size == 1 and host.num_nodes_waiting() == 0
    (entering,) = nodes.entering(nodes.node(1, 2))
    wait_until(lambda: host.num_nodes_waiting() == 1)
    assert [info.world_size for info in (*nodes.enter(host), entering.result(30))] == [2, 2]


@torch_needed
def test_when_all_have_succeeded_a_spare_may_go(nodes, wait_until):
    pair = nodes.node(2, 2), nodes.node(2, 2)
    infos = nodes.enter(*pair)
    (waiting,) = nodes.entering(nodes.node(2, 2))
    wait_until(lambda: nodes.known == 3)
    for info in infos:
        info.store.add(EXIT_BARRIER, 1)
    with pytest.raises(RendezvousGracefulExitError, match="every worker exited with 0"):
        waiting.result(30)
    wait_until(lambda: all(handler.is_closed() for handler in pair))
    infos[0].store.wait(["never written"])  # at the exit barrier, the job's end is enough


@torch_needed
def test_torch_s_agent_is_told_of_the_end_in_the_only_way_that_torchrun_takes_well(nodes, wait_until):
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TorchParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler as from_torch

    alone = nodes.node(1, 1)
    (info,) = nodes.enter(alone)
    spare = from_torch(TorchParameters("holdfast", f"127.0.0.1:{nodes.port}", "job", 1, 1))
    nodes.handlers.append(spare)
    (waiting,) = nodes.entering(spare)
    wait_until(lambda: nodes.known == 2)
    info.store.add(EXIT_BARRIER, 1)
    with pytest.raises(SystemExit) as over:
        waiting.result(30)
    assert over.value.code == 0


@torch_needed
def test_a_closed_job_calls_the_others_and_says_why(nodes, wait_until):
    pair = nodes.node(2, 2), nodes.node(2, 2)
    nodes.enter(*pair)
    closing = nodes.pool.submit(pair[1].shutdown)
    wait_until(lambda: pair[0].num_nodes_waiting() == 1)
    with pytest.raises(RendezvousClosedError, match="n1 has ended, and its workers had not succeeded"):
        nodes.enter(pair[0])
    assert closing.result(30) and pair[0].is_closed()


@torch_needed
def test_a_job_that_is_closed_before_any_round_ends_at_once(nodes):
    alone = nodes.node(1, 1)
    alone.set_closed()
    assert alone.is_closed()
    with pytest.raises(RendezvousClosedError, match="a node's launcher has closed it"):
        alone.next_rendezvous()
    assert alone.shutdown() and alone.shutdown()


def test_who_is_shut_down_takes_part_no_more_not_even_while_it_waits(nodes, wait_until):
    waits = nodes.node(2, 2)
    (waiting,) = nodes.entering(waits)
    wait_until(lambda: nodes.known == 1)
    assert waits.shutdown()
    with pytest.raises(RendezvousClosedError):
        waiting.result(10)
    waits.set_closed()
    with pytest.raises(RendezvousClosedError, match="this node has left"):
        waits.next_rendezvous()


def test_too_few_nodes_in_time(nodes):
    with pytest.raises(RendezvousTimeoutError, match="1 of 2 nodes"):
        nodes.enter(nodes.node(2, 2, join_timeout=0.5))


@torch_needed
def test_nobody_at_the_endpoint(nodes):
    with pytest.raises(RendezvousConnectionError, match="out of reach"):
        nodes.enter(nodes.node(2, 2, join_timeout=0.5, is_host="no"))


@torch_needed
def test_a_wrong_token_and_a_wrong_job_are_turned_away_and_cost_the_job_nothing(nodes, tmp_path):
    tokens = [tmp_path / "right", tmp_path / "wrong"]
    for path in tokens:
        path.write_text(path.name * 8)
    host, other = (nodes.node(2, 2, token_file=str(tokens[0])) for _ in range(2))
    wrong = {"token_file": str(tokens[1])}, {"token_file": str(tokens[0]), "run_id": "another"}
    for refused in nodes.entering(*(nodes.node(2, 2, is_host="no", **conf) for conf in wrong)):
        with pytest.raises(RendezvousConnectionError, match=r"wrong job token .*, or another job"):
            refused.result(30)
    assert [info.world_size for info in nodes.enter(host, other)] == [2, 2]


@torch_needed
def test_without_its_coordinator_a_node_is_called_at_the_end_of_its_lease_and_finds_another(nodes, wait_until):
    host, other = nodes.node(1, 2, lease=1), nodes.node(1, 2, lease=1)
    nodes.enter(host, other)
    nodes.power_off(host)
    wait_until(lambda: other.num_nodes_waiting() == 1)
    back = nodes.node(2, 2)  # an agent started anew at the endpoint gathers what is left
    assert [info.world_size for info in nodes.enter(back, other)] == [2, 2]


def test_settings_that_make_no_sense_are_refused(nodes):
    with pytest.raises(ValueError, match="lease must be greater than 0"):
        nodes.node(1, 1, lease=0)
    with pytest.raises(ValueError, match="port 0"):
        create_handler(RendezvousParameters("holdfast", "localhost:0", "job", 1, 2))


@pytest.mark.parametrize(("given", "missing"), [("tls_cert", "tls_ca"), ("tls_ca", "tls_cert"), ("tls_key", "tls_cert")])
def test_half_of_what_tls_needs_is_refused_and_not_taken_for_no_tls(nodes, given, missing):
    with pytest.raises(ValueError, match=f"{given} needs {missing} too"):
        nodes.node(1, 1, **{given: "node.pem"})


@pytest.mark.parametrize(("host", "is_warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_who_could_join_without_a_token_is_told_where_others_reach_it(nodes, free_port, caplog, host, is_warned):
    nodes.handlers.append(
        get_rendezvous_handler(RendezvousParameters("holdfast", f"{host}:{free_port}", "job", 1, 2, is_host=True))
    )
    told = [record.getMessage() for record in caplog.records if "no job token" in record.getMessage()]
    assert len(told) == is_warned and all("--rdzv-conf token_file=FILE" in line for line in told)


def test_a_setting_that_nothing_reads_is_warned_of_and_torch_s_own_are_not(nodes, caplog):
    nodes.node(1, 1, tokenfile="secret", timeout=900, rank=0, use_libuv=True)
    assert [record.getMessage() for record in caplog.records if "reads" in record.msg] == [
        "rendezvous settings: nothing reads 'tokenfile' (did you mean token_file?)"
    ]
