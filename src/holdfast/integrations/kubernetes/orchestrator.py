"""Kubernetes as an orchestrator, by lightkube: nodes by their names there, our pods by their label `holdfast/agent`.

    drain      the node is cordoned and has our taint, with the reason as an annotation; our pods there are evicted
    uncordon   takes back what `drain` did, and nothing that others did
    vacant     no pod is there but a DaemonSet's and the kubelet's own, in whichever namespace
    label      for a cloud that acts on labels, as GKE does
    replace    whatever pods of ours are still there go, by eviction, else deleted: their controllers make others elsewhere

A pod's agent names its node by `HOLDFAST_NODE_NAME`, from `spec.nodeName`. The taint is NoSchedule: NoExecute would end other
people's pods, past their budgets. A pod without a controller stays: nothing would make another.
The pods of a `drain` or a `replace` are written down at the node, by its key, before the first of them goes: called again it
means the same pods, and none that came later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx2 as httpx
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.decoders import decode_list, decode_object, decode_status
from lightkube.core.exceptions import ConfigError
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from holdfast.core.errors import HoldfastError
from holdfast.integrations.kubernetes.api import ACCOUNT
from holdfast.supervisor.fleet.messages import Need
from holdfast.supervisor.orchestrator import ASK_S

TAINT, REASON, CORDONED, REPLACED = "holdfast/unfit", "holdfast/reason", "holdfast/cordoned", "holdfast/replaced"
LABELLED = "holdfast/labelled"  # Annotation: the key of the last label.
DRAIN = "drain"  # Key of the pods that a drain means.
AGENT = "holdfast/agent"  # Label of our pods.

Answer = TypeVar("Answer")

OF_A_NODE = ("DaemonSet", "Node")  # Owners of what is on every node; the second is that of a kubelet's static pods.

STATEFUL_SET, ENDED = "StatefulSet", ("Succeeded", "Failed")

STEP_S = 3.0  # How long to wait for a word from the API server.
BUSY = (409, 410, 429, 503, 504)
"""It has changed meanwhile · the list is too old to go on with · too many requests: ask again."""
KEYS = 8  # So many of the newest `replace`s a node remembers.
OTHERS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints with which a node gets no work of anybody's. Those of a site's own (nvidia.com/gpu) may be what our pods tolerate."""


class Adapter:
    """See `supervisor.orchestrator.Orchestrator`."""

    name, evicts = "kubernetes", True

    def __init__(self, *, step_s: float = STEP_S) -> None:
        self.step_s = step_s
        # msgspec crashes where several threads are the first to decode a type: here one is, before there are others.
        decode_list(b'{"items": []}', Pod)
        for kind in (Node, Pod, Pod.Eviction):
            decode_object(b"{}", kind)
        decode_status(b"{}")

    def drain(self, node: str, reason: str) -> str:
        """What a budget does not let go stays, and is named. Asked again for the same reason, it goes on with the pods of the
        first time: what others have done to the node since, and pods that have come since, are theirs."""
        with Api(self.step_s) as api:
            api.change(node, lambda found: _drained(found, reason))
            there = api.pods(node)
            found = api.change(node, lambda found: _noted(found, DRAIN, [pod.metadata.uid for pod in there]))
            meant = _replaced(found)[DRAIN]
            answers = {pod.metadata.name: api.evict(pod) for pod in there if pod.metadata.uid in meant}
        if not found.spec.unschedulable:
            return f"{node} was drained before, and somebody has uncordoned it since"
        kept = [f"{name} stays for now: {why}" for name, why in answers.items() if why]
        gone = [f"{len(answers) - len(kept)} of our pods there evicted"] if len(answers) > len(kept) else []
        return "; ".join([f"Kubernetes gives {node} no more work", *gone, *kept])

    def uncordon(self, node: str, reason: str) -> str:
        with Api(self.step_s) as api:
            found = api.change(node, _let_back)
        others = f", as far as we are concerned: {why}" if (why := _unusable(found)) else ""
        return f"Kubernetes gives {node} work again{others}"

    def replace(self, node: str, key: str, need: Need) -> str:
        with Api(self.step_s) as api:
            there = api.pods(node)
            found = api.change(node, lambda found: _noted(found, key, [pod.metadata.uid for pod in there]))
            meant = _replaced(found)[key]
            left = [pod for pod in there if pod.metadata.uid in meant]
            for pod in left:
                if api.evict(pod) or _is_stuck(pod, found):
                    api.delete(pod, 0 if _is_stuck(pod, found) else None)
        if not meant and _annotation(found, REASON) is None:
            hint = f"label the pods of the job's template {AGENT}, in the supervisor's namespace; a bare pod cannot be replaced"
            raise HoldfastError(f"no pod on {node} that a controller would recreate", hint=hint)
        if not left:
            return f"no pod of ours is left on {node} to be replaced"
        makers = sorted({f"{one.kind} {one.name}" for pod in left for one in _owners(pod)})
        return f"{', '.join(makers)} makes other pods for {node}"

    def vacant(self, node: str) -> str:
        with Api(self.step_s) as api:
            if not api.change(node, lambda found: None).spec.unschedulable:
                raise HoldfastError(f"{node} is not cordoned")
            # Those of a kind in OF_A_NODE run there because the node is there.
            there = [pod for pod in api.all_pods(node) if not any(one.kind in OF_A_NODE for one in _owners(pod))]
        if there:
            names = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in there[:3])
            raise HoldfastError(f"{len(there)} pods are on {node}: {names}")
        return f"{node} is cordoned, and no pod is there but of DaemonSets"

    def label(self, node: str, key: str, label: str) -> str:
        name, _, value = label.partition("=")

        def labelled(found: Any) -> dict[str, Any] | None:
            if _annotation(found, LABELLED) == key:
                return None
            return {"metadata": {"annotations": {LABELLED: key}, "labels": {name: value}}}

        with Api(self.step_s) as api:
            api.change(node, labelled)
        return f"{node} has the label {label}"


