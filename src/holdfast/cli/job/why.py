"""`holdfast why [JOB | NODE]`: what was decided, and for which reason, word for word? Of a node, and of a job that has no
folder here, the supervisor on this host knows it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from holdfast.cli.choose import choose, look_arguments, story
from holdfast.cli.fleet.nodes import repair_in_words
from holdfast.cli.fleet.supervisor_here import ask_supervisor, socket_of, state_argument
from holdfast.cli.table import answer
from holdfast.core.errors import UsageError
from holdfast.core.value import to_plain
from holdfast.telemetry.report.phrasing import count, moment, span
from holdfast.telemetry.report.safe_text import plain
from holdfast.telemetry.report.timeline import Decision, JobState, Timeline

HELP = "a job's decisions, each with its reason; or a node's, where a supervisor runs here"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    look_arguments(parser)
    state_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, the earliest first."""
    if options.job and (known := _kept(options)) is not None:
        return _show_node(known, options.json)
    try:
        path = choose(options.job)
    except UsageError:
        if not options.job or (known := _kept(options, of_job=True)) is None:
            raise
        return _show_node(known, options.json)
    job = story(path).job
    return answer(options.json, lambda: to_plain(job.decisions), _lines(job))


def _lines(job: Timeline) -> Iterator[str]:
    known = {_sentence(decision.reason) for decision in job.decisions}
    # Rounds that began for a reason which none of these nodes has recorded as a decision of its own.
    told = [life for life in job.lives if life.round > 1 and _sentence(life.reason) not in known]
    every = [(one.at_unix, one.round, one.attempt, _what(one), one.reason) for one in job.decisions]
    every += [(life.formed_at, life.round, life.attempt, "told", life.reason) for life in told]
    for at_unix, round, attempt, what, reason in sorted(every):
        yield f"{moment(at_unix)}  round {round}, attempt {attempt}  {what}"
        yield f"    {plain(' '.join(reason.split()), keep='')}"
    if told:
        yield f"told by the coordinator at {job.coordinator}: the record of its own node has the decisions and their times"
    elif not job.decisions:
        yield f"no decision was taken in job {job.job} ({job.state})"
    if job.state == JobState.ENDED and _sentence(job.reason) not in known:
        yield f"it {job.outcome}, exit code {job.exit_code}: {plain(' '.join(job.reason.split()), keep='')}"
    if job.state == JobState.LOST:
        yield "then its agents vanished: they were killed, or the host went down"


def _sentence(reason: str) -> str:
    """The reason without its hint."""
    return reason.partition("\n")[0]


def _what(decision: Decision) -> str:
    later = f" in {span(decision.delay_s)}" if decision.delay_s else ""
    left = "" if decision.restarts_left is None else f" ({count(decision.restarts_left, 'restart')} left)"
    return f"{decision.decision}{later}{left}"


def _kept(options: argparse.Namespace, *, of_job: bool = False) -> dict[str, Any] | None:
    """What is kept of the node, or job, `options.job`. None: there is no supervisor here, or it knows no such one."""
    if not os.path.exists(socket_of(options)):
        return None
    said = ask_supervisor(options, {"ask": "why", "node": options.job})
    return said if said.get("job" if of_job else "node") else None


def _show_node(told: dict[str, Any], as_json: bool) -> int:
    """Print it, the earliest first."""
    lines = (plain(line, keep="") for line in _node_lines(told["node"], told["deeds"]))
    return answer(as_json, lambda: {"node": told["node"], "deeds": told["deeds"]}, lines)


def _node_lines(node: dict[str, Any] | None, deeds: list[dict[str, Any]]) -> Iterator[str]:
    story = [(deed["at_unix"], _deed(deed)) for deed in deeds]
    if node is not None:
        yield f"{node['name']} is {node['state']}{_because(node['reason'])}"
        if repair := repair_in_words(node.get("repair")):
            yield f"  {repair}"
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
