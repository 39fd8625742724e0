"""The dynamic rendezvous, step by step: the shared state, what each step does to it, which step comes next, the handler."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest

NOW = datetime(2000, 1, 1)
SECOND = timedelta(seconds=1)


@pytest.fixture
def dynamic(names):
    """The module `dynamic_rendezvous`."""
    return names("rendezvous.dynamic_rendezvous")


def settings_of(dynamic, min_nodes=1, max_nodes=2, **timeouts):
    return dynamic.RendezvousSettings(
        run_id="job",
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        timeout=dynamic.RendezvousTimeout(**timeouts),
        keep_alive_interval=30 * SECOND,
        keep_alive_max_attempt=3,
    )


def node(dynamic, name, number=1):
    return dynamic._NodeDesc(name, number, number)


@contextmanager
def stopped_clocks(dynamic, monotonic=10.0):
    with patch.object(dynamic, "datetime") as wall, patch.object(dynamic, "time") as clock:
        wall.now.return_value = NOW
        clock.monotonic.return_value = monotonic
        yield clock


class Backend:
    """Holds one state; the token counts the writes."""

    name = "mine"

    def __init__(self):
        self.state, self.token, self.reads, self.writes = None, 0, 0, 0

    def get_state(self):
        self.reads += 1
        return None if self.state is None else (self.state, self.token)

    def set_state(self, state, token=None):
        self.writes += 1
        wins = (token or 0) == self.token
        if wins:
            self.put(state)
        return self.state, self.token, wins

    def put(self, state):
        self.state, self.token = state, self.token + 1

    @property
    def seen(self):
        return pickle.loads(self.state)


class Holder:
    """A copy of the state that nobody else writes."""

    def __init__(self, state):
        self.state, self.calls, self.dirty = state, [], None

    def sync(self):
        self.calls.append("sync")
        was, self.dirty = self.dirty, None
        return was

    def mark_dirty(self):
        self.calls.append("mark")
        self.dirty = True


# Values.


def test_timeouts_have_defaults(dynamic):
    timeout = dynamic.RendezvousTimeout()
    assert (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat) == (
        600 * SECOND,
        30 * SECOND,
        30 * SECOND,
        5 * SECOND,
    )
    timeout = dynamic.RendezvousTimeout(SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND)
    assert (timeout.join, timeout.last_call, timeout.close, timeout.heartbeat) == (SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND)


@pytest.mark.parametrize("limit", [0 * SECOND, -SECOND])
def test_timeouts_are_positive(dynamic, limit):
    with pytest.raises(ValueError, match=rf"^The join timeout \({limit}\) must be positive.$"):
        dynamic.RendezvousTimeout(limit)


def test_nodes_are_told_apart_and_ordered(dynamic):
    generator = dynamic._NodeDescGenerator()
    first, second = generator.generate("host"), generator.generate("host")
    assert repr(first) == f"host_{os.getpid()}_0" and repr(second) == f"host_{os.getpid()}_1"
    assert (
        sorted([node(dynamic, "b"), second, first]) == [node(dynamic, "b"), first, second] and len({first, second, first}) == 2
    )


def test_the_state_of_a_thousand_nodes_is_small(dynamic):
    state = dynamic._RendezvousState()
    for number in range(500):
        running, waiting = (
            dynamic._NodeDesc(f"a{number}.some.long.domain.example.com", 1, number),
            dynamic._NodeDesc(f"w{number}", 1, number),
        )
        state.participants[running] = number
        state.wait_list.add(waiting)
        state.last_heartbeats |= {running: datetime.now(), waiting: datetime.now()}
    assert len(b64encode(pickle.dumps(state))) <= 160 * 1024


# The copy and the backend.


def full_state(dynamic):
    state = dynamic._RendezvousState()
    state.round, state.complete, state.closed, state.deadline = 7, True, True, NOW
    ages = {"a": 0, "b": 15, "c": 30, "d": 60, "e": 90}
    state.participants = {node(dynamic, name): rank for rank, name in enumerate("abc")}
    state.wait_list = {node(dynamic, "d"), node(dynamic, "e")}
    state.last_heartbeats = {node(dynamic, name): NOW - age * SECOND for name, age in ages.items()}
    return state


def test_an_empty_backend_gives_an_empty_state(dynamic):
    backend = Backend()
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    assert backend.reads == 0 and vars(holder.state) == vars(dynamic._RendezvousState())
    assert holder.sync() is None and vars(holder.state) == vars(dynamic._RendezvousState())


def test_a_clean_copy_is_read(dynamic):
    backend, state = Backend(), full_state(dynamic)
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    with stopped_clocks(dynamic):
        for state.round in (1, 2, 3):
            backend.put(pickle.dumps(state))
            assert holder.sync() is None and vars(holder.state) == vars(state)
    assert (backend.reads, backend.writes) == (3, 0)


def test_a_changed_copy_is_written(dynamic):
    backend = Backend()
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    for number in (1, 2, 3):
        holder.state.round = number
        holder.mark_dirty()
        assert holder.sync() is True and backend.seen.round == number
    assert (backend.reads, backend.writes) == (0, 3)


def test_a_changed_copy_that_is_old_loses(dynamic):
    backend, state = Backend(), full_state(dynamic)
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    with stopped_clocks(dynamic):
        backend.put(pickle.dumps(state))
        holder.state.round = 99
        holder.mark_dirty()
        assert holder.sync() is False and vars(holder.state) == vars(state)


def test_a_backend_may_keep_to_itself_what_stands_there(dynamic):
    backend = Backend()
    backend.set_state = lambda state, token: None
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    holder.state.round = 5
    holder.mark_dirty()
    assert holder.sync() is False and holder.state.round == 5


def test_a_fresh_copy_is_not_read_again(dynamic):
    backend = Backend()
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 5)
    with stopped_clocks(dynamic, monotonic=5) as clock:
        holder.sync()
        clock.monotonic.return_value = 10
        holder.sync()
        assert backend.reads == 1
        clock.monotonic.return_value = 10.01
        holder.sync()
        assert backend.reads == 2


def test_nodes_without_a_heartbeat_are_removed(dynamic):
    state, backend = full_state(dynamic), Backend()
    alive = vars(full_state(dynamic))
    for age, name in enumerate("vwxyz", start=91):
        state.last_heartbeats[node(dynamic, name)] = NOW - age * SECOND
    state.participants |= {node(dynamic, "v"): 0, node(dynamic, "w"): 0}
    state.wait_list |= {node(dynamic, "x"), node(dynamic, "y")}
    state.redundancy_list.add(node(dynamic, "z"))
    backend.put(pickle.dumps(state))
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    with stopped_clocks(dynamic):
        holder.sync()
    assert vars(holder.state) == alive


def test_when_all_participants_are_dead_the_next_round_can_form(dynamic):
    state, backend = full_state(dynamic), Backend()
    state.last_heartbeats = dict.fromkeys(state.last_heartbeats, NOW - 91 * SECOND)
    backend.put(pickle.dumps(state))
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    with stopped_clocks(dynamic):
        holder.sync()
    assert (holder.state.round, holder.state.complete, holder.state.participants, holder.state.wait_list) == (
        8,
        False,
        {},
        set(),
    )


def test_a_corrupt_state_is_an_error(dynamic, names):
    backend = Backend()
    backend.put(b"corrupt")
    holder = dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0)
    with pytest.raises(
        names("rendezvous").RendezvousStateError, match=r"^The rendezvous state is corrupt. See inner exception for details.$"
    ):
        holder.sync()


class RunsCode:
    def __reduce__(self):
        return os.mkdir, (os.environ["WHERE"],)


@pytest.mark.parametrize("planted", [RunsCode(), {"a": 1}, threading.Thread], ids=["code", "something else", "a class"])
def test_a_planted_state_is_refused_and_runs_nothing(ours, tmp_path, monkeypatch, planted):
    monkeypatch.setenv("WHERE", str(tmp_path / "made"))
    dynamic, backend = ours("rendezvous.dynamic_rendezvous"), Backend()
    backend.put(pickle.dumps(planted))
    with pytest.raises(ours("rendezvous").RendezvousStateError):
        dynamic._BackendRendezvousStateHolder(backend, settings_of(dynamic), 0).sync()
    assert not (tmp_path / "made").exists()


# What a step does.


def take(dynamic, action, state, min_nodes=1, max_nodes=2):
    """Take one step on `state` as node `me`, then finish. The holder's calls are checked on the way."""
    holder = Holder(state)
    executor = dynamic._DistributedRendezvousOpExecutor(node(dynamic, "me"), holder, settings_of(dynamic, min_nodes, max_nodes))
    asked = MagicMock(side_effect=[action, dynamic._Action.FINISH])
    with patch.object(dynamic, "datetime") as wall:
        wall.now.return_value = NOW
        executor.run(asked, deadline=3)
    context, deadline = asked.call_args[0]
    assert (context.node, context.state, deadline) == (node(dynamic, "me"), state, 3)
    return holder.calls


