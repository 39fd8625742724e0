"""What a rank asks for by `holdfast.client.control` is done at once, in real jobs, also if it ends itself right after."""

from __future__ import annotations

from typing import Any

import pytest

ASKS = """
import os, sys, time
from holdfast.client import control

folder, asks, attempt = sys.argv[1], sys.argv[2], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"{folder}/{os.environ['RANK']}.{attempt}.{os.environ['HOLDFAST_ROUND']}", "w").write(os.environ["WORLD_SIZE"])
deadline = time.time() + 100
if os.environ["RANK"] == "1" and os.environ["HOLDFAST_ROUND"] == "1":
    while not os.path.exists(f"{folder}/ask") and time.time() < deadline:
        time.sleep(0.01)
    if hasattr(control, asks):
        getattr(control, asks)("uncorrectable ECC error")
    else:
        from holdfast import fault_tolerance as ft
        client = ft.RankMonitorClient()
        client.init_workload_monitoring()
        action = ft.WorkloadAction[asks]
        client.send_workload_control_request(ft.WorkloadControlRequest(action, "uncorrectable ECC error"))
    if len(sys.argv) > 3:
        sys.exit(int(sys.argv[3]))
elif os.environ["HOLDFAST_ROUND"] == "2":
    sys.exit(0)
time.sleep(max(0.0, deadline - time.time()))
"""
"""In its first round rank 1 asks for something, and ends itself if it is told to; the others wait to be stopped."""


