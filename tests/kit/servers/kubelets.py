"""The hands of a Kubernetes of tests: kubelets that start pods' commands as processes of this host, without containers; and,
where Kubernetes' own are not there, what makes a Job's pods and gives each a node. All by the API, so beside any API server.
"""

from __future__ import annotations

import signal
import threading
import urllib.error
from collections.abc import Callable
from typing import Any

from kit.servers.kubernetes import NAMESPACE, Kubernetes

LOOK_S = 0.05
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ROOM = {"cpu": "1", "memory": "1Gi", "pods": "10"}
"""Of a node: one pod of `job` fits."""


def job(name: str, pods: int, command: list[str]) -> dict[str, Any]:
    """A Job of so many agents, one on each node."""
    node = {"name": "HOLDFAST_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    container = {"name": "train", "image": "train:1", "command": command, "env": [node]}
    container["resources"] = {"requests": {"cpu": "1"}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 30, "containers": [container]}
    template = {"metadata": {"labels": {"holdfast/agent": "", "app": name}}, "spec": spec}
    sizes = {"parallelism": pods, "completions": pods, "backoffLimit": 100}
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {**sizes, "template": template}}


class Hands:
    """Kubelets of all nodes. `start(command, environment)`: a pod's process; `made`: a Job that nobody else takes care of."""

    def __init__(
        self, cluster: Kubernetes, start: Callable[[list[str], dict[str, str]], Any], made: dict[str, Any] | None
    ) -> None:
        self.cluster, self.start, self.made = cluster, start, made
        self.running: dict[str, Any] = {}
        """Pod's uid → its process."""
        self.told: set[str] = set()
        self.count = 0
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def stop(self) -> None:
        """No pod is looked after any more."""
        self.over.set()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            while not self.over.wait(LOOK_S):
                pods = self.cluster.ask("GET", PODS)["items"]
                if self.made is not None:
                    self._make(self.made, pods)
                    self._place(pods)
                for pod in pods:
                    if pod["spec"].get("nodeName"):
                        self._look_after(pod)
        except BaseException as error:
            self.error = error

    # --- a Job's controller, and the scheduler ---------------------------------------------------------------------------

    def _make(self, job: dict[str, Any], pods: list[Any]) -> None:
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") != "Failed"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": "uid", "controller": True}
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": job["spec"]["template"]["spec"]}
        for _ in range(job["spec"]["completions"] - len(alive)):
            self.count += 1
            meta = {"name": f"{job['metadata']['name']}-{self.count}", "namespace": NAMESPACE, "ownerReferences": [owner]}
            meta |= job["spec"]["template"]["metadata"]
            self.cluster.ask("POST", PODS, {**pod, "metadata": meta})

    def _place(self, pods: list[Any]) -> None:
        taken = {pod["spec"].get("nodeName") for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")}
        nodes = self.cluster.ask("GET", "/api/v1/nodes")["items"]
        free = [node["metadata"]["name"] for node in nodes if not node["spec"].get("unschedulable")]
        free = sorted({*free} - taken)
        for pod, node in zip([pod for pod in pods if not pod["spec"].get("nodeName")], free):
            name = pod["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            self.cluster.ask("POST", f"{PODS}/{name}/binding", binding)

    # --- a kubelet --------------------------------------------------------------------------------------------------------

    def _look_after(self, pod: dict[str, Any]) -> None:
        uid, name, going = pod["metadata"]["uid"], pod["metadata"]["name"], pod["metadata"].get("deletionTimestamp")
        container = pod["spec"]["containers"][0]
        running = self.running.get(uid)
        if running is None and not going:
            env = {one["name"]: one.get("value") or pod["spec"]["nodeName"] for one in container.get("env", ())}
            self.running[uid] = self.start(container["command"], env)
            return self._say(name, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
        code = None if running is None else running.process.poll()
        if going and running is not None and code is None and uid not in self.told:
            self.told.add(uid)
            return running.process.send_signal(signal.SIGTERM)
        if going and (running is None or code is not None):
            return self.cluster.delete_pod(name)
        if code is not None and pod["status"].get("phase") == "Running":
            self._say(name, "Failed" if code else "Succeeded", {"terminated": {"exitCode": code}})

    def _say(self, name: str, phase: str, state: dict[str, Any]) -> None:
        container = {"name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        status = {"phase": phase, "containerStatuses": [container]}
        try:
            self.cluster.ask("PATCH", f"{PODS}/{name}/status", {"status": status})
        except urllib.error.HTTPError as error:
            if error.code != 404:  # gone meanwhile
                raise
