"""`holdfast events [JOB]`: what happened, one line for each event, from all nodes, as it happens if asked."""

from __future__ import annotations

import argparse
import json

from holdfast.cli.choose import choose, job_argument
from holdfast.core.job.failure import Failure, describe
from holdfast.core.value import fields_of, to_plain
from holdfast.telemetry.record.reader import Record, follow, read
from holdfast.telemetry.record.state_dir import is_running
from holdfast.telemetry.report.phrasing import iso
from holdfast.telemetry.report.safe_text import one_line

HELP = "a job's events from all nodes, in order"

VALUE_LIMIT = 120  # Characters of one field in a line for people; --json has all of it.


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    job_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on as they happen, until the job ends")
    parser.add_argument("--json", action="store_true", help="print each as it stands on disk, one JSON line each")


def run(options: argparse.Namespace) -> int:
    """Print them."""
    path = choose(options.job)
    records = follow(path, lambda: not is_running(path)) if options.follow else read(path)
    for record in records:
        envelope = {"seq": record.seq, "at_unix": record.at_unix, "node": record.node, "round": record.round}
        plain = envelope | {"attempt": record.attempt, "event": record.name} | record.fields
        print(json.dumps(plain) if options.json else _line(record), flush=options.follow)
    return 0


def _line(record: Record) -> str:
    fields = record.fields if record.event is None else fields_of(record.event)
    told = {field: item for field, item in fields.items() if item not in (None, "") and field != "round"}
    shown = " ".join(_shown(field, item) for field, item in told.items())
    at = iso(record.at, " ", "")
    return f"{at}  {record.node}  {record.round}.{record.attempt}  {record.name:<14} {shown}".rstrip()


def _shown(field: str, item: object) -> str:
    if isinstance(item, Failure):
        return one_line(describe(item), 300)
    if isinstance(item, str):
        return f"{field}={one_line(item, VALUE_LIMIT)!r}" if " " in item or not item.isprintable() else f"{field}={item}"
    return f"{field}={one_line(json.dumps(to_plain(item)), VALUE_LIMIT)}"
