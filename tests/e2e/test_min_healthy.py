"""--ft-restart-policy min-healthy: a real job that loses ranks and nodes, and carries on without restarting the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.jobs.carries_on import CARRIES_ON, Team
from kit.jobs.ranks import WAITS, Ranks, agent_pid

MIN_HEALTHY = ("--ft-restart-policy", "min-healthy")


class Cluster:
    """Agents of one job that meet at one endpoint."""

    def __init__(self, holdfast: Any, port: int, wait_until: Callable[..., Any]) -> None:
        self.holdfast, self.port, self.wait_until = holdfast, port, wait_until
        self.agents: dict[str, Any] = {}

    def start(self, name: str, nnodes: str, nproc: int, *rest: object, command: str = "run") -> None:
        meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "tolerant")
        line = ("--nnodes", nnodes, "--nproc-per-node", nproc, "--node-name", name, *meet, *MIN_HEALTHY, *rest)
        self.agents[name] = self.holdfast.start(command, *line)

    def decided(self, what: str) -> list[str]:
        return [event["reason"] for event in self.holdfast.events("Decided") if event["decision"] == what]

    @property
    def rounds(self) -> set[int]:
        return {event["round"] for event in self.holdfast.events("RoundFormed")}

    def host(self) -> str:
        """The node whose agent holds the coordinator: it alone records who joined."""
        return str(self.wait_until(lambda: self.holdfast.events("NodeJoined"))[0]["node"])

    def host_of(self, pid: int) -> str:
        """A worker may have said its pid before its agent has recorded it."""
        started = lambda: [event["node"] for event in self.holdfast.events("WorkerStarted") if event["pid"] == pid]
        return str(self.wait_until(started, what=f"the record of pid {pid}")[0])


@pytest.fixture
def cluster(holdfast: Any, free_port: int, wait_until: Callable[..., Any]) -> Cluster:
    return Cluster(holdfast, free_port, wait_until)


@pytest.fixture
def ranks(tmp_path: Path, wait_until: Callable[..., Any]) -> Ranks:
    return Ranks(tmp_path / "ranks", wait_until)


@pytest.fixture
def team(tmp_path: Path, wait_until: Callable[..., Any]) -> Team:
    return Team(tmp_path / "team", wait_until)


@pytest.mark.torch
@pytest.mark.parametrize("loses", ["a rank", "a node"])
def test_a_script_carries_on_in_its_own_processes_and_nobody_is_restarted(cluster, team, script, wait_until, loses):
    program = script(CARRIES_ON)
    for name in "ab":
        cluster.start(name, "1:2", 2, "--max-restarts", 3, program, team.folder)
    before = {rank: team.sum_of(rank, round=1, generation=0) for rank in range(4)}
    assert {total for _, total in before.values()} == {4}
    host = cluster.host()
    victims = [rank for rank, (pid, _) in before.items() if cluster.host_of(pid) != host]
    if loses == "a rank":
        victims = victims[-1:]
        os.kill(before[victims[0]][0], signal.SIGKILL)
    else:
        os.kill(agent_pid(cluster.holdfast, "b" if host == "a" else "a"), signal.SIGKILL)
    left = [rank for rank in before if rank not in victims]
    team.left(len(left), round=1, generation=1)
    after = {rank: team.sum_of(rank, round=1, generation=1) for rank in left}
    assert {rank: pid for rank, (pid, _) in after.items()} == {rank: before[rank][0] for rank in left}
    assert {total for _, total in after.values()} == {len(left)}
    (reason,) = wait_until(lambda: cluster.decided("carry-on"))
    assert reason.endswith("the others carry on: 1 of 2 nodes healthy (min-healthy: 1)")
    team.finish()
    ends = {name: agent.wait() for name, agent in cluster.agents.items()}
    expected = {name: 0 for name in "ab"} if loses == "a rank" else {host: 0}
    assert {name: end.returncode for name, end in ends.items() if name in expected} == expected
    assert cluster.rounds == {1} and not cluster.decided("restart")
    lost = "was killed by SIGKILL" if loses == "a rank" else "was lost"
    said = " ".join(ends[host].stderr.split())
    assert "job tolerant succeeded after 0 restarts, though" in said and lost in said
    assert "(min-healthy: 1)" in cluster.holdfast("why", "tolerant").stdout


def test_losses_and_an_exclusion_are_borne_with_until_too_few_are_left_and_then_a_spare_comes_in(
    cluster, ranks, script, holdfast, wait_until
):
    program = script(WAITS)
    for name in "abc":
        cluster.start(name, "2:3", 1, "--max-restarts", 1, program, ranks.folder)
    pids = {cluster.host_of(pid): pid for pid, _, _ in (ranks.rank(rank, 0, 1) for rank in range(3))}
    host = cluster.host()
    lost, failing = sorted({"a", "b", "c"} - {host})
    os.kill(agent_pid(holdfast, lost), signal.SIGKILL)
    wait_until(lambda: cluster.decided("carry-on"))
    cluster.agents[lost].wait()
    cluster.start("d", "2:3", 1, "--max-restarts", 1, program, ranks.folder)
    wait_until(lambda: "waits as a spare" in cluster.agents[host].stderr or "d" in joined(holdfast), what="d has come")
    assert cluster.rounds == {1}
    os.kill(pids[failing], signal.SIGKILL)
    assert {ranks.rank(rank, 1, 2)[1] for rank in range(3)} == {3}
    (reason,) = cluster.decided("restart")
    assert reason.endswith("restarting all ranks (0 of 1 restarts left); only 1 of 3 nodes healthy (min-healthy: 2)")
    excluded = holdfast("exclude", "d", "--reason", "its fan is broken")
    assert excluded.returncode == 0 and "the others carry on without it" in excluded.stdout
    ranks.finish()
    assert {name: cluster.agents[name].wait().returncode for name in (host, failing, "d")} == {host: 0, failing: 0, "d": 0}
    assert cluster.rounds == {1, 2}


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGTERM], ids=["is lost", "is told to leave"])
def test_under_ft_launcher_too_all_nodes_run_and_one_may_go(cluster, ranks, script, holdfast, wait_until, ends):
    program = script(WAITS)
    for name in "abc":
        cluster.start(name, "2:3", 1, "--max-restarts", 1, program, ranks.folder, command="ft_launcher")
    assert {ranks.rank(rank, 0, 1)[1] for rank in range(3)} == {3}
    goes = min({"a", "b", "c"} - {cluster.host()})
    os.kill(agent_pid(holdfast, goes), ends)
    (reason,) = wait_until(lambda: cluster.decided("carry-on"))
    assert reason.endswith("the others carry on: 2 of 3 nodes healthy (min-healthy: 2)")
    cluster.agents.pop(goes).wait()
    ranks.finish()
    assert [agent.wait().returncode for agent in cluster.agents.values()] == [0, 0]
    assert cluster.rounds == {1}


def joined(holdfast: Any) -> list[str]:
    return [event["name"] for event in holdfast.events("NodeJoined")]
