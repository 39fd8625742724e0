"""What does somebody need to read first, at three in the morning, when a job has ended?

`report_text` is what every node prints at the end: one sentence with the first failure across all nodes, what it means where
that is known, the line of the user's own that it came from, its last lines and where the rest is, then the other failures,
then what was decided. It takes at most `MOST_LINES` lines, whatever the number of ranks; the traceback has been on the
console before, and stands in the rank's record. It says the same on every node: it is made of the job's report alone, and its
times are UTC. `report_json` is the same for programs.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from holdfast.core.job.ends import TRACEBACK
from holdfast.core.job.failure import NO_OOM_KILL, Cause, Failure, describe, guilty
from holdfast.core.job.finding import Finding
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.value import to_plain
from holdfast.telemetry.record.plain_values import from_plain
from holdfast.telemetry.report.own_frame import own_frame
from holdfast.telemetry.report.phrasing import count, moment, ranges, span
from holdfast.telemetry.report.safe_text import one_line, plain, uncoloured

SCHEMA = 1  # Version of `report_json`: raised when a key changes its meaning or goes.
MOST_LINES = 25  # Of the report: what a terminal shows without scrolling.
LIKELY = 0.7  # A cause that is less sure is called likely.
MAX_GROUPS = 4  # Lines about the other failures.
MAX_LOG_LINE = 500  # Characters of one line of the worker's log.

HINTS = {
    "SIGKILL": "not sent by Holdfast: most often the kernel's out-of-memory killer (see `dmesg`), or a job scheduler",
    "SIGBUS": "often a full /dev/shm (data loaders), or a file that shrank while it was mapped",
    "SIGSEGV": "a crash in native code: a library, a driver, or a mismatch of their versions",
    "SIGABRT": "native code gave up on purpose: it says why on stderr",
}
"""What a signal that nobody here sent usually means."""

CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
"""Signals on which Python writes where each thread was, to the rank's stderr."""

_DIGITS = re.compile(r"\d+")

BOLD, RED, DIM, OFF = "\x1b[1m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"


def report_text(
    report: JobReport,
    found: Finding | None = None,
    *,
    width: int = 100,
    colour: bool = False,
    brief: bool = False,
    state_dir: str = "",
) -> str:
    """The report for people, ending with a line end. Empty for a job that succeeded without an incident. `found`: what the
    failures mean, and what to do; None: not known. `brief`: only who failed, that, and the decision. `state_dir`: where the
    job's record is, if not where commands look for it."""
    if not is_news(report):
        return ""
    paint = _Paint(width, colour)
    lines = paint.prose(f"holdfast: {summary(report)}", first=RED if report.outcome == Outcome.FAILED else BOLD)
    if found is not None:
        title = "Cause" if found.confidence >= LIKELY else "Likely cause"
        lines += [paint.title(title), *paint.prose(f"  {one_line(told(found), 1000)}", indent="  ")]
    decision = [paint.title("Decision"), *paint.prose(f"  {_decision(report)}", indent="  ")]
    ask = f"HOLDFAST_STATE_DIR={state_dir} holdfast report" if state_dir else "holdfast report"
    decision += paint.prose(f"  the whole story: {ask} {one_line(report.job)}", indent="  ")
    root = first_failure(report)
    first = [] if root is None or brief else _about_first(root, paint, is_explained=found is not None)
    others = [] if brief else _about_others(report, paint)
    room = MOST_LINES - sum(map(len, (lines, first, others, decision)))
    log = [] if root is None or brief else _last_lines(root, paint, room)
    return "\n".join((*lines, *first, *log, *others, *decision)) + "\n"


def told(found: Finding) -> str:
    """What failures mean, in a sentence: whose fault it is, why, what to do, and how sure that is."""
    return f"{found.sentence} ({found.kind}, {found.confidence:.0%} sure)"


def is_news(report: JobReport) -> bool:
    """Whether anything happened but a success."""
    return report.outcome != Outcome.SUCCEEDED or report.restarts_used > 0 or report.rounds > 1 or bool(report.failures)


def report_json(report: JobReport, found: Finding | None = None) -> dict[str, Any]:
    """The report for programs: the report's own fields, with each failure's signal and a sentence about it. `found`: what the
    failures mean; None: not known."""
    failures = [
        to_plain(failure) | {"signal": failure.signal_name, "sentence": _sentence(failure)} for failure in report.failures
    ]
    cause: dict[str, Any] | None = None
    if found is not None:
        cause = {field: getattr(found, field) for field in ("sentence", "kind", "confidence", "rule", "rank", "node")}
        cause["from"] = to_plain(found.evidence[:1])
    known: dict[str, Any] = to_plain(report)
    return known | {
        "schema": SCHEMA,
        "summary": summary(report),
        "duration_s": round(report.ended_at_unix - report.started_at_unix, 3),
        "first_failure": failures[0] if first_failure(report) else None,
        "failures": failures,
        "cause": cause,
    }


