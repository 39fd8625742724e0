"""The dynamic rendezvous' handler: its rounds, heartbeats, timeouts and trouble; and several nodes in one process."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
from kit.stages.dynamic_parts import NOW, SECOND, Backend, Holder, node, settings_of, state_with


@pytest.fixture
def node_of_one(dynamic):
    """A handler whose state nobody else writes, over torch's in-process store; its store server is made up."""
    dist = pytest.importorskip("torch.distributed")
    made = []

    def make(state=None, min_nodes=1, max_nodes=1, number=1, **timeouts):
        holder = Holder(state or dynamic._RendezvousState())
        handler = dynamic.DynamicRendezvousHandler(
            node(dynamic, "me", number),
            settings_of(dynamic, min_nodes, max_nodes, **timeouts),
            "mine",
            dist.HashStore(),
            holder,
        )
        made.append(handler)
        return handler, holder

    server = patch.object(
        dynamic.DynamicRendezvousHandler, "_create_tcp_store_server", side_effect=lambda *_: SimpleNamespace(port=4711)
    )
    with server, patch.object(dynamic, "_delay"):
        yield make
    for handler in made:
        handler._stop_heartbeats()
    made.clear()


@pytest.mark.torch
def test_a_round_gives_rank_size_store_and_meeting_point(dynamic, node_of_one):
    handler, _ = node_of_one(state_with(dynamic, ["a", "z"]), max_nodes=3)
    with patch.object(dynamic.RendezvousStoreInfo, "build", return_value="there") as build:
        agreed = handler.next_rendezvous()
    assert (agreed.rank, agreed.world_size, agreed.bootstrap_store_info) == (1, 3, "there") and build.call_count == 1
    agreed.store.set("key", "value")
    assert handler._store.get("torch.rendezvous.job.0/key") == b"value" and agreed.store.underlying_store == handler._store


@pytest.mark.torch
def test_every_call_is_a_new_round(node_of_one):
    handler, holder = node_of_one()
    for number in range(3):
        agreed = handler.next_rendezvous()
        assert holder.state.round == number and agreed.bootstrap_store_info.master_port == 4711


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)  # torch keeps what dead workers left there
def test_each_round_has_a_store_of_its_own_for_its_workers(node_of_one):
    handler, _ = node_of_one()
    handler.next_rendezvous()
    first = handler._shared_tcp_store_server
    agreed = handler.next_rendezvous()
    assert handler._shared_tcp_store_server is not first
    assert agreed.store.get("MASTER_PORT") == b"4711", "a node that joins in this round is told where to go"


@pytest.mark.torch
def test_only_the_first_attempt_is_skewed(dynamic, node_of_one):
    for number, times in ((0, 1), (1, 0)):
        handler, _ = node_of_one(state_with(dynamic, round=number))
        with patch.object(dynamic, "_delay") as delay:
            handler.next_rendezvous()
        assert delay.call_count == times


@pytest.mark.torch
def test_the_workers_store_can_be_left_to_the_workers(node_of_one, monkeypatch):
    handler, _ = node_of_one()
    assert handler.use_agent_store is True
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert handler.use_agent_store is False
    assert handler.next_rendezvous().bootstrap_store_info.master_port not in (0, 4711)


@pytest.mark.torch
def test_waiting_nodes_and_the_end_are_seen(dynamic, node_of_one):
    handler, _ = node_of_one(state_with(dynamic, wait_list={node(dynamic, "a"), node(dynamic, "b")}))
    assert handler.num_nodes_waiting() == 2 and handler.is_closed() is False
    handler.set_closed()
    handler.set_closed()
    assert (
        handler.is_closed() and handler.shutdown() is True and handler.get_backend() == "mine" and handler.get_run_id() == "job"
    )


@pytest.mark.torch
@pytest.mark.parametrize(("call", "limit"), [("next_rendezvous", "join"), ("set_closed", "close")])
def test_its_timeouts_hold(names, node_of_one, call, limit):
    handler, holder = node_of_one(**{limit: timedelta(seconds=0.02)})
    holder.sync = lambda: time.sleep(0.05)
    with pytest.raises(names("rendezvous").RendezvousTimeoutError):
        getattr(handler, call)()


@pytest.mark.torch
def test_a_backend_that_fails_is_told_of(names, node_of_one):
    error = names("rendezvous").RendezvousError
    handler, holder = node_of_one()
    holder.sync = MagicMock(side_effect=error("gone"))
    for call in (handler.is_closed, handler.num_nodes_waiting, handler.set_closed, handler.next_rendezvous):
        with pytest.raises(error):
            call()
    assert handler.shutdown() is False
    handler._keep_alive()  # no exception: the thread goes on
    holder.sync = MagicMock(side_effect=RuntimeError("not of ours"))
    with pytest.raises(RuntimeError):
        handler.shutdown()


@pytest.mark.torch
def test_a_heartbeat_that_is_due_is_written(dynamic, node_of_one):
    handler, holder = node_of_one()
    holder.state.last_heartbeats[node(dynamic, "me")] = NOW - 60 * SECOND
    with patch.object(dynamic, "datetime") as wall:
        wall.now.return_value = NOW
        handler._keep_alive()
    assert holder.state.last_heartbeats == {node(dynamic, "me"): NOW}


@pytest.mark.torch
def test_heartbeats_run_from_the_round_to_the_end(dynamic, node_of_one):
    def beating():
        return "RendezvousKeepAliveTimer_77" in {thread.name for thread in threading.enumerate()}

    handler, _ = node_of_one(number=77)
    assert not beating()
    handler.next_rendezvous()
    assert beating()
    handler.shutdown()
    assert not beating()


