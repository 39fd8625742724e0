"""Ranks that no agent of ours has started reach the supervisor by their host's daemon, and are acted on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.fleet.daemons import Fleet, end_clients
from kit.hosts.checked_host import CheckedHost
from kit.hosts.google_parts import GOOGLE, Talking
from kit.ports import ports

from holdfast.google import DeviceState
from holdfast.runtime.host import Host
from holdfast.runtime.net.network import HANDSHAKE_S
from holdfast.supervisor.daemon.host_table import HostTable
from holdfast.supervisor.daemon.host_uplink import HostUplink, Supervisor


@pytest.fixture
def fleet(holdfast: Any, tmp_path: Path, wait_until: Any) -> Iterator[Fleet]:
    yield Fleet(holdfast, tmp_path, wait_until)
    end_clients()


def test_a_rank_that_fails_and_runs_again_is_known_with_what_came_of_it(fleet: Fleet) -> None:
    fleet.start("--policy", "google")
    fleet.daemon("a")
    fleet.becomes({"a": "spare"})
    rank = fleet.rank("a", 3, max_in_job_restarts=1)
    fleet.wait_until(lambda: fleet.states() == {"a": "fit"} and fleet.jobs("a") == [("train", [3])])
    rank.update_state(DeviceState.FAILED)
    fleet.wait_until(lambda: "in-job restart 1 of 1" in fleet.why("a"))
    rank.update_state(DeviceState.RUNNING)
    fleet.wait_until(lambda: fleet.deeds("a") == [("worker", "restart-workers", "round 2 runs")])
    rank.update_state(DeviceState.COMPLETE)
    fleet.wait_until(lambda: fleet.states() == {"a": "spare"} and fleet.jobs("a") == [])


def test_a_failure_that_the_supervisor_has_not_heard_outlives_the_daemon(fleet: Fleet) -> None:
    (fleet.port,) = ports(1)  # where there is no supervisor yet
    fleet.daemon("a")
    fleet.rank("a", 3).update_state(DeviceState.FAILED)
    fleet.wait_until(lambda: "is FAILED" in fleet.daemons["a"].stderr)
    fleet.daemons["a"].kill()
    assert fleet.daemons["a"].process.wait() == -9
    fleet.daemon("a")  # at another port: the rank does not come back to it
    fleet.start("--policy", "google")
    fleet.wait_until(lambda: "rank 3 (" in (why := fleet.why("a")) and "of train has failed" in why)


def test_a_host_that_dies_is_drained_and_one_without_ranks_takes_over(fleet: Fleet) -> None:
    fleet.start("--policy", "google", "--policy-option", "max_workload_restarts=0")
    for name in ("a", "b", "c"):
        fleet.daemon(name)
    ranks = [fleet.rank("a", 0), fleet.rank("b", 1)]
    fleet.becomes({"a": "fit", "b": "fit", "c": "spare"})
    fleet.daemons["b"].kill(signal.SIGSTOP)  # as a host's death looks: nothing is heard, and no link is closed
    drained = fleet.state / "local" / "nodes.json"
    fleet.wait_until(lambda: drained.exists() and "b" in json.loads(drained.read_text()))
    # Somebody starts the job again: the rank of the host that is left fails and runs once more, and so does one on the spare.
    ranks[0].update_state(DeviceState.FAILED)
    fleet.wait_until(lambda: "is FAILED" in fleet.daemons["a"].stderr)
    ranks[0].update_state(DeviceState.RUNNING)
    fleet.rank("c", 1)
    fleet.wait_until(lambda: [deed[:2] for deed in fleet.deeds("b")] == [("lost", "swap")])
    assert "c has taken over" in fleet.deeds("b")[0][2]


def test_a_daemon_that_is_killed_and_started_again_costs_its_healthy_host_nothing(fleet: Fleet) -> None:
    fleet.start("--policy", "google", "--policy-option", "max_workload_restarts=0")
    for name in ("a", "b"):
        fleet.daemon(name)
    fleet.rank("a", 0)
    fleet.becomes({"a": "fit", "b": "spare"})
    fleet.daemons["a"].kill()
    fleet.wait_until(lambda: fleet.states()["a"] == "lost", what="the end of its lease")
    fleet.daemon("a")
    fleet.rank("a", 0)  # at the new daemon's port
    fleet.becomes({"a": "fit", "b": "spare"})
    assert fleet.deeds("a") == [] and "swap" not in fleet.why("a")


def test_a_silent_rank_is_a_trouble_of_its_job(fleet: Fleet) -> None:
    fleet.start()
    fleet.daemon("a", "--silence", "0.3")
    fleet.rank("a", 0)
    fleet.wait_until(lambda: "has not been heard of for 0.3 s" in fleet.why("a"))


WAITS = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_an_xid_in_the_kernel_s_log_costs_a_host_its_place_though_no_agent_of_ours_runs_there(
    fleet: Fleet, tmp_path: Path
) -> None:
    hosts = {name: CheckedHost(tmp_path / f"root-{name}") for name in ("a", "b")}
    fleet.start("--policy", "google", "--policy-option", "max_workload_restarts=0")
    for name, host in hosts.items():
        fleet.daemon(name, "--check", "xid", "--check-every", 0.1, env={"HOLDFAST_CHECK_ROOT": str(host.root)})
    fleet.rank("a", 0)
    fleet.becomes({"a": "fit", "b": "spare"})
    hosts["a"].say("NVRM: Xid (PCI:0000:9b:00): 13, pid=7, name=python, Graphics Exception")
    hosts["a"].say("NVRM: Xid (PCI:0000:9b:00): 79, pid=7, name=python, GPU has fallen off the bus.")
    fleet.daemons["a"].wait_for_output("GPU 0000:9b:00: Xid 79")
    fleet.wait_until(lambda: "swap of job train on a (policy google)" in fleet.why("a"), what=lambda: fleet.why("a"))
    assert "GPU 0000:9b:00 unfit: GPU 0000:9b:00: Xid 79" in fleet.why("a") and fleet.states()["b"] == "spare"
    assert fleet.daemons["a"].stderr.count("Xid 79") == 1, "it is told once"


def test_what_an_agent_of_ours_reports_itself_is_not_told_twice(fleet: Fleet, script: Any, tmp_path: Path) -> None:
    fleet.start()
    port = fleet.daemon("a")
    env = {"GCP_HOST_DAEMON_PORT": str(port), "GCP_WORKLOAD_NAME": "called", "HOLDFAST_STATE_DIR": str(tmp_path / "a")}
    where = "--supervisor", f"127.0.0.1:{fleet.port}", "--node-name", "a", "--rdzv-id", "mine"
    job = fleet.holdfast.start("run", *where, script(WAITS), tmp_path / "go", env=env)
    job.wait_for_output("setup_goodput_client for rank 0 successful")
    fleet.wait_until(lambda: fleet.jobs("a") == [("mine", [0])], what="the agent's report alone")
    status = fleet.holdfast.run("daemon", "--json", "--state-dir", tmp_path / "a")
    assert [one["workload_name"] for one in json.loads(status.stdout)["table"]["workloads"]] == ["called"]
    assert fleet.jobs("a") == [("mine", [0])]
    (tmp_path / "go").touch()
    assert job.wait().returncode == 0
    fleet.becomes({"a": "spare"})


def test_a_wrong_token_costs_the_daemon_nothing_but_a_line(fleet: Fleet, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    assert fleet.holdfast.run("token", "--write", secret).returncode == 0
    fleet.start("--token-file", secret)
    fleet.daemon("a")
    fleet.daemons["a"].wait_for_output("the supervisor at")
    fleet.daemon("b", "--supervisor-token-file", secret)
    fleet.becomes({"b": "spare"})
    assert not fleet.daemons["a"].ended


@pytest.mark.skipif(not GOOGLE.exists(), reason="google-cloud-resiliency-supervisor is not here: make google")
@pytest.mark.timeout(300)
def test_google_s_own_client_is_seen_and_acted_on(fleet: Fleet) -> None:
    fleet.start("--policy", "google")
    theirs = Talking("scripts/google_client.py", fleet.daemon("a"), 2)
    assert theirs.say("RUNNING 0") == theirs.say("RUNNING 1") == "told"
    fleet.wait_until(lambda: fleet.jobs("a") == [("train", [0, 1])])
    assert theirs.say("FAILED 1") == "told"
    fleet.wait_until(lambda: fleet.deeds("a"))
    assert fleet.deeds("a")[0][:2] == ("worker", "restart-job"), "its client allows no in-job restart"
    theirs.end()


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_stock_torchrun_is_seen_with_its_restart(fleet: Fleet, script: Any, tmp_path: Path) -> None:
    fleet.start("--policy", "google")
    fails = script(
        "import os, sys, time\n"
        "while not os.path.exists(sys.argv[1]):\n    time.sleep(0.01)\n"
        "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    )
    env = {**os.environ, "GCP_HOST_DAEMON_PORT": str(fleet.daemon("a")), "GCP_WORKLOAD_NAME": "train", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "holdfast", "torchrun", "--max-restarts", "1", str(fails), str(tmp_path / "go")]
    torchrun = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    fleet.wait_until(lambda: fleet.jobs("a") == [("train", [0])], 150)
    (tmp_path / "go").touch()
    assert torchrun.wait(150) == 0
    fleet.wait_until(lambda: [deed[:2] for deed in fleet.deeds("a")] == [("worker", "restart-workers")])


def test_a_supervisor_that_takes_the_connection_and_says_nothing_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        host = Host(print)
        uplink = HostUplink(host, Supervisor(endpoints=(endpoint,), node_name="a"), say=print, see=print)
        uplink.shows(HostTable())
        uplink.due()  # the host is free: that is told at once
        assert uplink.deadline() <= time.monotonic() + HANDSHAKE_S
        uplink.close()
        host.close()
