"""`job`: agents on this host that meet at one endpoint. `hosts`: several hosts, with a network between them that can be cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from infra import netns
from infra.netjob import Job
from infra.ranks import WAITS, Cluster


@pytest.fixture
def job(holdfast: Any, free_port: int, tmp_path: Path, script: Any, wait_until: Any) -> Cluster:
    """Its agents' ranks wait to be told to finish; none is started yet."""
    return Cluster(holdfast, free_port, tmp_path / "ranks", script(WAITS), wait_until)


@pytest.fixture(scope="session")
def _no_hosts() -> str:
    return netns.why_not()


@pytest.fixture
def hosts(holdfast: Any, tmp_path: Path, wait_until: Any, alive: Any, _no_hosts: str) -> Iterator[Callable[..., Job]]:
    """`hosts("a", "b")`: a job whose agents can be started on these hosts. Further arguments are `Switch`'s, and `endpoint`."""
    if _no_hosts:
        pytest.skip(_no_hosts)
    switches: list[netns.Switch] = []
    commands: list[Any] = []

    def make(*names: str, endpoint: str = "", **how: Any) -> Job:
        switch = netns.Switch(names, **how)
        switches.append(switch)
        ranks = tmp_path / "ranks"
        ranks.mkdir()
        for name, place in switch.places.items():
            (tmp_path / name).mkdir()
            commands.append(type(holdfast)(tmp_path / name, place.through))
        return Job(switch, dict(zip(names, commands)), ranks, wait_until, endpoint=endpoint)

    yield make
    try:
        for switch in switches:
            switch.heal()
        for command in commands:
            command.stop_all()
        deadline = time.monotonic() + 1.0
        while (left := alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        for switch in switches:
            switch.close()
    if left:
        pytest.fail(f"left behind on the hosts: {left}", pytrace=False)
