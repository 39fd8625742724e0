"""What JobSet's controller does about restarts in place, as far as a pod can tell: it counts all pods' attempts as one."""

from __future__ import annotations

import threading
from typing import Any

from kit.servers.kubernetes import JOBSETS, NAMESPACE, Kubernetes

LOOK_S = 0.03
NAME = "jobset.sigs.k8s.io/jobset-name"
"""Label of a JobSet's pods."""
ATTEMPT = "jobset.sigs.k8s.io/in-place-restart-attempt"
CURRENT, PREVIOUS = "currentInPlaceRestartAttempt", "previousInPlaceRestartAttempt"


def status_of(jobset: dict[str, Any], attempts: list[int]) -> dict[str, Any]:
    """The JobSet's status, once its pods that live have annotated themselves with these."""
    status = dict(jobset.get("status", {}))
    policy, jobs = jobset["spec"]["failurePolicy"], jobset["spec"]["replicatedJobs"]
    greatest, wanted = max(attempts, default=0), sum(job["replicas"] * job["template"]["spec"]["parallelism"] for job in jobs)
    if policy["restartStrategy"] != "InPlaceRestart":
        return status
    if greatest > policy["maxRestarts"]:
        return {**status, "terminalState": "Failed"}
    if len(attempts) == wanted and len(set(attempts)) == 1:
        return {**status, CURRENT: greatest}
    return {**status, PREVIOUS: max(status.get(PREVIOUS, 0), greatest - 1)} if greatest else status


class Controller:
    """Looks after one JobSet until it is stopped. An API server that is away is asked again."""

    def __init__(self, cluster: Kubernetes, jobset: str) -> None:
        self.cluster, self.jobset = cluster, jobset
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def stop(self) -> None:
        self.over.set()
        self.thread.join()

    def _work(self) -> None:
        while not self.over.wait(LOOK_S):
            try:
                found = self.cluster.jobset(self.jobset)
                if (status := status_of(found, list(self.attempts().values()))) != found.get("status", {}):
                    self.cluster.ask("PATCH", f"{JOBSETS}/{self.jobset}/status", {"status": status})
            except OSError:
                continue

    def attempts(self) -> dict[str, int]:
        """By pod; of those that have failed, or said nothing, none."""
        pods = self.cluster.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={NAME}")["items"]
        said = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(ATTEMPT) for pod in pods if _lives(pod)}
        return {name: int(attempt) for name, attempt in said.items() if attempt is not None}


def _lives(pod: dict[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") != "Failed")
