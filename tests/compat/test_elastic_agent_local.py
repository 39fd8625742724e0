"""The local agent with real processes: environment, results, failures, restarts, and everything that watches over them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from unittest.mock import MagicMock, Mock, patch

import pytest
from kit.stages.rendezvous_of_one import rendezvous_of_one

from holdfast.elastic.utils import process_state

PYTHON = sys.executable
VARIABLES = {
    *("LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *(
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
    ),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_ERROR_FILE"),
}


HEAD = """
import json, os, sys, time, signal
def tell(**it):
    open("FOLDER/told-" + os.environ["RANK"] + ".json", "w").write(json.dumps(it))
"""


class Workshop:
    """Makes agents of one implementation, with logs in a folder of the test's own."""

    def __init__(self, names, folder):
        self.names, self.folder = names, folder
        self.local = names("agent.server.local_elastic_agent")

    def agent(self, entrypoint, *args, workers=2, max_restarts=0, start_method="spawn", agent=None, **spec):
        logs = self.names("multiprocessing").DefaultLogsSpecs(log_dir=str(self.folder / "logs"))
        fields = dict(
            role="t",
            local_world_size=workers,
            entrypoint=entrypoint,
            args=args,
            max_restarts=max_restarts,
            monitor_interval=0.02,
        )
        spec = self.names("agent.server.api").WorkerSpec(rdzv_handler=rendezvous_of_one(self.names), **fields | spec)
        return self.local.LocalElasticAgent(spec, logs, start_method, **agent or {})

    def script(self, source, *args, **how):
        """Workers that run Python code; what they `tell` (a dict) is in `told`, by rank."""
        path = self.folder / "script.py"
        head = HEAD.replace("FOLDER", str(self.folder))
        path.write_text(head + textwrap.dedent(source))
        return self.agent(PYTHON, str(path), *args, **how)

    @property
    def told(self):
        return {int(path.stem[5:]): json.loads(path.read_text()) for path in sorted(self.folder.glob("told-*.json"))}


@pytest.fixture
def shop(names, tmp_path):
    """torch's local agents, then ours."""
    return Workshop(names, tmp_path)


@pytest.fixture
def our_shop(ours, tmp_path):
    """Ours alone."""
    return Workshop(ours, tmp_path)


def answer(*args):
    return os.environ["RANK"], *args


def fail():
    raise RuntimeError("boom")


