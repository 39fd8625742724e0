"""The dynamic rendezvous as its users see it: handlers over a backend of one's own, one node or several."""

from __future__ import annotations

import gc
import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from holdfast.elastic.rendezvous.next_step import Wish

SECOND = timedelta(seconds=1)


class Backend:
    """A user's backend: holds one state for the handlers of this process. The token counts the writes."""

    name = "mine"

    def __init__(self):
        self.lock = threading.Lock()
        self.state, self.token, self.trouble = None, 0, None

    def get_state(self):
        if self.trouble:
            raise self.trouble
        with self.lock:
            return None if self.state is None else (self.state, self.token)

    def set_state(self, state, token=None):
        if self.trouble:
            raise self.trouble
        with self.lock:
            wins = (token or 0) == self.token
            if wins:
                self.state, self.token = state, self.token + 1
            return self.state, self.token, wins


class SilentBackend(Backend):
    """One that does not tell what became of a write, as torch's interface allows."""

    def set_state(self, state, token=None):
        super().set_state(state, token)


class Nodes:
    """Handlers of one job in this process."""

    def __init__(self, names, backend):
        self.names, self.backend, self.handlers = names, backend, []
        self.store = pytest.importorskip("torch.distributed").HashStore()

    def add(self, min_nodes=1, max_nodes=1, **config):
        config = {"join_timeout": 20, "last_call_timeout": 1, "local_addr": f"127.0.0.{len(self.handlers) + 1}"} | config
        params = self.names("rendezvous").RendezvousParameters("mine", "x", "job", min_nodes, max_nodes, **config)
        create = self.names("rendezvous.dynamic_rendezvous").create_handler
        self.handlers.append(create(self.store, self.backend, params))
        return self.handlers[-1]

    def joining(self, handler):
        """`handler` joins in a thread. Returns that, and the list that gets what it agreed on, or its exception."""
        found = []

        def join():
            try:
                found.append(handler.next_rendezvous())
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=join)
        thread.start()
        return thread, found

    def meet(self, *handlers):
        """All of them at once; what each agreed on, or its exception."""
        joining = [self.joining(handler) for handler in handlers]
        for thread, _ in joining:
            thread.join()
        return [found[0] for _, found in joining]


@pytest.fixture
def nodes(names, dynamic):
    """A job whose nodes look ten times as often as usual, and have made-up store servers."""
    dynamic_pause = patch.object(dynamic, "_delay", lambda seconds: time.sleep(0.1))
    server = patch.object(
        dynamic.DynamicRendezvousHandler, "_create_tcp_store_server", side_effect=lambda *_: SimpleNamespace(port=4711)
    )
    job = Nodes(names, Backend())
    with dynamic_pause, server:
        yield job
    for handler in job.handlers:
        handler._stop_heartbeats()


# Values.


def test_timeouts_have_defaults(dynamic):
    timeout = dynamic.RendezvousTimeout()
    assert (timeout.join, timeout.last_call) == (600 * SECOND, 30 * SECOND)
    assert (timeout.close, timeout.heartbeat) == (30 * SECOND, 5 * SECOND)
    timeout = dynamic.RendezvousTimeout(SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND)
    assert (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat) == (
        SECOND,
        2 * SECOND,
        3 * SECOND,
        4 * SECOND,
    )


@pytest.mark.parametrize("limit", [0 * SECOND, -SECOND])
def test_timeouts_are_positive(dynamic, limit):
    with pytest.raises(ValueError, match=rf"^The join timeout \({limit}\) must be positive.$"):
        dynamic.RendezvousTimeout(limit)


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
    settings = dynamic.create_handler(None, Backend(), params).settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == ("job", 3, 6)
    timeout = settings.timeout
    assert (timeout.join, timeout.last_call, timeout.close) == (50 * SECOND, 60 * SECOND, 70 * SECOND)
    assert (settings.keep_alive_interval, settings.keep_alive_max_attempt) == (7 * SECOND, 2)


def test_a_handler_that_cannot_be_made_is_told_of(dynamic, names):
    params = names("rendezvous").RendezvousParameters("mine", "there", "job", 3, 6)
    broken = patch.object(dynamic.DynamicRendezvousHandler, "from_backend", side_effect=RuntimeError("no"))
    with broken, patch.object(dynamic, "construct_and_record_rdzv_event") as recorded, pytest.raises(RuntimeError):
        dynamic.create_handler(None, Backend(), params)
    assert recorded.call_args.kwargs["message"] == "RuntimeError: no"