def state_with(dynamic, participants=(), **rest):
    state = dynamic._RendezvousState()
    for name in participants:
        state.participants[node(dynamic, name)] = 0
        state.last_heartbeats[node(dynamic, name)] = NOW
    for field, value in rest.items():
        setattr(state, field, value)
    return state


WRITTEN = ["sync", "mark", "sync"]


def test_a_heartbeat_is_written(dynamic):
    state = state_with(dynamic)
    assert take(dynamic, dynamic._Action.KEEP_ALIVE, state) == WRITTEN
    assert state.last_heartbeats == {node(dynamic, "me"): NOW}


def test_taking_a_seat(dynamic):
    me = node(dynamic, "me")
    state = state_with(dynamic, wait_list={me})
    assert take(dynamic, dynamic._Action.ADD_TO_PARTICIPANTS, state, 2, 3) == WRITTEN
    assert vars(state) == vars(state_with(dynamic, ["me"]))


def test_the_seat_that_makes_the_minimum_starts_the_last_call(dynamic):
    state = state_with(dynamic, ["a"])
    take(dynamic, dynamic._Action.ADD_TO_PARTICIPANTS, state, 2, 3)
    assert state.deadline == NOW + 30 * SECOND and not state.complete


def test_the_last_seat_completes_the_round_with_ranks_in_order(dynamic):
    state = state_with(dynamic, ["z", "b"], deadline=NOW)
    take(dynamic, dynamic._Action.ADD_TO_PARTICIPANTS, state, 1, 3)
    assert state.complete and state.deadline is None
    assert {each.addr: rank for each, rank in state.participants.items()} == {"b": 0, "me": 1, "z": 2}


