"""`holdfast jobs`: which jobs are there, and how are they?"""

from __future__ import annotations

import argparse
import os
import time

from holdfast.cli.job.choose import all_jobs, json_argument, story
from holdfast.cli.table import show, show_json
from holdfast.telemetry.report.phrasing import span
from holdfast.telemetry.report.timeline import Timeline

HELP = "list the jobs on this host, the newest first"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--running", action="store_true", help="only those that run")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """List them; 0 also when there are none."""
    seen = [(path, story(path)[0]) for path in all_jobs()]
    if options.running:
        seen = [(path, job) for path, job in seen if job.state in ("running", "starting")]
    if options.json:
        show_json([_plain(path, job) for path, job in seen])
    elif not seen:
        print("no jobs")
    else:
        show(("job", "state", "nodes", "ranks", "since", "last decision"), [_row(job, time.time()) for _, job in seen])
    return 0


def _row(job: Timeline, now: float) -> tuple[object, ...]:
    last = job.decisions[-1] if job.decisions else None
    return (job.job, state(job), _nodes(job), _ranks(job), since(job, now), f"{last.decision}: {last.reason}" if last else "-")


def _nodes(job: Timeline) -> int:
    return len(job.life.nodes) if job.life else len(job.nodes)


def _ranks(job: Timeline) -> int:
    return job.life.world_size if job.life else sum(node.nproc for node in job.nodes)


def state(job: Timeline) -> str:
    """The job's state in a few words: `running`, `ended (failed, exit code 1)`."""
    if job.state != "ended":
        return job.state
    return f"{job.outcome}" if not job.exit_code else f"{job.outcome} (exit code {job.exit_code})"


def since(job: Timeline, now: float) -> str:
    """For how long it has been in that state."""
    began = job.started_at if job.ended_at is None else job.ended_at
    if began is None:
        return "-"
    return span(now - began) + (" ago" if job.ended_at is not None else "")


def _plain(path: str, job: Timeline) -> dict[str, object]:
    return {
        "job": job.job,
        "directory": os.path.abspath(path),
        "state": job.state,
        "outcome": job.outcome,
        "exit_code": job.exit_code,
        "nodes": _nodes(job),
        "ranks": _ranks(job),
        "started_at_unix": job.started_at,
        "ended_at_unix": job.ended_at,
        "last_decision": job.decisions[-1] if job.decisions else None,
    }
