"""`holdfast why [JOB | NODE]`: what was decided, and for which reason, word for word? Of a node, and of a job that has no
folder here, the supervisor on this host knows it (`why_node`)."""

from __future__ import annotations

import argparse

from holdfast.cli.fleet.supervisor_here import state_argument
from holdfast.cli.job import why_node
from holdfast.cli.job.choose import choose, job_argument, json_argument, story
from holdfast.cli.table import show_json
from holdfast.core.errors import UsageError
from holdfast.core.value import to_plain
from holdfast.telemetry.report.phrasing import count, moment, span
from holdfast.telemetry.report.safe_text import plain
from holdfast.telemetry.report.timeline import Decision, Life, Timeline

HELP = "a job's decisions, each with its reason; or a node's, where a supervisor runs here"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    job_argument(parser)
    state_argument(parser)
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, the earliest first."""
    if options.job and (known := why_node.ask(options)) is not None:
        return why_node.show(known, options.json)
    try:
        path = choose(options.job)
    except UsageError:
        if not options.job or (known := why_node.ask(options, of_job=True)) is None:
            raise
        return why_node.show(known, options.json)
    job, _ = story(path)
    if options.json:
        show_json([to_plain(decision) for decision in job.decisions])
        return 0
    for _, about, reason in sorted([*map(_decided, job.decisions), *map(_told, told := _only_told(job))]):
        print(f"{about}\n    {plain(reason, keep='')}")
    if told:
        print(f"told by the coordinator at {job.coordinator}: the record of its own node has the decisions and their times")
    elif not job.decisions:
        print(f"no decision was taken in job {job.job} ({job.state})")
    if job.state == "ended" and job.reason not in [decision.reason for decision in job.decisions]:
        print(f"it {job.outcome}, exit code {job.exit_code}: {plain(job.reason, keep='')}")
    if job.state == "lost":
        print("then its agents vanished: they were killed, or the host went down")
    return 0


def _only_told(job: Timeline) -> list[Life]:
    """Rounds that began for a reason which none of these nodes has recorded as a decision of its own."""
    known = {decision.reason for decision in job.decisions}
    return [life for life in job.lives if life.round > 1 and life.reason not in known]


def _told(life: Life) -> tuple[float, str, str]:
    return life.formed_at, f"{moment(life.formed_at)}  round {life.round}, attempt {life.attempt}  told", life.reason


def _decided(decision: Decision) -> tuple[float, str, str]:
    about = f"{moment(decision.at_unix)}  round {decision.round}, attempt {decision.attempt}  {_what(decision)}"
    return decision.at_unix, about, decision.reason


def _what(decision: Decision) -> str:
    later = f" in {span(decision.delay_s)}" if decision.delay_s else ""
    left = "" if decision.restarts_left is None else f" ({count(decision.restarts_left, 'restart')} left)"
    return f"{decision.decision}{later}{left}"
