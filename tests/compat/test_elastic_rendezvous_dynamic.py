"""The dynamic rendezvous, step by step: the shared state, what each step does to it, which step comes next."""

from __future__ import annotations

import os
import pickle
import threading
from base64 import b64encode
from datetime import datetime
from unittest.mock import MagicMock, patch

import pytest
from kit.stages.dynamic_parts import NOW, SECOND, Backend, Holder, node, settings_of, state_with, stopped_clocks

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
