"""What becomes of a Kubernetes cluster that a supervisor drains nodes of, beyond what any orchestrator does?

Each is asked of the stand-in for the API server, and of a real one where there is one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.servers.kubernetes import SUPERVISOR, Kubernetes
from kit.servers.kubernetes_standin import Standin, rights_of

from holdfast.core.errors import HoldfastError
from holdfast.integrations.kubernetes.fleet_store import open_store
from holdfast.integrations.kubernetes.orchestrator import Adapter
from holdfast.supervisor.fleet.messages import Need
from holdfast.supervisor.orchestrator import orchestrator

LOUD = "its fan is loud"
TRAIN = {"app": "train"}


@pytest.fixture
def adapter(kubernetes: Kubernetes) -> Any:
    return orchestrator("kubernetes", "", ())


def taints(cluster: Kubernetes, node: str) -> list[tuple[str, str]]:
    return [(one["key"], one["effect"]) for one in cluster.node(node)["spec"].get("taints", [])]


def reason(cluster: Kubernetes, node: str) -> str:
    return str(cluster.node(node)["metadata"].get("annotations", {}).get("holdfast/reason"))


# --- repairs --------------------------------------------------------------------------------------------------------------


def test_a_node_is_empty_when_only_daemon_sets_are_there(kubernetes, adapter):
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "holdfast-daemon", "uid": "of-it", "controller": True}
    kubernetes.add_pod("holdfast-daemon-x", "n1", "10.0.0.5", ownerReferences=[owner])
    kubernetes.add_pod("web-1", "n1", "10.0.0.7", labels={"app": "web"})
    with pytest.raises(HoldfastError, match="n1 is not cordoned"):
        adapter.vacant("n1")
    adapter.drain("n1", LOUD)
    with pytest.raises(HoldfastError, match="2 pods are on n1: default/train-0-a, default/web-1"):
        adapter.vacant("n1")  # the first is on its way out
    for pod in ("train-0-a", "web-1"):
        kubernetes.ask("DELETE", f"/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0")
    assert adapter.vacant("n1") == "n1 is cordoned, and no pod is there but of DaemonSets"


def test_a_label_is_given_once_for_each_key(kubernetes, adapter):
    reboot = "cloud.google.com/perform-reboot"

    def labels() -> dict[str, str]:
        return dict(kubernetes.node("n1")["metadata"].get("labels", {}))

    adapter.label("n1", "1-1.label", f"{reboot}=true")
    assert labels()[reboot] == "true"
    kubernetes.ask("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {reboot: None}}})  # as the cloud does afterwards
    adapter.label("n1", "1-1.label", f"{reboot}=true")
    assert reboot not in labels()
    adapter.label("n1", "1-2.label", f"{reboot}=true")
    assert labels()[reboot] == "true"


# --- drain and uncordon ---------------------------------------------------------------------------------------------------


def test_our_pods_are_evicted_and_nobody_else_s(kubernetes, adapter):
    kubernetes.add_pod("web-1", "n1", "10.0.0.7", labels={"app": "web"})
    kubernetes.add_pod("by-hand", "n1", "10.0.0.8", labels={"holdfast/agent": ""})
    said = adapter.drain("n1", LOUD)
    assert "1 of our pods there evicted" in said
    assert kubernetes.staying() == ["by-hand", "train-1-a", "web-1"], "nobody would make by-hand again"
    assert taints(kubernetes, "n1")[0] == ("holdfast/unfit", "NoSchedule") and kubernetes.node("n1")["spec"]["unschedulable"]


def test_a_pod_that_its_budget_needs_stays_until_it_is_replaced(kubernetes, adapter):
    kubernetes.add_budget("train", TRAIN, 0)
    said = adapter.drain("n1", LOUD)
    assert "train-0-a stays for now: Cannot evict pod as it would violate the pod's disruption budget" in said
    assert kubernetes.staying() == ["train-0-a", "train-1-a"]
    assert "Job train makes other pods for n1" in adapter.replace("n1", "1-1.replace", Need(reason=LOUD))
    assert kubernetes.staying() == ["train-1-a"]


def test_a_budget_that_allows_one_lets_one_go(kubernetes, adapter):
    kubernetes.add_agent("train-2-a", "n1")
    kubernetes.add_budget("train", TRAIN, 1)
    assert "1 of our pods there evicted" in adapter.drain("n1", LOUD)
    assert len(kubernetes.staying()) == 2


def test_what_others_have_done_to_a_node_is_left(kubernetes, adapter):
    kubernetes.taint("n1", "site/burn-in")
    kubernetes.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    adapter.drain("n1", LOUD)
    assert reason(kubernetes, "n1") == LOUD
    assert "as far as we are concerned: cordoned, and not by us" in adapter.uncordon("n1", "a new fan")
    assert kubernetes.node("n1")["spec"]["unschedulable"] and ("site/burn-in", "NoExecute") in taints(kubernetes, "n1")
    assert "holdfast/unfit" not in dict(taints(kubernetes, "n1"))


def test_a_node_that_was_drained_twice_is_let_back_as_a_whole(kubernetes, adapter):
    adapter.drain("n1", LOUD)
    adapter.drain("n1", "it burns")
    adapter.uncordon("n1", "a new fan")
    assert not kubernetes.node("n1")["spec"].get("unschedulable") and "holdfast/unfit" not in dict(taints(kubernetes, "n1"))
    assert not [name for name in kubernetes.node("n1")["metadata"].get("annotations", {}) if name.startswith("holdfast/")]


def test_a_drain_that_is_asked_again_evicts_no_pod_that_came_since_and_cordons_no_node_that_somebody_lets_be_used(
    kubernetes, adapter
):
    kubernetes.add_budget("train", TRAIN, 0)
    assert "train-0-a stays for now" in adapter.drain("n1", LOUD)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "other", "uid": "of-it", "controller": True}
    kubernetes.add_pod("other-0", "n1", "10.0.0.8", labels={"holdfast/agent": "", "app": "other"}, ownerReferences=[owner])
    assert "train-0-a stays for now" in adapter.drain("n1", LOUD)
    kubernetes.delete_pod("train-0-a")
    kubernetes.ask("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    assert adapter.drain("n1", LOUD) == "n1 was drained before, and somebody has uncordoned it since"
    assert "other-0" in kubernetes.staying()
    adapter.uncordon("n1", "a new fan")
    assert "1 of our pods there evicted" in adapter.drain("n1", LOUD) and "other-0" not in kubernetes.staying()


def test_what_keeps_a_node_from_work_is_told(kubernetes, adapter):
    kubernetes.set_ready("n1", False)
    kubernetes.taint("n2", "node.kubernetes.io/disk-pressure", "nvidia.com/gpu")
    assert adapter.uncordon("n1", "a new fan").endswith("as far as we are concerned: not ready: Test")
    assert adapter.uncordon("n2", "a new fan").endswith("as far as we are concerned: taint node.kubernetes.io/disk-pressure")


def test_several_that_change_a_node_at_a_time_lose_nothing(kubernetes, adapter):
    threads = [threading.Thread(target=adapter.replace, args=("n2", f"1-{n}.replace", LOUD)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noted = json.loads(kubernetes.node("n2")["metadata"]["annotations"]["holdfast/replaced"])
    assert sorted(noted) == [f"1-{n}.replace" for n in range(4)]


FIRST = """
import sys, threading
from lightkube.core.decoders import decode_list
from lightkube.resources.core_v1 import Pod
from holdfast.integrations.kubernetes.orchestrator import Adapter
Adapter()
sys.setswitchinterval(1e-6)
ready = threading.Barrier(8)
def decodes():
    ready.wait()
    decode_list(b'{"items": [{"metadata": {"name": "a"}, "spec": {"containers": []}}]}', Pod)
