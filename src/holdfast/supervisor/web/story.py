"""What does a job's folder on this host tell of it: its rounds, where its time went, what failed and why? Read-only.

A job is found by its name among the existing folders; a requested name never becomes part of a path. Files may be large, or on
a disk that hangs: threads of the web process call this.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator

from holdfast.agent.logs.tail import end_of, tail_of
from holdfast.core.job.failure import Failure, describe, guilty
from holdfast.core.job.finding import Finding
from holdfast.core.value import fields_of, replace
from holdfast.diagnosis.story import finding_of, stack_groups
from holdfast.supervisor.web.view import Culprit, ErrorText, Goodput, Incident, IncidentBrief, LogTail, Round, StackGroup
from holdfast.telemetry.goodput.accounting import goodput as folded
from holdfast.telemetry.goodput.published import published
from holdfast.telemetry.record.reader import Record, read
from holdfast.telemetry.record.state_dir import events_files, homes, job_dirs, running_nodes, safe_name, split_run
from holdfast.telemetry.report.safe_text import one_line, plain, uncoloured
from holdfast.telemetry.report.timeline import JobState, Life, Timeline, timeline

KEPT = 256
"""Findings that are remembered: a round that is over is diagnosed once."""

LOG_LINES = 60
"""Of the end of a failed rank's log."""

LOG_BYTES = 4 << 20
"""Of the end of a log that is asked for by itself."""

TRACEBACK_LINES = 200
"""Of its end: Python prints the innermost frame last."""

MOST_SHOWN = 8
"""Ranks of an incident whose tracebacks and logs are shown."""

EVIDENCE = 40
"""Lines that a cause rests on."""


_findings: OrderedDict[tuple[str, int, int, float | None], Finding] = OrderedDict()


class Story:
    """The newest run of one job."""

    def __init__(self, path: str) -> None:
        self.path = path
        running = running_nodes(path)  # before reading, as everywhere
        self.records: list[Record] = read(path)
        self.timeline: Timeline = timeline(os.path.basename(path), self.records, running)

    def rounds(self) -> tuple[Round, ...]:
        """Each life of its ranks, the earliest first."""
        lives = self.timeline.lives
        return tuple(self._round(life, then) for life, then in zip(lives, [*lives[1:], None]))

    def goodput(self, now_unix: float) -> Goodput:
        """Where its time has gone until now."""
        found = folded(self.records, self.timeline, now_unix)
        others = published(self.records, self.timeline.started_at, found.until)
        return Goodput(seconds=found.worker_s, goodput=found.goodput, published=others)

    def incidents(self) -> tuple[IncidentBrief, ...]:
        """What has failed, the earliest first."""
        return tuple(self._brief(life) for life in self.timeline.lives if life.guilty)

    def incident(self, id: str) -> Incident | None:
        """One of them, with all that is known of it. None: there is none of that id."""
        life = next((life for life in self.timeline.lives if life.guilty and _id(life) == id), None)
        if life is None:
            return None
        quotes = self._finding(life).evidence
        told = [f"rank {quote.rank}: {quote.text}" if quote.rank is not None else quote.text for quote in quotes]
        groups = stack_groups(self.path, life.round)
        return Incident(
            **fields_of(self._brief(life)),
            errors=tuple(_errors(self._failures(life))),
            evidence=tuple(one_line(line, 500) for line in [describe(life.guilty[0]), *told][:EVIDENCE]),
            groups=tuple(StackGroup(ranks=group.ranks, where=group.where, stack=group.stack) for group in groups),
            logs=tuple(_logs(self._failures(life))),
            decision=f"{life.decision.decision}: {life.decision.reason}" if life.decision else "",
        )

    def _brief(self, life: Life) -> IncidentBrief:
        found, one = self._finding(life), life.guilty[0]
        return IncidentBrief(
            id=_id(life),
            at_unix=one.at_unix,
            cause=one_line(found.sentence, 500),
            kind=found.kind,
            confidence=found.confidence,
            rank=one.rank,
            node=one.node,
        )

    def log(self, id: str, rank: int) -> bytes | None:
        """The end of the log of a rank that failed in that incident. None: there is none here."""
        for life in self.timeline.lives:
            for failure in guilty(self._failures(life)) if _id(life) == id else ():
                if failure.rank == rank and failure.log_path:
                    return end_of(failure.log_path, LOG_BYTES)
        return None

    def _round(self, life: Life, then: Life | None) -> Round:
        first = next(iter(life.guilty), None)
        over = then is not None or self.timeline.state != JobState.RUNNING
        ended = life.ended_at or (then.formed_at if then is not None else self.timeline.ended_at)
        reason = life.decision.reason if life.decision else then.reason if then is not None else self.timeline.reason
        return Round(
            number=life.round,
            attempt=life.attempt,
            began_unix=life.formed_at,
            ended_unix=ended if over else None,
            world_size=life.world_size,
            nodes=life.nodes,
            why=one_line(reason, 500) if over else "",
            failure=None if first is None else Culprit(rank=first.rank, node=first.node, what=one_line(describe(first), 500)),
            lost_s=life.lost_s,
        )

    def _finding(self, life: Life) -> Finding:
        key = self.path, life.round, len(life.failures), life.ended_at
        if key not in _findings:
            _findings[key] = finding_of(self.path, life.round, self._failures(life))
            while len(_findings) > KEPT:
                _findings.popitem(last=False)
        return _findings[key]

    def _failures(self, life: Life) -> list[Failure]:
        """What another node says of its ranks names files, too: only those in this job's own folders are read."""
        workers = [one.log_dir for life in self.timeline.lives for one in life.workers if one.log_dir]
        own = {os.path.realpath(folder) + os.sep for folder in (self.path, *workers)}
        return [
            one if one.log_path and os.path.realpath(one.log_path).startswith(tuple(own)) else replace(one, log_path=None)
            for one in life.failures
        ]


def story(job: str) -> Story | None:
    """Of the newest run of that job here. None: it has no folder on this host."""
    wanted = safe_name(job)
    runs = [path for home in homes(os.environ) for path in job_dirs(home) if split_run(os.path.basename(path))[0] == wanted]
    runs = [path for path in runs if events_files(path)]
    return Story(max(runs, key=lambda path: split_run(os.path.basename(path))[1])) if runs else None


def _id(life: Life) -> str:
    return f"round-{life.round}"


def _errors(failures: list[Failure]) -> Iterator[ErrorText]:
    for failure in [one for one in guilty(failures) if one.rank >= 0][:MOST_SHOWN]:
        lines = (failure.traceback or "").splitlines()[-TRACEBACK_LINES:]
        yield ErrorText(
            rank=failure.rank,
            node=failure.node,
            what=one_line(describe(failure), 500),
            traceback=tuple(_shown(line, 500) for line in lines),
        )


def _logs(failures: list[Failure]) -> Iterator[LogTail]:
    """Of those that failed by themselves: what their failures carry, or the end of the file where it is on this host."""
    for failure in [one for one in guilty(failures) if one.log_path][:MOST_SHOWN]:
        path = str(failure.log_path)
        lines = tail_of(path, LOG_LINES) or failure.log_tail
        yield LogTail(rank=failure.rank, path=path, lines=tuple(_shown(line, 1000) for line in lines))


def _shown(line: str, limit: int) -> str:
    """A line of a log or a traceback, as far in as it stands."""
    return plain(uncoloured(line.rstrip()), keep="\t")[:limit]
