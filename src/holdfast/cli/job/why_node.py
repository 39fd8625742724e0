"""Why is a node in the state that it is in? What the supervisor on this host has kept of it: its states, and what was done."""

from __future__ import annotations

import argparse
import os
from itertools import starmap
from typing import Any

from holdfast.cli.fleet.supervisor_here import ask_supervisor, socket_of
from holdfast.cli.table import show_json
from holdfast.telemetry.report.phrasing import moment
from holdfast.telemetry.report.safe_text import plain


def ask(options: argparse.Namespace, *, of_job: bool = False) -> dict[str, Any] | None:
    """What is kept of the node, or job, `options.job`. None: there is no supervisor here, or it knows no such one."""
    if not os.path.exists(socket_of(options)):
        return None
    answer = ask_supervisor(options, {"ask": "why", "node": options.job})
    return answer if answer.get("job" if of_job else "node") else None


def show(told: dict[str, Any], as_json: bool) -> int:
    """Print it, the earliest first."""
    if as_json:
        show_json({"node": told["node"], "deeds": told["deeds"]})
        return 0
    node = told["node"]
    if node is not None:
        print(plain(f"{node['name']} is {node['state']}{_because(node['reason'])}"))
        for device in node["devices"]:
            if device["state"] != "fit":
                print(plain(f"  GPU {device['name']} is {device['state']}: {device['reason']}"))
    changes = [("", change) for change in node["history"]] if node is not None else []
    for device in node["devices"] if node is not None else ():
        changes += [(f"GPU {device['name']} ", change) for change in device["history"]]
    for _, lines in sorted([*starmap(_changed, changes), *map(_done, told["deeds"])], key=lambda one: one[0]):
        print("\n".join(plain(line) for line in lines))
    return 0


def _changed(whose: str, change: dict[str, Any]) -> tuple[float, list[str]]:
    return change["at_unix"], [f"{moment(change['at_unix'])}  {whose}{change['state']}{_because(change['reason'])}"]


def _done(deed: dict[str, Any]) -> tuple[float, list[str]]:
    about = f" of job {deed['job']}" if deed["job"] else ""
    about += f" on {deed['node']}" if deed["node"] else ""
    return deed["at_unix"], [
        f"{moment(deed['at_unix'])}  {deed['act']}{about} (policy {deed['policy']})",
        f"    seen: {deed['seen']}",
        f"    why: {deed['reason']}",
        *(f"    done: {step}" for step in deed["done"]),
        f"    outcome: {deed['outcome'] or 'not known yet'}",
    ]


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
