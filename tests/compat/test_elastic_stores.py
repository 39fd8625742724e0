"""What a store does, for torch's and ours: one contract, kept by each of them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from kit.servers import etcd as infra

from holdfast.core.wire.messages import Join
from holdfast.elastic.rendezvous.attendant import Attendant
from holdfast.elastic.rendezvous.coordinator_store import CoordinatorStore
from holdfast.elastic.rendezvous.etcd_connection import client_for
from holdfast.elastic.rendezvous.etcd_rendezvous import CONST_ETCD_SETUP_TTL, cas_delay
from holdfast.elastic.rendezvous.etcd_store import EtcdStore
from holdfast.elastic.rendezvous.memory_store import MemoryStore
from holdfast.elastic.rendezvous.store import PrefixedStore, Store, StoreEmpty, StoreError, StoreTimeout, StoreUnreachable
from holdfast.elastic.rendezvous.stores import with_prefix
from holdfast.elastic.utils.store import barrier, synchronize
from holdfast.rendezvous.rules import Rules
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.tls import shelter

SOON, LONG = timedelta(milliseconds=30), timedelta(seconds=60)
IDENTITY = Identity("job", b"a secret of the tests")


class Kind(NamedTuple):
    """A store, and more clients of the same."""

    name: str
    store: Any
    another: Callable[[], Any]

    @property
    def queues(self) -> bool:
        return self.name not in ("etcd", "torch's prefix over ours")

    @property
    def torchs(self) -> bool:
        return self.name in ("TCPStore", "HashStore")


def coordinator_at(port: int, tls: Any = None) -> Attendant:
    """One that listens, as in a handler of the endpoint's host."""
    join = Join(node="host-1", name="host", addr="127.0.0.1", master_port=0, nproc=1, role="default")
    rules = Rules(job="job", min_nodes=2, max_nodes=2, join_timeout_s=600, last_call_s=1, lease_s=3)
    return Attendant(join, rules, IDENTITY, ("127.0.0.1", port), shelter=tls, may_host=True)


@pytest.fixture
def coordinator(free_port: int) -> Iterator[Attendant]:
    attendant = coordinator_at(free_port)
    yield attendant
    attendant.close()


def client_of(attendant: Attendant, round: int = 0) -> CoordinatorStore:
    return CoordinatorStore(attendant.where, IDENTITY, "n-1", round)


KINDS = [
    pytest.param("TCPStore", marks=pytest.mark.torch),
    pytest.param("HashStore", marks=pytest.mark.torch),
    pytest.param("torch's prefix over ours", marks=pytest.mark.torch),
    "memory",
    "prefixed",
    "coordinator",
    pytest.param("etcd", marks=infra.NEEDED),
]