@pytest.mark.torch
def test_a_forgotten_handler_beats_no_more(dynamic):
    dist = pytest.importorskip("torch.distributed")
    holder = Holder(dynamic._RendezvousState())
    handler = dynamic.DynamicRendezvousHandler(
        node(dynamic, "me", 78), settings_of(dynamic, 1, 1), "mine", dist.HashStore(), holder
    )
    handler._start_heartbeats()
    del handler
    gc.collect()
    assert "RendezvousKeepAliveTimer_78" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"run_id": ""}, "run id"),
        ({"min_nodes": 0}, r"^The minimum number of nodes \(0\) must be greater than zero.$"),
        (
            {"max_nodes": 2},
            r"^The maximum number of nodes \(2\) must be greater than or equal to the minimum number of nodes \(3\).$",
        ),
    ],
)
def test_a_handler_refuses_the_impossible(dynamic, given, said):
    with pytest.raises(ValueError, match=said):
        dynamic.DynamicRendezvousHandler.from_backend(
            **dict(run_id="job", store=None, backend=Backend(), min_nodes=3, max_nodes=6) | given
        )


def test_a_handler_from_parameters(dynamic, names):
    config = dict(
        join_timeout="50", last_call_timeout="60", close_timeout="70", keep_alive_interval="7", keep_alive_max_attempt=2
    )
    params = names("rendezvous").RendezvousParameters("mine", "there", "job", 3, 6, "10.0.0.1", **config)
    handler = dynamic.create_handler(None, Backend(), params)
    settings = handler.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 3, 6) and handler._this_node.addr == "10.0.0.1"
    assert (settings.timeout.join, settings.timeout.last_call, settings.timeout.close) == (
        50 * SECOND,
        60 * SECOND,
        70 * SECOND,
    )
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (7 * SECOND, 2)


def test_a_handler_that_cannot_be_made_is_told_of(dynamic, names):
    params = names("rendezvous").RendezvousParameters("mine", "there", "job", 3, 6)
    broken = patch.object(dynamic.DynamicRendezvousHandler, "from_backend", side_effect=RuntimeError("no"))
    with broken, patch.object(dynamic, "construct_and_record_rdzv_event") as recorded, pytest.raises(RuntimeError):
        dynamic.create_handler(None, Backend(), params)
    assert recorded.call_args.kwargs["message"] == "RuntimeError: no"


# Several nodes in one process.


class Shared(Backend):
    """A backend for several threads."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def set_state(self, state, token=None):
        with self.lock:
            return super().set_state(state, token)


class Nodes:
    def __init__(self, names, dynamic):
        self.names, self.dynamic, self.backend, self.handlers = names, dynamic, Shared(), []
        self.store = pytest.importorskip("torch.distributed").HashStore()

    def add(self, min_nodes, max_nodes, **config):
        config = {"join_timeout": 20, "last_call_timeout": 1, "local_addr": f"127.0.0.{len(self.handlers) + 1}"} | config
        params = self.names("rendezvous").RendezvousParameters("mine", "x", "job", min_nodes, max_nodes, **config)
        self.handlers.append(self.dynamic.create_handler(self.store, self.backend, params))
        return self.handlers[-1]

    def join(self, *handlers):
        """All of them at once; what each agreed on, or the exception it got."""
        found = [None] * len(handlers)

        def one(index):
            try:
                found[index] = handlers[index].next_rendezvous()
            except Exception as error:
                found[index] = error

        threads = [threading.Thread(target=one, args=(index,)) for index in range(len(handlers))]
        for thread in threads:
            thread.start()
        return threads, found


@pytest.fixture
def nodes(names, dynamic):
    created = Nodes(names, dynamic)
    yield created
    for handler in created.handlers:
        handler._stop_heartbeats()


@pytest.mark.torch
def test_two_nodes_meet(nodes):
    threads, found = nodes.join(nodes.add(2, 2), nodes.add(2, 2))
    for thread in threads:
        thread.join()
    first, second = found
    assert {first.rank, second.rank} == {0, 1} and first.world_size == second.world_size == 2
    assert first.bootstrap_store_info == second.bootstrap_store_info and first.bootstrap_store_info.master_addr == "127.0.0.1"


@pytest.mark.torch
def test_a_third_node_is_a_spare_and_leaves_in_peace(nodes, names, wait_until):
    threads, _ = nodes.join(nodes.add(2, 2), nodes.add(2, 2))
    for thread in threads:
        thread.join()
    spare_threads, found = nodes.join(nodes.add(2, 2))
    wait_until(lambda: [each.addr for each in nodes.backend.seen.redundancy_list] == ["127.0.0.3"])
    nodes.handlers[0].shutdown()
    spare_threads[0].join()
    assert isinstance(found[0], names("rendezvous").RendezvousGracefulExitError)


@pytest.mark.torch
def test_a_node_that_joins_later_is_told_where_to_go(ours, wait_until):
    nodes = Nodes(ours, ours("rendezvous.dynamic_rendezvous"))
    first, second = nodes.add(1, 2), nodes.add(1, 2)
    try:
        alone = first.next_rendezvous()
        assert alone.world_size == 1
        threads, found = nodes.join(second)
        wait_until(lambda: first.num_nodes_waiting() == 1)
        together = first.next_rendezvous()
        threads[0].join()
        assert together.world_size == found[0].world_size == 2
        assert together.bootstrap_store_info == found[0].bootstrap_store_info
        assert together.bootstrap_store_info.master_port != alone.bootstrap_store_info.master_port
    finally:
        for handler in nodes.handlers:
            handler._stop_heartbeats()
