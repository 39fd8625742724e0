"""A supervisor in a Kubernetes takes a sick node out of a job whose agents are pods: what becomes of node, pods and job?

Agents, ranks and supervisor are real, and the API server where there is one, with Kubernetes' own Job controller and scheduler
where they are there; `infra.kubelets` are the kubelets, and those two where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.jobs.ranks import Cluster
from kit.servers.kubelets import ROOM, Hands
from kit.servers.kubelets import job as job_of
from kit.servers.kubernetes import MISSING, NAMESPACE, Kubernetes, Real, has_api_server, has_controllers
from test_supervisor import fleet  # noqa: F401  (a fixture)

NODES = ("n1", "n2", "n3", "n4")
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


class Site:
    """A cluster of four nodes, a supervisor that may drain them, and a job."""

    def __init__(self, cluster: Kubernetes, supervised: Supervised, job: Cluster) -> None:
        self.cluster, self.fleet, self.job = cluster, supervised, job
        self.hands: Hands | None = None
        self.agents: list[Any] = []
        self.real = isinstance(cluster, Real) and has_controllers()

    def begin(self, pods: int, nnodes: str) -> None:
        """Let pods of a job come, and wait until their agents are known."""
        for name in NODES:
            self.cluster.add_node(name)
            self.cluster.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"allocatable": ROOM, "capacity": ROOM}})
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.job.port}", "--rdzv-id", "swap"]
        where = ["--supervisor", self.fleet.where, "--nnodes", nnodes, "--nproc-per-node", "1"]
        command = ["holdfast", "run", *where, *meet, "--max-restarts", "3", str(self.job.program), str(self.job.folder)]
        wanted = job_of("train", pods, command)
        if self.real:
            assert isinstance(self.cluster, Real)
            self.cluster.start_controllers()
            self.cluster.ask("POST", JOBS, wanted)
        self.hands = Hands(self.cluster, self._start, None if self.real else wanted)
        self.job.rank(0, 0, 1)
        self.fleet.wait_until(lambda: sorted(self.states().values()) == sorted(["fit"] * 2 + ["spare"] * (pods - 2)))

    def states(self) -> dict[str, str]:
        self.check()
        return self.fleet.states()

    def check(self) -> None:
        assert self.hands is None or self.hands.error is None, self.hands.error

    def guest(self) -> str:
        """A node with ranks that has not the coordinator."""
        return next(name for name, state in self.states().items() if state == "fit" and name != self.job.host())

    def on(self, node: str) -> list[str]:
        """Pods there that nobody has told to go."""
        pods = self.cluster.pods()
        return [name for name in self.cluster.staying() if pods[name]["spec"].get("nodeName") == node]

    def end(self) -> None:
        """The job ends, and its pods with it."""
        self.job.finish()
        wait = self.fleet.wait_until
        wait(lambda: self.check() or all(pod["status"].get("phase") == "Succeeded" for pod in self.cluster.pods().values()))

    def _start(self, command: list[str], env: dict[str, str]) -> Any:
        self.agents.append(self.fleet.holdfast.start(*command[1:], env=env))
        return self.agents[-1]

    def stop(self) -> None:
        try:
            if self.hands is not None:
                self.hands.stop()
        finally:
            if self.real and isinstance(self.cluster, Real):
                self.cluster.stop_controllers()
                for made in self.cluster.ask("GET", JOBS)["items"]:
                    self.cluster.ask("DELETE", f"{JOBS}/{made['metadata']['name']}?propagationPolicy=Background")


@pytest.fixture
def site(
    kubernetes_api: Kubernetes,
    fleet: Supervised,  # noqa: F811
    job: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in kubernetes_api.pod_env("holdfast-supervisor").items():
        monkeypatch.setenv(name, value)
    site = Site(kubernetes_api, fleet, job)
    yield site
    site.stop()


def test_a_sick_node_s_pod_goes_a_spare_takes_over_and_a_new_pod_is_the_next_spare(site):
    site.fleet.start("--orchestrator", "kubernetes")
    site.begin(3, "2")
    sick, (spare,) = site.guest(), [name for name, state in site.states().items() if state == "spare"]
    (free,) = {*NODES} - {*site.states()}
    assert site.fleet.drain(sick).returncode == 0
    deed = site.fleet.over(sick)
    assert deed["act"] == "swap" and deed["outcome"] == f"{spare} has taken over in round 2"
    assert "1 of our pods there evicted" in str(deed), deed
    site.fleet.wait_until(lambda: site.states().get(free) == "spare" and site.on(free) and not site.on(sick))
    node = site.cluster.node(sick)
    assert node["spec"]["unschedulable"] and node["metadata"]["annotations"]["holdfast/reason"] == "its fan is loud"
    assert site.states()[spare] == "fit"
    site.end()


def test_without_a_spare_the_job_shrinks_and_grows_again_by_the_pod_that_is_made(site):
    site.fleet.start("--orchestrator", "kubernetes")
    site.begin(2, "1:2")
    sick = site.guest()
    assert site.fleet.drain(sick).returncode == 0
    site.fleet.over(sick)
    site.fleet.wait_until(lambda: [*site.states().values()].count("fit") == 2 and not site.on(sick))
    assert len(site.cluster.staying()) == 2
    site.end()


def test_without_a_spare_a_job_that_needs_all_nodes_waits_for_the_pod_that_is_made(site):
    site.fleet.start("--orchestrator", "kubernetes")
    site.begin(2, "2")
    sick = site.guest()
    assert "it waits for another node" in site.fleet.drain(sick).stdout
    deed = site.fleet.over(sick)
    assert deed["act"] == "replace" and deed["outcome"] == "the job goes on with 2 nodes in round 2"
    assert "makes other pods" in str(deed) or "is left on" in str(deed), deed
    site.fleet.wait_until(lambda: [*site.states().values()].count("fit") == 2 and not site.on(sick))
    site.end()


def test_a_real_api_server_is_asked_wherever_the_stand_in_is() -> None:
    """Every test with the fixture `kubernetes` is run a second time then."""
    if not has_api_server():
        pytest.skip(MISSING)