OURS = pytest.mark.parametrize("kind", KINDS[3:], indirect=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    name = request.param
    if name == "coordinator":
        attendant = request.getfixturevalue("coordinator")
        return Kind(name, client_of(attendant), lambda: client_of(attendant))
    if name == "etcd":
        server = request.getfixturevalue("etcd")
        prefix = f"/tests/{request.node.name}/{time.monotonic_ns()}"

        def another() -> EtcdStore:
            return EtcdStore(client_for(server.endpoints, {}), prefix)

        return Kind(name, another(), another)
    if name in ("memory", "prefixed"):
        below = MemoryStore()
        store = below if name == "memory" else PrefixedStore("some/prefix", below)
        return Kind(name, store, lambda: store)
    dist = pytest.importorskip("torch.distributed")
    if name == "TCPStore":
        served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return Kind(name, served, lambda: dist.TCPStore("127.0.0.1", served.port, is_master=False, wait_for_workers=False))
    below = MemoryStore()
    store = dist.HashStore() if name == "HashStore" else dist.PrefixStore("some/prefix", below)
    return Kind(name, store, lambda: below and store)  # torch's view does not keep a store in Python alive


@pytest.fixture
def kv(kind: Kind) -> Any:
    return kind.store


# --- one client -------------------------------------------------------------------------------------------------------------


def test_values_are_bytes_and_the_last_one_counts(kv):
    kv.set("a", "text")
    kv.set("b", b"\xff\x00")
    kv.set("a", "ü")
    assert kv.get("a") == "ü".encode() and kv.get("b") == b"\xff\x00" and kv.multi_get(["b", "a", "b"])[2] == b"\xff\x00"


def test_an_empty_value_is_a_value_and_any_text_a_key(kv):
    kv.set("e", "")
    assert kv.get("e") == b"" and kv.check(["e"])
    for key in ("with space", "with/slash", "ü", "a" * 1000):
        kv.set(key, key)
        assert kv.get(key) == key.encode()


def test_a_wide_value_is_whole(kv):
    value = bytes(range(256)) * 4000
    kv.set("wide", value)
    assert kv.get("wide") == value


def test_sums_begin_with_nought_and_may_shrink(kv):
    assert [kv.add("n", 1), kv.add("n", 5), kv.add("n", 0), kv.add("n", -10)] == [1, 6, 6, -4]
    assert kv.get("n") == b"-4"
    kv.set("m", "40")
    assert kv.add("m", 2) == 42


def test_a_sum_with_what_is_no_number_is_an_error(kind):
    kind.store.set("w", "abc")
    if kind.name == "HashStore":
        pytest.skip("torch's HashStore counts it as nought")
    with pytest.raises((RuntimeError, ValueError)):
        kind.store.add("w", 1)


def test_compare_and_set(kv):
    assert kv.compare_set("a", "wrong", "1") == b"wrong", "nothing there, and something expected: what was expected comes back"
    assert not kv.check(["a"])
    assert kv.compare_set("a", "", "1") == b"1" == kv.get("a")
    assert kv.compare_set("a", "", "2") == b"1"
    assert kv.compare_set("a", "2", "3") == b"1"
    assert kv.compare_set("a", b"1", b"\xff") == b"\xff" == kv.get("a")
    kv.set("empty", "")
    assert kv.compare_set("empty", "", "now not") == b"now not"


def test_behind_what_is_there(kv):
    kv.append("a", "1")
    kv.append("a", b"\xff")
    assert kv.get("a") == b"1\xff" and kv.has_extended_api()


def test_many_at_once(kv):
    kv.multi_set(["a", "b"], ["1", b"2"])
    assert kv.multi_get(["b", "a"]) == [b"2", b"1"] and kv.multi_get([]) == [] and kv.check([])
    kv.wait([])


def test_a_key_without_a_value_is_an_error(kind):
    if kind.name == "HashStore":
        pytest.skip("torch's HashStore crashes")
    with pytest.raises(RuntimeError):
        kind.store.multi_set(["a"], [])


def test_hundreds_at_once(kv):
    keys = [f"k{number}" for number in range(300)]
    kv.multi_set(keys, keys)
    assert kv.multi_get(keys) == [key.encode() for key in keys] and kv.check(keys)


def test_checks_and_deletes(kv):
    kv.set("a", "1")
    assert kv.check(["a"]) and not kv.check(["a", "b"])
    assert (kv.delete_key("a"), kv.delete_key("a")) == (True, False) and not kv.check(["a"])


def test_keys_are_counted_and_listed(kind):
    kind.store.set("a", "1")
    kind.store.add("b", 1)
    assert kind.store.num_keys() == 2
    if kind.name != "torch's prefix over ours":  # torch's C++ asks no store in Python for that
        assert sorted(kind.store.list_keys()) == ["a", "b"]


def test_a_queue_is_first_in_first_out(kind):
    kv = kind.store
    if not kind.queues:
        with pytest.raises(NotImplementedError):
            kv.queue_push("q", "1")
        return
    assert kv.queue_len("q") == 0
    kv.queue_push("q", "1")
    kv.queue_push("q", b"\xff")
    assert kv.queue_len("q") == 2 and kv.check(["q"])
    assert (kv.queue_pop("q"), kv.queue_pop("q", block=False)) == (b"1", b"\xff") and not kv.check(["q"])
    with pytest.raises(StoreEmpty if not kind.torchs else RuntimeError):
        kv.queue_pop("q", block=False)


# --- waiting ----------------------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_torch_s_error_where_torch_is_loaded(kind):
    kv = kind.store
    kv.set("there", "1")
    kv.set_timeout(SOON)
    assert kv.timeout == SOON
    expected = getattr(sys.modules.get("torch.distributed"), "DistStoreError", StoreTimeout)
    reads = [lambda: kv.get("never"), lambda: kv.multi_get(["there", "never"]), lambda: kv.wait(["there", "never"])]
    reads.append(lambda: kv.wait(["never"], timedelta(milliseconds=10)))
    if kind.queues:
        reads.append(lambda: kv.queue_pop("never"))
    for read in reads:
        with pytest.raises(expected):
            read()
    kv.set_timeout(LONG)
    kv.wait(["there"], SOON)


def test_many_wait_for_one_key(kind, wait_until):
    names = [f"k{number}" for number in range(4)]
    with ThreadPoolExecutor(8) as pool:
        kind.store.set_timeout(LONG)
        clients = [kind.another() for _ in range(8)]
        reads = [pool.submit(client.multi_get, names) for client in clients]
        for name in reversed(names):
            assert not any(read.done() for read in reads)
            kind.store.set(name, name)
        assert [read.result(30) for read in reads] == [[name.encode() for name in names]] * 8


def test_a_wait_of_one_client_keeps_no_other_from_writing(kind):
    """Otherwise nobody could write what is waited for: with torch's, each thread needs a client of its own."""
    waiting = kind.another()
    thread = threading.Thread(target=waiting.wait, args=(["late"], LONG))
    thread.start()
    kind.store.set("late", "1")
    thread.join(30)
    assert not thread.is_alive()


def test_sums_of_many_clients_at_once_lose_nothing(kind):
    def count(_: int) -> list[int]:
        mine = kind.another()
        return [mine.add("n", 1) for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        seen = [total for totals in pool.map(count, range(4)) for total in totals]
    assert sorted(seen) == list(range(1, 41))


def test_of_many_that_compare_and_set_one_wins(kind):
    def claim(number: int) -> bytes:
        return kind.another().compare_set("leader", "", str(number))

    with ThreadPoolExecutor(4) as pool:
        (winner,) = set(pool.map(claim, range(4)))
    assert kind.store.get("leader") == winner


def test_elastic_s_barrier_and_synchronize_stand_on_it(kind):
    def meet(rank: int) -> list[bytes]:
        mine = kind.another()
        found = synchronize(mine, f"of {rank}".encode(), rank, 3, "round/1/", timeout=30)
        barrier(mine, 3, "end", barrier_timeout=30)
        return found

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(meet, range(3))) == [[b"of 0", b"of 1", b"of 2"]] * 3
    expected = getattr(sys.modules.get("torch.distributed"), "DistStoreError", RuntimeError)
    with pytest.raises(expected, match=r"missing_ranks=\[1, 2\]"):
        barrier(kind.store, 3, "alone", barrier_timeout=0.05, rank=0, trace_timeout=0.05)


def test_a_barrier_of_its_own(kind):
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: kind.another().barrier("b", 3, LONG), range(3)))
    with pytest.raises(RuntimeError):
        kind.another().barrier("c", 2, SOON)