def report_from_json(text: str) -> JobReport | None:
    """What `report_json` has been made of. None: it is no such report, or another version's."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    report: JobReport | None = from_plain(JobReport, said) if isinstance(said, dict) else None
    return report


def first_failure(report: JobReport) -> Failure | None:
    """The failure that began it all; None where nothing failed by itself."""
    return next(iter(guilty(report.failures)), None)


def summary(report: JobReport) -> str:
    """The report in one sentence."""
    job, root = f"job {one_line(report.job)}", first_failure(report)
    if report.outcome == Outcome.SUCCEEDED:
        rounds = f" in {report.rounds} rounds" if report.rounds > 1 else ""
        borne = f", though {_sentence(root)}" if root else ""
        return f"{job} succeeded after {count(report.restarts_used, 'restart')}{rounds}{borne}"
    if root is None:
        return f"{job} {'was stopped' if report.outcome == Outcome.STOPPED else 'failed'}: {one_line(report.reason)}"
    return f"{job} {'was stopped after a failure' if report.outcome == Outcome.STOPPED else 'failed'}: {_sentence(root)}"


def terminal(stream: TextIO) -> tuple[int, bool]:
    """(columns to fill, whether to colour) for what is printed to `stream`. NO_COLOR and TERM=dumb are honoured."""
    if not stream.isatty():
        return 100, False
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return columns or 100, "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class _Paint:
    """Lays out lines for one width, in colour or not."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = max(40, width)
        self.colour = colour

    def put(self, style: str, text: str) -> str:
        return f"{style}{text}{OFF}" if self.colour and style and text else text

    def title(self, text: str) -> str:
        return self.put(BOLD, text)

    def prose(self, text: str, *, first: str = "", indent: str = "") -> list[str]:
        """Wrapped to the width, but no word is cut: a path must be copied whole."""
        shape = {"subsequent_indent": indent + "  ", "break_long_words": False, "break_on_hyphens": False}
        return [self.put(first, line) for line in textwrap.wrap(text, self.width, **shape)]  # type: ignore[arg-type]

    def verbatim(self, lines: Iterable[str], mark: str, style: str = "") -> list[str]:
        """As they are, behind `mark`; not wrapped: they are copied into searches and editors."""
        return [self.put(style, (mark + plain(uncoloured(line), keep="\t")).rstrip()) for line in lines]


def _about_first(root: Failure, paint: _Paint, *, is_explained: bool) -> list[str]:
    where = [_who([root]), f"pid {root.pid}" if root.pid > 0 else "", _ending(root), f"at {moment(root.at_unix)}"]
    where.append(f"attempt {root.attempt}, round {root.round}")
    lines = [paint.title("First failure"), *paint.prose("  " + " · ".join(filter(None, where)), indent="  ")]
    lines += (line for text in _explained(root, is_explained) for line in paint.prose(f"  {text}", indent="  "))
    return [*lines, *paint.verbatim(own_frame(root.traceback or ""), "  ")]


def _last_lines(root: Failure, paint: _Paint, room: int) -> list[str]:
    """The last lines of its log, and where that is, in at most `room` lines; two of the log at least."""
    if not root.log_path or not (root.log_tail or root.traceback):
        return []
    rest = f"  all of it: {one_line(root.node)}:{plain(root.log_path, keep='')}"
    tail = _without_traceback(root)[-max(2, room - 2) :]
    lines = [line[:MAX_LOG_LINE] + ("…" if len(line) > MAX_LOG_LINE else "") for line in tail]
    return [paint.title("Last lines of its log"), *paint.verbatim(lines, "  │ ", DIM), rest] if lines else [rest]


def _explained(root: Failure, is_explained: bool) -> Iterator[str]:
    """What there is to say of a bare exit or signal: what the signal usually means, unless its cause `is_explained`, and why
    more is not known."""
    if root.trouble:
        yield one_line(root.trouble, 500)
    if root.cause not in (Cause.EXIT, Cause.SIGNAL):
        return
    hint = "" if is_explained or root.cause != Cause.SIGNAL else _of_memory(root) or HINTS.get(root.signal_name or "")
    if hint:
        yield f"{root.signal_name}: {hint}"
    if not root.traceback and not root.log_tail:
        if root.log_path:
            yield f"no traceback is known, and its log is empty: {plain(root.log_path, keep='')}"
        else:
            crashed = root.signal_name in CRASHES
            told = "its output says where it crashed, but" if crashed else "no traceback is known, and its output"
            yield f"{told} was not kept; with --tee 3 its last lines would stand here"


