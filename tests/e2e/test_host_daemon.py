"""`holdfast daemon`: what it hears of Google's wire and of our own agents, and what of it outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.daemons import DaemonHere  # noqa: E402

from holdfast.core.wire.google_wire import METHODS, RUNNING, SERVICE, Command, HostResponse, WorkerInfo, WorkloadInfo  # noqa: E402
from holdfast.google import DeviceState, GoogleCloudResiliencyClient, client  # noqa: E402


@pytest.fixture
def daemon(holdfast: Any, free_port: int, wait_until: Any) -> Iterator[DaemonHere]:
    """Not started yet."""
    yield DaemonHere(holdfast, free_port, wait_until)
    for reports in client._shared.values():
        reports.close()
    client._shared.clear()


@pytest.fixture
def call(daemon: DaemonHere) -> Any:
    """`call("Heartbeat", message)`: by a stranger's gRPC; a gRPC error is an exception."""

    def make(method: str, message: Any) -> str:
        with grpc.insecure_channel(f"127.0.0.1:{daemon.port}") as channel:
            data = message if isinstance(message, bytes) else message.encode()
            return HostResponse.decode(channel.unary_unary(f"/{SERVICE}/{method}")(data, timeout=30)).response

    return make


def rank(daemon: DaemonHere, local_rank: int = 0, workload: str = "train") -> GoogleCloudResiliencyClient:
    return GoogleCloudResiliencyClient(daemon.port + local_rank + 1, daemon.port, local_rank, local_rank, workload)


WORKER = WorkerInfo(worker_address="localhost:1", worker_name="n", global_rank=3, state=RUNNING)


def test_every_method_is_answered_whatever_it_is_given(daemon: DaemonHere, call: Any) -> None:
    daemon.start()
    sensible = {WorkerInfo: WORKER, WorkloadInfo: WorkloadInfo(workload_name="train"), Command: b"\x12\x01x"}
    for method, kind in METHODS.items():
        for message in (sensible[kind], b"", b"\xff\xff\xff", b"\x0a\x05ab"):
            assert call(method, message)
    assert daemon.told()["cordoned"]
    assert daemon.holdfast.run("daemon", "--uncordon").returncode == 0 and not daemon.told()["cordoned"]


def test_its_table_outlives_a_sigkill_and_the_client_goes_on(daemon: DaemonHere, wait_until: Any) -> None:
    daemon.start()
    workers = [rank(daemon, number) for number in range(2)]
    for worker in workers:
        worker.update_state(DeviceState.RUNNING)
    workers[1].update_state(DeviceState.FAILED)
    wait_until(lambda: daemon.states() == {"train": ["RUNNING", "FAILED"]})
    before = daemon.told()["workloads"]
    daemon.kill()
    daemon.start()
    after = daemon.told()["workloads"]
    for workload in (*before, *after):
        for worker in workload["workers"]:
            del worker["heard_s"]
    assert after == before and after[0]["workload_downtime_threshold_s"] == 180
    workers[1].update_state(DeviceState.RUNNING)
    wait_until(lambda: daemon.states() == {"train": ["RUNNING", "RUNNING"]})


def test_two_workloads_of_one_process_keep_apart(daemon: DaemonHere, wait_until: Any) -> None:
    daemon.start()
    workers = [rank(daemon, number, workload) for number, workload in enumerate(("train", "judge"))]
    for worker, state in zip(workers, (DeviceState.FAILED, DeviceState.RUNNING)):
        worker.update_state(state)
    wait_until(lambda: daemon.states() == {"train": ["FAILED"], "judge": ["RUNNING"]})


def test_a_rank_that_falls_silent_is_named(daemon: DaemonHere) -> None:
    running = daemon.start("--silence", "0.2")
    rank(daemon).update_state(DeviceState.RUNNING)
    running.wait_for_output("has not been heard of for 0.2 s")
    assert "silent" in daemon.holdfast.run("daemon", "--status").stdout


BEATS = """
import sys, time
from holdfast.google import DeviceState, GoogleCloudResiliencyClient
port = int(sys.argv[1])
GoogleCloudResiliencyClient(port + 1, port, 0, 0, "train").update_state(DeviceState.RUNNING)
print("told", flush=True)
time.sleep(300)
"""


def test_a_rank_whose_process_is_killed_is_named_at_once_and_heard_in_its_next_life(daemon: DaemonHere) -> None:
    running = daemon.start("--silence", "300")
    argv = [sys.executable, "-c", BEATS, str(daemon.port)]
    for life in (1, 2):
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as rank:
            daemon.wait_until(lambda: [one["silent"] for one in daemon.ranks()] == [False])
            rank.kill()
            daemon.wait_until(lambda life=life: running.stderr.count("the process of rank 0") == life)
        assert [one["silent"] for one in daemon.ranks()] == [True]


def test_a_port_that_is_taken_is_an_error_and_its_holder_lives(daemon: DaemonHere) -> None:
    with socket.create_server(("127.0.0.1", daemon.port)) as holder:
        done = daemon.holdfast.run("daemon", "--port", daemon.port)
        assert done.returncode == 1 and f"127.0.0.1:{daemon.port}" in done.stderr and "in use" in done.stderr
        assert "Traceback" not in done.stderr
        socket.create_connection(holder.getsockname(), 5).close()


