"""Writes the agent's messages to stderr, and events, incidents and the report to disk.

Events are noted in memory, and `write_down` puts them on disk: the handling of a failure does not wait for a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.agent.logs.nonblocking_writer import Stderr
from holdfast.agent.reporting import final_report
from holdfast.agent.workers.flight_recorder import patience_s, record_of
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Degraded, Event, FailureSeen, WorkerStarted
from holdfast.core.job.failure import Failure
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER
from holdfast.diagnosis.incident import keep, keep_failures
from holdfast.runtime.host import Host
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.recorder import Recorder
from holdfast.telemetry.record.state_dir import JobDir
from holdfast.telemetry.report.safe_text import plain

KEEP_S = 30.0  # How long what there is to keep of a failure waits for the next workers here.

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


class Unkept:
    """What is known of a round that has ended too early, and is not on disk yet."""

    def __init__(self, at_unix: float, health: list[Mapping[str, Any]], *, regrouped: bool) -> None:
        self.at_unix, self.health = at_unix, health
        """When the first of its ranks ended here, and what the node's checks said then."""
        self.regrouped = regrouped  # Its ranks were stopped for a node that has come.
        self.failures: list[Failure] = []
        self.stacks: dict[int, str] = {}  # By rank: where it was when it was asked to end, in words.

    @property
    def is_incident(self) -> bool:
        """Something has failed, here or elsewhere."""
        return not self.regrouped or not all(failure.innocent for failure in self.failures)


