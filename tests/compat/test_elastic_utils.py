"""The small things: stores, sockets, macros, loggers, process states, epochs, samplers, the worker's control plane."""

from __future__ import annotations

import datetime
import errno
import logging
import os
import pickle
import socket
import subprocess
import threading

import pytest


class Store:
    """A store that notes what it is asked; `wait` fails for keys in `never`."""

    timeout = datetime.timedelta(seconds=7)

    def __init__(self, arrivals=1, never=()):
        self.asked = []
        self.arrivals = arrivals
        self.never = never

    def set_timeout(self, timeout):
        self.asked.append(("set_timeout", timeout.total_seconds()))

    def set(self, key, value):
        self.asked.append(("set", key))

    def multi_get(self, keys):
        self.asked.append(("multi_get", keys))
        return [key.encode() for key in keys]

    def add(self, key, amount):
        self.asked.append(("add", key))
        return self.arrivals

    def wait(self, keys, timeout=None):
        self.asked.append(("wait", keys[0]))
        if keys[0] in self.never:
            raise self.failure("timed out")


# Stores.


def test_everybody_gets_everybodys_data_and_rank_0_leaves_last(names):
    api = names("utils.store")
    first, other = Store(arrivals=2), Store(arrivals=1)
    assert api.synchronize(first, b"x", 0, 2, "meet/") == [b"meet/0", b"meet/1"]
    api.get_all(other, 1, "meet/", 2)
    counted = [("multi_get", ["meet/0", "meet/1"]), ("add", "meet//finished/num_members")]
    last, wait = ("set", "meet//finished/last_member"), ("wait", "meet//finished/last_member")
    assert first.asked == [("set_timeout", 300), ("set", "meet/0"), *counted, last, wait, ("set_timeout", 7)]
    assert other.asked == counted


def test_a_barrier_waits_for_the_last_member(names):
    api = names("utils.store")
    early, last = Store(arrivals=1), Store(arrivals=2)
    api.barrier(early, 2, "end", barrier_timeout=5)
    api.barrier(last, 2, "end", barrier_timeout=5)
    begin = [("set_timeout", 5), ("add", "end/num_members")]
    end = [("wait", "end/last_member"), ("set_timeout", 7)]
    assert early.asked == [*begin, *end] and last.asked == [*begin, ("set", "end/last_member"), *end]


def test_a_barrier_that_times_out_names_those_who_never_came(names):
    api = names("utils.store")
    store = Store(never=("end/last_member", "end1/TRACE", "end3/TRACE"))
    store.failure = getattr(api, "DistStoreError")  # noqa: B009
    with pytest.raises(store.failure, match=r"missing_ranks=\[node 1, node 3\]|missing_ranks=\[node 3, node 1\]"):
        api.barrier(store, 4, "end", rank=0, rank_tracing_decoder="node {}".format)
    assert ("set", "end/TRACING_GATE") in store.asked
    store = Store(never=("end/last_member",))
    store.failure = api.DistStoreError
    with pytest.raises(store.failure, match=r"check rank 0 \(node 0\)"):
        api.barrier(store, 4, "end", rank=2, rank_tracing_decoder="node {}".format)
    store.never += ("end/TRACING_GATE",)
    with pytest.raises(store.failure, match=r"^timed out$"):
        api.barrier(store, 4, "end", rank=2)


def test_who_is_the_last_to_check_in_says_so_and_nobody_waits(names):
    check_in = names("utils.store")._barrier_nonblocking
    early, last = Store(arrivals=1), Store(arrivals=2)
    assert check_in(store=early, world_size=2, key_prefix="end") == "end/last_member"
    assert check_in(store=last, world_size=2, key_prefix="end") == "end/last_member"
    assert early.asked == [("add", "end/num_members")] and last.asked == [*early.asked, ("set", "end/last_member")]


