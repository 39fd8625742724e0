"""Why is a node in the state that it is in? What the supervisor on this host has kept of it: its states, and what was done."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from holdfast.cli.fleet.supervisor_here import ask_supervisor, socket_of
from holdfast.cli.table import answer
from holdfast.telemetry.report.phrasing import moment
from holdfast.telemetry.report.safe_text import plain


def ask(options: argparse.Namespace, *, of_job: bool = False) -> dict[str, Any] | None:
    """What is kept of the node, or job, `options.job`. None: there is no supervisor here, or it knows no such one."""
    if not os.path.exists(socket_of(options)):
        return None
    said = ask_supervisor(options, {"ask": "why", "node": options.job})
    return said if said.get("job" if of_job else "node") else None


def show(told: dict[str, Any], as_json: bool) -> int:
    """Print it, the earliest first."""
    lines = (plain(line, keep="") for line in _lines(told["node"], told["deeds"]))
    return answer(as_json, lambda: {"node": told["node"], "deeds": told["deeds"]}, lines)


def _lines(node: dict[str, Any] | None, deeds: list[dict[str, Any]]) -> Iterator[str]:
    story = [(deed["at_unix"], _deed(deed)) for deed in deeds]
    if node is not None:
        yield f"{node['name']} is {node['state']}{_because(node['reason'])}"
        for device in node["devices"]:
            if device["state"] != "fit":
                yield f"  GPU {device['name']} is {device['state']}: {device['reason']}"
        changes = [("", change) for change in node["history"]]
        changes += [(f"GPU {device['name']} ", change) for device in node["devices"] for change in device["history"]]
        story = [(one["at_unix"], [f"{whose}{one['state']}{_because(one['reason'])}"]) for whose, one in changes] + story
    for at_unix, (first, *more) in sorted(story, key=lambda one: one[0]):
        yield from (f"{moment(at_unix)}  {first}", *more)


def _deed(deed: dict[str, Any]) -> list[str]:
    about = f" of job {deed['job']}" if deed["job"] else ""
    about += f" on {deed['node']}" if deed["node"] else ""
    return [
        f"{deed['act']}{about} (policy {deed['policy']})",
        f"    seen: {deed['seen']}",
        f"    why: {deed['reason']}",
        *(f"    done: {step}" for step in deed["done"]),
        f"    outcome: {deed['outcome'] or 'not known yet'}",
    ]


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