class AgentLog:
    """One agent's stderr and record. Before `open` there is only stderr, and what is `degraded` waits."""

    recorder: Recorder
    job_dir: JobDir
    host: Host
    listener: Callable[[Event, float], None]
    verdicts: Callable[[], list[Mapping[str, Any]]]
    regrouped: Callable[[], bool]

    def __init__(self, config: RunConfig, name: str) -> None:
        self.config, self.name = config, name
        self.stderr = Stderr(io_thread=IoThread())
        self.early: list[str] | None = []  # What was complained of before there is a record; None: there is.
        self.incidents: list[Failure] = []
        self.evidence: list[Callable[[], None]] = []  # Not on disk yet: failures, and what puts the stacks there.
        self.unkept: dict[int, Unkept] = {}  # By round, in which ranks of this node failed or were stopped.
        self.keep_by = NEVER  # Seconds since the epoch. NEVER: nobody here has failed since, or it is kept.
        self.life = 0, 0  # Round and attempt of the workers that the next record is about.

    def open(
        self,
        job_dir: JobDir,
        host: Host,
        *,
        listener: Callable[[Event, float], None],
        verdicts: Callable[[], list[Mapping[str, Any]]],
        regrouped: Callable[[], bool],
    ) -> None:
        """Record in this directory from now on, by the host's clocks. `listener` is called with each event and its time.
        `verdicts`: what the node's checks say now, as plain data. `regrouped`: the ranks here are being stopped for a node that
        has come, and for nothing else."""
        self.job_dir, self.host = job_dir, host
        self.listener, self.verdicts, self.regrouped = listener, verdicts, regrouped
        complain = lambda line: self.stderr.say(f"holdfast: {line}\n")
        self.recorder = Recorder(job_dir.events_path, job_dir.node, complain=complain)

    def begin(self, first: Event, warnings: Iterable[str]) -> None:
        """The agent's first line, and what there is to complain of already; empty warnings are none."""
        self.record(first)
        early, self.early = self.early or (), None
        for what in early:
            self.record(Degraded(what=what, instead=""))
        for what in filter(None, (self.job_dir.degraded, self.job_dir.beside, *warnings)):
            self.degraded(what)

    def say(self, text: str, level: str) -> None:
        """A line or more on stderr, if the user wants to hear of that level."""
        if LEVELS[level] >= LEVELS.get(self.config.log_level.lower(), LEVELS["warning"]):
            # Names and reasons come from other nodes: none may move the cursor, or begin a line that looks like ours.
            first, *more = plain(text).split("\n")
            lines = [f"holdfast[{self.name}]: {first}", *(line if line.startswith("  ") else f"  {line}" for line in more)]
            self.stderr.say("\n".join(lines) + "\n")

    def line(self, text: str) -> None:
        """A line on stderr that the user has asked for, whatever the log level."""
        self.stderr.say(f"holdfast[{self.name}]: {text}\n")

    def degraded(self, what: str) -> None:
        """Say and record that something cannot be had here."""
        self.say(what, "warning")
        if self.early is not None:
            return self.early.append(what)
        self.record(Degraded(what=what, instead=""))

    def record(self, event: Event, at_unix: float | None = None, life: tuple[int, int] = (0, 0)) -> None:
        """Note what happened at `at_unix` (None: now). `life`: round and attempt it is about, if newer than the workers'."""
        round, attempt = max(self.life, life)
        at_unix = self.host.unix() if at_unix is None else at_unix
        self.recorder.record(event, at_unix=at_unix, round=round, attempt=attempt)
        if isinstance(event, FailureSeen):
            if not event.failure.innocent:
                self.incidents.append(event.failure)
                self.keep_by = min(self.keep_by, at_unix + KEEP_S)
            self._of(event.failure.round, event.failure.at_unix).failures.append(event.failure)
        if isinstance(event, WorkerStarted) and self.unkept:
            self._keep_the_rest()
        self.listener(event, at_unix)

    def showed(self, rank: int, local_rank: int, stack: str) -> None:
        """A worker has shown where it was when it was asked to end."""
        told = f"when it was asked to end\nrank {rank} (local {local_rank})\n\n{stack}"
        self._of(self.life[0], self.host.unix()).stacks[rank] = told

    def _of(self, round: int, at_unix: float) -> Unkept:
        if round not in self.unkept:
            self.unkept[round] = Unkept(at_unix, self.verdicts(), regrouped=self.regrouped())
        return self.unkept[round]

    def keep(self, event: Event, at_unix: float, keeper: Callable[[], None]) -> None:
        """Record that evidence is kept, and have `keeper` write it. It may raise OSError."""
        self.record(event, at_unix)
        self.evidence.append(keeper)

    def begin_life(self, round: int, attempt: int) -> None:
        """Records are about the workers of this round from now on."""
        self.life = round, attempt

    def write_down(self) -> None:
        """Put on disk what has been noted."""
        self.recorder.flush()
        if self.host.unix() >= self.keep_by:  # its node is excluded, or nobody takes the place of another
            self._keep_the_rest()
        failures, self.incidents = self.incidents, []
        keepers, self.evidence = self.evidence, []
        if failures:
            keepers.append(lambda: keep_failures(self.job_dir.incident_path, failures))
        for keeper in keepers:
            if trouble := self.recorder.io_thread.attempt(keeper):
                self.degraded(f"cannot keep the failure's details in {self.job_dir.path}/incidents: {trouble}")

    def _keep_the_rest(self) -> None:
        """Of failures: what is not the failing worker's own. Not before the next workers run, so that they wait for nothing."""
        unkept = {round: known for round, known in self.unkept.items() if known.is_incident}
        self.unkept, self.keep_by = {}, NEVER
        if not unkept:
            return
        later = self.verdicts()
        folder, environ = self.job_dir.incident_path, os.environ
        now, began = self.host.unix(), self.host.now()

        def keep_them() -> None:
            for round, known in unkept.items():
                ranks = {*known.stacks, *(failure.rank for failure in known.failures)}
                records = {rank: record_of(environ, rank) for rank in ranks} if patience_s(environ) else {}
                keep_failures(folder, (failure for failure in known.failures if failure.innocent))
                both = (("failed", known.health), ("was left", later))
                said = [{"when": when, **one} for when, verdicts in both for one in verdicts]
                age_s = now - known.at_unix + self.host.now() - began
                keep(folder(round), age_s=age_s, stacks=known.stacks, records=records, verdicts=said)

        self.evidence.append(keep_them)

    def report(self, report: JobReport) -> None:
        """The job's end, for people and for programs."""
        found = final_report.cause(report.failures)
        if trouble := self.recorder.io_thread.attempt(lambda: final_report.keep(report, self.job_dir, found=found)):
            self.say(f"cannot write {self.job_dir.report_path}: {trouble}", "warning")
        io_thread = self.recorder.io_thread
        final_report.tell(report, self.config, self.stderr.say, found=found, io_thread=io_thread)
        if self.unkept and report.outcome == Outcome.FAILED:
            self._keep_the_rest()
            self.write_down()
        io_thread.do(lambda: final_report.make_room(self.config.state_dir), 0.0)

    def close(self) -> None:
        """Let go of the directory and the terminal. After everything else: others may still have something to tell."""
        if self.keep_by != NEVER:
            self._keep_the_rest()
            self.write_down()
        self.recorder.flush()
        self.recorder.io_thread.do(self.job_dir.close)
        self.recorder.close()
        self.stderr.close()