threads = [threading.Thread(target=decodes) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""


def test_threads_that_ask_first_and_together_do_not_end_the_supervisor():
    """msgspec ends its process where several threads are the first to decode a type."""
    assert subprocess.run([sys.executable, "-c", FIRST], timeout=60).returncode == 0


# --- replace --------------------------------------------------------------------------------------------------------------


def test_what_was_killed_in_the_middle_goes_on_with_the_same_pods(kubernetes, adapter):
    uid = kubernetes.pods()["train-0-a"]["metadata"]["uid"]
    noted = {"metadata": {"annotations": {"holdfast/replaced": json.dumps({"1-1.replace": [uid]})}}}
    kubernetes.ask("PATCH", "/api/v1/nodes/n1", noted)  # a supervisor wrote that down, and was killed
    kubernetes.add_agent("train-0-b", "n1")
    adapter.replace("n1", "1-1.replace", Need(reason=LOUD))
    assert kubernetes.staying() == ["train-0-b", "train-1-a"]


def test_a_pod_of_a_node_that_is_silent_is_not_waited_for_unless_two_of_its_name_might_live(kubernetes, adapter):
    kubernetes.add_agent("train-2", "n1", kind="StatefulSet")
    kubernetes.set_ready("n1", False)
    adapter.replace("n1", "1-1.replace", Need(reason=LOUD))
    assert sorted(kubernetes.pods()) == ["train-1-a", "train-2"] and kubernetes.staying() == ["train-1-a"]


def test_a_node_that_is_drained_and_empty_has_been_replaced(kubernetes, adapter):
    adapter.drain("n1", LOUD)
    kubernetes.delete_pod("train-0-a")
    assert "no pod of ours is left on n1" in adapter.replace("n1", "1-1.replace", Need(reason=LOUD))


def test_where_no_pod_of_ours_is_it_says_what_is_missing(kubernetes, adapter):
    kubernetes.delete_pod("train-0-a")
    with pytest.raises(HoldfastError, match="no pod on n1 that a controller would recreate") as raised:
        adapter.replace("n1", "1-1.replace", Need(reason=LOUD))
    assert "holdfast/agent" in raised.value.hint


# --- the API server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def standin(kubernetes: Kubernetes) -> Standin:
    if not isinstance(kubernetes, Standin):
        pytest.skip("a real API server is not made to fail")
    return kubernetes


def test_it_makes_the_requests_that_it_has_the_rights_for_and_no_others(standin, adapter):
    standin.add_budget("train", TRAIN, 0)
    adapter.drain("n1", LOUD)
    adapter.replace("n1", "1-1.replace", Need(reason=LOUD))
    adapter.uncordon("n1", "a new fan")
    with closing(open_store("holdfast-supervisor", "host")) as store:
        assert not store.seek()
        store.load()
    assert {(verb, what) for account, verb, what in standin.asked if account == "holdfast-supervisor"} == rights_of(SUPERVISOR)


def test_an_api_server_that_is_busy_is_asked_again(standin, adapter):
    standin.troubles += [(429, "Too many requests"), (503, "starting"), (410, "too old resource version")]
    adapter.drain("n1", LOUD)
    assert not standin.troubles and reason(standin, "n1") == LOUD


def test_what_it_refuses_is_told_in_its_words(standin, adapter):
    standin.rights["holdfast-supervisor"].remove(("patch", "nodes"))
    with pytest.raises(HoldfastError, match=r"node n1: nodes is forbidden: .* \(403\)") as raised:
        adapter.drain("n1", LOUD)
    assert "rbac.yaml" in raised.value.hint


def test_an_api_server_that_never_answers_costs_a_call_its_deadline(kubernetes, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(hole.getsockname()[1]))
        with pytest.raises(HoldfastError, match=r"node n1: https://127\.0\.0\.1:"):
            Adapter(step_s=0.3).drain("n1", LOUD)


def test_a_kubeconfig_goes_before_the_pod_s_own_account(kubernetes, adapter, monkeypatch, tmp_path):
    token = Path(os.environ["HOLDFAST_SERVICE_ACCOUNT"], "token").read_text()
    (tmp_path / "ca.crt").write_bytes(kubernetes.ca)
    user = {"clusters": [{"name": "c", "cluster": {"server": kubernetes.url, "certificate-authority": "ca.crt"}}]}
    user |= {"users": [{"name": "u", "user": {"token": token}}], "current-context": "x"}
    user |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "default"}}]}
    (tmp_path / "config").write_text(yaml.safe_dump(user))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert "Kubernetes gives n1 no more work" in adapter.drain("n1", LOUD)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(HoldfastError, match=r"cannot query Kubernetes: .*nothing"):
        adapter.drain("n1", LOUD)


def test_outside_of_a_cluster_it_says_what_it_wants(monkeypatch, tmp_path):
    monkeypatch.setenv("HOLDFAST_SERVICE_ACCOUNT", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(HoldfastError, match="cannot query Kubernetes") as raised:
        orchestrator("kubernetes", "", ()).drain("n1", LOUD)
    assert "KUBECONFIG" in raised.value.hint
