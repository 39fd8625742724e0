"""Starting a job from Python: the config, the launcher's promises to rendezvous and events, and the documented snippets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import urllib.request
from unittest.mock import MagicMock, Mock, patch

import pytest


def ten_more():
    return 10 + int(os.environ["RANK"])


def echo(*args):
    return args


def fail():
    raise RuntimeError("boom")


def sum_of_ranks():
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend="gloo")
    total = torch.tensor(int(os.environ["RANK"]))
    dist.all_reduce(total)
    return int(total)


def make_config(names, **given):
    fields = dict(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="job7",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    return names("launcher.api").LaunchConfig(**fields | given)


# The config.


def test_a_configs_defaults(names):
    config = names("launcher").LaunchConfig(1, 2, 4)
    assert (config.role, config.rdzv_backend, config.max_restarts, config.monitor_interval, config.start_method) == (
        "default_role",
        "etcd",
        3,
        0.1,
        "spawn",
    )
    assert config.rdzv_configs == {"timeout": 900} and config.shutdown_timeout == 30 and config.event_log_handler == "null"
    assert isinstance(config.logs_specs, names("multiprocessing").DefaultLogsSpecs) and not config.virtual_local_rank
    assert config.signals_to_handle == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def test_fields_stand_in_torchs_order(ours):
    fields = list(ours("launcher").LaunchConfig.__dataclass_fields__)
    torchs = pytest.importorskip("torch.distributed.launcher").LaunchConfig.__dataclass_fields__
    assert fields[: len(torchs)] == list(torchs)


def test_the_rendezvous_timeout(names):
    assert make_config(names, rdzv_timeout=7).rdzv_configs == {"timeout": 7}
    assert make_config(names, rdzv_configs={"timeout": 8}).rdzv_configs == {"timeout": 8}


@pytest.mark.parametrize(
    ("told", "env", "seconds"), [(None, None, 30), (120, None, 120), (None, "600", 600), (120, "600", 120), (0, "600", 0)]
)
def test_the_grace_period(names, monkeypatch, told, env, seconds):
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if env:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", env)
    assert make_config(names, shutdown_timeout=told).shutdown_timeout == seconds


def test_a_negative_grace_period_is_refused(names):
    with pytest.raises(ValueError, match="shutdown_timeout must be non-negative"):
        make_config(names, shutdown_timeout=-5)


def test_the_exit_barriers_patience(ours, monkeypatch):
    assert make_config(ours).exit_barrier_timeout == 300
    monkeypatch.setenv("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", "900")
    assert make_config(ours).exit_barrier_timeout == 900 and make_config(ours, exit_barrier_timeout=0).exit_barrier_timeout == 0
    with pytest.raises(ValueError, match="exit_barrier_timeout must be non-negative"):
        make_config(ours, exit_barrier_timeout=-1)


def test_what_the_box_calls_the_job(names):
    named = names("launcher.api")._get_entrypoint_name
    assert named(ten_more, []) == "ten_more" and named("/bin/echo", ["x"]) == "/bin/echo" and named(None, []) == ""
    assert named(sys.executable, ["-u", "train.py", "x"]) == "train.py" and named(sys.executable, ["-u"]) == ""


# The launcher's promises.


@pytest.fixture
def made_up(names, monkeypatch):
    """A launcher whose agent and rendezvous are made up."""
    api = names("launcher.api")
    monkeypatch.delenv("TORCHELASTIC_HEALTH_CHECK_PORT", raising=False)
    agent, handler = MagicMock(), MagicMock()
    handler.get_run_id.return_value = "job7"
    server = names("agent.server.api")
    agent.run.return_value = server.RunResult(server.WorkerState.SUCCEEDED, return_values={0: 1})
    with (
        patch.object(api, "LocalElasticAgent", return_value=agent) as made,
        patch.object(api.events, "record") as record,
        patch(names.path("rendezvous.registry", "get_rendezvous_handler"), return_value=handler),
    ):
        yield Mock(api=api, agent=agent, handler=handler, made=made, record=record)


def test_success_closes_the_rendezvous(names, made_up):
    assert made_up.api.launch_agent(make_config(names), "script", []) == {0: 1}
    made_up.handler.shutdown.assert_called_once()
    made_up.record.assert_called_once_with(made_up.agent.get_event_succeeded(), "null")


@pytest.mark.parametrize("signals", ["SIGTERM,SIGINT,SIGHUP,SIGQUIT", "SIGTERM,SIGUSR1"])
def test_the_signals_to_handle_are_set_for_everybody(names, made_up, monkeypatch, signals):
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "nothing")
    made_up.api.launch_agent(make_config(names, signals_to_handle=signals), "script", [])
    assert os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] == signals


def test_a_signal_leaves_the_rendezvous_to_the_others(names, made_up):
    received = names("multiprocessing").SignalException
    made_up.agent.run.side_effect = received("stop", signal.SIGINT)
    with pytest.raises(received):
        made_up.api.launch_agent(make_config(names), ten_more, [])
    made_up.handler.shutdown.assert_not_called()
    made_up.record.assert_called_once()


def test_an_error_of_the_agent_closes_it(names, made_up):
    made_up.agent.run.side_effect = RuntimeError("other")
    with pytest.raises(RuntimeError, match="other"):
        made_up.api.launch_agent(make_config(names), ten_more, [])
    made_up.handler.shutdown.assert_called_once()
    made_up.record.assert_called_once_with(made_up.agent.get_event_failed(), "null")


def test_a_failure_is_a_child_failed_error(names, made_up):
    server, errors = names("agent.server.api"), names("multiprocessing.errors")
    failures = {1: errors.ProcessFailure(1, 99, 7, "<N/A>")}
    made_up.agent.run.return_value = server.RunResult(server.WorkerState.FAILED, failures=failures)
    with pytest.raises(errors.ChildFailedError, match=r"train\.py FAILED") as raised:
        made_up.api.launch_agent(make_config(names), sys.executable, ["-u", "train.py"])
    assert raised.value.failures == failures and raised.value.name == "train.py"


def test_a_job_without_a_name_gets_one(names, made_up):
    config = make_config(names, run_id="")
    made_up.api.launch_agent(config, "script", [])
    assert config.run_id.isdigit() and len(config.run_id) > 20


def test_the_static_rendezvous_fixes_the_meeting_point(names, made_up):
    made_up.api.launch_agent(
        make_config(names, rdzv_backend="static", rdzv_endpoint="[::1]:90", rdzv_configs={"rank": 0}), "script", []
    )
    spec = made_up.made.call_args.kwargs["spec"]
    assert (spec.master_addr, spec.master_port) == ("::1", 90)
    for endpoint in ("", "localhost"):
        with pytest.raises(ValueError):
            made_up.api.launch_agent(make_config(names, rdzv_backend="static", rdzv_endpoint=endpoint), "script", [])


def test_a_rendezvous_that_cannot_be_closed_hides_no_failure(ours, made_up, names):
    if not names.ours:
        return
    errors, server = ours("multiprocessing.errors"), ours("agent.server.api")
    made_up.handler.shutdown.side_effect = RuntimeError("store gone")
    made_up.agent.run.return_value = server.RunResult(server.WorkerState.FAILED)
    with pytest.raises(errors.ChildFailedError, match="not which"):
        made_up.api.launch_agent(make_config(ours), "script", [])


def test_an_agent_that_returns_nothing_has_not_failed(made_up, names, ours):
    if not names.ours:
        return
    made_up.agent.run.return_value = None
    assert made_up.api.launch_agent(make_config(ours), "script", []) == {}


def test_health_is_answered_before_the_rendezvous(ours, free_port, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(free_port))
    answered = []

    def create(parameters):
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}", timeout=30) as response:
            answered.append(response.status)
        raise RuntimeError("enough")

    with (
        patch(ours.path("rendezvous.registry", "get_rendezvous_handler"), side_effect=create),
        pytest.raises(RuntimeError, match="enough"),
    ):
        ours("launcher").launch_agent(make_config(ours), ten_more, [])
    assert answered == [200]
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{free_port}", timeout=10)


# Real jobs.


def test_functions(names):
    assert names("launcher").elastic_launch(make_config(names, start_method="fork"), ten_more)() == {0: 10, 1: 11}


def test_programs(names, tmp_path):
    script = f"import os; open('{tmp_path}/' + os.environ['RANK'], 'w')"
    assert names("launcher").elastic_launch(make_config(names), sys.executable)("-u", "-c", script) == {0: None, 1: None}
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_a_function_that_fails(names):
    errors = names("multiprocessing.errors")
    with (
        patch.object(names("launcher.api").events, "record") as record,
        pytest.raises(errors.ChildFailedError, match="RuntimeError: boom"),
    ):
        names("launcher").elastic_launch(make_config(names, start_method="fork", nproc_per_node=1), fail)()
    record.assert_called_once()


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_collective(names, free_port, backend):
    config = make_config(
        names, rdzv_backend=backend, rdzv_endpoint=f"127.0.0.1:{free_port}", rdzv_configs={"rank": 0}, start_method="fork"
    )
    assert names("launcher").elastic_launch(config, sum_of_ranks)() == {0: 1, 1: 1}


NODE = """
import sys
from holdfast.elastic.launcher import LaunchConfig, elastic_launch

