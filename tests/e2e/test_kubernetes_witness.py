"""Does Kubernetes speak for the node that is left, when the other is dead for sure, and only then?

Each question is asked of a real API server where there is one, and of the tests' own stand-in for it.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from kit.jobs.succession import LOGS, begin, lose
from kit.servers.kubernetes import Kubernetes, Real
from kit.servers.kubernetes_standin import Standin

from holdfast.agent.reporting.child_program import program

US, THEM = "10.0.0.2:4000", "train-0.train.default.svc.cluster.local:29400"
POWER, SHUTDOWN = "node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown"


@pytest.fixture
def cluster(kubernetes_api: Kubernetes) -> Kubernetes:
    """A cluster with the pods train-0 on n1 and train-1, ours, on n2."""
    for name in ("n1", "n2"):
        kubernetes_api.add_node(name)
    kubernetes_api.add_pod("train-0-x7", "n1", "10.0.0.1", hostname="train-0", subdomain="train")
    kubernetes_api.add_pod("train-1-z9", "n2", "10.0.0.2", hostname="train-1", subdomain="train")
    return kubernetes_api


def ask(cluster: Kubernetes, us: str = US, *missing: str) -> str:
    """What the program says that the agent runs."""
    command = [*program("kubernetes.witness"), "20", us, *(missing or (THEM,))]
    return subprocess.run(command, env=os.environ | cluster.env, capture_output=True, text=True, check=True).stdout.strip()


def test_a_pod_whose_kubelet_has_seen_it_end_is_dead(cluster):
    assert ask(cluster).startswith("silent") and "pod train-0-x7 is Running on node n1, which is Ready" in ask(cluster)
    cluster.end_pod("train-0-x7")
    assert ask(cluster) == f"speaks for {US}"
    assert ask(cluster, US, "10.0.0.1:4001") == f"speaks for {US}", "by its address as well as by its name"


@pytest.mark.parametrize("taint", [POWER, SHUTDOWN])
def test_a_node_without_power_is_dead_when_it_does_not_answer_either(cluster, taint):
    cluster.taint("n1", taint)
    assert ask(cluster).startswith("silent"), "it is Ready: whoever put that there is mistaken"
    cluster.set_ready("n1", False)
    assert ask(cluster) == f"speaks for {US}"


def test_a_node_that_is_deleted_is_dead(cluster):
    cluster.delete_node("n1")
    assert ask(cluster) == f"speaks for {US}"


def test_what_may_be_cut_off_only_is_not_dead(cluster):
    cluster.set_ready("n1", False)
    cluster.taint("n1", "node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    assert "on node n1, which is not Ready" in ask(cluster)
    cluster.fail_pod("train-0-x7")
    assert ask(cluster).startswith("silent"), "a controller says so, and its kubelet has said nothing"
    cluster.delete_pod("train-0-x7")
    assert "no pod of namespace default runs there" in ask(cluster), "by force: it may run on"


def test_a_pod_that_has_taken_its_place_lives_and_one_that_waits_for_a_node_does_not(cluster):
    cluster.end_pod("train-0-x7")
    cluster.add_pod("train-0-y8", "n2", "10.0.0.3", hostname="train-0", subdomain="train")
    assert ask(cluster).startswith("silent")
    cluster.delete_pod("train-0-y8")
    cluster.add_pod("train-0-w5", "", "", hostname="train-0", subdomain="train")
    assert ask(cluster) == f"speaks for {US}"


def test_an_address_of_a_pod_that_had_ended_before_is_nobody_s(cluster):
    cluster.end_pod("train-0-x7", at="2025-12-31T00:00:00Z")
    assert "no pod of namespace default runs there" in ask(cluster)


def test_it_speaks_for_nobody_whose_own_node_is_dead_or_whom_it_does_not_know(cluster):
    cluster.delete_node("n1")
    cluster.delete_node("n2")
    assert ask(cluster).startswith("silent")
    assert ask(cluster, "10.9.9.9:4000").startswith("trouble")


def test_without_the_right_to_see_nodes_only_pods_count_and_without_any_none(cluster):
    if isinstance(cluster, Real):
        pytest.skip("its rights are those of the example's manifest, for all tests")
    cluster.may_see.remove("nodes")
    assert "trouble" in ask(cluster) and "the service account may not see nodes/n2 (403)" in ask(cluster)
    cluster.end_pod("train-0-x7")
    assert ask(cluster) == f"speaks for {US}"
    cluster.may_see.clear()
    assert ask(cluster) == "trouble the service account may not list the pods of namespace default (403)"


def test_a_server_that_nobody_vouches_for_is_not_believed(cluster, tmp_path):
    stranger = Standin(tmp_path / "stranger")
    cluster.env["HOLDFAST_SERVICE_ACCOUNT"] = stranger.env["HOLDFAST_SERVICE_ACCOUNT"]
    said = ask(cluster)
    stranger.stop()
    cluster.env["HOLDFAST_SERVICE_ACCOUNT"] = str(cluster.account)
    assert said.startswith("trouble") and "certificate verify failed" in said


def pods_of_agents(cluster: Kubernetes) -> None:
    """The two agents of `begin`: the first at the endpoint, the second at 127.0.0.2."""
    cluster.add_pod("a", "n1", "127.0.0.1", hostname="localhost")
    cluster.add_pod("b", "n2", "127.0.0.2")


def test_of_two_pods_the_one_left_goes_on_once_the_other_is_dead(cluster, job):
    pods_of_agents(cluster)
    agents = begin(job, "ab", "1:2", "--witness", "kubernetes", env=LOGS | cluster.env, apart=True)
    lose(job, agents, "a")
    agents["b"].wait_for_output("the witness does not speak for this node: kubernetes: 127.0.0.2:")
    cluster.end_pod("a")
    assert job.rank(0, 0, 2)[1] == 1
    job.finish()
    assert agents["b"].wait().returncode == 0
    assert "the witness cannot help" not in agents["a"].stderr + agents["b"].stderr


def test_what_would_keep_the_witness_from_answering_is_said_at_the_start(job_of_one, tmp_path):
    cluster = Standin(tmp_path / "cluster")
    cluster.may_see.clear()
    agent = job_of_one("--witness", "kubernetes", env=cluster.env)
    agent.wait_for_output("the witness cannot help: kubernetes: the service account may not list the pods")
    agent.kill()
    agent.wait()
    cluster.stop()


@pytest.fixture
def job_of_one(holdfast, free_port, script) -> Any:
    def start(*options: str, env: dict[str, str]) -> Any:
        meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}")
        return holdfast.start("run", "--nnodes", "2", *meet, *options, script("pass"), env=env)

    return start


def test_kubernetes_as_a_witness_is_for_pods(job_of_one):
    end = job_of_one("--witness", "kubernetes", env={}).wait()
    assert end.returncode == 2 and "this agent is not in a pod" in end.stderr