def test_leaving_keeps_a_round_that_others_are_in(dynamic):
    for complete, deadline in ((False, NOW), (True, None)):
        state = state_with(dynamic, ["a", "me"], complete=complete, deadline=deadline, round=1)
        assert take(dynamic, dynamic._Action.REMOVE_FROM_PARTICIPANTS, state) == WRITTEN
        assert vars(state) == vars(state_with(dynamic, ["a"], complete=complete, deadline=deadline, round=1))


def test_the_last_to_leave_opens_the_next_round(dynamic):
    state = state_with(dynamic, ["me"], complete=True, round=1)
    take(dynamic, dynamic._Action.REMOVE_FROM_PARTICIPANTS, state)
    assert vars(state) == vars(state_with(dynamic, round=2))


def test_leaving_below_the_minimum_ends_the_last_call(dynamic):
    state = state_with(dynamic, ["a", "b", "me"], deadline=NOW)
    take(dynamic, dynamic._Action.REMOVE_FROM_PARTICIPANTS, state, 3, 4)
    assert vars(state) == vars(state_with(dynamic, ["a", "b"]))


@pytest.mark.parametrize(
    ("enter", "leave", "line"),
    [
        ("ADD_TO_WAIT_LIST", "REMOVE_FROM_WAIT_LIST", "wait_list"),
        ("ADD_TO_REDUNDANCY_LIST", "REMOVE_FROM_REDUNDANCY_LIST", "redundancy_list"),
    ],
)
def test_waiting_in_line(dynamic, enter, leave, line):
    me = node(dynamic, "me")
    state = state_with(dynamic)
    assert take(dynamic, dynamic._Action[enter], state) == WRITTEN
    assert vars(state) == vars(state_with(dynamic, last_heartbeats={me: NOW}, **{line: {me}}))
    take(dynamic, dynamic._Action[leave], state)
    assert vars(state) == vars(state_with(dynamic))