backend, endpoint, rank = sys.argv[1:]
settings = dict(rank=int(rank)) if backend == "static" else dict(last_call_timeout=1, is_host=rank == "0")
config = LaunchConfig(
    2, 2, 2, run_id="j", rdzv_backend=backend, rdzv_endpoint=endpoint, rdzv_configs=settings, local_addr="127.0.0.1"
)
elastic_launch(config, sys.executable)("worker.py")
"""
WORKER = """
import os, torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "3" and not os.path.exists("died"):
    open("died", "w")
    os.kill(os.getpid(), 9)
dist.barrier()
os.write(1, f"total {int(total)} {os.environ['WORLD_SIZE']}\\n".encode())  # ranks share it: whole lines in one write
dist.destroy_process_group()  # without it torch may crash at the interpreter's exit
"""


@pytest.mark.torch
@pytest.mark.timeout(400)  # ten processes import PyTorch: 23 s at a load of 5
@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_two_nodes_come_back_after_a_failure_of_one(tmp_path, free_port, backend):
    """torch's own agents: 1 of 6 runs with c10d, 0 of 8 with static."""
    (tmp_path / "node.py").write_text(NODE)
    (tmp_path / "worker.py").write_text(WORKER)
    how = dict(
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    commands = [[sys.executable, "node.py", backend, f"127.0.0.1:{free_port}", str(rank)] for rank in range(2)]
    nodes = [subprocess.Popen(command, **how) for command in commands]
    said = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert [out.count("total 4 4") for out, _ in said] == [2, 2], said


# What the documentation shows, with the imports changed and the dots filled in.

SNIPPETS = """
    import sys
    import {elastic}.events as events
    import {elastic}.metrics as metrics
    from {elastic}.agent.server import WorkerSpec
    from {elastic}.agent.server.local_elastic_agent import LocalElasticAgent
    from {elastic}.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
    from {elastic}.rendezvous.memory_store import MemoryStore

    class MyRendezvousHandler(RendezvousHandler):
        def __init__(self, params): self.params = params
        def next_rendezvous(self): return RendezvousInfo(MemoryStore(), 0, 1, RendezvousStoreInfo("localhost", 1234))
        def get_backend(self): return "mine"
        def get_run_id(self): return self.params["run_id"]
        def is_closed(self): return False
        def set_closed(self): pass
        def num_nodes_waiting(self): return 0
        def shutdown(self): return True

    class MyMetricHandler(metrics.MetricHandler):
        def emit(self, metric_data: metrics.MetricData):
            if "duration" not in metric_data.name:
                print("metric", metric_data.name, metric_data.value)

    class MyEventHandler(events.EventHandler):
        def record(self, event: events.Event):
            print("event", event.name)

    def trainer_entrypoint_fn(*args):
        return ["trained", *args]

    if __name__ == "__main__":
        metrics.configure(MyMetricHandler())
        events.configure(MyEventHandler())
        rdzv_handler = MyRendezvousHandler({"run_id": "j"})
        spec = WorkerSpec(
            local_world_size=2,
            fn=trainer_entrypoint_fn,
            args=(trainer_entrypoint_fn.__name__, 3),
            rdzv_handler=rdzv_handler,
            max_restarts=1,
            monitor_interval=0.1,
        )
        agent = LocalElasticAgent(spec, start_method="spawn")
        try:
            run_result = agent.run()
            if run_result.is_failed():
                print(f"worker 0 failed with: {run_result.failures[0]}")
            else:
                print(f"worker 0 return value is: {run_result.return_values[0]}")
        except Exception as ex:
            print("exception", ex)
        elastic_agent = LocalElasticAgent(spec, start_method="forkserver")
        print(len(elastic_agent.run(spec.role).return_values), "more")
"""


def test_the_documented_snippets_run(tmp_path):
    (tmp_path / "my_launcher.py").write_text(textwrap.dedent(SNIPPETS).replace("{elastic}", "holdfast.elastic"))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "my_launcher.py")], capture_output=True, text=True, timeout=100
    )
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0 and "worker 0 return value is: ['trained', 'trainer_entrypoint_fn', 3]" in lines, ran
    assert (
        "2 more" in lines
        and "event torchelastic.worker.status.START" in lines
        and "metric workers.default.run_total 1" in lines
    ), ran


def test_one_node_loads_no_torch(tmp_path):
    code = """
        import sys
        from holdfast.elastic.launcher import LaunchConfig, elastic_launch
        config = LaunchConfig(1, 1, 1, run_id="j", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
        print(elastic_launch(config, sys.executable)("-c", "pass"), "torch" in sys.modules)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "{0: None} False\n", ran
