"""`holdfast why [JOB | NODE]`: what was decided, and for which reason, word for word? Of a node, and of a job that has no
folder here, the supervisor on this host knows it (`why_node`)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from holdfast.cli.choose import choose, look_arguments, story
from holdfast.cli.fleet.supervisor_here import state_argument
from holdfast.cli.job import why_node
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
    if options.job and (known := why_node.ask(options)) is not None:
        return why_node.show(known, options.json)
    try:
        path = choose(options.job)
    except UsageError:
        if not options.job or (known := why_node.ask(options, of_job=True)) is None:
            raise
        return why_node.show(known, options.json)
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
