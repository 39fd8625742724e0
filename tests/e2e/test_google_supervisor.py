"""Beside the real google-cloud-resiliency-supervisor: its unmodified client and our daemon, our client and its own daemon.

`make google` puts it into an environment of its own (it pins half of its fifty needs); without that these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import SCRIPTS

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.daemons import DaemonHere  # noqa: E402
from kit.hosts.google_parts import GOOGLE, Talking  # noqa: E402
from kit.hosts.host_service import HostService  # noqa: E402

from holdfast.core.wire.google_wire import RUNNING  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not GOOGLE.exists(), reason="google-cloud-resiliency-supervisor is not here: make google"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def daemon(holdfast: Any, free_port: int, wait_until: Any) -> DaemonHere:
    made = DaemonHere(holdfast, free_port, wait_until)
    made.start()
    return made


def test_their_client_goes_through_its_states_and_outlives_our_daemon(daemon: DaemonHere) -> None:
    client = Talking("scripts/google_client.py", daemon.port, 2)
    for number, state in enumerate(("RUNNING", "FAILED", "RUNNING")):
        assert client.say(f"{state} 1") == "told"
        assert daemon.history(1) == ["RUNNING", "FAILED", "RUNNING"][: number + 1], "it has the answer only when we know"
    daemon.kill()
    daemon.start()
    assert daemon.states() == {"train": ["RUNNING"]}, "it never registers again"
    assert client.say("COMPLETE 1") == "told"
    assert daemon.states() == {"train": ["COMPLETE"]}
    client.end()


def test_eight_of_their_clients_beat_five_hundred_times_and_none_fails(daemon: DaemonHere) -> None:
    client = Talking("scripts/google_client.py", daemon.port, 8)
    for rank in range(8):
        client.say(f"RUNNING {rank}")
    assert client.say("beats 500") == "told"
    assert daemon.states() == {"train": ["RUNNING"] * 8}
    assert "Failed" not in client.end()


@pytest.fixture
def sensor() -> Iterator[HostService]:
    """In the place of Google's sensor, controller and actuator: hears what its daemon says."""
    made = HostService()
    yield made
    made.close()


@pytest.fixture
def theirs(sensor: HostService, free_port: int) -> Iterator[Any]:
    """Google's own daemon, at `free_port`."""
    daemon = Talking("hosts/google_daemon.py", free_port, sensor.port)
    yield daemon
    daemon.process.kill()
    daemon.process.communicate()


FAILS = """
import os, signal, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3) if os.environ["RANK"] == "1" else signal.pause()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
"""


def test_under_run_their_own_daemon_hears_who_runs_and_who_failed(
    theirs: Any, sensor: HostService, free_port: int, holdfast: Any, script: Any, tmp_path: Path, wait_until: Any
) -> None:
    """Without a restart: it looks once a second, and a rank that runs again by then has not failed for it."""
    env = {"GCP_HOST_DAEMON_PORT": str(free_port), "GCP_WORKLOAD_NAME": "train"}
    go = tmp_path / "go"
    job = holdfast.start("run", "--nproc-per-node", 2, script(FAILS), go, go, env=env)
    job.wait_for_output("setup_goodput_client for rank 1 successful")
    workers = json.loads(theirs.say("workers"))
    assert sorted((worker["local_rank"], worker["global_rank"]) for worker in workers) == [(0, 0), (1, 1)]
    wait_until(lambda: any(workload is not None for _, workload in sensor.hosts()))
    state, workload = sensor.hosts()[-1]
    assert state == RUNNING and workload.workload_name == "train"
    go.touch()
    wait_until(lambda: "ReportEvent" in sensor.methods)
    report = next(data for method, data in sensor.calls if method.endswith("ReportEvent"))
    assert f"Worker {os.uname().nodename}-1 running workload train ".encode() in report
    assert job.wait().returncode == 1


@pytest.mark.torch
def test_the_two_hooks_of_the_quickstart_work_with_their_client_and_our_daemon(
    daemon: DaemonHere, script: Any, tmp_path: Path
) -> None:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(found.origin).parents[1]),
        "GCP_HOST_DAEMON_PORT": str(daemon.port),
        "OMP_NUM_THREADS": "1",
    }
    go, end = tmp_path / "go", tmp_path / "end"
    ranks = "--nproc-per-node", "2", "--max-restarts", "1"
    command = [GOOGLE, SCRIPTS / "google_hooks.py", *ranks, script(FAILS), go, end]
    with (tmp_path / "log").open("wb") as log:
        torchrun = subprocess.Popen(list(map(str, command)), env=env, stdout=log, stderr=log)
    daemon.wait_until(lambda: daemon.history(1) == ["RUNNING"], 150)
    go.touch()
    daemon.wait_for(1, "RUNNING", "FAILED", "RUNNING")
    end.touch()
    assert torchrun.wait(120) == 0, (tmp_path / "log").read_text()
    assert daemon.states() == {"train": ["COMPLETE", "COMPLETE"]}