def test_workers_know_who_they_are(shop, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    result = shop.script("tell(env=dict(os.environ), args=sys.argv[1:])", "${local_rank}", "$$", max_restarts=5).run()
    assert result.return_values == {0: None, 1: None}
    for rank in range(2):
        env = shop.told[rank]["env"]
        assert set(env) >= VARIABLES and shop.told[rank]["args"] == [str(rank), "$"]
        assert [env[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")] == [str(rank)] * 3
        assert [env[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")] == ["2"] * 3
        assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"], env["ROLE_NAME"], env["OMP_NUM_THREADS"]) == ("0", "1", "t", "3")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["TORCHELASTIC_RUN_ID"]) == ("10.0.0.1", "4001", "job7")
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("0", "5")
        assert (env["TORCHELASTIC_USE_AGENT_STORE"], env["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("False", "1")


@pytest.mark.parametrize(("visible", "seen"), [(None, ["0", "1"]), ("4, 7", ["4", "7"])])
def test_virtual_local_ranks(shop, monkeypatch, visible, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    shop.script("tell(gpu=os.environ['CUDA_VISIBLE_DEVICES'], local=os.environ['LOCAL_RANK'])", virtual_local_rank=True).run()
    assert [(each["local"], each["gpu"]) for each in shop.told.values()] == [("0", seen[0]), ("0", seen[1])]


def test_too_few_gpus_for_virtual_local_ranks(shop, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(ValueError, match="local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=0"):
        shop.script("", virtual_local_rank=True).run()


def test_a_subclass_chooses_local_ranks_and_gpus(shop, monkeypatch):
    def from_the_last(self, worker_env, local_rank, spec):
        worker_env |= {"LOCAL_RANK": str(local_rank), "CUDA_VISIBLE_DEVICES": str(spec.local_world_size - 1 - local_rank)}

    monkeypatch.setattr(shop.local.LocalElasticAgent, "_set_local_rank_env", from_the_last)
    shop.script("tell(gpu=os.environ['CUDA_VISIBLE_DEVICES'])").run()
    assert [each["gpu"] for each in shop.told.values()] == ["1", "0"]


def test_functions_return_values(shop):
    result = shop.agent(answer, "foo", 3, start_method="fork").run()
    assert result.return_values == {0: ("0", "foo", 3), 1: ("1", "foo", 3)}


def test_functions_fail_with_their_traceback(shop):
    result = shop.agent(fail, workers=1, start_method="fork").run()
    assert result.is_failed() and "RuntimeError: boom" in result.failures[0].message["message"]


def test_a_restart_is_a_new_attempt_in_a_new_round(shop):
    source = "n = os.environ['TORCHELASTIC_RESTART_COUNT']; tell(n=n, port=os.environ['MASTER_PORT']); sys.exit(n == '0')"
    agent = shop.script(source, max_restarts=3)
    assert not agent.run().is_failed() and agent._remaining_restarts == 2
    assert shop.told == {0: {"n": "1", "port": "4002"}, 1: {"n": "1", "port": "4002"}}


def test_one_failure_ends_the_group(shop):
    agent = shop.script("time.sleep(600) if os.environ['RANK'] == '0' else os.kill(os.getpid(), 9)", max_restarts=1)
    result = agent.run()
    assert result.is_failed() and result.failures[1].exitcode == -9 and result.failures[0].exitcode == -15
    assert (
        agent._remaining_restarts == 0 and agent.get_worker_group().state.name == "FAILED" and agent._total_execution_time >= 0
    )


def test_the_watchdogs_pipe_is_passed_on(shop, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", "/some/pipe")
    shop.script("tell(pipe=os.environ['TORCHELASTIC_TIMER_FILE'])", workers=1).run()
    assert shop.told[0] == {"pipe": "/some/pipe"}


def test_shutdown_closes_the_workers_with_the_grace_period(shop):
    agent = shop.script("")
    agent._pcontext = MagicMock()
    agent._shutdown(death_sig=signal.SIGTERM, timeout=150)
    agent._pcontext.close.assert_called_once_with(signal.SIGTERM, 150)


def test_the_agent_closes_what_it_started(shop):
    started = Mock(pids=Mock(return_value={0: 0}))
    agent = shop.script("", workers=1)
    succeeded = shop.names("agent.server.api").RunResult(
        state=shop.names("agent.server.api").WorkerState.SUCCEEDED, return_values={0: 0}
    )
    with (
        patch.object(shop.local, "start_processes", return_value=started),
        patch.object(agent, "_monitor_workers", return_value=succeeded),
    ):
        agent.run("worker")
    started.close.assert_called_once()


def test_pids_that_are_not_ours_are_unknown(shop):
    agent = shop.script("", workers=1)
    agent._pcontext = Mock(pids=Mock(return_value={0: 4711}))
    agent.get_worker_group().workers[0].id = 4712
    assert agent._monitor_workers(agent.get_worker_group()).state.name == "UNKNOWN"


# A worker that hangs in the kernel.


@pytest.mark.parametrize(
    ("told", "env", "seconds"),
    [(None, None, 0), (5, "9", 5), (-5, None, 0), (None, "2.5", 2.5), (None, "x", 0), (None, "-1", 0)],
)
def test_how_long_a_worker_may_hang_in_the_kernel(shop, monkeypatch, told, env, seconds):
    monkeypatch.delenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", raising=False)
    if env is not None:
        monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", env)
    assert shop.script("", agent={"uninterruptible_state_timeout": told})._uninterruptible_state_timeout == seconds


def test_a_worker_that_hangs_in_the_kernel_makes_the_group_unhealthy(shop):
    agent = shop.script("", workers=1, max_restarts=5)
    agent._pcontext = Mock(pids=Mock(return_value={0: 4711}))
    group = agent.get_worker_group()
    with patch.object(shop.local, "read_proc_state", return_value="D") as state:
        assert agent._check_uninterruptible_state_timeout(group, 600) is None
        assert set(agent._uninterruptible_state_first_seen) == {4711}
        agent._uninterruptible_state_first_seen[4711] -= 601
        assert agent._check_uninterruptible_state_timeout(group, 600).state.name == "UNHEALTHY"
        state.return_value = "S"
        assert agent._check_uninterruptible_state_timeout(group, 600) is None
    assert agent._remaining_restarts == 0 and not agent._uninterruptible_state_first_seen


def test_such_a_job_has_failed_and_says_who_hung(our_shop):
    agent = our_shop.script("time.sleep(600)", workers=1, max_restarts=5, agent={"uninterruptible_state_timeout": 0.05})
    with patch.object(our_shop.local, "read_proc_state", return_value="D"):
        result = agent.run()
    assert result.is_failed() and "D-state" in result.failures[0].message


# Ours: an exit is news.


def test_an_exit_is_seen_before_the_interval_is_over(our_shop):
    agent = our_shop.script("", monitor_interval=3600)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (agent.run(), done.set()), daemon=True)
    thread.start()
    assert done.wait(60), "the agent sleeps through its workers' exit"


def test_a_worker_that_is_done_does_not_keep_the_agent_busy(our_shop):
    agent = our_shop.script("time.sleep(0.5 * int(os.environ['RANK']))", monitor_interval=0.1)
    looks = MagicMock(wraps=agent._monitor_workers)
    agent._monitor_workers = looks
    began_at = time.monotonic()
    assert not agent.run().is_failed()
    assert looks.call_count < 10 * (time.monotonic() - began_at) + 10, "more than one look an interval, and one for each end"


def test_workers_that_ignore_sigterm_get_the_agents_grace_period_at_a_restart_too(our_shop):
    agent = our_shop.script("", agent={"shutdown_timeout": 7})
    agent._pcontext = MagicMock()
    agent._stop_workers(agent.get_worker_group())
    agent._pcontext.close.assert_called_once_with(signal.SIGTERM, 7)


def test_logs_specs_and_start_method_are_optional(ours):
    local, api = ours("agent.server.local_elastic_agent"), ours("agent.server.api")
    spec = api.WorkerSpec("t", 1, None, entrypoint=answer)
    assert local.LocalElasticAgent(spec)._start_method == "spawn"
    assert local.LocalElasticAgent(spec, start_method="fork")._start_method == "fork"
    assert local.LocalElasticAgent(spec, "forkserver")._start_method == "forkserver"


# Ours: the watchdog's timers, and the health check server.


def test_an_expired_timer_is_that_workers_failure_and_says_which(our_shop, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)
    agent = our_shop.script(
        """
        from holdfast.elastic import timer
        if os.environ["RANK"] == "1":
            timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
            with timer.expires(after=0.05, scope="the collective"):
                time.sleep(600)
        time.sleep(600)
        """
    )
    with patch.object(our_shop.local.events, "record") as record:
        result = agent.run()
    assert result.is_failed() and result.failures[1].exitcode == -9 and "the collective expired" in result.failures[1].message
    assert "kill worker process" in {each.args[0].name for each in record.call_args_list}


def get(port):
    """Status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_a_health_server_answers_by_the_last_progress(ours):
    server_module = ours("agent.server.health_check_server")
    progress = [time.time()]
    server = server_module.create_healthcheck_server(lambda: int(progress[0]), 0, 60)
    server.start()
    server.start()
    port = server._http.port
    assert get(port)[0] == 200
    progress[0] -= 120
    code, said = get(port)
    assert code == 503 and said["last_progress_age_s"] >= 119 and said["status"] == "unhealthy"
    progress.clear()
    assert get(port) == (503, {"status": "unhealthy", "reason": "IndexError: list index out of range"})
    server.stop()
    server.stop()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=10)


def test_a_silent_client_holds_nobody_up(ours, free_port):
    import socket

    server = ours("agent.server.health_check_server").create_healthcheck_server(lambda: int(time.time()), free_port, 60)
    server.start()
    with socket.create_connection(("127.0.0.1", free_port)):
        assert get(free_port)[0] == 200
        server.stop()


def test_a_port_that_is_taken_costs_no_job(our_shop, free_port, monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(free_port))
    first, second = (
        our_shop.names("agent.server.health_check_server").create_healthcheck_server(time.time, free_port, 60) for _ in range(2)
    )
    first.start()
    second.start()
    assert f"port {free_port} cannot be served" in caplog.text and get(free_port)[0] == 200
    assert not our_shop.script("").run().is_failed()
    first.stop()


def test_a_word_is_no_port(our_shop, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "http")
    agent = our_shop.script("", workers=1)
    assert not agent.run().is_failed()


def test_the_health_server_answers_through_restarts_and_ends_with_the_agent(our_shop, free_port, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(free_port))
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    agent = our_shop.script("time.sleep(0.2); sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')", max_restarts=1)
    answers = []
    join = agent._worker_group.spec.rdzv_handler.next_rendezvous

    def ask_and_join():
        if agent._health_check_server:
            answers.append(get(free_port)[0])
        return join()

    agent._worker_group.spec.rdzv_handler.next_rendezvous = ask_and_join
    assert not agent.run().is_failed()
    assert answers == [200] and agent._health_check_server is None
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{free_port}", timeout=10)


def test_the_agents_progress_is_its_watchdogs(our_shop):
    agent = our_shop.script("")
    assert abs(agent._get_alive_time() - time.time()) < 60
    agent._worker_watchdog = Mock(get_last_progress_time=Mock(return_value=1000))
    assert agent._get_alive_time() == 1000
    agent._in_exit_barrier = True
    assert agent._get_alive_time() > 1000


# Ours: signals and orphans.

# What the worker says is written in one go: a signal that comes while print() flushes may not print. Its naps are short: a
# signal just before one is noted at its end.
AGENT = """
    import os, signal, sys, time
    from holdfast.elastic.launcher import LaunchConfig, elastic_launch
    from holdfast.elastic.multiprocessing import program_context
    grace_s, ready, hasty = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    worker = ["import os, signal, time", "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked' + bytes([10])))"]
    worker += ["print('up', os.getpid(), flush=True)", f"open({ready!r}, 'w').close()", "while True: time.sleep(0.01)"]
    start = program_context.get_subprocess_handler
    def interrupted(**given):
        handler = start(**given)
        while not os.path.exists(ready):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return handler
    if hasty:
        program_context.get_subprocess_handler = interrupted
    meet = dict(run_id="j", rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    config = LaunchConfig(1, 1, 1, shutdown_timeout=grace_s, **meet)
    elastic_launch(config, sys.executable)("-c", chr(10).join(worker))
"""


@contextlib.contextmanager
def stubborn(folder, *arguments):
    """An agent whose worker is deaf to SIGTERM, but tells of it; with a reader of what that says."""
    (folder / "agent.py").write_text(textwrap.dedent(AGENT))
    command = [PYTHON, str(folder / "agent.py"), arguments[0], str(folder / "ready"), *arguments[1:]]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)

    def said():
        assert select.select([agent.stdout], [], [], 60)[0], "the worker says nothing"
        return agent.stdout.readline().decode().split()

    word, pid = said()
    assert word == "up"
    try:
        yield agent, int(pid), said
    finally:
        agent.stdout.close()
        for left in (agent.pid, int(pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        agent.wait(60)


def is_gone(pid):
    return process_state.read_proc_state(pid) in (None, "Z", "X")


@pytest.mark.parametrize(("grace_s", "signals"), [("0", 1), ("600", 3)])
def test_a_stubborn_worker_does_not_outlive_its_agent(grace_s, signals, tmp_path):
    with stubborn(tmp_path, grace_s) as (agent, worker, said):
        for _ in range(signals - 1):
            agent.send_signal(signal.SIGTERM)
            assert said() == ["asked"]
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 1
        assert is_gone(worker)


def test_an_agent_told_to_end_while_it_starts_its_workers_ends_them_as_ever(tmp_path):
    """The signal comes when a worker runs of which nobody has heard yet."""
    with stubborn(tmp_path, "600", "hasty") as (agent, worker, said):
        assert said() == ["asked"]
        agent.send_signal(signal.SIGTERM)
        assert said() == ["asked"]
        assert agent.poll() is None
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 1
        assert is_gone(worker)