def test_one_daemon_per_state_directory(daemon: DaemonHere) -> None:
    first = daemon.start()
    done = daemon.holdfast.run("daemon", "--port", 0)
    assert done.returncode == 1 and f"pid {first.pid}" in done.stderr and not first.ended


def test_without_a_daemon_the_question_for_it_says_so(daemon: DaemonHere) -> None:
    done = daemon.holdfast.run("daemon", "--status")
    assert done.returncode == 1 and "no daemon answers" in done.stderr


@pytest.mark.parametrize(
    ("options", "env", "word"),
    [
        (("--port", "70000"), {}, "--port"),
        ((), {"GCP_HOST_DAEMON_PORT": "high"}, "GCP_HOST_DAEMON_PORT"),
        (("--silence", "0"), {}, "--silence"),
    ],
)
def test_a_wrong_value_is_named(holdfast: Any, options: Any, env: Any, word: str) -> None:
    done = holdfast.run("daemon", *options, env=env)
    assert done.returncode == 2 and word in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(daemon: DaemonHere, signum: int) -> None:
    running = daemon.start()
    running.kill(signum)
    assert running.wait().returncode == 0 and not (daemon.holdfast.state_dir / "daemon.sock").exists()


def test_it_listens_on_loopback_only(daemon: DaemonHere) -> None:
    daemon.start()
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as other:
        other.bind(("0.0.0.0", 0))  # another address of the port is free: nobody listens at all of them
    with socket.socket() as elsewhere:
        elsewhere.bind(("127.0.0.2", daemon.port))


FAILS_ONCE = """
import os, signal, sys, time
folder = sys.argv[1]
rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{folder}/{rank}-{life}", "w").close()
while not os.path.exists(f"{folder}/go-{life}"):
    time.sleep(0.01)
if (rank, life) == ("1", "0"):
    sys.exit(3)
if life == "0":
    signal.pause()
"""


def test_under_run_a_port_in_the_environment_is_all_there_is_to_do(daemon: DaemonHere, script: Any, tmp_path: Any) -> None:
    daemon.start()
    env = {"GCP_HOST_DAEMON_PORT": str(daemon.port), "GCP_WORKLOAD_NAME": "train"}
    ranks = "--nproc-per-node", 3, "--max-restarts", 1
    job = daemon.holdfast.start("run", *ranks, script(FAILS_ONCE), tmp_path, env=env)
    job.wait_for_output("setup_goodput_client for rank 2 successful")
    daemon.wait_until(lambda: daemon.told()["agents"])  # it comes by another way than its ranks
    (agent,) = daemon.told()["agents"]
    assert agent["pid"] in _parents_of_agents(job.pid)
    for number in range(3):
        daemon.wait_for(number, "RUNNING")
    (tmp_path / "go-0").touch()
    daemon.wait_for(1, "RUNNING", "FAILED", "RUNNING")
    (tmp_path / "go-1").touch()
    assert job.wait().returncode == 0
    daemon.wait_for(1, "RUNNING", "FAILED", "RUNNING", "COMPLETE")
    for innocent in (0, 2):
        daemon.wait_for(innocent, "RUNNING", "COMPLETE")
    assert daemon.states() == {"train": ["COMPLETE"] * 3}
    daemon.wait_until(lambda: daemon.told()["agents"] == [])


def _parents_of_agents(pid: int) -> list[int]:
    """The pid that the user sees, and its children: one of them is the agent."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [pid, *map(int, file.read().split())]


WAITS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_a_daemon_that_starts_later_finds_the_agents_that_run(daemon: DaemonHere, script: Any, tmp_path: Any) -> None:
    """The first finds one that was there before; the next, after a SIGKILL, that and one that had said it was there."""
    before = daemon.holdfast.start("run", "--rdzv-id", "first", script(WAITS), tmp_path / "go")
    daemon.wait_until(lambda: list(daemon.holdfast.state_dir.glob("jobs/first/agent-*.sock")))
    daemon.start()
    daemon.wait_until(lambda: [agent["job"] for agent in daemon.told()["agents"]] == ["first"])
    after = daemon.holdfast.start("run", "--rdzv-id", "second", script(WAITS), tmp_path / "go")
    daemon.wait_until(lambda: len(daemon.told()["agents"]) == 2)
    daemon.kill()
    daemon.start()
    daemon.wait_until(lambda: sorted(agent["job"] for agent in daemon.told()["agents"]) == ["first", "second"])
    (tmp_path / "go").touch()
    assert before.wait().returncode == after.wait().returncode == 0
    daemon.wait_until(lambda: daemon.told()["agents"] == [])


def test_a_job_does_not_notice_that_the_daemon_hangs_or_dies(daemon: DaemonHere, script: Any, tmp_path: Any) -> None:
    running = daemon.start()
    env = {"GCP_HOST_DAEMON_PORT": str(daemon.port)}
    job = daemon.holdfast.start("run", "--nproc-per-node", 2, script(WAITS), tmp_path / "go", env=env)
    job.wait_for_output("setup_goodput_client for rank 1 successful")
    os.kill(running.pid, signal.SIGSTOP)
    job.wait_for_output("is out of reach")
    (tmp_path / "go").touch()
    assert job.wait().returncode == 0
    daemon.kill()
