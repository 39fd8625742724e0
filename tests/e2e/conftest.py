"""`job`: agents on this host that meet at one endpoint. `hosts`: several hosts, with a network between them that can be cut.
`page`: of a real browser. `kubernetes`: what a supervisor in a pod sees, of the tests' stand-in for an API server and of a real
one where there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.browser import browser as browser
from kit.browser import page as page
from kit.jobs.ranks import WAITS, Cluster
from kit.network import netns
from kit.network.netjob import Job
from kit.servers import kubernetes as kubernetes_infra
from kit.servers.kubernetes_standin import Standin


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


@pytest.fixture(scope="session")
def _api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes_infra.Real]:
    real = kubernetes_infra.Real(tmp_path_factory.mktemp("kubernetes") / "cluster")
    yield real
    real.stop()


@pytest.fixture(params=["stand-in", *(["API server"] if kubernetes_infra.has_api_server() else [])])
def kubernetes_api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[kubernetes_infra.Kubernetes]:
    """A cluster without nodes."""
    if request.param == "API server":
        real: kubernetes_infra.Real = request.getfixturevalue("_api_server")
        yield real
        return real.clear()
    standin = Standin(tmp_path / "cluster")
    yield standin
    standin.stop()


@pytest.fixture
def kubernetes(kubernetes_api: kubernetes_infra.Kubernetes, monkeypatch: pytest.MonkeyPatch) -> kubernetes_infra.Kubernetes:
    """Nodes n1 and n2 with a pod of a Job's each, train-0-a and train-1-a; and we are in a pod of the supervisor's."""
    for number, name in enumerate(("n1", "n2")):
        kubernetes_api.add_node(name)
        kubernetes_api.add_agent(f"train-{number}-a", name)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in kubernetes_api.pod_env("holdfast-supervisor").items():
        monkeypatch.setenv(name, value)
    return kubernetes_api