class Api:
    """The API server for the length of one call, so that what hangs ends with it, and a token that was renewed is read."""

    def __init__(self, step_s: float) -> None:
        self.clock = time.monotonic
        self.until = self.clock() + ASK_S
        self.eviction: str | None = None  # Its API version; None: lightkube's.
        given = os.environ.get("KUBECONFIG")
        account = os.environ.get("HOLDFAST_SERVICE_ACCOUNT", ACCOUNT)
        try:
            config = KubeConfig.from_file(given) if given else KubeConfig.from_env(service_account=account)
            outside = bool(given) or not os.path.isdir(account)  # within the cluster no proxy knows it
            self.client: Any = Client(config, timeout=httpx.Timeout(step_s), field_manager="holdfast", trust_env=outside)
        except (ConfigError, OSError, LookupError, ValueError, AssertionError) as error:
            hint = "set KUBECONFIG, or run the supervisor in a pod that has a service account"
            raise HoldfastError(f"cannot query Kubernetes: {error}", hint=hint) from error

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, what: str, do: Callable[[], Answer]) -> Answer:
        """What `do` returns; it is done again while the API server asks for that and there is time. HoldfastError."""
        while True:
            try:
                return do()
            except httpx.HTTPStatusError as error:
                code, after = error.response.status_code, error.response.headers.get("Retry-After", "")
                wait_s = min(float(after), 1.0) if after.isdigit() else 0.1
                if code not in BUSY or self.clock() + wait_s >= self.until:
                    hint = "deploy/kubernetes/base/rbac.yaml has the rights that it needs" if code in (401, 403) else ""
                    raise HoldfastError(f"Kubernetes: {what}: {_words(error)} ({code})", hint=hint) from error
                time.sleep(wait_s)  # as it asks for
            except (httpx.HTTPError, OSError) as error:
                text = str(error) or type(error).__name__
                raise HoldfastError(f"Kubernetes: {what}: {self.client.config.cluster.server}: {text}") from error

    def change(self, name: str, how: Callable[[Any], dict[str, Any] | None]) -> Any:
        """A node as it is after `how` has said what to change. None: nothing is. No change of others' in between is lost."""

        def do() -> Any:
            found = self.client.get(Node, name)
            if (patch := how(found)) is None:
                return found
            patch.setdefault("metadata", {})["resourceVersion"] = found.metadata.resourceVersion  # 409, if it has changed
            return self.client.patch(Node, name, patch, patch_type=PatchType.MERGE)

        return self.ask(f"node {name}", do)

    def pods(self, node: str) -> list[Any]:
        """Those of ours there that have not ended, and that somebody would make again."""
        labels, fields = {AGENT: None}, {"spec.nodeName": node}
        what = f"list pods of namespace {self.client.namespace}"
        found = self.ask(what, lambda: list(self.client.list(Pod, labels=labels, fields=fields)))
        return [pod for pod in found if pod.status.phase not in ENDED and _owners(pod)]

    def all_pods(self, node: str) -> list[Any]:
        """Everybody's there that have not ended."""
        fields = {"spec.nodeName": node}
        found = self.ask("list pods of all namespaces", lambda: list(self.client.list(Pod, namespace="*", fields=fields)))
        return [pod for pod in found if pod.status.phase not in ENDED]

    def evict(self, pod: Any) -> str:
        """Why it may not go now, in words; empty: it goes, or is gone."""
        if pod.metadata.deletionTimestamp:
            return ""
        meta = ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace)
        this_one = DeleteOptions(preconditions=Preconditions(uid=pod.metadata.uid))  # and not its namesake that comes after

        def do() -> str:
            try:
                eviction = Pod.Eviction(metadata=meta, deleteOptions=this_one)
                eviction.apiVersion = self.eviction or eviction.apiVersion
                self.client.create(eviction, pod.metadata.name, namespace=meta.namespace)
            except ApiError as error:
                if error.response.status_code == 404 or "UID" in str(error.status.message):
                    return ""
                causes = (error.status.details and error.status.details.causes) or ()
                if any(one.reason == "DisruptionBudget" for one in causes) or error.response.status_code == 500:
                    return str(error.status.message)
                if error.response.status_code != 400 or self.eviction:
                    raise
                self.eviction = "policy/v1beta1"  # before Kubernetes 1.22
                return do()
            return ""

        return self.ask(f"evict pod {pod.metadata.name}", do)

    def delete(self, pod: Any, grace_s: int | None) -> None:
        """The last resort. None: with the grace that it has asked for."""

        def do() -> None:
            try:
                self.client.delete(Pod, pod.metadata.name, namespace=pod.metadata.namespace, grace_period=grace_s)
            except ApiError as error:
                if error.response.status_code != 404:
                    raise

        self.ask(f"delete pod {pod.metadata.name}", do)


