"""`holdfast jobs`: which jobs are there, and how are they?"""

from __future__ import annotations

import argparse
import os

from holdfast.cli.choose import Seen, all_jobs, json_argument, story
from holdfast.cli.table import Table, answer
from holdfast.telemetry.report.phrasing import span
from holdfast.telemetry.report.timeline import JobState, Timeline

HELP = "list the jobs on this host, the newest first"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--running", action="store_true", help="only those that run")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """List them; 0 also when there are none."""
    seen = [one for path in all_jobs() if (one := story(path)).job.is_alive or not options.running]
    headings = ("job", "state", "nodes", "ranks", "since", "script", "last decision")
    part = Table(headings, [_row(one) for one in seen]) if seen else "no jobs"
    return answer(options.json, lambda: [_plain(one) for one in seen], [part])


def _row(seen: Seen) -> tuple[object, ...]:
    job = seen.job
    last = job.decisions[-1] if job.decisions else None
    decision = f"{last.decision}: {last.reason}" if last else "-"
    return (job.job, state(job), _nodes(job), _ranks(job), since(seen), os.path.basename(_script(job)) or "-", decision)


def _nodes(job: Timeline) -> int:
    return len(job.life.nodes) if job.life else len(job.nodes)


def _ranks(job: Timeline) -> int:
    return job.life.world_size if job.life else sum(node.nproc for node in job.nodes)


def _script(job: Timeline) -> str:
    return job.nodes[-1].script if job.nodes else ""


def state(job: Timeline) -> str:
    """The job's state in a few words: `running`, `failed (exit code 1)`."""
    if job.is_between_rounds:
        return "between rounds"
    if job.state != JobState.ENDED:
        return job.state
    return f"{job.outcome}" if not job.exit_code else f"{job.outcome} (exit code {job.exit_code})"


def since(seen: Seen) -> str:
    """For how long the job has been in that state."""
    began = seen.job.started_at if seen.job.ended_at is None else seen.job.ended_at
    if began is None:
        return "-"
    return span(seen.at_unix - began) + (" ago" if seen.job.ended_at is not None else "")


def job_plain(seen: Seen) -> dict[str, object]:
    """What programs are told of a job by every listing."""
    job = seen.job
    return {
        "job": job.job,
        "directory": os.path.abspath(seen.path),
        "state": job.state,
        "outcome": job.outcome,
        "exit_code": job.exit_code,
        "started_at_unix": job.started_at,
        "ended_at_unix": job.ended_at,
        "last_decision": job.decisions[-1] if job.decisions else None,
    }


def _plain(seen: Seen) -> dict[str, object]:
    return job_plain(seen) | {"nodes": _nodes(seen.job), "ranks": _ranks(seen.job), "script": _script(seen.job)}