# --- ours -------------------------------------------------------------------------------------------------------------------


@OURS
def test_a_prefix_is_a_view(kind):
    above = with_prefix("a", kind.store)
    above.set("k", "1")
    kind.store.set("other", "2")
    assert sorted(kind.store.list_keys()) == ["a/k", "other"]
    assert above.list_keys() == ["k"] and above.num_keys() == 1 and not above.check(["other"])
    assert above.underlying_store is kind.store and above.delete_key("k")


@OURS
def test_a_wait_names_what_is_missing_and_can_be_ended_from_outside(kind):
    with pytest.raises(StoreTimeout, match=r"waited 0.03 s for (some/prefix/)?never, which nobody has set"):
        kind.store.wait(["never"], SOON)
    asked = 0

    def enough() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind.store._do("wait", ["never"], wait_s=60.0, each=enough)
    kind.store.set("after", "that")
    assert kind.store.get("after") == b"that"


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["memory", "coordinator", pytest.param("etcd", marks=infra.NEEDED)], indirect=True)
def test_ours_are_torch_s_where_torch_is_loaded(kind):
    dist = pytest.importorskip("torch.distributed")
    store = kind.another() if kind.name != "memory" else MemoryStore()
    assert isinstance(store, dist.Store) and isinstance(store, Store)
    above = dist.PrefixStore("p", store)
    above.set("k", "v")
    assert store.get("p/k") == b"v" and above.num_keys() == 1 and above.delete_key("k")
    store.set_timeout(SOON)
    assert above.timeout == SOON, "torch's C++ knows"
    with pytest.raises(dist.DistStoreError):
        above.get("never")


