"""A job whose nodes know who hosts its coordinator next, and the loss of the one that does."""

from __future__ import annotations

import os
import signal
from typing import Any

from kit.jobs.ranks import Cluster, agent_pid

LOGS = {"LOGLEVEL": "DEBUG"}
LEASE = ("--lease", 2, "--max-restarts", 0)


def begin(
    job: Cluster, nodes: str, nnodes: str, *options: object, env: dict[str, str] = LOGS, apart: bool = False
) -> dict[str, Any]:
    """Agents, one worker each, in round 1, that know who is next; the first is at the endpoint. `apart`: the others are at
    addresses of their own, from 127.0.0.2 on."""
    agents = {nodes[0]: job.agent(nodes[0], nnodes, *LEASE, *options, nproc=1, env=env)}
    job.host()
    for number, name in enumerate(nodes[1:], 2):
        where = ("--local-addr", f"127.0.0.{number}") if apart else ()
        agents[name] = job.agent(name, nnodes, *LEASE, *options, *where, nproc=1, env=env)
    for rank in range(int(nnodes.split(":")[-1])):
        job.rank(rank, 0, 1)
    for name in nodes[1:]:
        agents[name].wait_for_output(f"the {len(nodes)} nodes choose another")
    return agents


def lose(job: Cluster, agents: dict[str, Any], name: str) -> None:
    """The agent at the endpoint is gone, and all that ran below it."""
    os.kill(agent_pid(job.holdfast, name), signal.SIGKILL)
    assert agents[name].wait().returncode != 0
