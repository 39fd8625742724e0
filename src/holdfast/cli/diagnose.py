"""`holdfast diagnose [WHAT …]`: why did it fail? Of a job of ours, or of logs that any launcher has left."""

from __future__ import annotations

import os
import sys

from holdfast.cli.choose import choose, json_argument, story
from holdfast.cli.table import show, show_json
from holdfast.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from holdfast.core.failure import Failure
    from holdfast.diagnosis.evidence import End
    from holdfast.diagnosis.rule import Rules

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
    from holdfast.diagnosis.report import as_json, as_text
    from holdfast.diagnosis.rule import load

    rules = load([*_own_rules(), *options.rules])
    if options.list_rules:
        return _list(rules, options.json)
    from holdfast.diagnosis.attribute import attribute
    from holdfast.diagnosis.gather import gather, of_text

    if options.what == ["-"]:
        evidence = of_text(sys.stdin.buffer.read().decode("utf-8", "replace"), rules, source="stdin")
    else:
        paths, ends = _meant(options.what)
        evidence = gather(paths, rules, ends=ends)
    finding = attribute(evidence)
    if options.json:
        show_json(as_json(finding, sources=evidence.sources))
    else:
        print(as_text(finding, sources=evidence.sources), end="")
    return 0 if finding.rule or finding.evidence else 1


def _own_rules() -> list[str]:
    """`rules/*.toml` of the state directory."""
    from holdfast.telemetry.state_dir import homes

    folder = os.path.join(homes(os.environ)[0], "rules")
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".toml")]
    except OSError:
        return []


def _meant(what: list[str]) -> tuple[list[str], Iterable[End]]:
    """(logs, how workers ended, as our own record says)."""
    if what and all(os.path.exists(path) for path in what) and not (len(what) == 1 and _is_job(what[0])):
        return what, ()
    if len(what) > 1:
        raise UsageError(f"there is no {next(path for path in what if not os.path.exists(path))}")
    path = choose(what[0] if what else None)
    job, _ = story(path)
    life = next((life for life in reversed(job.lives) if life.failures), None)
    if life is None:
        raise UsageError(f"job {job.job} has no failure", hint="give logs, or another job: see `holdfast jobs`")
    logs = {os.path.dirname(os.path.dirname(failure.log_path)) for failure in life.failures if failure.log_path}
    kept = [log for log in sorted(logs) if os.path.isdir(log)]
    return kept, list(_ends(life.failures))


def _is_job(path: str) -> bool:
    from holdfast.telemetry.state_dir import events_files

    return os.path.isdir(path) and bool(events_files(path))


def _ends(failures: Iterable[Failure]) -> Iterable[End]:
    from holdfast.diagnosis.collect import end_of

    guilty = [failure for failure in failures if not failure.innocent]
    yield from (end_of(failure, first=failure is guilty[0]) for failure in guilty)


def _list(rules: Rules, as_json: bool) -> int:
    from holdfast.diagnosis.rule import DEPTHS, as_table

    if as_json:
        show_json([as_table(rule) for rule in rules.rules])
    else:
        rows = [
            (rule.name, rule.kind, DEPTHS[rule.depth], f"{rule.confidence:.0%}", rule.action, rule.says) for rule in rules.rules
        ]
        show(("rule", "class", "depth", "sure", "advised", "says"), rows)
    return 0