PROCESS_GROUP = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
kind, where, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "etcd":
    from holdfast.elastic.rendezvous.etcd_connection import client_for
    from holdfast.elastic.rendezvous.etcd_store import EtcdStore
    store = EtcdStore(client_for(where, {}), "/tests/process group")
else:
    from holdfast.elastic.rendezvous.coordinator_store import CoordinatorStore
    from holdfast.runtime.net.frames import Identity
    host, port = where.split(":")
    store = CoordinatorStore(lambda: (host, int(port)), Identity("job", b"a secret of the tests"), f"n-{rank}", 0)
view = dist.PrefixStore("workers", store)
dist.init_process_group("gloo", store=view, rank=rank, world_size=2, timeout=timedelta(seconds=60))
total = torch.tensor([rank + 1.0])
dist.all_reduce(total)
dist.barrier()
gathered = [torch.zeros(1), torch.zeros(1)]
dist.all_gather(gathered, torch.tensor([rank + 1.0]))
assert [total.item(), *(one.item() for one in gathered)] == [3.0, 1.0, 2.0], (total, gathered)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["coordinator", pytest.param("etcd", marks=infra.NEEDED)])
def test_a_real_process_group_of_two_processes_meets_in_it(kind, request, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROCESS_GROUP)
    found = request.getfixturevalue(kind)
    where = found.endpoints if kind == "etcd" else "{}:{}".format(*found.where())
    command = [sys.executable, "-W", "ignore", str(program), kind, where]
    workers = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE) for rank in range(2)]
    said = [worker.communicate(timeout=90)[1].decode() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(said)


# --- the coordinator's ------------------------------------------------------------------------------------------------------


def test_a_stranger_gets_nothing_from_the_coordinator_s_store(coordinator):
    for identity in (Identity("job", b"wrong"), Identity("another", b"a secret of the tests")):
        with pytest.raises(StoreError, match="refused this node"):
            CoordinatorStore(coordinator.where, identity, "n-1", 0).set("a", "1")
    assert client_of(coordinator).num_keys() == 0


def test_the_store_is_behind_the_job_s_tls(free_port, tmp_path):
    trustme = pytest.importorskip("trustme")
    ca, other, paths = trustme.CA(), trustme.CA(), [tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem")]
    issued = ca.issue_cert("node")
    for path, blob in zip(paths, (issued.cert_chain_pems[0], issued.private_key_pem, ca.cert_pem)):
        blob.write_to_path(str(path))
    other.cert_pem.write_to_path(str(tmp_path / "other.pem"))
    attendant = coordinator_at(free_port, shelter(*map(str, paths)))
    try:
        store = CoordinatorStore(attendant.where, IDENTITY, "n-1", 0, shelter(*map(str, paths)))
        store.set("a", bytes(3 << 20))
        assert store.get("a") == bytes(3 << 20)
        strange = shelter(str(paths[0]), str(paths[1]), str(tmp_path / "other.pem"))
        for without in (None, strange):
            with pytest.raises(StoreError, match="refused this node"):
                CoordinatorStore(attendant.where, IDENTITY, "n-1", 0, without).get("a")
    finally:
        attendant.close()


def test_a_coordinator_that_is_not_there_is_out_of_reach(free_port, monkeypatch):
    monkeypatch.setattr("holdfast.elastic.rendezvous.coordinator_store.PATIENCE_S", 0.1)
    with pytest.raises(StoreUnreachable, match=f"store at 127.0.0.1:{free_port} is out of reach: .*refused"):
        CoordinatorStore(lambda: ("127.0.0.1", free_port), IDENTITY, "n-1", 0).get("a")


def test_a_broken_link_is_made_anew_where_asking_twice_does_no_harm(coordinator):
    store = client_of(coordinator)
    store.set("a", "1")

    def cut() -> None:
        for _, link in store._idle:
            link.sock.shutdown(2)

    cut()
    assert store.get("a") == b"1"
    cut()
    with pytest.raises(StoreUnreachable):
        store.add("n", 1)
    assert store.add("n", 1) in (1, 2)


def test_the_links_and_waits_of_who_goes_are_forgotten(coordinator, wait_until):
    store = client_of(coordinator)
    store.set("a", "1")
    server = coordinator.node.server
    with pytest.raises(KeyboardInterrupt):
        store._do("wait", ["never"], wait_s=60.0, each=_stop_when(lambda: server.store.count == 1))
    wait_until(lambda: server.store.count == 0 and not server.askers)
    assert not server.guests, "nobody is owed a farewell for having asked the store"


def _stop_when(predicate: Callable[[], bool]) -> Callable[[], None]:
    def look() -> None:
        if predicate():
            raise KeyboardInterrupt

    return look


def test_what_is_too_large_is_refused_before_it_is_sent_and_the_store_goes_on(coordinator):
    store = client_of(coordinator)
    for size, said in ((9 << 20, "at most 8388608 are allowed"), (20 << 20, "bytes at once")):
        with pytest.raises(StoreError, match=said):
            store.set("a", bytes(size))
    store.set("a", "1")
    assert store.get("a") == b"1"


def test_more_than_one_answer_can_hold_is_read_all_the_same(coordinator):
    store = client_of(coordinator)
    keys = [f"k{number}" for number in range(4)]
    for key in keys:
        store.set(key, bytes(5 << 20))
    assert [len(value) for value in store.multi_get(keys)] == [5 << 20] * 4


def test_a_round_that_is_over_says_so(coordinator):
    store = client_of(coordinator, round=1)
    store.set("a", "1")
    coordinator.node.server.store.begin_round(3)
    with pytest.raises(StoreError, match="round 1 is over: the job is in round 3"):
        store.get("a")


# --- etcd's -----------------------------------------------------------------------------------------------------------------


@infra.NEEDED
def test_nothing_is_left_in_etcd_when_the_last_one_has_gone(etcd, wait_until):
    client = client_for(etcd.endpoints, {})
    first, second = (EtcdStore(client, "/tests/left behind", ttl_s=1) for _ in range(2))
    first.set("a", "1")
    second.set("b", "2")
    del first
    lease = second._lease
    renewed_at = lease.renewed_at
    wait_until(lambda: lease.renewed_at > renewed_at, what="the renewals of the one that is left")
    assert second.multi_get(["a", "b"]) == [b"1", b"2"], "what the first has written serves the second"
    del second
    witness = EtcdStore(client, "/tests/left behind")
    wait_until(lambda: witness.num_keys() == 0)


@infra.NEEDED
def test_a_lease_that_was_lost_is_taken_anew_by_the_next_write(etcd):
    store = EtcdStore(client_for(etcd.endpoints, {}), "/tests/lost lease")
    store.set("a", "1")
    store.client.ask("/lease/revoke", {"ID": store._lease.id})
    assert not store.check(["a"])
    store.set("a", "2")
    assert store.get("a") == b"2"


@infra.NEEDED
def test_a_timeout_is_a_lookup_error_as_torch_s_is(etcd):
    store = EtcdStore(client_for(etcd.endpoints, {}), "/tests/lookup", SOON)
    assert store.timeout == SOON and store.prefix == "/tests/lookup/"
    with pytest.raises(LookupError):
        store.get("never")
    cas_delay()  # by the name that torch's tests use
    assert CONST_ETCD_SETUP_TTL == 5


@infra.NEEDED
def test_etcd_s_own_limit_is_told(etcd):
    with pytest.raises(StoreError, match="etcd takes no value of this size"):
        EtcdStore(client_for(etcd.endpoints, {}), "/tests/large").set("a", bytes(2 << 20))


def test_another_client_is_refused_with_a_way_out():
    with pytest.raises(TypeError, match="version 3 API, and cannot use a builtins client"):
        EtcdStore(object(), "/x")
