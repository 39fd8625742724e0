"""A node's hardware breaks, and a rank's last words or the kernel's log say so: it is left out, and a spare takes its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.hosts.checked_host import CheckedHost
from kit.jobs.ranks import Cluster

DIES_OF = """
import os, sys, time
folder = sys.argv[1]
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
name = f"{folder}/{rank}.{attempt}.{os.environ['HOLDFAST_ROUND']}"
open(name + ".tmp", "w").write(f"{os.getpid()} {os.environ['WORLD_SIZE']} {os.environ['MASTER_PORT']}")
os.rename(name + ".tmp", name)
while not os.path.exists(f"{folder}/finish"):
    if attempt == "0" and os.path.exists(f"{folder}/broken-{os.environ['NODE']}"):
        raise RuntimeError(os.environ.get("DIES_OF", "CUDA error: uncorrectable ECC error encountered"))
    time.sleep(0.02)
"""
"""Waits as `kit.jobs.ranks.WAITS`; a rank of a node that somebody breaks dies with the driver's words."""


@pytest.fixture
def cluster(holdfast, free_port, tmp_path, script, wait_until) -> Cluster:
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(DIES_OF), wait_until)


def break_one(
    cluster: Cluster,
    holdfast: Any,
    *options: object,
    env: dict[str, str] | None = None,
    hosts: dict[str, CheckedHost] | None = None,
) -> tuple[str, list[Any]]:
    """Two nodes run and a third waits; then one that does not host the coordinator breaks. (its name, all agents)"""

    def start(name: str) -> Any:
        root = {"HOLDFAST_CHECK_ROOT": str(hosts[name].root)} if hosts else {}
        more = {"NODE": name, **root, **(env or {})}
        return cluster.agent(name, "2", "--max-restarts", 3, *options, nproc=1, env=more)

    agents = [start(name) for name in "ab"]
    for rank in range(2):
        cluster.rank(rank, 0, 1)
    agents.append(start("c"))
    cluster.wait_until(lambda: len(holdfast.events("NodeJoined")) == 3)
    victim = next(name for name in "ab" if name != cluster.host())
    if hosts:
        hosts[victim].say("NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus.", age_s=1.0)
    (cluster.folder / f"broken-{victim}").touch()
    return victim, agents


def second_round(cluster: Cluster, holdfast: Any) -> list[str]:
    """Who takes part in the first round after the failure that is whole."""
    for rank in range(2):
        seen = cluster.wait_until(lambda rank=rank: list(cluster.folder.glob(f"{rank}.1.*[0-9]")), what=f"rank {rank} again")
    number = max(int(path.suffix[1:]) for path in seen)
    found = lambda: [event for event in holdfast.events("RoundFormed") if event["round"] == number]
    formed = cluster.wait_until(found, what=f"the record of round {number}")[0]
    cluster.finish()
    return sorted(formed["nodes"])


def test_a_finding_of_broken_hardware_excludes_the_node_and_a_spare_takes_its_place(cluster, holdfast):
    victim, agents = break_one(cluster, holdfast)
    assert second_round(cluster, holdfast) == sorted({"a", "b", "c"} - {victim})
    for agent in agents:
        agent.wait()
    (excluded,) = holdfast.events("NodeExcluded")
    assert excluded["name"] == victim and "an error that cannot be corrected" in excluded["reason"]
    kept = holdfast.jobs()[-1] / "incidents" / "round-1" / victim
    assert (kept / "memory.txt").read_text(), "no worker starts there again, and the job ends well: it is kept all the same"


@pytest.mark.parametrize("said", ["gpu=restart", "none"])
def test_a_flag_has_the_node_stay_for_all_that_was_found(cluster, holdfast, said):
    _, agents = break_one(cluster, holdfast, "--on-finding", said)
    assert second_round(cluster, holdfast) == ["a", "b"]
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
    assert holdfast.events("NodeExcluded") == []


def test_the_kernel_s_log_excludes_a_node_whose_rank_only_says_that_it_failed(cluster, holdfast, tmp_path: Path):
    hosts = {name: CheckedHost(tmp_path / f"host-{name}") for name in "abc"}
    victim, agents = break_one(
        cluster, holdfast, "--check-after", "xid", env={"DIES_OF": "CUDA error: unknown error"}, hosts=hosts
    )
    assert second_round(cluster, holdfast) == sorted({"a", "b", "c"} - {victim})
    for agent in agents:
        agent.wait()
    changed = [event for event in holdfast.events("HealthChanged") if event["node"] == victim]
    assert changed and changed[0]["state"] == "unfit" and "79" in changed[0]["reason"]


def test_a_flag_has_a_node_excluded_for_what_would_only_restart(cluster, holdfast):
    words = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    victim, agents = break_one(cluster, holdfast, "--on-finding", "oom-gpu=exclude", env={"DIES_OF": words})
    assert second_round(cluster, holdfast) == sorted({"a", "b", "c"} - {victim})
    for agent in agents:
        agent.wait()
    (excluded,) = holdfast.events("NodeExcluded")
    assert excluded["name"] == victim and "its GPU ran out of memory" in excluded["reason"]