def test_a_spare_that_waits_for_a_round_is_no_spare_any_more(dynamic):
    me = node(dynamic, "me")
    state = state_with(dynamic, redundancy_list={me})
    take(dynamic, dynamic._Action.ADD_TO_WAIT_LIST, state)
    assert (state.redundancy_list, state.wait_list) == (set(), {me})


def test_closing_and_completing(dynamic):
    state = state_with(dynamic, ["b", "a"])
    take(dynamic, dynamic._Action.MARK_RENDEZVOUS_COMPLETE, state)
    take(dynamic, dynamic._Action.MARK_RENDEZVOUS_CLOSED, state)
    assert (
        state.complete and state.closed and {each.addr: rank for each, rank in state.participants.items()} == {"a": 0, "b": 1}
    )


def test_errors_are_raised_without_a_write(dynamic, names):
    rendezvous = names("rendezvous")
    for action, error in (
        ("ERROR_CLOSED", rendezvous.RendezvousClosedError),
        ("ERROR_TIMEOUT", rendezvous.RendezvousTimeoutError),
    ):
        holder = Holder(state_with(dynamic))
        executor = dynamic._DistributedRendezvousOpExecutor(node(dynamic, "me"), holder, settings_of(dynamic))
        with pytest.raises(error):
            executor.run(lambda context, deadline, action=action: dynamic._Action[action], deadline=1)
        assert holder.calls == ["sync"]


def test_looking_again_takes_a_second(dynamic):
    with patch.object(dynamic, "_delay") as delay:
        assert take(dynamic, dynamic._Action.SYNC, state_with(dynamic)) == ["sync", "sync"]
    delay.assert_called_once_with(seconds=1)


def test_a_spare_that_gets_a_seat_gets_a_new_deadline(dynamic):
    me = node(dynamic, "me")
    holder = Holder(state_with(dynamic, redundancy_list={me}, last_heartbeats={me: NOW}))
    executor = dynamic._DistributedRendezvousOpExecutor(me, holder, settings_of(dynamic))
    asked = MagicMock(side_effect=[dynamic._Action.REMOVE_FROM_REDUNDANCY_LIST, dynamic._Action.FINISH])
    executor.run(asked, 1, lambda join: 100 + join.total_seconds())
    assert asked.call_args[0][1] == 700


# Which step comes next. The clock stands at 10, at 10 the deadline is not over.


def next_action(dynamic, op, state, deadline=10, min_nodes=1, max_nodes=2):
    context = dynamic._RendezvousContext(node(dynamic, "me"), state, settings_of(dynamic, min_nodes, max_nodes))
    with stopped_clocks(dynamic):
        return getattr(dynamic, f"_Rendezvous{op}Op")()(context, deadline).name


