"""`holdfast report [JOB]`: what became of the job? Its rounds, attempts and failures, and the time that was lost."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.cli.choose import Seen, choose, look_arguments, story
from holdfast.cli.job.jobs import state
from holdfast.cli.table import Table, answer
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.job.failure import describe
from holdfast.core.job.finding import Finding
from holdfast.core.job.policy import Verdict
from holdfast.core.value import to_plain
from holdfast.supervisor.notify.notify import open_otlp
from holdfast.telemetry.goodput.accounting import MISSING, STATES, Goodput, goodput, shares
from holdfast.telemetry.goodput.drawing import picture, png, trace
from holdfast.telemetry.goodput.published import published
from holdfast.telemetry.record.plain_values import from_plain
from holdfast.telemetry.report.own_frame import folded
from holdfast.telemetry.report.phrasing import count, moment, span
from holdfast.telemetry.report.report_text import told
from holdfast.telemetry.report.restarts import PHASES
from holdfast.telemetry.report.safe_text import one_line, plain
from holdfast.telemetry.report.timeline import JobState, Life, Timeline

CELL = 90  # Characters of what happened, on a terminal; the whole text stands below it, in `why` and in the JSON.
WHOLE = 2000  # The same in a pipe or a file, which are searched: there it ends its line, and pushes no other column away.

HELP = "a job's timeline: rounds, attempts, failures, time lost"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    look_arguments(parser)
    parser.add_argument("--goodput", action="store_true", help="how much of the workers' time trained, and where the rest went")
    parser.add_argument("--trace", metavar="FILE", help="write where the time went for Perfetto or chrome://tracing")
    parser.add_argument("--svg", metavar="FILE", help="draw where the time went")
    parser.add_argument("--png", metavar="FILE", help="the same as a PNG (needs the extra `png`)")
    parser.add_argument("--otlp", metavar="URL", help="export it as a trace, by OTLP over HTTP")


def run(options: argparse.Namespace) -> int:
    """Show it."""
    seen = story(choose(options.job))
    if options.otlp is not None:
        return _export(seen.job, options.otlp)
    if options.goodput or options.trace or options.svg or options.png:
        return _goodput(seen, options)
    written = _written(seen.path)
    return answer(options.json, lambda: {"timeline": to_plain(seen.job), "report": written}, _parts(seen, written))


def _parts(seen: Seen, written: Any) -> Iterator[str | Table]:
    job = seen.job
    yield _headline(job)
    if job.lives:
        headings = ("round", "attempt", "from", "started after", "ran", "ranks", "nodes", "then", "lost", "what happened")
        limit = CELL if sys.stdout.isatty() else WHOLE
        yield Table(headings, [_row(life, job, limit) for life in job.lives])
    yield from (*_cause(written), *_failures(job))
    for decision in job.decisions:
        if decision.decision == Verdict.INJECT:
            yield f"round {decision.round}, {one_line(decision.node)}: {one_line(decision.reason)}"
    if job.life:
        times = count(sum(life.lost_s is not None for life in job.lives), "time")
        yield f"time lost to restarts: {f'{span(job.lost_s)}, {times}' if job.lost_s else 'none'}"
    if job.restarts:
        yield "where the time of each restart went:"
        phases = [phase for phase in PHASES if any(one.phases[phase] is not None for one in job.restarts)]
        rows = [(one.round, *(_span(one.phases[phase]) for phase in phases), span(one.total_s)) for one in job.restarts]
        yield Table(("to round", *phases, "all"), rows)
    yield from (f"without: {one_line(text)}" for text in job.degraded)
    yield f"files: {seen.path}"


def _goodput(seen: Seen, options: argparse.Namespace) -> int:
    job = seen.job
    found = goodput(seen.records, job, seen.at_unix)
    for path, drawn in ((options.trace, trace), (options.svg, picture), (options.png, png)):
        if path:
            content = drawn(job.job, found)
            try:
                with open(path, "wb") as file:
                    file.write(content if isinstance(content, bytes) else content.encode())
            except OSError as error:
                hint = "name a file in a folder that this user may write to"
                raise UsageError(f"{path} cannot be written: {error.strerror}", hint=hint) from None
            print(f"written: {path}", file=sys.stderr)
    others = published(seen.records, job.started_at, found.until)
    parts = _goodput_parts(job, found, others) if options.goodput else ()
    return answer(options.json, lambda: to_plain(found) | {"published": others}, parts)


def _goodput_parts(job: Timeline, found: Goodput, others: Mapping[str, float | None]) -> Iterator[str | Table]:
    yield _headline(job)
    there = f"; {found.present:.1%} of those that were there" if found.worker_s[MISSING] else ""
    yield f"goodput: {found.goodput:.1%} of the workers' time{there}"
    rows = [(state, f"{part:.1%}", span(found.worker_s[state]), STATES[state]) for state, part in shares(found).items()]
    yield Table(("state", "part", "worker time", "which is"), rows)
    if known := [f"{part:.1%} {name.replace('_', ' ')}" for name, part in others.items() if part is not None]:
        yield f"others' definitions: {', '.join(known)}"


def _export(job: Timeline, url: str) -> int:
    receiver = open_otlp(url)
    spans = receiver.story(job)
    answer = receiver.send(spans)
    if not answer.taken:
        raise HoldfastError(f"{receiver.name} did not accept the trace: {answer.text}", hint="is it an OTLP/HTTP endpoint?")
    print(f"exported to {url}: {count(len(spans), 'span')}, trace {spans[0].context.trace_id:032x}")
    return 0


def _written(path: str) -> Any:
    """What the agents wrote at the end; None: they did not get to it."""
    try:
        with open(os.path.join(path, "report.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _headline(job: Timeline) -> str:
    took = ""
    if job.started_at is not None:
        took = f", began {moment(job.started_at)}"
        if job.ended_at is not None:
            said = "took" if job.state is not JobState.LOST else "last record after"
            took += f", {said} {span(job.ended_at - job.started_at)}"
    return f"job {job.job}: {state(job)}{took}" + (f"\n  {one_line(job.reason, WHOLE)}" if job.reason else "")


def _row(life: Life, job: Timeline, limit: int) -> tuple[object, ...]:
    begun = job.started_at or life.formed_at
    return (
        life.round,
        life.attempt,
        f"+{span(life.formed_at - begun)}",
        _span(None if life.started_at is None else life.started_at - life.formed_at),
        _ran(life, job),
        life.world_size,
        ", ".join(life.nodes) if len(life.nodes) <= 3 else len(life.nodes),
        life.decision.decision if life.decision else "-",
        _span(life.lost_s),
        _happened(life, limit),
    )


def _ran(life: Life, job: Timeline) -> str:
    """From the last worker's start to the first trouble, or to the end. A job that is lost has none that is known."""
    until = life.disturbed_at or life.ended_at or (None if job.state is JobState.LOST else job.ended_at)
    if life.started_at is None or until is None:
        return "-"
    return span(max(0.0, until - life.started_at))