# One node.


@pytest.mark.torch
def test_a_round_gives_rank_size_store_and_meeting_point(nodes):
    handler = nodes.add()
    agreed = handler.next_rendezvous()
    assert (agreed.rank, agreed.world_size) == (0, 1) and agreed.bootstrap_store_info.master_addr == "127.0.0.1"
    agreed.store.set("key", "value")
    assert nodes.store.get("torch.rendezvous.job.0/key") == b"value" and agreed.store.underlying_store == nodes.store
    assert (handler.get_backend(), handler.get_run_id()) == ("mine", "job")


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)  # torch keeps what dead workers left there
def test_each_round_has_a_store_of_its_own_for_its_workers(nodes):
    handler = nodes.add()
    for number in range(3):
        before = handler._shared_tcp_store_server
        agreed = handler.next_rendezvous()
        assert handler.round == number and handler._shared_tcp_store_server is not before
        assert agreed.store.get("MASTER_PORT") == b"4711", "a node that joins in this round is told where to go"


@pytest.mark.torch
def test_the_workers_store_can_be_left_to_the_workers(nodes, monkeypatch):
    handler = nodes.add()
    assert handler.use_agent_store is True
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert handler.use_agent_store is False
    assert handler.next_rendezvous().bootstrap_store_info.master_port not in (0, 4711)


@pytest.mark.torch
def test_who_closes_it_closes_it_for_all(nodes, names):
    first, second = nodes.add(), nodes.add()
    assert first.is_closed() is False and second.num_nodes_waiting() == 0
    first.set_closed()
    first.set_closed()
    assert first.is_closed() and first.shutdown() and first.shutdown()
    with pytest.raises(names("rendezvous").RendezvousClosedError):
        nodes.add().next_rendezvous()


@pytest.mark.torch
def test_too_few_nodes_are_a_timeout_and_leave_no_seat_taken(nodes, names):
    with pytest.raises(names("rendezvous").RendezvousTimeoutError):
        nodes.add(2, 2, join_timeout=1).next_rendezvous()
    thread, found = nodes.joining(nodes.add(2, 2, join_timeout=2))
    thread.join()
    assert isinstance(found[0], names("rendezvous").RendezvousTimeoutError), "it did not meet the one that has given up"


@pytest.mark.torch
def test_a_backend_that_fails_is_told_of(names, nodes):
    error = names("rendezvous").RendezvousError
    handler = nodes.add()
    nodes.backend.trouble = error("gone")
    for call in (handler.is_closed, handler.num_nodes_waiting, handler.set_closed, handler.next_rendezvous):
        with pytest.raises(error):
            call()
    assert handler.shutdown() is False
    nodes.backend.trouble = RuntimeError("not of ours")
    with pytest.raises(RuntimeError):
        handler.shutdown()


@pytest.mark.torch
def test_what_stands_in_the_backend_is_no_state(names, nodes):
    nodes.backend.set_state(b"corrupt")
    with pytest.raises(
        names("rendezvous").RendezvousStateError, match=r"^The rendezvous state is corrupt. See inner exception for details.$"
    ):
        nodes.add().is_closed()


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)
def test_a_backend_that_cannot_be_reached_ends_no_heartbeats(nodes, names, caplog, wait_until):
    nodes.add(keep_alive_interval=1).next_rendezvous()
    nodes.backend.trouble = names("rendezvous").RendezvousConnectionError("gone")
    wait_until(lambda: caplog.text.count("could not write its heartbeat to 'job': RendezvousConnectionError: gone") == 2)


@pytest.mark.torch
def test_heartbeats_run_from_the_round_to_the_end(nodes):
    def beating():
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("RendezvousKeepAliveTimer")}

    before, handler = beating(), nodes.add()
    assert beating() == before
    handler.next_rendezvous()
    assert beating() != before
    handler.shutdown()
    assert beating() == before


@pytest.mark.torch
def test_a_forgotten_handler_beats_no_more(nodes):
    def beating():
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("RendezvousKeepAliveTimer")}

    before = beating()
    nodes.add().next_rendezvous()
    nodes.handlers.clear()
    gc.collect()
    assert beating() == before


# Several nodes.


