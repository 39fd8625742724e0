"""What do other tools say of this node? Kubernetes' conditions and taints, gpud, DCGM.

Each check reads a file with the tool's output, or asks the tool. A tool that cannot be asked makes no node unfit.

    kubernetes   `kubectl get node NAME -o json`: conditions (by node-problem-detector, NVSentinel and so on), taints, cordons
    gpud         GET /v1/states: a list of components, each with its health states
    dcgm         `dcgmi health --check --json`, or `dcgmi diag --json`
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.health.check import Look
from holdfast.health.verdict import DEGRADED, UNFIT, Findings, Verdict, degraded

GPUD_URL = "https://localhost:15132/v1/states"  # gpud's own port; its certificate is one that it has signed itself.

WELL = {"Ready": "True"}
"""Condition → the status that is well; for all others that is False (Kubernetes' own, and by convention everybody's)."""

NOT_KNOWN = "Unknown"  # The status of a condition when the node does not answer.

HARMLESS = ("node.kubernetes.io/unschedulable", "nvidia.com/gpu", "amd.com/gpu")
"""Taints by which nodes are kept for certain pods. A cordon, too, keeps new pods away and leaves those that run."""

GPUD_WELL = ("healthy", "initializing", "")
FRAMES = ("body", "header", "children")  # Keys of DCGM's reports that name nothing.

DCGM_WORDS = {"healthy": "", "warning": DEGRADED, "failure": UNFIT, "pass": "", "warn": DEGRADED, "fail": UNFIT, "skip": ""}


def kubernetes(look: Look) -> Verdict:
    """The node's conditions and taints."""
    name = os.environ.get("NODE_NAME") or socket.gethostname()
    node, trouble = _told(look, ("kubectl", "get", "node", name, "-o", "json"))
    if not isinstance(node, dict) or not isinstance(node.get("status"), dict):
        return degraded(f"not known: {trouble or 'that is no node'}", "may we read nodes? `kubectl auth can-i get nodes`")
    found = Findings()
    conditions = [one for one in node["status"].get("conditions") or () if isinstance(one, dict)]
    spec = node.get("spec") or {}
    _judge_conditions(found, conditions)
    _judge_taints(found, spec.get("taints") or ())
    if spec.get("unschedulable"):
        found.degraded("it is cordoned", "kubectl uncordon, once it is mended")
    return found.verdict(f"{len(conditions)} conditions, all well")


def _judge_conditions(found: Findings, conditions: Iterable[dict[str, Any]]) -> None:
    for one in conditions:
        kind, status = str(one.get("type")), str(one.get("status"))
        if status == WELL.get(kind, "False"):
            continue
        what = f"condition {kind} is {status}: {one.get('reason', '')}: {one.get('message', '')}"
        found.degraded(what) if status == NOT_KNOWN else found.unfit(what)


def _judge_taints(found: Findings, taints: Iterable[dict[str, Any]]) -> None:
    for taint in taints:
        key, effect = str(taint.get("key")), str(taint.get("effect"))
        if key in HARMLESS:
            continue
        what = f"taint {key}={taint.get('value', '')}:{effect}"
        found.unfit(what) if effect == "NoExecute" else found.degraded(what)


def gpud(look: Look) -> Verdict:
    """The health states of gpud's components."""
    command = ("curl", "--silent", "--show-error", "--fail", "--insecure", "--max-time", "10", GPUD_URL)
    components, trouble = _told(look, command)
    if not isinstance(components, list):
        return degraded(f"not known: {trouble or 'that is no list of components'}", "does gpud run here? `gpud status`")
    found = Findings()
    for component, state in _states(components):
        health = str(state.get("health", "")).lower()
        if health in GPUD_WELL:
            continue
        wanted = (state.get("suggested_actions") or {}).get("repair_actions") or []
        what = f"{component}: {state.get('reason') or health}"
        advice = f"gpud advises: {', '.join(map(str, wanted))}" if wanted else ""
        found.unfit(what, advice) if health == "unhealthy" else found.degraded(what, advice)
    return found.verdict(f"{len(components)} components, none unhealthy")


def _states(components: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in components:
        if isinstance(one, dict):
            for state in one.get("states") or ():
                yield str(one.get("component", "?")), state


def dcgm(look: Look) -> Verdict:
    """DCGM's health watches, or the results of its diagnostics: both are trees of categories, tests and results."""
    tree, trouble = _told(look, ("dcgmi", "health", "--check", "--json"))
    if not isinstance(tree, dict):
        return degraded(f"not known: {trouble or 'that is no report'}", "does nv-hostengine run here? `dcgmi discovery -l`")
    found, seen = Findings(), 0
    for where, word, detail in _results(tree, ()):
        seen += 1
        state = DCGM_WORDS.get(word.lower(), "")
        what = f"{where}: {word}" + (f": {detail}" if detail else "")
        if state == UNFIT:
            found.unfit(what, "run `dcgmi diag -r 3` with the node drained")
        elif state == DEGRADED:
            found.degraded(what)
    return found.verdict(f"{seen} results, none bad") if seen else degraded("not known: the report has no results")


def _results(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """(where, word, detail) of each result, at any depth: DCGM 3 and 4 nest them differently."""
    if isinstance(node, list):
        for one in node:
            yield from _results(one, path)
        return
    if not isinstance(node, dict):
        return
    name = _named(node)
    here = (*path, name) if name else path
    word = node.get("status") or node.get("health") or node.get("value")
    if isinstance(word, str) and word.lower() in DCGM_WORDS:
        yield " ".join(here) or "overall", word, _detail(node)
    for key, child in node.items():
        if isinstance(child, (dict, list)) and key not in ("warnings", "info"):
            yield from _results(child, here if isinstance(child, list) or key in FRAMES else (*here, key))


def _named(node: dict[str, Any]) -> str:
    """What a part of the report is about. Empty: it does not say."""
    return str(node.get("category") or node.get("name") or (f"GPU {node['gpu_id']}" if "gpu_id" in node else ""))


def _detail(node: dict[str, Any]) -> str:
    told = node.get("warnings") or node.get("info") or node.get("message") or ""
    if isinstance(told, list):
        told = "; ".join(str(one.get("warning", one) if isinstance(one, dict) else one) for one in told)
    return str(told)


def _told(look: Look, command: tuple[str, ...]) -> tuple[Any, str]:
    """What the other tool says, and why nothing could be had; one of the two is empty."""
    try:
        if look.argument.startswith(("http://", "https://")):
            command = (*command[:-1], look.argument)
        elif look.argument:
            with open(look.path(look.argument)) as file:
                return json.load(file), ""
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            return None, f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-200:]}"
        return json.loads(done.stdout), ""
    except OSError as error:
        return None, f"{look.argument or command[0]}: {error.strerror}"
    except ValueError as error:
        return None, f"what it says is no JSON: {error}"