def _happened(life: Life, limit: int) -> str:
    if life.guilty:
        return life.what_failed(limit)
    if life.decision:
        return one_line(life.decision.reason, limit)
    if life.workers and all(worker.exitcode == 0 for worker in life.workers):
        return "all workers exited with 0"
    return "-"


def _failures(job: Timeline) -> Iterator[str]:
    """The traceback of each life's first failure, once for those alike, and where to read on about it."""
    shown: set[str] = set()
    for life in job.lives:
        for failure in life.guilty[:1]:
            if failure.message and failure.message not in describe(failure):
                yield f"round {life.round}, rank {failure.rank}: {one_line(failure.message)}"
            if failure.trouble:
                yield f"round {life.round}, rank {failure.rank}: {one_line(failure.trouble)}"
            if failure.traceback and failure.traceback not in shown:
                shown.add(failure.traceback)
                yield f"round {life.round}, rank {failure.rank}:"
                yield from (f"  {plain(line)}" for line in folded(failure.traceback))
            if failure.log_path:
                yield f"round {life.round}, rank {failure.rank}: log at {one_line(failure.node)}:{failure.log_path}"


def _cause(written: Any) -> Iterator[str]:
    """What the failures of the last round mean, by the report that the agents have `written`, and which line says so."""
    found = written.get("cause") if isinstance(written, dict) else None
    if found:
        yield f"cause: {one_line(told(from_plain(Finding, found)), WHOLE)}"
        for quote in found["from"]:
            where = f"{one_line(quote['source'])}: " if quote["source"] else ""
            yield f"  by {where}{one_line(quote['text'], WHOLE)}"


def _span(took_s: float | None) -> str:
    return "-" if took_s is None else span(took_s)
