"""Why has a rank ended? Its error file and the last lines of its log are read beside the agent's loop.

Its end is told with that, or without it, where the disk does not answer in time.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agent.disk_thread import DiskThread
from holdfast.agent.group.messages import Ended
from holdfast.agent.logs.attempt_logs import AttemptLogs
from holdfast.agent.workers import error_files
from holdfast.core.job.failure import NO_OOM_KILL, Evidence
from holdfast.core.machine import NEVER, Observation
from holdfast.core.processes import LastSigns
from holdfast.core.signals import signal
from holdfast.core.value import replace
from holdfast.runtime.host import Host

TAIL_LINES = 20  # Lines of a failed worker's log that go into the report.

EVIDENCE_S = 0.5  # How long an end waits for what its rank has left on disk.


class End(NamedTuple):
    """A worker's process is dying, or gone."""

    local_rank: int
    pid: int
    exitcode: int
    gone: bool
    at_unix: float
    last: LastSigns
    oom: str = ""  # As `Failure.oom`.
    injected: str = ""  # What is played on it for practice, as `Failure.injected`.

    def told(self, left: Evidence) -> Ended:
        """With what its rank has left on disk."""
        if self.exitcode != 0:
            last = self.last
            seen = {"last_words": last.words, "last_line": last.line, "ending": last.ending, "booted": last.booted}
            injected = self.injected if self.exitcode == -signal.SIGKILL and self.oom in ("", NO_OOM_KILL) else ""
            left = replace(left, became=last.became, oom=self.oom, injected=injected, **seen)
        i, pid, code = self.local_rank, self.pid, self.exitcode
        return Ended(local_rank=i, pid=pid, exitcode=code, gone=self.gone, at_unix=self.at_unix, evidence=left)


class Ends:
    """Those of one round's workers that are not told yet."""

    def __init__(self, host: Host, disk: DiskThread) -> None:
        self.host, self.disk = host, disk
        self.untold: dict[int, list[End]] = {}  # By local rank, in their order.
        self.until: dict[int, float] = {}  # How long they wait.
        self.folders: dict[int, str | None] = {}  # Where their ranks have left something.

    def add(self, end: End, attempt: AttemptLogs) -> list[Observation]:
        """What is to be told now. It is about a worker of `attempt`."""
        local_rank = end.local_rank
        if (untold := self.untold.get(local_rank)) is not None:
            untold.append(end)
            return []
        self.untold[local_rank], self.until[local_rank] = [end], self.host.now() + EVIDENCE_S
        self.folders[local_rank] = attempt[local_rank].dir
        if end.exitcode == 0:
            return self._tell(local_rank, Evidence())
        if attempt[local_rank].dir is None:  # nothing of it is on a disk
            return self._tell(local_rank, _left_by(local_rank, attempt))
        if self.disk.late_s() >= EVIDENCE_S:  # it has been waited for already
            return self._tell(local_rank, None)
        return self.disk.ask(
            lambda: _left_by(local_rank, attempt),
            lambda answer: self._tell(local_rank, answer if isinstance(answer, Evidence) else None),
        )

    @property
    def due_at(self) -> float:
        return min(self.until.values(), default=NEVER)

    def due(self) -> list[Observation]:
        """Tell those that have waited long enough."""
        late = [local_rank for local_rank, until in self.until.items() if self.host.now() >= until]
        return [seen for local_rank in late for seen in self._tell(local_rank, None)]

    def _tell(self, local_rank: int, evidence: Evidence | None) -> list[Observation]:
        ends = self.untold.pop(local_rank, ())
        self.until.pop(local_rank, None)
        if evidence is None:
            folder = self.folders[local_rank]
            evidence = Evidence(trouble=f"what it has left in {folder} is not known: that disk does not answer")
        return [end.told(evidence) for end in ends]


def _left_by(local_rank: int, attempt: AttemptLogs) -> Evidence:
    """What a rank that has failed has left on disk."""
    files = attempt[local_rank]
    record = error_files.read(files.error_file)
    said = record or error_files.ErrorRecord()
    return Evidence(
        at_unix=said.at_unix,
        message=said.message,
        trouble="" if said.message else said.trouble,
        traceback=said.traceback,
        error_file=files.error_file if record and files.dir is not None else None,
        error_record=said.content,
        log_tail=attempt.tail_lines(local_rank, TAIL_LINES),
        log_path=files.log_path,
    )
