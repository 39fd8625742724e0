"""The agent's loop over made-up workers: specs, ranks, restarts, the end, events and metrics. torch's and ours alike."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock, call, patch

import pytest
from kit.stages.rendezvous_of_one import rendezvous_of_one

from holdfast.elastic.rendezvous.memory_store import MemoryStore


def do_nothing():
    pass


def make_spec(names, **given):
    api = names("agent.server.api")
    fields = dict(
        role="trainer",
        local_world_size=2,
        entrypoint=do_nothing,
        rdzv_handler=rendezvous_of_one(names),
        max_restarts=1,
        monitor_interval=0.01,
    )
    return api.WorkerSpec(**fields | given)


def make_agent(names, *results, spec=None, **given):
    """An agent whose workers are made up: each look at them gives the next of `results`."""
    api = names("agent.server.api")

    class Agent(api.SimpleElasticAgent):
        started = stopped = 0

        def _start_workers(self, worker_group):
            self.started += 1
            return {worker.local_rank: 100 + worker.global_rank for worker in worker_group.workers}

        def _stop_workers(self, worker_group):
            self.stopped += 1

        def _monitor_workers(self, worker_group):
            return looks(worker_group)

        def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
            self.shut_down = (death_sig, timeout)

    states = [result if isinstance(result, api.RunResult) else outcome(names, result) for result in results]
    looks = MagicMock(side_effect=[*states, AssertionError("looked too often")])
    return Agent(spec or make_spec(names, **given))


def outcome(names, state):
    api = names("agent.server.api")
    failure = names("multiprocessing.errors").ProcessFailure
    match state:
        case "SUCCEEDED":
            return api.RunResult(api.WorkerState.SUCCEEDED, return_values={0: "a", 1: "b"})
        case "FAILED":
            return api.RunResult(api.WorkerState.FAILED, failures={0: failure(0, 999, 1, "<none>")})
    return api.RunResult(api.WorkerState[state])


# Values.


def test_a_spec_has_torchs_defaults(names):
    api = names("agent.server.api")
    spec = api.WorkerSpec("trainer", 2, None, entrypoint="/bin/echo")
    assert (spec.args, spec.max_restarts, spec.monitor_interval, spec.event_log_handler) == ((), 3, 0.1, "null")
    assert spec.get_entrypoint_name() == "echo" and make_spec(names).get_entrypoint_name() == "do_nothing"


@pytest.mark.parametrize("given", [{"local_world_size": 0}, {"monitor_interval": 0}, {"entrypoint": None}])
def test_a_spec_refuses_the_impossible(names, given):
    with pytest.raises(AssertionError):
        make_spec(names, **given)


def test_fn_is_the_entrypoints_old_name(names):
    with pytest.warns(DeprecationWarning):
        assert make_spec(names, entrypoint=None, fn=do_nothing).entrypoint is do_nothing


def test_a_spec_needs_no_role_but_says_what_it_needs(ours):
    api = ours("agent.server.api")
    assert api.WorkerSpec(local_world_size=1, rdzv_handler=None, entrypoint=do_nothing).role == "default"
    with pytest.raises(TypeError, match="WorkerSpec needs rdzv_handler"):
        api.WorkerSpec(local_world_size=1, entrypoint=do_nothing)


def test_a_group_starts_empty(names):
    api = names("agent.server.api")
    group = api.WorkerGroup(make_spec(names, local_world_size=4))
    assert (
        group.state is api.WorkerState.INIT and group.store is None and group.group_rank is None and group.master_port is None
    )
    assert [(each.local_rank, each.global_rank, each.world_size, each.id) for each in group.workers] == [
        (n, -1, -1, None) for n in range(4)
    ]
    assert str(group.workers[1]) == "local_rank=1,global_rank=-1,role_rank=-1,world_size=-1,role_world_size=-1"


def test_states(names):
    states = names("agent.server.api").WorkerState
    assert [state.name for state in states if states.is_running(state)] == ["HEALTHY", "UNHEALTHY"]
    assert [state.value for state in states] == ["UNKNOWN", "INIT", "HEALTHY", "UNHEALTHY", "STOPPED", "SUCCEEDED", "FAILED"]
    assert f"{states.FAILED!s}" == "WorkerState.FAILED" and states.FAILED == "FAILED"


def test_role_infos(names):
    info = names("agent.server.api")._RoleInstanceInfo
    read = info.deserialize(info("a", 1, 10).serialize())
    assert (read.role, read.rank, read.local_world_size) == ("a", 1, 10)
    assert info.compare(info("a", 2, 1), info("a", 1, 1)) == 1 and info.compare(info("a", 2, 1), info("b", 1, 1)) == -1
    infos = [info("t", 1, 1), info("t", 2, 2), info("p", 3, 1)]
    assert info.find_role_boundaries(infos, "t") == (0, 1) and info.find_role_boundaries(infos, "x") == (-1, -1)


# Ranks.


def ranks_of(names, nodes, **env):
    """(local, role, global, size, role size) of each node's workers; `nodes` are (role, workers), in order of their ranks."""
    store, found = MemoryStore(), [None] * len(nodes)

    def one(rank, role, size):
        agent = make_agent(names, role=role, local_world_size=size)
        workers = agent._assign_worker_ranks(store, rank, len(nodes), agent.get_worker_group().spec)
        found[rank] = [
            (each.local_rank, each.role_rank, each.global_rank, each.world_size, each.role_world_size) for each in workers
        ]

    with patch.dict(os.environ, env):
        threads = [threading.Thread(target=one, args=(rank, *node)) for rank, node in enumerate(nodes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found, store.num_keys()


def test_nodes_may_differ_in_role_and_size(names):
    found, _ = ranks_of(names, [("ps", 2), ("trainer", 1), ("trainer", 2), ("ps", 1)])
    assert found == [
        [(0, 0, 0, 6, 3), (1, 1, 1, 6, 3)],
        [(0, 0, 2, 6, 3)],
        [(0, 1, 3, 6, 3), (1, 2, 4, 6, 3)],
        [(0, 2, 5, 6, 3)],
    ]


def test_equal_nodes_need_not_ask(names):
    found, keys = ranks_of(names, [("t", 2), ("t", 2)], TORCH_ELASTIC_WORKER_IDENTICAL="1")
    assert found == [[(0, 0, 0, 4, 4), (1, 1, 1, 4, 4)], [(0, 2, 2, 4, 4), (1, 3, 3, 4, 4)]] and keys == 0


def test_a_round_gives_the_group_its_place(names):
    agent = make_agent(names)
    group = agent.get_worker_group()
    agent._rendezvous(group)
    assert (group.group_rank, group.group_world_size, group.master_addr, group.master_port) == (0, 1, "10.0.0.1", 4001)
    assert [each.global_rank for each in group.workers] == [0, 1] and agent._store is group.store


def test_the_specs_address_overrules_the_rounds(names):
    agent = make_agent(names, master_addr="10.9.9.9", master_port=99)
    agent._rendezvous(agent.get_worker_group())
    assert (agent.get_worker_group().master_addr, agent.get_worker_group().master_port) == ("10.9.9.9", 99)


# The loop.


def test_workers_that_succeed(names):
    agent = make_agent(names, "HEALTHY", "HEALTHY", "SUCCEEDED", max_restarts=5)
    result = agent.run("trainer")
    group = agent.get_worker_group()
    assert not result.is_failed() and result.return_values == {0: "a", 1: "b"} and group.state.name == "SUCCEEDED"
    assert (agent.started, agent.stopped, agent._remaining_restarts) == (1, 0, 5) and [each.id for each in group.workers] == [
        100,
        101,
    ]
    assert agent.shut_down == (signal.SIGTERM, 30)


def test_a_failure_restarts_the_group(names):
    agent = make_agent(names, "FAILED", "HEALTHY", "UNHEALTHY", "SUCCEEDED", max_restarts=3)
    assert not agent.run().is_failed()
    assert (agent.started, agent.stopped, agent._remaining_restarts, agent.get_worker_group().spec.rdzv_handler.rounds) == (
        3,
        2,
        1,
        3,
    )


def test_the_restarts_are_used_up(names):
    agent = make_agent(names, "FAILED", "FAILED", "FAILED", max_restarts=2)
    result = agent.run()
    assert result.is_failed() and list(result.failures) == [0] and agent.get_worker_group().state.name == "FAILED"
    assert (agent.started, agent.stopped, agent._remaining_restarts) == (3, 3, 0)


def test_a_membership_change_costs_no_restart(names):
    spec = make_spec(names, rdzv_handler=rendezvous_of_one(names, waiting=[1, 0, 2]), max_restarts=1)
    agent = make_agent(names, "HEALTHY", "HEALTHY", "HEALTHY", "SUCCEEDED", spec=spec)
    agent.run()
    assert (agent.started, agent.stopped, agent._remaining_restarts) == (3, 2, 1)


def test_workers_that_are_lost_track_of_end_the_agent(names):
    agent = make_agent(names, "UNKNOWN", max_restarts=9)
    with pytest.raises(Exception, match="Worker group in UNKNOWN state"):
        agent.run()
    assert agent._remaining_restarts == 9 and agent.shut_down


def test_what_goes_wrong_at_the_start_is_raised(names):
    agent = make_agent(names)
    with patch.object(agent, "_start_workers", side_effect=OSError("no memory")), pytest.raises(OSError, match="no memory"):
        agent.run()
    assert agent.get_worker_group().state.name == "INIT" and agent.shut_down


def test_a_signal_is_passed_on_with_the_grace_period(names):
    agent = make_agent(names)
    agent._shutdown_timeout = 7
    received = names("multiprocessing").SignalException("stop", signal.SIGINT)
    with patch.object(agent, "_invoke_run", side_effect=received), pytest.raises(type(received)):
        agent.run()
    assert agent.shut_down == (signal.SIGINT, 7)


def test_a_spare_node_ends_in_peace(names):
    agent = make_agent(names)
    over = names("rendezvous").RendezvousGracefulExitError()
    with patch.object(agent, "_invoke_run", side_effect=over):
        result = agent.run()
    assert agent.shut_down and (result is None or not result.is_failed())


def test_trouble_at_the_exit_barrier_fails_nobody(names):
    agent = make_agent(names, "SUCCEEDED")
    with patch(names.path("utils.store", "barrier"), side_effect=RuntimeError("store gone")) as barrier:
        assert not agent.run().is_failed()
    barrier.assert_called_once()
    assert barrier.call_args.kwargs["key_prefix"] == "torchelastic/agent/terminal_state"


# Where ours differs on purpose.


def test_an_unhealthy_group_without_restarts_has_failed(ours):
    result = make_agent(ours, "UNHEALTHY", max_restarts=0).run()
    assert result.is_failed()


def test_a_spare_node_ends_with_success(ours):
    agent = make_agent(ours)
    with patch.object(agent, "_invoke_run", side_effect=ours("rendezvous").RendezvousGracefulExitError()):
        assert agent.run().state.name == "SUCCEEDED"


def test_so_it_does_under_a_handler_that_is_built_on_torch_s(ours):
    torchs = pytest.importorskip("torch.distributed.elastic.rendezvous")
    handler = rendezvous_of_one(ours)
    handler.next_rendezvous = MagicMock(side_effect=torchs.RendezvousGracefulExitError("the job has ended"))
    agent = make_agent(ours, rdzv_handler=handler)
    assert agent.run().state.name == "SUCCEEDED" and not agent.started


def test_hooks_may_take_less_than_ours(ours):
    agent = make_agent(ours, "SUCCEEDED")
    called = []
    agent._shutdown = lambda: called.append("shutdown")
    agent.run()
    assert called == ["shutdown"]


def test_signals_while_shutting_down_start_it_again_and_then_kill(ours):
    agent, received = make_agent(ours), ours("multiprocessing").SignalException
    calls = []

    def shutdown(death_sig=signal.SIGTERM, timeout=30):
        calls.append(death_sig)
        if len(calls) < 3:
            raise received("again", signal.SIGINT)

    agent._shutdown = shutdown
    with (
        patch.object(agent, "_invoke_run", side_effect=received("first", signal.SIGTERM)),
        pytest.raises(received, match="first"),
    ):
        agent.run()
    assert calls == [signal.SIGTERM, signal.SIGINT, signal.SIGKILL]


def two_nodes(ours, *results, store):
    """Node 0 of a round of two; the other node is made up."""
    rendezvous, api = ours("rendezvous"), ours("agent.server.api")
    handler = rendezvous_of_one(ours)
    info = rendezvous.RendezvousInfo(store, 0, 2, rendezvous.RendezvousStoreInfo("x", 1))
    store.set("torchelastic/role_info/1", api._RoleInstanceInfo("trainer", 1, 2).serialize())
    handler.next_rendezvous = lambda: info
    return make_agent(ours, *results, spec=make_spec(ours, rdzv_handler=handler, max_restarts=0))


def test_a_node_that_has_failed_for_good_is_not_waited_for(ours, caplog):
    store = MemoryStore()
    said = {"group_rank": 1, "host": "gpu-07", "exit_codes": {"3": -9}}
    store.set(ours("agent.server.peers").FAILED_KEY, json.dumps(said))
    agent = two_nodes(ours, "SUCCEEDED", store=store)
    assert not agent.run().is_failed()
    assert "node 1 (gpu-07) has failed for good: rank 3 exit code -9. Not waiting for it" in caplog.text


def test_a_node_that_is_done_joins_the_next_round_of_one_that_is_not(ours):
    first, second, agreed = MemoryStore(), MemoryStore(), []
    agent = two_nodes(ours, "SUCCEEDED", "SUCCEEDED", store=first)
    first.set(ours("agent.server.peers").RESTARTING_KEY, "1")
    second.set("torchelastic/role_info/1", first.get("torchelastic/role_info/1"))
    second.set("torchelastic/agent/terminal_state/num_members", "1")
    rendezvous = ours("rendezvous")
    rounds = iter([first, second])
    where = rendezvous.RendezvousStoreInfo("x", 1)
    handler = agent.get_worker_group().spec.rdzv_handler
    handler.next_rendezvous = lambda: agreed.append(1) or rendezvous.RendezvousInfo(next(rounds), 0, 2, where)
    assert not agent.run().is_failed()
    assert (len(agreed), agent.started, agent.stopped) == (2, 2, 1)


def test_a_node_that_restarts_says_so(ours):
    store = MemoryStore()
    agent = two_nodes(ours, "FAILED", "FAILED", store=store)
    agent._remaining_restarts = 1
    agent.run()
    assert store.get(ours("agent.server.peers").RESTARTING_KEY) == b"0"


def test_a_node_that_fails_for_good_says_so(ours):
    store = MemoryStore()
    two_nodes(ours, "FAILED", store=store).run()
    said = json.loads(store.get(ours("agent.server.peers").FAILED_KEY))
    assert said["group_rank"] == 0 and said["exit_codes"] == {"0": 1}


@pytest.mark.parametrize("fail_fast", ["0", "1"])
def test_a_peers_failure_is_reported_while_the_workers_run(ours, caplog, monkeypatch, fail_fast):
    peers = ours("agent.server.peers")
    monkeypatch.setenv(peers.FAIL_FAST_ENV, fail_fast)
    store = MemoryStore()
    store.set(peers.FAILED_KEY, json.dumps({"group_rank": 1, "host": "gpu-07", "exit_codes": {}}))
    agent = two_nodes(ours, "HEALTHY", "HEALTHY", "SUCCEEDED", store=store)
    store.set("torchelastic/agent/terminal_state/num_members", "1")
    if fail_fast == "1":
        with pytest.raises(peers.PeerFailedError, match="gpu-07"):
            agent.run()
        return
    agent.run()
    assert caplog.text.count("gpu-07) has failed for good") == 1


BARRIER = """
    import signal, threading, time
    from holdfast.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec
    from holdfast.elastic.multiprocessing.api import SignalException, _register_signal_handlers
    from holdfast.elastic.rendezvous.memory_store import MemoryStore

    class Agent(SimpleElasticAgent):
        _start_workers = _stop_workers = _monitor_workers = _shutdown = None
    Agent.__abstractmethods__ = frozenset()
    agent = Agent(WorkerSpec("t", 1, None, entrypoint="x"))
    agent._store, agent._worker_group.group_world_size = MemoryStore(), 2
    _register_signal_handlers()
    try:
        print("waiting", flush=True)
        agent._exit_barrier()
    except SignalException as received:
        print("got", received.sigval.name, agent._in_exit_barrier, flush=True)
"""


def test_a_signal_ends_the_exit_barrier_at_once():
    agent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BARRIER)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert agent.stdout.readline() == "waiting\n"
    agent.send_signal(signal.SIGTERM)
    assert agent.communicate(timeout=60)[0] == "got SIGTERM False\n"


# What is recorded.


def test_events_tell_of_the_agent_and_its_workers(names):
    api = names("agent.server.api")
    with patch.object(api, "record") as record:
        make_agent(names, "FAILED", max_restarts=0).run()
    told = [(event.source.value, event.metadata["state"]) for event, _ in (each.args for each in record.call_args_list)]
    assert told == [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("WORKER", "FAILED"),
        ("WORKER", "TERMINATED"),
    ]
    failed = record.call_args_list[4].args[0]
    assert failed.name == "torchelastic.worker.status.FAILED" and json.loads(failed.metadata["raw_error"])
    details = json.loads(failed.metadata["metadata"])
    assert (details["local_rank"], details["exit_code"], details["worker_pid"], details["entry_point"]) == (
        [0],
        [1],
        [999],
        "do_nothing",
    )


def test_an_events_metadata(names):
    agent = make_agent(names, max_restarts=4)
    agent._remaining_restarts = 2
    metadata = agent.get_event_succeeded().metadata
    assert set(metadata) == {
        *("run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state", "total_run_time", "rdzv_backend"),
        *("raw_error", "metadata", "agent_restarts", "duration_ms"),
    }
    assert (metadata["run_id"], metadata["rdzv_backend"], metadata["agent_restarts"]) == ("job7", "mine", 2)
    try:
        raise KeyError("lost")
    except KeyError:
        assert "KeyError: 'lost'" in agent.get_event_failed().metadata["raw_error"]
    worker = agent._construct_event(state="SUCCEEDED", source="WORKER", worker=agent.get_worker_group().workers[0])
    assert worker.source == "WORKER" and worker.metadata["worker_id"] == "None"


@pytest.mark.parametrize(
    ("restarts", "left", "failed", "flakiness", "which"),
    [
        (1, 1, False, 0, "run_success_no_retries"),
        (10, 3, False, 63, "run_success_with_retries"),
        (9, 8, False, 10, "run_success_with_retries"),
        (0, 0, False, 0, "run_success_no_retries"),
        (10, 2, True, 100, "run_failed_with_retries"),
        (10, 10, True, 100, "run_failed_no_retries"),
    ],
)
def test_metrics_at_the_end(names, restarts, left, failed, flakiness, which):
    api = names("agent.server.api")
    agent = make_agent(names, max_restarts=restarts)
    agent._remaining_restarts = left
    with patch.object(api, "put_metric") as put:
        agent._record_metrics(outcome(names, "FAILED" if failed else "SUCCEEDED"))
    kinds = ["run_success_with_retries", "run_success_no_retries", "run_failed_with_retries", "run_failed_no_retries"]
    expected = {"run_total": 1, "flakiness": flakiness} | {kind: int(kind == which) for kind in kinds}
    assert {each.args[0]: each.args[1] for each in put.call_args_list} == {
        f"workers.trainer.{key}": value for key, value in expected.items()
    }


def test_metrics_on_the_way(names):
    api = names("agent.server.api")
    with patch.object(api, "put_metric") as put:
        make_agent(names, "HEALTHY", "FAILED", "SUCCEEDED", max_restarts=2).run()
    for expected in (("remaining_restarts", 2), ("healthy", 1), ("failed", 1), ("remaining_restarts", 1), ("succeeded", 1)):
        assert call(f"workers.trainer.{expected[0]}", expected[1]) in put.call_args_list


def test_steps_are_measured_under_torchs_names(names):
    metrics = names("metrics.api")
    emitted = []
    handler = SimpleNamespace(emit=emitted.append)
    with patch.object(metrics, "_default_metrics_handler", handler), patch.dict(metrics._metrics_map, clear=True):
        make_agent(names, "FAILED", "SUCCEEDED").run()
    for step in ("run", "_initialize_workers", "_restart_workers", "_rendezvous", "_assign_worker_ranks"):
        assert {f"SimpleElasticAgent.{step}.success", f"SimpleElasticAgent.{step}.duration.ms"} <= {
            each.name for each in emitted
        }, step


@pytest.mark.parametrize(("told", "env", "seconds"), [(None, None, 300), (None, "750", 750), (200, "750", 200), (0, None, 0)])
def test_how_long_the_exit_barrier_waits(ours, monkeypatch, told, env, seconds):
    monkeypatch.delenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", raising=False)
    if env:
        monkeypatch.setenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", env)
    agent = type(make_agent(ours))(make_spec(ours), **({} if told is None else {"exit_barrier_timeout": told}))
    assert agent._exit_barrier_timeout == seconds