class Asking:
    """A job of nodes with one rank each, whose rank 1 asks for something."""

    def __init__(self, holdfast: Any, port: int, program: Any, folder: Any, wait_until: Any) -> None:
        self.holdfast, self.port, self.program, self.folder, self.wait_until = holdfast, port, program, folder, wait_until
        folder.mkdir()

    def start(self, name: str, nnodes: str, *asks: object, command: str = "run", options: tuple[object, ...] = ()) -> Any:
        meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "asking")
        line = (command, "--nnodes", nnodes, "--nproc-per-node", 1, "--node-name", name, *meet, *options)
        return self.holdfast.start(*line, self.program, self.folder, *asks)

    def all_here(self, nodes: int) -> None:
        """Let rank 1 ask once so many nodes have come, and rank 0 runs."""
        self.wait_until(lambda: len(self.holdfast.events("NodeJoined")) == nodes and "0.0.1" in self.started)
        (self.folder / "ask").touch()

    def decided(self) -> list[str]:
        return [f"{event['decision']}: {event['reason']}" for event in self.holdfast.events("Decided")]

    def node_of(self, rank: int) -> str:
        events = lambda: self.holdfast.events("WorkerStarted")
        found = lambda: [str(one["node"]) for one in events() if (one["rank"], one["round"]) == (rank, 1)]
        return str(self.wait_until(found, what=f"the record of rank {rank}'s start")[0])

    @property
    def started(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def asking(holdfast: Any, free_port: int, script: Any, tmp_path: Any, wait_until: Any) -> Asking:
    return Asking(holdfast, free_port, script(ASKS), tmp_path / "ranks", wait_until)


@pytest.mark.parametrize("then", [(), (7,)], ids=["and goes on", "and exits with 7"])
def test_an_excluded_node_is_stopped_and_a_spare_has_its_place(asking, holdfast, then):
    agents = {name: asking.start(name, "2", "exclude_this_node", *then) for name in "abc"}
    asking.all_here(3)
    ends = {name: agent.wait() for name, agent in agents.items()}
    assert {end.returncode for end in ends.values()} == {0}
    out = asking.node_of(1)
    assert f"rejoin: rank 1 on {out} asked to exclude its node: uncorrectable ECC error" in asking.decided()
    assert {"0.0.2", "1.0.2"} <= asking.started  # no restart was spent
    (excluded,) = holdfast.events("NodeExcluded")
    assert (excluded["name"], excluded["by"]) == (out, "script")
    assert [event["kind"] for event in holdfast.events("ControlRequested")] == ["exclude"]
    assert "asked to exclude its node: uncorrectable ECC error" in holdfast("why", "asking").stdout


def test_without_a_spare_the_job_shrinks_to_those_that_are_left(asking):
    agents = [asking.start(name, "1:2", "exclude_this_node") for name in "ab"]
    asking.all_here(2)
    assert [agent.wait().returncode for agent in agents] == [0, 0]
    assert (asking.folder / "0.0.2").read_text() == "1"


def test_a_node_that_is_needed_stays_until_another_launcher_comes(asking, holdfast):
    agents = [asking.start(name, "2", "ExcludeThisNode", command="ft_launcher") for name in "ab"]
    asking.all_here(2)
    assert "not done, since the job cannot go on without it" in asking.wait_until(asking.decided)[0]
    out = asking.node_of(1)
    agents.append(asking.start("c", "2", "ExcludeThisNode", command="ft_launcher"))
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
    assert [event["name"] for event in holdfast.events("NodeExcluded")] == [out]
    assert {"0.1.2", "1.1.2"} <= asking.started and "as was asked for" in asking.decided()[1]  # ft_launcher counts cycles


def test_a_node_that_is_needed_stays_and_the_reason_is_told(asking):
    agents = [asking.start(name, "2", "exclude_this_node", 7) for name in "ab"]
    asking.all_here(2)
    ends = [agent.wait() for agent in agents]
    assert [end.returncode for end in ends] == [1, 1]
    (refused, failed) = asking.decided()
    assert "not done, since the job cannot go on without it: 1 of the 2 nodes needed" in refused
    assert "exited with code 7" in failed
    assert any("not done, since the job cannot go on without it" in end.stderr for end in ends)


@pytest.mark.parametrize("then", [(), (7,)], ids=["and goes on", "and exits with 7"])
def test_a_stop_ends_the_job_on_every_node_with_its_reason(asking, then):
    agents = [asking.start(name, "2", "stop_job", *then, options=("--max-restarts", 3)) for name in "ab"]
    asking.all_here(2)
    ends = [agent.wait() for agent in agents]
    reason = f"rank 1 on {asking.node_of(1)} asked to stop the job: uncorrectable ECC error"
    assert [end.returncode for end in ends] == [1, 1]
    for end in ends:
        assert reason in " ".join(end.stderr.split())
    assert asking.decided() == [f"stop: {reason}"]


@pytest.mark.parametrize("then", [(), (7,)], ids=["and goes on", "and exits with 7"])
def test_a_restart_restarts_all_ranks_and_spends_one(asking, then):
    agents = [asking.start(name, "2", "restart_job", *then, options=("--max-restarts", 3)) for name in "ab"]
    asking.all_here(2)
    assert [agent.wait().returncode for agent in agents] == [0, 0]
    assert {"0.1.2", "1.1.2"} <= asking.started
    assert asking.decided()[0] == (
        f"restart: rank 1 on {asking.node_of(1)} asked for a restart: uncorrectable ECC error; "
        "restarting all ranks (2 of 3 restarts left)"
    )


@pytest.mark.parametrize("asks", ["exclude_this_node", "ExcludeThisNode"])
def test_under_ft_launcher_too_and_in_its_own_words(asking, asks):
    agents = [asking.start(name, "2:3", asks, 7, command="ft_launcher") for name in "abc"]
    asking.all_here(3)
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
    assert {"0.1.2", "1.1.2"} <= asking.started  # its rounds are cycles, and count as restarts in the ranks' environment


def test_a_shutdown_that_ft_launcher_s_scripts_ask_for_ends_it_on_every_node(asking):
    options = ("--max-restarts", 3)
    agents = [asking.start(name, "2", "ShutdownWorkload", 7, command="ft_launcher", options=options) for name in "ab"]
    asking.all_here(2)
    assert [agent.wait().returncode for agent in agents] == [1, 1]
    assert asking.decided() == [f"stop: rank 1 on {asking.node_of(1)} asked to stop the job: uncorrectable ECC error"]
