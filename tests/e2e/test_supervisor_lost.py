"""A node of a running job dies: what a supervisor with default options makes of it, beside what the job does by itself."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from kit.jobs.ranks import Cluster, agent_pid
from kit.ports import port_of


@pytest.fixture
def supervisor(holdfast: Any, tmp_path: Any) -> str:
    """Where it listens."""
    running = holdfast.start("supervisor", "--listen", "127.0.0.1:0", "--http", "off", "--state", tmp_path / "fleet")
    return f"127.0.0.1:{port_of(running)}"


def test_a_node_that_dies_is_drained_and_the_spare_that_took_over_is_the_outcome(holdfast, job: Cluster, supervisor, tmp_path):
    def told(*words: str) -> Any:
        return json.loads(holdfast.run(*words, "--json", "--state", tmp_path / "fleet").stdout)

    where = ("--supervisor", supervisor)
    agents = {name: job.agent(name, "2", *where, nproc=1) for name in "ab"}
    job.rank(1, 0, 1)
    agents["c"] = job.agent("c", "2", *where, nproc=1)
    job.wait_until(lambda: [node["state"] for node in told("nodes")] == ["fit", "fit", "spare"])
    sick = next(name for name in "ab" if name != job.host())
    os.kill(agent_pid(holdfast, sick), signal.SIGKILL)
    job.rank(1, 0, 2)
    deed = job.wait_until(lambda: next((one for one in told("why", sick)["deeds"] if one["outcome"]), None))
    assert (deed["trouble"], deed["act"]) == ("lost", "swap") and "was not heard for 5 s" in deed["seen"]
    assert deed["outcome"] == "the job goes on with 2 nodes in round 2"
    assert {node["name"]: node["standing"] for node in told("nodes")}[sick] == "unfit"
    job.finish()
    assert [agent.wait().returncode for name, agent in agents.items() if name != sick] == [0, 0]
