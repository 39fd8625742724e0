"""`holdfast diagnose [WHAT …]`: why did it fail? Of a job of ours, or of logs that any launcher has left."""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.cli.job.choose import choose, json_argument, story
from holdfast.cli.table import show, show_json
from holdfast.core.errors import UsageError
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_files, of_round
from holdfast.diagnosis.evidence import Evidence
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.report import as_json, as_text
from holdfast.diagnosis.rule import DEPTHS, Rules, as_table, load, own_files
from holdfast.telemetry.record.state_dir import events_files

HELP = "why did it fail? the cause among all messages, whose it is, and what to do"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="a job, or logs and directories of them; - is stdin (default: the newest job)"
    )
    parser.add_argument("--rules", action="append", default=[], metavar="FILE", help="more rules, as TOML; may be repeated")
    parser.add_argument("--list-rules", action="store_true", help="show the rules, and nothing else")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show it. 0: something was found; 1: nothing that a rule knows."""
    rules = load([*own_files(), *options.rules])
    if options.list_rules:
        return _list(rules, options.json)
    if options.what == ["-"]:
        evidence = of_text(sys.stdin.buffer.read().decode("utf-8", "replace"), rules, source="stdin")
    elif options.what and all(os.path.exists(path) for path in options.what) and not _is_job(options.what):
        evidence = of_files(options.what, rules)
    else:
        evidence = _of_job(options.what, rules)
    finding = attribute(evidence)
    if options.json:
        show_json(as_json(finding, sources=evidence.sources))
    else:
        print(as_text(finding, sources=evidence.sources), end="")
    return 0 if finding.rule or finding.evidence else 1


def _of_job(what: list[str], rules: Rules) -> Evidence:
    """What a job's own files tell of its last failure."""
    if len(what) > 1:
        raise UsageError(f"there is no {next(path for path in what if not os.path.exists(path))}")
    path = choose(what[0] if what else None)
    job, _ = story(path)
    life = next((life for life in reversed(job.lives) if any(not failure.innocent for failure in life.failures)), None)
    if life is None:
        raise UsageError(f"job {job.job} has no failure", hint="give logs, or another job: see `holdfast jobs`")
    return of_round(path, life.round, life.failures, rules)


def _is_job(what: list[str]) -> bool:
    return len(what) == 1 and os.path.isdir(what[0]) and bool(events_files(what[0]))


def _list(rules: Rules, as_json: bool) -> int:
    if as_json:
        show_json([as_table(rule) for rule in rules.rules])
    else:
        rows = [
            (rule.name, rule.kind, DEPTHS[rule.depth], f"{rule.confidence:.0%}", rule.action, rule.says) for rule in rules.rules
        ]
        show(("rule", "class", "depth", "sure", "advised", "says"), rows)
    return 0
