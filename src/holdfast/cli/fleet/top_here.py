"""How are the jobs of this host, where no supervisor runs? What their folders and agents tell, as of a fleet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from holdfast.cli.choose import all_jobs, choose, story
from holdfast.cli.job.status import answers_of, shown
from holdfast.core.wire.fleet import NodeState
from holdfast.telemetry.record.state_dir import running_nodes
from holdfast.telemetry.report.timeline import JobState, Timeline, WorkerState


def fleet_here(wanted: str, clock: Callable[[], float] = time.time) -> dict[str, Any]:
    """The jobs that run here, or the one that is named. UsageError: there is none of that name."""
    paths = [choose(wanted)] if wanted else [path for path in all_jobs() if running_nodes(path)]
    nodes: dict[str, dict[str, Any]] = {}
    jobs, deeds = [], []
    for path in paths:
        here = story(path)
        told = shown(here, answers_of(here))
        name = os.path.basename(path)
        for node in told["nodes"]:
            seen = nodes.setdefault(node["name"], {"name": node["name"], "state": NodeState.SPARE, "reason": "", "jobs": []})
            ranks = [_rank(worker) for worker in told["workers"] if worker["node"] == node["name"]]
            seen["jobs"].append({"job": name, "round": told["round"], "ranks": ranks})
            if not node["is_running"]:
                seen["state"] = NodeState.LOST if told["state"] == JobState.RUNNING else "gone"
            elif any(rank["state"] == WorkerState.RUNNING for rank in ranks):
                seen["state"] = NodeState.FIT
            seen["reason"] = node["spare_because"] or node["waits_for"] or seen["reason"]
        jobs.append(_job(name, told))
        deeds += _deeds(name, here.job)
    deeds.sort(key=lambda deed: float(deed["at_unix"]))
    return {"at_unix": clock(), "nodes": list(nodes.values()), "jobs": jobs, "deeds": deeds}


def _job(name: str, told: dict[str, Any]) -> dict[str, Any]:
    with_ranks = {worker["node"] for worker in told["workers"]}
    return {
        "name": name,
        "state": told["state"],
        "outcome": told["outcome"],
        "round": told["round"],
        "attempt": told["attempt"],
        "ranks": told["world_size"],
        "nodes": sorted(with_ranks),
        "spares": [node["name"] for node in told["nodes"] if node["is_running"] and node["name"] not in with_ranks],
    }


def _rank(worker: dict[str, Any]) -> dict[str, Any]:
    progress = worker["progress"] or {}
    return {**worker, "step": progress.get("step"), "step_s": progress.get("step_s"), "beat_age_s": progress.get("beat_age_s")}


def _deeds(name: str, job: Timeline) -> list[dict[str, Any]]:
    return [
        {"at_unix": one.at_unix, "node": one.node, "job": name, "act": one.decision, "reason": one.reason, "outcome": "-"}
        for one in job.decisions
    ]
