"""`holdfast nodes`: the nodes that the supervisor on this host knows, and how each is."""

from __future__ import annotations

import argparse
from typing import Any

from holdfast.cli.choose import json_argument
from holdfast.cli.fleet.supervisor_here import ask_supervisor, state_argument
from holdfast.cli.table import show, show_json
from holdfast.core.wire.fleet import NodeState

HELP = "nodes that the supervisor knows, with their state and the reason for it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    state_argument(parser)
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, in order of their names."""
    nodes: list[dict[str, Any]] = ask_supervisor(options, {"ask": "nodes"})["nodes"]
    if options.json:
        show_json(nodes)
        return 0
    if not nodes:
        print("no node has reported yet: start jobs with --supervisor HOST:PORT")
        return 0
    show(("node", "state", "job", "ranks", "gpus", "reason"), [_row(node) for node in nodes])
    return 0


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    bad = [f"{device['name']} {device['state']}" for device in node["devices"] if device["state"] != NodeState.FIT]
    jobs = ", ".join(f"{job['job']} (round {job['round']})" for job in node["jobs"])
    ranks = ", ".join(str(rank["rank"]) for job in node["jobs"] for rank in job["ranks"])
    return node["name"], node["state"], jobs or "-", ranks or "-", ", ".join(bad) or "-", node["reason"]
