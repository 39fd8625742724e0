"""`holdfast nodes`: the nodes that the supervisor on this host knows, and how each is."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.cli.choose import json_argument
from holdfast.cli.fleet.supervisor_here import ask_supervisor, state_argument
from holdfast.cli.table import show, show_json
from holdfast.core.wire.fleet import Act, NodeState
from holdfast.telemetry.report.phrasing import moment, span

HELP = "nodes that the supervisor knows, with their state and the reason for it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    state_argument(parser)
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, in order of their names."""
    told = ask_supervisor(options, {"ask": "nodes"})
    nodes: list[dict[str, Any]] = told["nodes"]
    if options.json:
        show_json(nodes)
        return 0
    if not nodes:
        print("no node has reported yet: start jobs with --supervisor HOST:PORT")
        return 0
    show(("node", "state", "job", "ranks", "gpus", "reason"), [_row(node) for node in nodes])
    if standby := told.get("standby"):
        print(f"\nasked for another node, the orchestrator gives one within {span(standby['within_s'])}, {standby['by']}")
    return 0


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    bad = [f"{device['name']} {device['state']}" for device in node["devices"] if device["state"] != NodeState.FIT]
    jobs = ", ".join(f"{job['job']} (round {job['round']})" for job in node["jobs"])
    ranks = ", ".join(str(rank["rank"]) for job in node["jobs"] for rank in job["ranks"])
    reason = "; ".join(filter(None, (node["reason"], repair_in_words(node.get("repair")))))
    return node["name"], node["state"], jobs or "-", ranks or "-", ", ".join(bad) or "-", reason


def repair_in_words(repair: dict[str, Any] | None) -> str:
    """How far a node's repair is. Empty: there is none."""
    if repair is None:
        return ""
    waits = f", waits for {repair['waits']}" if repair["waits"] else ""
    if repair["act"] == Act.PROBATION:
        return f"on probation until {moment(repair['until_unix'])}{waits}"
    step = f" ({repair['step']})" if repair["step"] != repair["act"] else ""
    return f"in repair: {repair['act']}{step}{waits}"
