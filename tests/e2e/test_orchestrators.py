"""Each orchestrator keeps to the one contract: plain hosts, a real Slurm cluster on one machine, Kubernetes.

Kubernetes is the tests' own stand-in for its API server, and a real one where there is one; both with the rights of the
manifests in deploy/kubernetes, and no others. test_kubernetes_orchestrator.py has what only Kubernetes can be asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.servers import slurm as slurm_infra
from kit.servers.kubernetes import Kubernetes
from kit.servers.orchestrators import OrchestratorSuite

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.supervisor.fleet.messages import Need
from holdfast.supervisor.orchestrator import Local, orchestrator


class TestLocal(OrchestratorSuite):
    """Plain hosts."""

    @pytest.fixture
    def orchestrator(self, tmp_path: Path, wait_until: Any) -> Local:
        self.asked, self.wait_until, self.noted = tmp_path / "asked", wait_until, tmp_path / "local/nodes.json"
        code = f"import os; os.write(os.open({str(self.asked)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b'x')"
        return Local(str(tmp_path), (sys.executable, "-c", code))

    def held(self, name: str) -> str:
        return str(json.loads(self.noted.read_text()).get(name, ""))

    def asked_for(self, wanted: int) -> int:
        self.wait_until(lambda: self.asked.exists() and len(self.asked.read_text()) >= wanted)
        return len(self.asked.read_text())

    def test_it_remembers(self, orchestrator: Local, tmp_path: Path) -> None:
        orchestrator.drain("n1", "its fan is loud")
        Local(str(tmp_path)).drain("n2", "it burns")
        assert (self.held("n1"), self.held("n2")) == ("its fan is loud", "it burns")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_infra.Slurm]:
    """Started once for all."""
    if reason := slurm_infra.why_not():
        pytest.skip(reason)
    cluster = slurm_infra.Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


class TestSlurm(OrchestratorSuite):
    """A real cluster of three nodes."""

    replaces = False

    @pytest.fixture
    def orchestrator(self, cluster: slurm_infra.Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        for name, value in cluster.env.items():
            monkeypatch.setenv(name, value)
        self.cluster = cluster
        yield (slurm := orchestrator("slurm", "", ()))
        for name in cluster.names:
            slurm.uncordon(name, "the test is over")

    def held(self, name: str) -> str:
        told = self.cluster.ask("scontrol", "show", "node", name, "--oneliner")
        return told.partition(" Reason=")[2].partition(" [")[0].strip() if "DRAIN" in told.partition(" State=")[2][:40] else ""

    def test_a_node_that_it_does_not_know_is_told_so(self, orchestrator: Any) -> None:
        with pytest.raises(HoldfastError, match=r"scontrol: .*[Ii]nvalid node"):
            orchestrator.drain("nobody", "its fan is loud")


class TestKubernetes(OrchestratorSuite):
    """Nodes n1 and n2 with an agent's pod on each."""

    @pytest.fixture
    def orchestrator(self, kubernetes: Kubernetes) -> Any:
        self.cluster = kubernetes
        return orchestrator("kubernetes", "", ())

    def held(self, name: str) -> str:
        node = self.cluster.node(name)
        assert bool(node["spec"].get("unschedulable")) == ("holdfast/reason" in node["metadata"].get("annotations", {}))
        return str(node["metadata"].get("annotations", {}).get("holdfast/reason", ""))

    def leave(self, name: str) -> None:
        pod = {"n1": "train-0-a", "n2": "train-1-a"}[name]
        self.cluster.ask("DELETE", f"/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0")

    def has_come(self) -> None:
        self.cluster.add_agent("train-0-b", "n1")

    def asked_for(self, wanted: int) -> int:
        return len({"train-0-a", "train-0-b"} - {*self.cluster.staying()})

    def test_a_node_that_it_does_not_know_is_told_so(self, orchestrator: Any) -> None:
        with pytest.raises(HoldfastError, match=r'node nobody: nodes "nobody" not found'):
            orchestrator.drain("nobody", "its fan is loud")


def test_a_command_is_not_for_kubernetes_which_makes_pods_by_itself(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--replace-with"):
        orchestrator("kubernetes", str(tmp_path), ("true",))
    with pytest.raises(UsageError, match="there is no 'pbs'"):
        orchestrator("pbs", str(tmp_path), ())


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="no replacement is requested"):
        Local(str(tmp_path)).replace("n1", "1-1.replace", Need(reason=""))
    with pytest.raises(HoldfastError, match="cannot be started"):
        Local(str(tmp_path), ("/no/such/program",)).replace("n1", "1-1.replace", Need(reason=""))
