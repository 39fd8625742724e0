"""`holdfast incidents [JOB]`: what has failed in a job, round by round, what it means, and where what was kept of it lies?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from holdfast.cli.choose import choose, look_arguments, story
from holdfast.cli.table import answer
from holdfast.core.job.report import Outcome
from holdfast.core.value import to_plain
from holdfast.diagnosis.report import as_json
from holdfast.diagnosis.story import Incident, incidents
from holdfast.health.verdict import FIT
from holdfast.telemetry.report.phrasing import moment
from holdfast.telemetry.report.safe_text import one_line
from holdfast.telemetry.report.timeline import Timeline

HELP = "a job's failures, round by round: what each means, and what was kept of it"

arguments = look_arguments


def run(options: argparse.Namespace) -> int:
    """Show them, the earliest first."""
    seen = story(choose(options.job))
    found = incidents(seen.path, seen.job)
    lines = [line for one in found for line in _lines(one)] or [_nothing(seen.job)]
    return answer(options.json, lambda: [_plain(one) for one in found], lines)


def _nothing(job: Timeline) -> str:
    if job.outcome == Outcome.FAILED:
        return f"no rank has failed in job {job.job}, but the job has: {one_line(job.reason, 500)}"
    return f"nothing has failed in job {job.job}"


def _lines(one: Incident) -> Iterator[str]:
    life, finding = one.life, one.finding
    yield f"round {life.round}, attempt {life.attempt}, {moment(life.guilty[0].at_unix)}: {life.what_failed()}"
    yield f"  {one_line(finding.sentence, 500)}"
    yield f"  class: {finding.kind}, {finding.confidence:.0%} sure"
    if life.decision:
        yield f"  then: {one_line(life.decision.decision)}"
    for node, verdicts in one.health.items():
        for verdict in (verdict for verdict in verdicts if verdict.get("state") != FIT):
            advice = f" ({verdict['advice']})" if verdict.get("advice") else ""
            told = f"{verdict.get('check')}: {verdict.get('state')}: {verdict.get('reason')}{advice}"
            yield f"  health of {one_line(node)} when it {one_line(str(verdict.get('when')))}: {one_line(told, 300)}"
    if one.folder:
        yield f"  kept: {one.folder}"


def _plain(one: Incident) -> dict[str, Any]:
    known = {"round": one.life.round, "attempt": one.life.attempt, "finding": as_json(one.finding)}
    return known | {"failures": to_plain(one.life.guilty), "kept": one.folder, "health": one.health}