def test_rank_0_finds_out_who_is_missing_and_the_others_refer_to_it(names):
    api = names("utils.store")
    missing = api._try_detecting_missing_ranks
    store = Store(never=tuple(f"end{rank}/TRACE" for rank in (1, 3)))
    store.failure = getattr(api, "DistStoreError")  # noqa: B009
    found = missing(store, 4, key_prefix="end", rank=0, rank_decoder="node {}".format, trace_timeout=0.1)
    assert sorted(found) == ["node 1", "node 3"]
    traces = [("wait", f"end{rank}/TRACE") for rank in (1, 2, 3)]
    assert store.asked == [("set", "end0/TRACE"), *traces, ("set", "end/TRACING_GATE")]
    assert list(missing(store, 4, "end", 2, "node {}".format, 0.1)) == ["[<check rank 0 (node 0) for missing rank info>]"]
    store.never = ("end/TRACING_GATE",)
    assert missing(store, 4, "end", 2, "node {}".format, 0.1) is None, "rank 0 is the one that has not come"


def test_of_many_that_are_missing_only_the_first_are_named(names):
    api = names("utils.store")
    store = Store(never=tuple(f"end{rank}/TRACE" for rank in range(40)))
    store.failure = getattr(api, "DistStoreError")  # noqa: B009
    assert len(api._try_detecting_missing_ranks(store, 40, "end", 0, str, 0.1)) == 16


def test_who_wants_names_must_give_a_rank(names):
    with pytest.raises(AssertionError):
        names("utils.store").barrier(Store(), 2, "end", rank_tracing_decoder=str)


@pytest.mark.torch
def test_it_works_over_a_store_of_torchs(ours):
    import torch.distributed as dist

    store, found = dist.HashStore(), {}

    def meet(rank):
        found[rank] = ours("utils.store").synchronize(store, f"data{rank}", rank, 3, "meet/")
        ours("utils.store").barrier(store, 3, "end")

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {rank: [b"data0", b"data1", b"data2"] for rank in range(3)}


@pytest.mark.torch
def test_a_store_can_be_served_and_joined(names):
    create = names("utils.distributed").create_c10d_store
    server = create(is_server=True, server_addr="localhost")
    client = create(False, "localhost", server.port, world_size=2, wait_for_workers=False)
    client.set("key", "value")
    assert server.get("key") == b"value"


def test_several_members_need_to_know_the_port(names):
    with pytest.raises(ValueError, match="server_port must be specified"):
        names("utils.distributed").create_c10d_store(True, "localhost", world_size=2)


def test_a_port_that_is_taken_is_not_the_end_of_the_search(ours, monkeypatch):
    api, tried = ours("utils.distributed"), []

    def open_store(is_server, server_addr, port, *rest):
        tried.append(port)
        if len(tried) < 3:
            raise RuntimeError("Address already in use")
        return "store"

    monkeypatch.setattr(api, "_open", open_store)
    assert api.create_c10d_store(True, "localhost", wait_for_workers=False) == "store" and len(set(tried)) == 3
    tried.clear()
    with pytest.raises(RuntimeError, match="port: 4711 already in use"):
        api.create_c10d_store(True, "localhost", 4711, wait_for_workers=False)


# Sockets, variables, macros.


def test_free_ports_are_free_and_held_ones_are_held(names):
    held = names("utils.distributed").get_socket_with_port()
    with held:
        assert held.getsockname()[1] != names("utils.distributed").get_free_port() > 0


def test_a_kernel_without_one_family_of_addresses_has_free_ports_all_the_same(ours, monkeypatch):
    both = [(family, socket.SOCK_STREAM, 6, "", ("", 0)) for family in (socket.AF_INET6, socket.AF_INET)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    made = socket.socket

    def only_ipv4(family, *rest):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *rest)

    monkeypatch.setattr(socket, "socket", only_ipv4)
    with ours("utils").get_socket_with_port() as held:
        assert held.family == socket.AF_INET
    del both[1]
    with pytest.raises(RuntimeError, match=r"^Failed to create a socket$") as failed:
        ours("utils").get_socket_with_port()
    assert isinstance(failed.value.__cause__, OSError)