def _of_memory(root: Failure) -> str:
    """Who sent a SIGKILL, where that is known; empty: it is not."""
    if root.injected:
        return root.injected
    if root.oom == NO_OOM_KILL and root.signal_name == "SIGKILL":
        return "sent neither by Holdfast nor by the kernel for want of memory: by a scheduler, a script or a person"
    return f"the kernel ran out of memory: {root.oom}" if root.oom not in ("", NO_OOM_KILL) else ""


def _about_others(report: JobReport, paint: _Paint) -> list[str]:
    root = first_failure(report)
    groups: dict[tuple[object, ...], list[Failure]] = {}
    for failure in report.failures[1:] if root else report.failures:
        groups.setdefault((failure.rank < 0, failure.innocent, _numberless(failure)), []).append(failure)
    if not groups:
        return []
    lines = [paint.title("After it" if root else "Workers")]
    shown, left = list(groups.values())[:MAX_GROUPS], list(groups.values())[MAX_GROUPS:]
    for members in shown:
        lines += paint.prose(f"  {_alike(members, root)}", indent="  ")
    if more := sum(map(len, left)) + report.failures_left_out:
        lines.append(f"  … and {more} more")
    return lines


def _alike(members: Sequence[Failure], root: Failure | None) -> str:
    """Failures that ended in one way, after the first one."""
    how = _how(members[0])
    if root is None:
        return f"{_who(members)}: {how}"
    later = 0.0 if members[0].innocent else min(failure.at_unix for failure in members) - root.at_unix
    when = f", {span(later)} later" if later >= 0.001 else ""
    if root.message and root.rank >= 0 and _numberless(members[0]) == _numberless(root):
        how = "the same" if {_how(failure) for failure in members} == {_how(root)} else "the same, with other numbers"
    return f"{_who(members)}{when}: {how}"


def _numberless(failure: Failure) -> str:
    """How it ended, equal for ranks whose words differ in their numbers only: in their rank, their shard, their port."""
    return _DIGITS.sub("0", _how(failure)) if failure.rank >= 0 and failure.message else _how(failure)


def _decision(report: JobReport) -> str:
    root = first_failure(report)
    # The reason begins with the failure that led to the decision: that stands above already.
    reason = report.reason.removeprefix(describe(root)).lstrip("; ") if root else report.reason
    used = f"{report.restarts_used} of {count(report.max_restarts, 'restart')} used"
    budget = used if report.max_restarts and "restart" not in reason else ""
    what = {Outcome.SUCCEEDED: "finished", Outcome.FAILED: "gave up"}.get(report.outcome, report.outcome)
    nodes = len(report.nodes) + report.nodes_left_out
    scale = f"{count(report.rounds, 'round')} on {count(nodes, 'node')} in " if nodes else ""
    took = f"{scale}{span(report.ended_at_unix - report.started_at_unix)}"
    decision = f"{what}: {one_line(reason)}" if reason else what
    return " · ".join(filter(None, (decision, budget, took, f"exit code {report.exit_code}")))


def _sentence(failure: Failure) -> str:
    return one_line(describe(failure))


def _how(failure: Failure) -> str:
    """How it ended, without who it was."""
    if failure.innocent:
        late = ": it did not end in time" if failure.signal_name == "SIGKILL" else ""
        return f"stopped by us after that ({_ending(failure)}{late})"
    if failure.rank < 0:
        return f"lost: {one_line(failure.message or 'no longer heard from')}"
    who = f"rank {failure.rank} (local {failure.local_rank}) on {failure.node} "
    return one_line(describe(failure).removeprefix(who), 160)


def _ending(failure: Failure) -> str:
    return failure.signal_name or ("" if failure.exitcode is None else f"exit code {failure.exitcode}")


def _who(failures: Sequence[Failure]) -> str:
    names = list(dict.fromkeys(one_line(failure.node) for failure in failures))
    nodes = ", ".join(names) if len(names) <= 3 else f"{len(names)} nodes"
    if failures[0].rank < 0:
        return f"node{'s' if len(names) > 1 else ''} {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
    local = f" (local {failures[0].local_rank})" if len(failures) == 1 else ""
    return f"rank{'s' if len(failures) > 1 else ''} {ranges(failure.rank for failure in failures)}{local} on {nodes}"


def _without_traceback(root: Failure) -> Sequence[str]:
    """The last lines of its log, less the traceback, of which what counts is shown already."""
    tail = list(root.log_tail)
    last = (root.traceback or "").rstrip().split("\n")[-1]
    begin = next((index for index, line in enumerate(tail) if line.startswith(TRACEBACK)), None)
    if not last or begin is None or last not in tail[begin:]:
        return tail
    return [*tail[:begin], "(its traceback)", *tail[tail.index(last, begin) + 1 :]]