def _unusable(node: Any) -> str:
    """Why a node that is not drained by us gets no work. Empty: it does."""
    ready = _ready(node)
    bad = [taint.key for taint in node.spec.taints or () if taint.key.startswith(OTHERS) and taint.effect != "PreferNoSchedule"]
    if node.spec.unschedulable:
        return "cordoned, and not by us"
    if not _is_ready(node):
        return f"not ready: {(ready and (ready.message or ready.reason)) or 'its kubelet has said nothing'}"
    return f"taint {', '.join(bad)}" if bad else ""


def _drained(node: Any, reason: str) -> dict[str, Any] | None:
    """What makes a node drained by us. Who had cordoned it before has still done so when we take back our word. None: we have
    done it before, for that reason."""
    if _annotation(node, REASON) == reason:
        return None
    by_us = _annotation(node, CORDONED) or ("" if node.spec.unschedulable else "by holdfast")
    taint = {"key": TAINT, "effect": "NoSchedule"}
    return {
        "metadata": {"annotations": {REASON: reason, CORDONED: by_us or None, REPLACED: _without_drain(node)}},
        "spec": {"unschedulable": True, "taints": [*_taints_of_others(node), taint]},
    }


def _let_back(node: Any) -> dict[str, Any] | None:
    """What takes that back. None: there is nothing."""
    if _annotation(node, REASON) is None:
        return None
    spec: dict[str, Any] = {"taints": _taints_of_others(node)}
    if _annotation(node, CORDONED):
        spec["unschedulable"] = None
    return {"metadata": {"annotations": {REASON: None, CORDONED: None, REPLACED: _without_drain(node)}}, "spec": spec}


def _noted(node: Any, key: str, uids: list[str]) -> dict[str, Any] | None:
    """What writes down that this key means these pods. None: it was written down before."""
    known = _replaced(node)
    if key in known:
        return None
    newest = dict(list(known.items())[-KEYS + 1 :]) | {key: uids}
    return {"metadata": {"annotations": {REPLACED: json.dumps(newest)}}}


def _replaced(node: Any) -> dict[str, list[str]]:
    try:
        said = json.loads(_annotation(node, REPLACED) or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _without_drain(node: Any) -> str | None:
    """The notes about replaced pods, without those of a drain that another follows. None: there are none."""
    left = {key: uids for key, uids in _replaced(node).items() if key != DRAIN}
    return json.dumps(left) if left else None


def _is_stuck(pod: Any, node: Any) -> bool:
    """It would wait for its kubelet's word for ever. A StatefulSet's must: two of one name may never live."""
    return not _is_ready(node) and STATEFUL_SET not in (one.kind for one in _owners(pod))


def _owners(pod: Any) -> list[Any]:
    return [one for one in pod.metadata.ownerReferences or () if one.controller]


def _taints_of_others(node: Any) -> list[Any]:
    return [taint for taint in node.spec.taints or () if taint.key != TAINT]


def _annotation(node: Any, name: str) -> str | None:
    found: str | None = (node.metadata.annotations or {}).get(name)
    return found


def _ready(node: Any) -> Any:
    return next((one for one in (node.status and node.status.conditions) or () if one.type == "Ready"), None)


def _is_ready(node: Any) -> bool:
    return getattr(_ready(node), "status", "") == "True"


def _words(error: httpx.HTTPStatusError) -> str:
    return str(error.status.message) if isinstance(error, ApiError) else error.response.reason_phrase
