"""What does an agent leave at the job's end? The report on stderr, torchrun's box where asked for, and the report as a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from holdfast.agent.workers import launch
from holdfast.agent.workers.error_files import hand_on
from holdfast.core.config.config import RunConfig
from holdfast.core.job.failure import Failure
from holdfast.core.job.finding import Class, Finding
from holdfast.core.job.report import JobReport, Outcome
from holdfast.runtime.private_files import private
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.prune import KEEP_JOBS, prune
from holdfast.telemetry.record.state_dir import JobDir, job_dirs, last_runs, state_home
from holdfast.telemetry.report.failure_box import entrypoint_name, failure_box
from holdfast.telemetry.report.report_text import is_news, report_from_json, report_json, report_text, terminal

CAUSE_S = 0.5
"""How long the report waits to be told what the failures mean: reading the rules takes 0.05 s, unless their disk hangs."""

ENDS_KNOWN = 4  # Runs of a job that are looked back on: who was cut off gives up after `join_timeout`.


def tell(
    report: JobReport, config: RunConfig, say: Callable[[str], None], *, found: Finding | None, io_thread: IoThread
) -> None:
    """Say the report: our own, then, where it is wished for, the box that programs look for at the end of torchrun's stderr. A
    job that succeeded without an incident is not talked about. `found`: as from `cause`. `io_thread` touches files."""
    if not is_news(report):
        return
    width, colour = terminal(sys.stderr)
    state_dir = "" if config.state_dir == state_home(os.environ) else config.state_dir
    say(report_text(report, found, width=width, colour=colour, brief=config.brief, state_dir=state_dir))
    if report.failures and report.outcome == Outcome.FAILED:
        root = report.failures[0]
        is_handed_on = io_thread.value(lambda: hand_on(root, config.error_file))
        if not is_handed_on and config.error_file and root.error_record is not None:
            say(f"holdfast: cannot write the first failure's record to {config.error_file} (TORCHELASTIC_ERROR_FILE)\n")
        if config.failure_box:
            program, *args = launch.own_command(config, 0)
            name = launch.RUN_PATH_NAME if config.run_path else entrypoint_name(program, args)
            say(failure_box(name, report.failures) + "\n")


def cause(failures: Sequence[Failure]) -> Finding | None:
    """What these failures mean by what they say of themselves. None: no rule knows, or nothing was found out in
    `CAUSE_S`."""
    if all(failure.innocent for failure in failures):
        return None

    def look() -> Finding:
        from holdfast.diagnosis.collect import diagnose  # loads every rule, which only a failure needs

        return diagnose(failures)

    found = IoThread().value(look, CAUSE_S)
    return found if found is not None and (found.rule or found.kind != Class.UNKNOWN) else None


def ended_runs(config: RunConfig) -> dict[str, JobReport]:
    """How the job's last runs ended, by their lives, as their reports on this host tell. A node that was cut off at the end of
    one may come back while the next one runs."""
    found: list[JobReport | None] = []
    for path in last_runs(config.state_dir, config.rdzv_id, endpoint=config.rdzv_endpoint)[:ENDS_KNOWN]:
        try:
            with open(os.path.join(path, "report.json"), encoding="utf-8") as file:
                found.append(report_from_json(file.read()))
        except (OSError, ValueError):
            continue
    return {report.life: report for report in found if report is not None and report.life}


def make_room(state_dir: str) -> None:
    """Prune the oldest jobs, if there are more than are kept (looking at their sizes each time would cost too much)."""
    if len(job_dirs(state_dir)) > KEEP_JOBS:
        prune(state_dir)


def keep(report: JobReport, job_dir: JobDir, *, found: Finding | None) -> None:
    """Write the report into the job's directory. `found`: as from `cause`. OSError where that cannot be."""
    # Several agents of one job may share the directory: each writes a file of its own, and the name changes hands.
    draft = f"{job_dir.report_path}.{job_dir.node}"
    try:
        with open(draft, "w", encoding="utf-8", opener=private) as file:
            json.dump(report_json(report, found), file, indent=2)
        os.replace(draft, job_dir.report_path)
    except OSError:
        if os.path.exists(draft):
            os.unlink(draft)  # the disk is full: half a report is none
        raise