def test_a_variable_that_must_be_there(names, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("MISSING", raising=False)
    assert names("utils").get_env_variable_or_raise("EMPTY") == ""
    with pytest.raises(ValueError, match="MISSING expected, but not set"):
        names("utils").get_env_variable_or_raise("MISSING")


def test_the_local_rank_is_filled_into_arguments(names):
    macros = names("utils").macros
    given = [f"--device={macros.local_rank}", "$local_rank", "$other $$ ${", 5]
    assert macros.substitute(given, "3") == ["--device=3", "3", "$other $ ${", 5]


# Loggers and processes.


def test_loggers_are_named_after_the_caller_and_as_loud_as_told(names, monkeypatch):
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    get_logger = names("utils.logging").get_logger
    assert get_logger().name == get_logger(None).name == __name__ and get_logger("mine").name == "mine"
    assert get_logger("mine").level == logging.ERROR
    monkeypatch.delenv("LOGLEVEL")
    assert get_logger("mine").level == logging.WARNING and names("utils.log_level").get_log_level() == "WARNING"


def test_the_state_of_a_process_is_a_letter(names):
    api = names("utils.process_state")
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert api.read_proc_state(os.getpid()) == "R" and api.read_proc_state(ended.pid) == "Z"
    ended.wait()
    assert api.read_proc_state(ended.pid) is None
    assert [api.is_uninterruptible_state(state) for state in ("D", "D+", "S", None)] == [True, True, False, False]


# Data.


def test_epochs_follow_one_another(names):
    iterator = names("utils.data").CyclingIterator(3, lambda epoch: iter([epoch] * epoch), start_epoch=1)
    assert list(iterator) == [1, 2, 2] and next(iterator, "over") == "over"


def test_many_empty_epochs_are_no_trouble(ours):
    iterator = ours("utils.data").CyclingIterator(5000, lambda epoch: iter(["last"] if epoch == 4999 else []))
    assert list(iterator) == ["last"]


@pytest.mark.torch
@pytest.mark.parametrize(("size", "replicas", "start"), [(10, 2, 0), (10, 3, 4), (7, 4, 2), (100, 8, 33)])
def test_every_rank_reads_the_samples_that_torchs_sampler_gives_it(ours, size, replicas, start):
    from test_elastic_signatures import TORCH

    for rank in range(replicas):
        mine, theirs = (
            module("utils.data").ElasticDistributedSampler(list(range(size)), replicas, rank, start) for module in (ours, TORCH)
        )
        for epoch in (0, 1):
            mine.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(mine) == list(theirs) and len(mine) == len(theirs)


@pytest.mark.torch
def test_more_ranks_than_samples_left_all_read_something(ours):
    samplers = [ours("utils.data").ElasticDistributedSampler(list(range(7)), 4, rank, start_index=6) for rank in range(4)]
    assert [list(sampler) for sampler in samplers] == [[6]] * 4


@pytest.mark.torch
def test_a_sampler_is_one_of_torchs_and_can_be_pickled(ours):
    from torch.utils.data.distributed import DistributedSampler

    sampler = ours("utils.data").ElasticDistributedSampler([1, 2, 3], 1, 0)
    assert isinstance(sampler, DistributedSampler) and list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
    with pytest.raises(ValueError, match="less than dataset size"):
        ours("utils.data").ElasticDistributedSampler([1, 2, 3], 1, 0, start_index=3)
    with pytest.raises(TypeError, match="Sized"):
        ours("utils.data").ElasticDistributedSampler(iter([]), 1, 0)


# The control plane.


def test_without_a_socket_the_control_plane_only_runs_the_block(names, monkeypatch):
    monkeypatch.delenv("TORCH_WORKER_SERVER_SOCKET", raising=False)
    ran = []
    with names("control_plane").worker_main():
        ran.append(True)
    assert ran


@pytest.mark.torch
def test_a_worker_answers_on_its_socket_while_the_block_runs(names, monkeypatch, tmp_path):
    import http.client
    import socket

    path = tmp_path / "worker.sock"
    monkeypatch.setenv(names("control_plane").TORCH_WORKER_SERVER_SOCKET, str(path))
    connection = http.client.HTTPConnection("localhost")
    with names("control_plane").worker_main():
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(path))
        connection.request("POST", "/handler/ping")
        assert connection.getresponse().read() == b"pong"
    connection.close()
    with pytest.raises(OSError), socket.socket(socket.AF_UNIX) as late:
        late.connect(str(path))
