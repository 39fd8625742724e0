"""Which job is meant? Commands about jobs take a name, the start of one, a run id as it was given, or nothing.

    train      the newest run of job `train`          train~1    its first run
    tra        the same, if no other job starts so    (nothing)  the job that was started last
    17         the newest step and life of Slurm job 17
    path/to/   a job's directory anywhere: a copy, or another user's

Commands that act on a job mean one that runs: of several runs of a name the newest that does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from holdfast.core.config.grammar import did_you_mean, nearest
from holdfast.core.errors import UsageError
from holdfast.telemetry.record.reader import Record, Tail, read
from holdfast.telemetry.record.state_dir import events_files, homes, job_dirs, running_nodes, safe_name, split_run, touched_at
from holdfast.telemetry.report.timeline import Timeline, timeline

SHOWN = 5  # Names of jobs that a message shows.


def job_argument(parser: argparse.ArgumentParser) -> None:
    """The optional JOB of the commands that look at one."""
    parser.add_argument("job", nargs="?", metavar="JOB", help="name, start of one, run id, or directory (default: the newest)")


def json_argument(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def look_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the commands that look at a job."""
    job_argument(parser)
    json_argument(parser)


BEGIN = "start one with `holdfast run SCRIPT`; if jobs ran with another HOLDFAST_STATE_DIR, set that"


def all_jobs() -> list[str]:
    """Directory of every run that is kept, the one that was started last first."""
    found = {path: _started_at(path) for home in homes(os.environ) for path in job_dirs(home)}
    return sorted(found, key=lambda path: (-found[path], path))


def choose(wanted: str | None, *, to_act: bool = False) -> str:
    """The directory of the run that is meant, to look at or `to_act` on. UsageError: none, or more than one."""
    if wanted and "/" in wanted and events_files(wanted):
        return os.path.abspath(wanted)
    jobs = all_jobs()
    if not jobs:
        raise UsageError(f"there are no jobs in {homes(os.environ)[0]}", hint=BEGIN)
    return jobs[0] if wanted is None else _named(wanted, jobs, to_act)


class Seen(NamedTuple):
    """One run of a job, as it was at a moment."""

    path: str  # Its directory.
    job: Timeline
    records: list[Record]  # What says so.
    at_unix: float


def story(path: str, clock: Callable[[], float] = time.time) -> Seen:
    """What has become of the job in `path` until now."""
    running = running_nodes(path)  # before reading: an agent that ends in between has then recorded its end
    records = read(path)
    return Seen(path, timeline(os.path.basename(path), records, running), records, clock())


def _named(wanted: str, jobs: list[str], to_act: bool) -> str:
    by_name = {os.path.basename(path): path for path in jobs}
    if "~" in wanted:
        name = wanted.removesuffix("~1")
        if name in by_name:
            return by_name[name]
        raise UsageError(f"there is no run {wanted!r}", hint=did_you_mean(wanted, by_name))
    runs = _runs(jobs)
    for name in (wanted, safe_name(wanted)):
        if name in runs:
            return _newest(runs[name], to_act)
    if parts := [path for path in jobs if _is_part(wanted, split_run(os.path.basename(path))[0])]:
        return parts[0]
    starting = sorted(name for name in runs if name.startswith(wanted))
    if len(starting) == 1:
        return _newest(runs[starting[0]], to_act)
    if starting:
        more = f" and {len(starting) - SHOWN} more" if len(starting) > SHOWN else ""
        raise UsageError(f"{wanted!r} may be any of {', '.join(starting[:SHOWN])}{more}", hint="give more of the name")
    raise UsageError(f"there is no job {wanted!r}", hint=_hint(wanted, list(runs)))


def _hint(wanted: str, names: list[str]) -> str:
    """The nearest name, or the newest ones."""
    if found := nearest(wanted, names):
        return f"did you mean {found}?"
    more = f", and {len(names) - SHOWN} older ones (`holdfast jobs`)" if len(names) > SHOWN else ""
    return f"known: {', '.join(names[:SHOWN])}{more}; a job with --state-dir DIR: set HOLDFAST_STATE_DIR=DIR"


def _is_part(number: str, name: str) -> bool:
    """Whether `name` is a step of Slurm job `number`, or one of its lives: `17.0-llama`, `17.0-llama-r1`."""
    return number.isdigit() and name.startswith((f"{number}.", f"{number}-"))


def _runs(jobs: Iterable[str]) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for path in jobs:
        runs.setdefault(split_run(os.path.basename(path))[0], []).append(path)
    return runs


def _newest(runs: list[str], to_act: bool) -> str:
    if len(runs) == 1:
        return runs[0]
    running = [path for path in runs if running_nodes(path)]
    newest = max((to_act and running) or runs, key=lambda path: split_run(os.path.basename(path))[1])
    first = split_run(os.path.basename(newest))[0] + "~1"
    which = "the newest that runs" if to_act and running else "the newest"
    still = "".join(f"; {_run_name(path)} runs" for path in running if path != newest)
    print(f"holdfast: {os.path.basename(newest)}, {which} of {len(runs)} runs ({first} is the first{still})", file=sys.stderr)
    return newest


def _run_name(path: str) -> str:
    name, number = split_run(os.path.basename(path))
    return f"{name}~{number}"


def _started_at(path: str) -> float:
    """When the run began: its first record, or what the file system knows where none was written yet."""
    moments = []
    for node, file in events_files(path):
        if records := Tail(file, node).read(limit=1):
            moments.append(records[0].at_unix)
    return min(moments, default=touched_at(path))
