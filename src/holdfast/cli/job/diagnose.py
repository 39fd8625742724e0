"""`holdfast diagnose [WHAT …]`: why did it fail? Of a job of ours, or of logs that any launcher has left."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import chain

from holdfast.cli.choose import choose, json_argument, story
from holdfast.cli.table import Table, answer
from holdfast.core.errors import UsageError
from holdfast.core.job.report import Outcome
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_files, of_round
from holdfast.diagnosis.evidence import Evidence
from holdfast.diagnosis.gather import ends, of_text
from holdfast.diagnosis.report import as_json, as_lines
from holdfast.diagnosis.rule import Rules, as_table, load, own_files
from holdfast.diagnosis.tables import DEPTHS
from holdfast.telemetry.record.state_dir import events_files
from holdfast.telemetry.report.safe_text import one_line

MOST_LOGS, TAIL = 8, 60  # Logs whose last lines are sent for a second opinion, and how many lines.

HELP = "why did it fail? the cause among all messages, whose it is, and what to do"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="a job, or logs and directories of them; - is stdin (default: the newest job)"
    )
    parser.add_argument("--rules", action="append", default=[], metavar="FILE", help="more rules, as TOML; may be repeated")
    parser.add_argument("--list-rules", action="store_true", help="show the rules, and nothing else")
    asks = "where the rules are not sure, send the logs' ends, without secrets, to this API of a language model; see the how-to"
    parser.add_argument("--ask", metavar="URL", help=asks)
    parser.add_argument("--ask-model", default="", metavar="NAME", help="of that API (default: the first that it lists)")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Show it. 0: something was found; 1: no rule matched."""
    if options.ask_model and not options.ask:
        raise UsageError("--ask-model: nobody is asked", hint="give --ask URL too, or leave it out")
    rules = load([*own_files(), *options.rules])
    if options.list_rules:
        headings = ("rule", "class", "depth", "sure", "advised", "says")
        rows = [(one.name, one.kind, DEPTHS[one.depth], f"{one.confidence:.0%}", one.action, one.says) for one in rules.rules]
        return answer(options.json, lambda: [as_table(rule) for rule in rules.rules], [Table(headings, rows)])
    evidence, tails = _read(options.what, rules)
    finding = attribute(evidence)
    plain, lines = as_json(finding, sources=evidence.sources), as_lines(finding, sources=evidence.sources)
    if options.ask:
        from holdfast.diagnosis.opinions import language_model  # HTTP and TLS take 30 ms

        asked = language_model.model(options.ask, options.ask_model, os.environ.get("HOLDFAST_ASK_KEY", ""))
        said = language_model.ask(asked, finding, tails, say=lambda line: print(line, file=sys.stderr))
        plain, lines = plain | said, chain(lines, language_model.as_lines(said))
    answer(options.json, lambda: plain, lines)
    return 0 if finding.rule or finding.evidence else 1


def _read(what: list[str], rules: Rules) -> tuple[Evidence, list[Sequence[str]]]:
    """(what is known, and the last lines of the logs)."""
    if what == ["-"]:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
        return of_text(text, rules, source="stdin"), [text.splitlines()[-TAIL:]]
    if what and all(os.path.exists(path) for path in what) and not _is_job(what):
        found = of_files(what, rules)
        return found, ends(what, found, logs=MOST_LOGS, lines=TAIL)
    return _of_job(what, rules)


def _of_job(what: list[str], rules: Rules) -> tuple[Evidence, list[Sequence[str]]]:
    """What a job's own files tell of its last failure."""
    if len(what) > 1:
        raise UsageError(f"there is no {next(path for path in what if not os.path.exists(path))}")
    if what and _is_path(what[0]) and not os.path.exists(what[0]):
        raise UsageError(f"there is no file {what[0]}", hint="check the path; for a job, give its name: see `holdfast jobs`")
    seen = story(choose(what[0] if what else None))
    life = next((life for life in reversed(seen.job.lives) if life.guilty), None)
    if life is None and seen.job.outcome == Outcome.FAILED:
        raise UsageError(f"no rank has failed in job {seen.job.job}, but the job has: {one_line(seen.job.reason, 500)}")
    if life is None:
        raise UsageError(f"job {seen.job.job} has no failure", hint="give logs, or another job: see `holdfast jobs`")
    return of_round(seen.path, life.round, life.failures, rules), [failure.log_tail for failure in life.guilty[:3]]


def _is_path(word: str) -> bool:
    """Whether it looks like one, and not like a job's name."""
    return "/" in word or word.endswith((".log", ".txt", ".out", ".err", ".json"))


def _is_job(what: list[str]) -> bool:
    return len(what) == 1 and os.path.isdir(what[0]) and bool(events_files(what[0]))
