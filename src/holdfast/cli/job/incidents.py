"""`holdfast incidents [JOB]`: what has failed in a job, round by round, what it means, and where what was kept of it lies?"""

from __future__ import annotations

import argparse
import os
from typing import Any

from holdfast.cli.job.choose import choose, job_argument, json_argument, story
from holdfast.cli.table import show_json
from holdfast.core.job.failure import describe
from holdfast.core.job.finding import Finding
from holdfast.core.value import to_plain
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_round
from holdfast.diagnosis.incident import health
from holdfast.diagnosis.report import as_json
from holdfast.diagnosis.rule import load, own_files
from holdfast.telemetry.record.state_dir import incident_dir
from holdfast.telemetry.report.phrasing import count, moment
from holdfast.telemetry.report.safe_text import one_line
from holdfast.telemetry.report.timeline import Life

HELP = "a job's failures, round by round: what each means, and what was kept of it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    job_argument(parser)
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show them, the earliest first."""
    path = choose(options.job)
    job, _ = story(path)
    rules = load(own_files())
    failed = [life for life in job.lives if any(not failure.innocent for failure in life.failures)]
    found = [(life, attribute(of_round(path, life.round, life.failures, rules))) for life in failed]
    if options.json:
        show_json([_plain(life, finding, path) for life, finding in found])
        return 0
    for life, finding in found:
        _show(life, finding, path)
    if not found:
        print(f"nothing has failed in job {job.job}")
    return 0


def _show(life: Life, finding: Finding, path: str) -> None:
    guilty = [failure for failure in life.failures if not failure.innocent]
    more = f" (and {count(len(guilty) - 1, 'more')})" if guilty[1:] else ""
    when = f"round {life.round}, attempt {life.attempt}, {moment(guilty[0].at_unix)}"
    print(f"{when}: {one_line(describe(guilty[0]), 300)}{more}")
    print(f"  {one_line(finding.sentence, 500)}")
    print(f"  class: {finding.kind}, {finding.confidence:.0%} sure")
    if life.decision:
        print(f"  then: {one_line(life.decision.decision)}")
    for node, verdicts in _health(path, life.round).items():
        for one in verdicts:
            advice = f" ({one['advice']})" if one.get("advice") else ""
            told = f"{one.get('check')}: {one.get('state')}: {one.get('reason')}{advice}"
            print(f"  health of {one_line(node)} when it {one_line(str(one.get('when')))}: {one_line(told, 300)}")
    if folder := _kept(path, life.round):
        print(f"  kept: {folder}")


def _health(path: str, round: int) -> dict[str, list[dict[str, Any]]]:
    """By node: its checks' verdicts that were not all well."""
    every = health(incident_dir(path, round))
    bad = {node: [one for one in verdicts if one.get("state") != "fit"] for node, verdicts in every.items()}
    return {node: verdicts for node, verdicts in bad.items() if verdicts}


def _kept(path: str, round: int) -> str:
    """That round's folder. Empty: nothing was kept here."""
    folder = incident_dir(path, round)
    return folder if os.path.isdir(folder) else ""


def _plain(life: Life, finding: Finding, path: str) -> dict[str, Any]:
    failures = [to_plain(failure) for failure in life.failures if not failure.innocent]
    known = {"round": life.round, "attempt": life.attempt, "finding": as_json(finding)}
    said = health(incident_dir(path, life.round))
    return known | {"failures": failures, "kept": _kept(path, life.round), "health": said}