ME = "me"
DUE, FRESH = NOW - 30 * SECOND, NOW - 29 * SECOND
STEPS = [
    ("Exit", {}, {}, "FINISH"),
    ("Exit", {"participants": [ME]}, {}, "REMOVE_FROM_PARTICIPANTS"),
    ("Exit", {"participants": [ME]}, {"deadline": 0}, "ERROR_TIMEOUT"),
    ("Close", {}, {}, "MARK_RENDEZVOUS_CLOSED"),
    ("Close", {"closed": True}, {}, "FINISH"),
    ("Close", {}, {"deadline": 0}, "ERROR_TIMEOUT"),
    ("KeepAlive", {}, {}, "FINISH"),
    ("KeepAlive", {"beat": FRESH}, {}, "FINISH"),
    ("KeepAlive", {"beat": DUE}, {}, "KEEP_ALIVE"),
    ("KeepAlive", {"beat": DUE - SECOND}, {}, "KEEP_ALIVE"),
    ("KeepAlive", {"beat": DUE}, {"deadline": 0}, "ERROR_TIMEOUT"),
    ("Join", {"participants": ["a"]}, {}, "ADD_TO_PARTICIPANTS"),
    ("Join", {"closed": True}, {}, "ERROR_CLOSED"),
    ("Join", {"participants": ["a", ME], "complete": True}, {}, "FINISH"),
    ("Join", {"participants": ["a"], "complete": True}, {}, "ADD_TO_WAIT_LIST"),
    ("Join", {"participants": ["a"], "complete": True}, {"max_nodes": 1}, "ADD_TO_REDUNDANCY_LIST"),
    ("Join", {"participants": ["a"], "complete": True, "waits": True, "beat": FRESH}, {}, "SYNC"),
    ("Join", {"participants": ["a"], "complete": True, "waits": True, "beat": DUE}, {}, "KEEP_ALIVE"),
    ("Join", {"participants": ["a"], "complete": True, "spare": True, "beat": FRESH}, {"max_nodes": 1}, "SYNC"),
    (
        "Join",
        {"participants": ["a"], "complete": True, "spare": True, "beat": DUE},
        {"max_nodes": 1, "deadline": 0},
        "KEEP_ALIVE",
    ),
    ("Join", {"participants": ["a"], "complete": True, "spare": True}, {"max_nodes": 1, "deadline": 0}, "SYNC"),
    ("Join", {"participants": ["a"], "complete": True, "spare": True}, {"max_nodes": 2}, "REMOVE_FROM_REDUNDANCY_LIST"),
    ("Join", {"participants": ["a", ME], "ends": NOW - SECOND}, {"max_nodes": 3}, "MARK_RENDEZVOUS_COMPLETE"),
    ("Join", {"participants": ["a", ME], "ends": NOW, "beat": FRESH}, {"max_nodes": 3}, "SYNC"),
    ("Join", {"participants": ["a", ME], "beat": FRESH}, {"min_nodes": 3, "max_nodes": 3}, "SYNC"),
    ("Join", {"participants": ["a", ME], "beat": DUE}, {"min_nodes": 3, "max_nodes": 3}, "KEEP_ALIVE"),
    ("Join", {}, {"deadline": 0}, "ERROR_TIMEOUT"),
    ("Join", {"participants": [ME]}, {"deadline": 0}, "ERROR_TIMEOUT"),
    ("Join", {"participants": [ME]}, {"deadline": 5}, "REMOVE_FROM_PARTICIPANTS"),
    ("Join", {"waits": True}, {"deadline": 5}, "REMOVE_FROM_WAIT_LIST"),
    ("Join", {"waits": True}, {"deadline": 0}, "ERROR_TIMEOUT"),
]


@pytest.mark.parametrize(("op", "given", "told", "expected"), STEPS)
def test_the_next_step(dynamic, op, given, told, expected):
    me = node(dynamic, ME)
    state = dynamic._RendezvousState()
    state.participants = {node(dynamic, name): 0 for name in given.get("participants", [])}
    state.complete, state.closed, state.deadline = given.get("complete", False), given.get("closed", False), given.get("ends")
    state.wait_list = {me} if given.get("waits") else set()
    state.redundancy_list = {me} if given.get("spare") else set()
    if "beat" in given:
        state.last_heartbeats[me] = given["beat"]
    assert next_action(dynamic, op, state, **told) == expected


def test_a_spare_leaves_in_peace_when_the_job_ends(dynamic, names):
    state = state_with(dynamic, closed=True, redundancy_list={node(dynamic, ME)})
    with pytest.raises(names("rendezvous").RendezvousGracefulExitError):
        next_action(dynamic, "Join", state)


# The handler.


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
