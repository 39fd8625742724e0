"""A job forms though its endpoint is not there at first: its name resolves late, or another program has its port."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from kit.jobs.ranks import Cluster
from kit.network.netjob import Job
from kit.network.netns import ETC


@pytest.fixture
def stranger(free_port: int) -> socket.socket:
    """Has the endpoint's port, and answers nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", free_port))
    made.listen()
    return made


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_port_that_another_program_has_is_named_and_taken_when_it_is_free(
    job: Cluster, stranger: socket.socket, backend: str
) -> None:
    port = stranger.getsockname()[1]
    static = "--rdzv-backend", "static", "--master-addr", "localhost", "--rdzv-conf", f"control_port={port}", "--node-rank"
    with closing(stranger):
        agents = [job.agent(name, "2", *((*static, n) if backend == "static" else ()), nproc=1) for n, name in enumerate("ab")]
        while f"by pid {os.getpid()} (" not in agents[0].stderr:
            caller, _ = stranger.accept()  # as a program that turns everybody away does
            caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            caller.close()
    agents[0].wait_for_output("it speaks HTTP, not Holdfast's protocol; trying again")
    job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0]


def test_a_name_that_resolves_only_after_a_while_is_asked_for_again(hosts: Callable[..., Job]) -> None:
    job = hosts("a", "b", endpoint="head:29400")
    for name in "ab":
        job.agent(name)
    for name in "ab":
        job.agents[name].wait_for_output("cannot resolve head")
    _know(job, "head", job.switch.places["a"].address)
    assert {job.rank(rank, 1).master for rank in range(2)} == {job.switch.places["a"].address}
    job.finish("a", "b")


def test_a_name_that_means_another_host_at_first_is_served_when_it_means_this_one(hosts: Callable[..., Job]) -> None:
    job = hosts("a", "b", endpoint="head:29400")
    _know(job, "head", "10.77.0.99")
    for name in "ab":
        job.agent(name)
    job.agents["a"].wait_for_output("no answer yet from the coordinator")
    _know(job, "head", job.switch.places["a"].address)
    for rank in range(2):
        job.rank(rank, 1)
    job.finish("a", "b")


def test_an_agent_that_waits_for_a_name_goes_when_it_is_told_to(holdfast: Any, script: Callable[[str], Any]) -> None:
    agent = holdfast.start("run", "--nnodes", "2", "--rdzv-endpoint", "head.invalid:29400", script("print(1)"))
    agent.wait_for_output("cannot resolve head.invalid")
    agent.kill(signal.SIGTERM)
    assert agent.wait().returncode == -signal.SIGTERM


def _know(job: Job, name: str, address: str) -> None:
    """From now on all hosts know this name."""
    for place in job.switch.places.values():
        path = ETC / place.namespace / "hosts"
        known = "".join(line for line in path.read_text().splitlines(keepends=True) if name not in line.split())
        path.write_text(f"{known}{address} {name}\n")  # in place: it is shown to processes that run
