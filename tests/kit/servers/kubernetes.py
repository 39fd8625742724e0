"""A Kubernetes without kubelets for tests: nodes and pods are what the test says they are.

`Real` is an API server with an etcd of its own; `kubernetes_standin.Standin` a small HTTPS server that keeps and patches
objects as that one does, as far as the tests go. Both are driven by the same requests, so that what passes with one says
something of the other.
Kubernetes' API server is not packaged by Debian; `apiserver.sh` builds one from Debian's sources within minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import trustme
import yaml
from kit import ROOT
from kit.ports import ports
from kit.servers.etcd import Etcd

MISSING = "no kube-apiserver on the PATH, and Debian has none: tests/kit/servers/apiserver.sh FOLDER builds one in FOLDER/bin"
WITNESS, IN_PLACE = (ROOT / "examples/kubernetes" / name for name in ("witness.yaml", "in-place-restart.yaml"))
SUPERVISOR = ROOT / "deploy/kubernetes/base/rbac.yaml"
"""Manifests: what each of them may do. The first two are for the same account."""
PATIENCE_S = 60.0
NAMESPACE = "default"
JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
LEASES, MAPS = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SINCE = "2026-01-01T00:00:00Z"
"""When the pods of a test began."""


class Kubernetes:
    """What a test does with a cluster. `env`: what a pod's programs find in their environment."""

    policy = "policy/v1"
    """Where budgets are."""

    def __init__(self, folder: Path, port: int, ca: bytes) -> None:
        self.url, self.ca, self.folder = f"https://127.0.0.1:{port}", ca, folder
        self.env = self.pod_env("holdfast")
        self.account = Path(self.env["HOLDFAST_SERVICE_ACCOUNT"])

    def pod_env(self, account: str) -> dict[str, str]:
        """What a pod with that service account finds in its environment. Its token is there once the account is."""
        folder = self.folder / account
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_bytes(self.ca)
        (folder / "namespace").write_text(NAMESPACE)
        _, _, port = self.url.rpartition(":")
        place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        return {**place, "HOLDFAST_SERVICE_ACCOUNT": str(folder)}

    def ask(self, method: str, path: str, what: Any = None) -> Any:
        """A request of an administrator's."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": "Bearer admin", "Content-Type": kind}
        body = None if what is None else json.dumps(what).encode()
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=self.ca.decode()), timeout=10) as answer:
            return json.load(answer)

    def add_node(self, name: str) -> None:
        """A node that is Ready."""
        self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
        self.taint(name)  # an API server calls each new one not ready
        self.set_ready(name, True)

    def set_ready(self, name: str, ready: bool) -> None:
        """What the node controller finds: a node that does not answer is Unknown."""
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test", "message": ""}
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})

    def taint(self, name: str, *keys: str) -> None:
        """Give a node these taints, and no others."""
        taints = [{"key": key, "effect": "NoExecute"} for key in keys]
        self.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})

    def delete_node(self, name: str) -> None:
        self.ask("DELETE", f"/api/v1/nodes/{name}")

    def add_pod(self, name: str, node: str, ip: str, *, hostname: str = "", subdomain: str = "", **meta: Any) -> None:
        """A pod whose kubelet has said that it runs. Without a node: nobody has said anything of it. `meta`: labels, owners."""
        spec: dict[str, Any] = {"containers": [{"name": "train", "image": "train:1"}]}
        spec |= {key: value for key, value in (("nodeName", node), ("hostname", hostname), ("subdomain", subdomain)) if value}
        meta |= {"name": name, "namespace": NAMESPACE}
        self.ask("POST", self._pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        if not node:
            return
        self._say(name, "Running", {"running": {"startedAt": SINCE}}, podIP=ip, podIPs=[{"ip": ip}], startTime=SINCE)

    def add_agent(self, name: str, node: str, kind: str = "Job") -> None:
        """An agent's pod that a controller has made."""
        owner = {"apiVersion": "batch/v1", "kind": kind, "name": "train", "uid": f"uid-of-{name}", "controller": True}
        self.add_pod(name, node, "10.0.0.9", labels={"holdfast/agent": "", "app": "train"}, ownerReferences=[owner])

    def add_budget(self, name: str, labels: dict[str, str], allowed: int) -> None:
        """So many pods with these labels may go now."""
        path = self._budgets
        spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
        kind = {"apiVersion": self.policy, "kind": "PodDisruptionBudget"}
        made = self.ask("POST", path, {**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": allowed}
        seen = {"observedGeneration": made["metadata"].get("generation", 1)}
        self.ask("PATCH", f"{path}/{name}/status", {"status": {**counts, **seen}})

    def add_jobset(self, name: str, pods: int, strategy: str = "InPlaceRestart", **annotations: str) -> None:
        """A JobSet that wants so many pods; nobody makes them."""
        self.serve_jobsets()
        job = {"spec": {"completions": pods, "parallelism": pods}}
        spec = {"failurePolicy": {"restartStrategy": strategy, "maxRestarts": 1000}}
        meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations}
        kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
        self.ask("POST", JOBSETS, {**kind, "spec": {**spec, "replicatedJobs": [{"name": "a", "replicas": 1, "template": job}]}})

    def serve_jobsets(self) -> None:
        """Know JobSets."""

    def jobset(self, name: str) -> Any:
        return self.ask("GET", f"{JOBSETS}/{name}")

    def node(self, name: str) -> Any:
        return self.ask("GET", f"/api/v1/nodes/{name}")

    def pods(self) -> dict[str, Any]:
        """By name, as long as Kubernetes knows them."""
        return {pod["metadata"]["name"]: pod for pod in self.ask("GET", self._pods)["items"]}

    def clear(self) -> None:
        """Nothing is left of a test."""
        for name in self.pods():
            self.delete_pod(name)
        for node in self.ask("GET", "/api/v1/nodes")["items"]:
            self.delete_node(node["metadata"]["name"])
        for path in (self._budgets, LEASES, MAPS):
            for thing in self.ask("GET", path)["items"]:
                if path == self._budgets or thing["metadata"]["name"].startswith("holdfast-"):
                    self.ask("DELETE", f"{path}/{thing['metadata']['name']}")

    def staying(self) -> list[str]:
        """The pods that nobody has told to go."""
        return sorted(name for name, pod in self.pods().items() if not pod["metadata"].get("deletionTimestamp"))

    def end_pod(self, name: str, at: str = "2026-01-02T00:00:00Z") -> None:
        """Its kubelet has seen its container end."""
        self._say(name, "Failed", {"running": None, "terminated": {"exitCode": 137, "startedAt": SINCE, "finishedAt": at}})

    def fail_pod(self, name: str) -> None:
        """A controller calls it failed; its kubelet has said nothing."""
        self.ask("PATCH", f"{self._pods}/{name}/status", {"status": {"phase": "Failed", "reason": "NodeLost"}})

    def delete_pod(self, name: str) -> None:
        """By force: nobody asks its kubelet."""
        self.ask("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=0")

    def _say(self, name: str, phase: str, state: dict[str, Any], **more: Any) -> None:
        container = {"name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0}
        state = {key: value for key, value in state.items() if value is not None}
        ready = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]  # budgets count no others
        status = {"phase": phase, "conditions": ready, "containerStatuses": [{**container, "state": state}], **more}
        self.ask("PATCH", f"{self._pods}/{name}/status", {"status": status})

    @property
    def _budgets(self) -> str:
        return f"/apis/{self.policy}/namespaces/{NAMESPACE}/poddisruptionbudgets"

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods"


class Real(Kubernetes):
    """A real API server, with the rights that the manifests give."""

    policy = "policy/v1beta1"

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (port,) = ports(1)
        ca = trustme.CA()
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        super().__init__(folder, port, ca.cert_pem.bytes())
        (folder / "tokens.csv").write_text("admin,admin,1,system:masters\n")
        self.others: list[subprocess.Popen[bytes]] = []
        self.etcd = Etcd(folder / "etcd")
        self.log = (folder / "apiserver.log").open("wb")
        words = {
            "etcd-servers": f"http://{self.etcd.endpoints}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": folder / "certs",
            "tls-cert-file": folder / "server.pem",
            "tls-private-key-file": folder / "server.pem",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-key-file": folder / "server.pem",
            "service-account-signing-key-file": folder / "server.pem",
            "service-account-issuer": "https://kubernetes.default.svc",
            "token-auth-file": folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
            "endpoint-reconciler-type": "none",
        }
        command = ["kube-apiserver", *(f"--{name}={value}" for name, value in words.items())]
        # Without the test's mark: it serves several tests, and is ended by its own fixture.
        env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"}
        self.server = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        try:
            self._wait()
            things = [thing for file in (WITNESS, IN_PLACE, SUPERVISOR) for thing in yaml.safe_load_all(file.read_text())]
            for thing in {(thing["kind"], thing["metadata"]["name"]): thing for thing in things}.values():
                self.apply(thing)
            self._give_token(self.env, "holdfast")
        except BaseException:
            self.stop()
            raise

    def serve_jobsets(self) -> None:
        names = {"plural": "jobsets", "singular": "jobset", "kind": "JobSet", "listKind": "JobSetList"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1alpha2", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
        spec = {"group": "jobset.x-k8s.io", "names": names, "scope": "Namespaced", "versions": [version]}
        crds, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "jobsets.jobset.x-k8s.io"
        if name not in {thing["metadata"]["name"] for thing in self.ask("GET", crds)["items"]}:
            kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            self.ask("POST", crds, {**kind, "metadata": {"name": name}, "spec": spec})
        self._wait(JOBSETS)

    def _wait(self, path: str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin") -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask("GET", "/api/v1/namespaces/default")
                return self.ask("GET", path) and None
            except (OSError, urllib.error.HTTPError):
                assert self.server.poll() is None and time.monotonic() < deadline, Path(self.log.name).read_text()[-3000:]
                time.sleep(0.1)

    def apply(self, thing: dict[str, Any]) -> None:
        """Create an object of the example's."""
        group = "/api/v1" if thing["apiVersion"] == "v1" else f"/apis/{thing['apiVersion']}"
        kind = thing["kind"].lower() + "s"
        where = "" if kind.startswith("cluster") else f"/namespaces/{NAMESPACE}"
        self.ask("POST", f"{group}{where}/{kind}", thing)

    def pod_env(self, account: str) -> dict[str, str]:
        env = super().pod_env(account)
        if account != "holdfast":
            self._give_token(env, account)
        return env

    def _give_token(self, env: dict[str, str], account: str) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        Path(env["HOLDFAST_SERVICE_ACCOUNT"], "token").write_text(self.ask("POST", path, asked)["status"]["token"])

    def start_controllers(self) -> None:
        """Kubernetes' own, of Jobs and budgets, and its scheduler."""
        user = {"clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": "ca.crt"}}]}
        user |= {"users": [{"name": "u", "user": {"token": "admin"}}], "current-context": "x"}
        user |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}
        (config := self.account / "config").write_text(yaml.safe_dump(user))
        common = [f"--kubeconfig={config}", "--leader-elect=false", "--port=0", "--secure-port=0"]
        env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"}
        controllers = "--controllers=job,disruption,garbagecollector,podgc"
        for command in (["kube-controller-manager", controllers], ["kube-scheduler"]):
            self.others.append(subprocess.Popen([*command, *common], env=env, stdout=self.log, stderr=self.log))

    def stop_controllers(self) -> None:
        while self.others:
            other = self.others.pop()
            other.kill()
            other.wait()

    def stop(self) -> None:
        self.stop_controllers()
        self.server.kill()
        self.server.wait()
        self.log.close()
        self.etcd.stop()


def has_api_server() -> bool:
    return shutil.which("kube-apiserver") is not None and shutil.which("etcd") is not None


def has_controllers() -> bool:
    return all(map(shutil.which, ("kube-controller-manager", "kube-scheduler")))
