"""Is one of the others dead, by Kubernetes' word? Run by `agent.witness` for `--witness kubernetes`, as a program of its own.

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
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes gives a pod its token, the API server's CA and the name of its namespace."""

NO_POWER = frozenset(("node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown"))
WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What an API server that is not there, or is none, comes to."""

Thing = dict[str, Any]
"""An object of Kubernetes' API, as it comes in JSON."""


class Refused(OSError):
    """The API server does not let us."""


class Api:
    """The API server of this cluster."""

    def __init__(self, environ: Any, account: str) -> None:
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1"
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=os.path.join(account, "ca.crt")))
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)  # no proxy knows the cluster
        self.token, self.namespace = _read(account, "token"), _read(account, "namespace")

    def pods(self) -> list[Thing]:
        """Those of our namespace. Raises Refused, or another OSError."""
        return list((self._get(f"/namespaces/{self.namespace}/pods") or {})["items"])

    def node(self, name: str) -> Thing | None:
        """None: there is none of that name (any more)."""
        return self._get(f"/nodes/{urllib.parse.quote(name, safe='')}")

    def _get(self, path: str) -> Thing | None:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        try:
            with self.opener.open(request) as answer:
                found: Thing = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code == 404 and json.load(error).get("details", {}).get("kind") == "nodes":
                return None  # and not whatever else answers at that address
            if error.code in (401, 403):
                what = "list the pods of namespace " + self.namespace if path.endswith("/pods") else "see " + path[1:]
                raise Refused(f"the service account may not {what} ({error.code})") from error
            raise


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read().strip()


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

    return [pod for pod in pods if is_there(pod) and pod["spec"].get("nodeName") and not _ended_before(pod, since)]


def _ends(pod: Thing) -> list[Thing]:
    """How its containers have ended. Nothing: not all of them have, or none has begun."""
    status = pod.get("status", {})
    states = [one.get("state", {}) for one in status.get("containerStatuses") or ()]
    over = status.get("phase") in ("Succeeded", "Failed") and all("terminated" in state for state in states)
    return [state["terminated"] for state in states] if over else []


def _ended_before(pod: Thing, since: str) -> bool:
    return bool(ends := _ends(pod)) and all(end.get("finishedAt", since) < since for end in ends)


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


def judge(api: Api, us: str, missing: list[str]) -> str:
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
        print(judge(Api(os.environ, os.environ.get("HOLDFAST_SERVICE_ACCOUNT", ACCOUNT)), us, list(missing)))
    except WRONG as error:
        print("trouble", str(getattr(error, "reason", error)) or type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
