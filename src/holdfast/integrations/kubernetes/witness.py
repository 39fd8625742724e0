"""Is one of the others dead, by Kubernetes' word? Run by `agent.leader.tie_breaker` for `--witness kubernetes`, as a program of
its own.

Its arguments: seconds that it may take, our endpoint, and those of the nodes that are missing. It prints
`speaks for` us; or `silent`, and how they are; or `trouble`, and why Kubernetes can never speak for us.
It asks the cluster's API server, with the pod's service account; for two kinds of GET the standard library does.

A pod is dead when its kubelet has seen all its containers end; or when its node is gone for Kubernetes, which then starts the
pods of a StatefulSet elsewhere, where never two of them may live:

    the Node object is deleted              by the cloud's controller, whose instance is gone, or by somebody who knows that
    taint out-of-service, not Ready         put there by somebody who knows that it has no power
    taint shutdown, not Ready               put there by the cloud's controller: the instance is stopped

All else may be wrong: a node that is not Ready or unreachable may be cut off only, and of a pod that is deleted by force
Kubernetes forgets what may still run.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.parse

from holdfast.integrations.kubernetes.api import WRONG, Api, Refused, Thing, words

NO_POWER = frozenset(("node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown"))


class Cluster(Api):
    """What is asked of it here."""

    def pods(self) -> list[Thing]:
        """Those of our namespace. Raises Refused, or another OSError."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return list(self.ask(f"list the pods of namespace {self.namespace}", path)["items"])

    def node(self, name: str) -> Thing | None:
        """None: there is none of that name (any more)."""
        path = f"nodes/{urllib.parse.quote(name, safe='')}"
        try:
            return self.ask(f"see {path}", f"/api/v1/{path}")
        except urllib.error.HTTPError as error:
            if error.code == 404 and json.load(error).get("details", {}).get("kind") == "nodes":
                return None  # and not whatever else answers at that address
            raise


def pods_at(endpoint: str, pods: list[Thing], since: str) -> list[Thing]:
    """Those that have `endpoint`'s address or name, and had not ended before `since`: addresses are given again."""
    host = endpoint.rpartition(":")[0].strip("[]")
    name, _, rest = host.partition(".")
    domain = rest.partition(".")[0]

    def is_there(pod: Thing) -> bool:
        spec, status = pod["spec"], pod.get("status", {})
        if host in (status.get("podIP"), *(one["ip"] for one in status.get("podIPs") or ())):
            return True
        return name == (spec.get("hostname") or pod["metadata"]["name"]) and domain in ("", spec.get("subdomain", ""))

    def had_ended(pod: Thing) -> bool:
        ends = _ends(pod)
        return bool(ends) and all(end.get("finishedAt", since) < since for end in ends)

    return [pod for pod in pods if is_there(pod) and pod["spec"].get("nodeName") and not had_ended(pod)]


def _ends(pod: Thing) -> list[Thing]:
    """How its containers have ended. Nothing: not all of them have, or none has begun."""
    status = pod.get("status", {})
    states = [one.get("state", {}) for one in status.get("containerStatuses") or ()]
    over = status.get("phase") in ("Succeeded", "Failed") and all("terminated" in state for state in states)
    return [state["terminated"] for state in states] if over else []


def fate(pod: Thing, node: Thing | None) -> tuple[bool, str]:
    """Is it dead, and how is it, in words? `node`: what it was bound to; None: Kubernetes has no such node any more."""
    name, on = pod["metadata"]["name"], pod["spec"]["nodeName"]
    if _ends(pod):
        return True, f"pod {name} has ended"
    if node is None:
        return True, f"node {on} of pod {name} is deleted"
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    conditions = node.get("status", {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    if taints & NO_POWER and not ready:
        return True, f"node {on} of pod {name} has taint {min(taints & NO_POWER)}"
    phase, state = pod.get("status", {}).get("phase", "Unknown"), "Ready" if ready else "not Ready"
    return False, f"pod {name} is {phase} on node {on}, which is {state}"


def judge(api: Cluster, us: str, missing: list[str]) -> str:
    """What Kubernetes says, in the words of this program."""
    pods, refused = api.pods(), ""
    ours = pods_at(us, pods, "")
    since = min((pod["status"].get("startTime", "") for pod in ours), default="")

    def see(pod: Thing) -> tuple[bool, str]:
        nonlocal refused
        try:
            return fate(pod, None if _ends(pod) else api.node(pod["spec"]["nodeName"]))
        except Refused as error:
            refused = str(error)
            return False, f"pod {pod['metadata']['name']} is {pod['status']['phase']}, and {refused}"

    def look(endpoint: str) -> tuple[bool, str]:
        fates = [see(pod) for pod in pods_at(endpoint, pods, since)]
        words = "; ".join(words for _, words in fates) or f"no pod of namespace {api.namespace} runs there"
        return bool(fates) and all(dead for dead, _ in fates), f"{endpoint}: {words}"

    (we_are_dead, told), lost = look(us), [look(one) for one in missing]
    if ours and not we_are_dead and any(dead for dead, _ in lost):
        return f"speaks for {us}"
    return f"{'silent' if ours and not refused else 'trouble'} {', '.join([told, *(words for _, words in lost)])}"


def main(deadline_s: str, us: str, *missing: str) -> None:
    """Ask, and say what came of it."""
    signal.alarm(int(deadline_s))
    try:
        print(judge(Cluster(os.environ), us, list(missing)))
    except WRONG as error:
        print("trouble", words(error))