@pytest.mark.torch
@pytest.mark.parametrize("backend", [Backend, SilentBackend])
def test_many_nodes_meet_at_once_and_in_the_order_of_their_names(nodes, backend):
    nodes.backend = backend()
    found = nodes.meet(*[nodes.add(4, 4) for _ in range(4)])
    assert [each.rank for each in found] == [0, 1, 2, 3] and {each.world_size for each in found} == {4}
    assert len({(each.bootstrap_store_info.master_addr, each.bootstrap_store_info.master_port) for each in found}) == 1


@pytest.mark.torch
def test_the_last_call_lets_more_nodes_in(nodes):
    found = nodes.meet(*[nodes.add(2, 3, last_call_timeout=20) for _ in range(3)])
    assert {each.world_size for each in found} == {3}


@pytest.mark.torch
def test_the_last_call_ends(nodes):
    began_at = time.monotonic()
    found = nodes.meet(*[nodes.add(3, 9, last_call_timeout=1) for _ in range(3)])
    assert {each.world_size for each in found} == {3} and time.monotonic() - began_at >= 1


@pytest.mark.torch
def test_one_node_too_many_is_a_spare_and_leaves_in_peace(nodes, names):
    nodes.meet(nodes.add(2, 2), nodes.add(2, 2))
    spare, found = nodes.joining(nodes.add(2, 2))
    time.sleep(0.5)
    assert nodes.handlers[0].num_nodes_waiting() == 0, "a spare calls no round off"
    nodes.handlers[0].shutdown()
    spare.join()
    assert isinstance(found[0], names("rendezvous").RendezvousGracefulExitError)


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)  # torch's waits for the meeting point of the dead
def test_a_spare_takes_the_seat_of_a_node_without_heartbeats(nodes, wait_until):
    alive = dict(keep_alive_interval=1, keep_alive_max_attempt=3, last_call_timeout=20)
    first, second = nodes.add(1, 2, **alive), nodes.add(1, 2, **alive)
    nodes.meet(first, second)
    spare, found = nodes.joining(nodes.add(1, 2, **alive))
    second._stop_heartbeats()
    wait_until(lambda: first.num_nodes_waiting() == 1)
    again, agreed = nodes.joining(first)
    again.join()
    spare.join()
    assert {agreed[0].rank, found[0].rank} == {0, 1} and agreed[0].world_size == found[0].world_size == 2


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)  # torch's waits on, and so calls each round off
def test_who_waits_and_gets_no_seat_becomes_a_spare(nodes, names, wait_until):
    alone = nodes.add(1, 1)
    nodes.meet(alone)
    late = [nodes.joining(nodes.add(1, 2, last_call_timeout=20)) for _ in range(3)]
    wait_until(lambda: alone.num_nodes_waiting() == 3)
    alone._fulfil(Wish.LEAVE, alone.settings.timeout.join)  # as a node does that comes back
    wait_until(lambda: len([found for _, found in late if found]) == 2)
    assert [found[0].world_size for _, found in late if found] == [2, 2]
    wait_until(lambda: alone.num_nodes_waiting() == 0)
    alone.set_closed()
    for thread, _ in late:
        thread.join()
    left = [found[0] for _, found in late if isinstance(found[0], Exception)]
    assert [type(error) for error in left] == [names("rendezvous").RendezvousGracefulExitError]


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)  # with torch's, both fail
def test_a_node_that_joins_later_is_told_where_to_go(nodes, wait_until):
    first, second = nodes.add(1, 2), nodes.add(1, 2)
    alone = first.next_rendezvous()
    assert alone.world_size == 1
    thread, found = nodes.joining(second)
    together = alone
    while together.world_size == 1:  # as an agent does: on a busy machine the newcomer may miss a last call of a second
        wait_until(lambda: first.num_nodes_waiting() == 1)
        together = first.next_rendezvous()
    thread.join()
    assert together.world_size == found[0].world_size == 2 and second.round == first.round >= 1
    assert together.bootstrap_store_info == found[0].bootstrap_store_info


@pytest.mark.torch
@pytest.mark.parametrize("names", ["holdfast.elastic"], indirect=True)
def test_jobs_of_two_names_do_not_meet(nodes, names, dynamic):
    c10d = names("rendezvous.c10d_rendezvous_backend").C10dRendezvousBackend
    handlers = [
        dynamic.DynamicRendezvousHandler.from_backend(job, nodes.store, c10d(nodes.store, job), 1, 1) for job in ("one", "two")
    ]
    assert [handler.next_rendezvous().world_size for handler in handlers] == [1, 1]
    handlers[0].set_closed()
    assert not handlers[1].is_closed()
    nodes.handlers += handlers
