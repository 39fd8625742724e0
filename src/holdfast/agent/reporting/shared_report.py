"""Reads the job's end from a shared directory when nobody is left to tell this agent.

Agents share it on one host, or where the home is on NFS. An agent that was cut off as the job ended, or that comes late, finds
the report there.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.agent.component import Component
from holdfast.agent.group.messages import Told
from holdfast.core.job.report import JobReport
from holdfast.core.machine import NEVER, Observation
from holdfast.core.wire.messages import Finish
from holdfast.rendezvous.member import Member
from holdfast.runtime.host import Host
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.state_dir import JobDir
from holdfast.telemetry.report.report_text import report_from_json

LOOK_S = 1.0  # Between two looks, while the coordinator is lost or was never found.


class SharedReport:
    """The report in that directory."""

    def __init__(self, path: str, *, joins: bool = False) -> None:
        """`joins`: as in `JobDir`: the report tells of this run, however old it is."""
        self.path = path
        self._before = None if joins else self._stamp()

    def look(self) -> JobReport | None:
        """The report, once there is one of this run. OSError: it cannot be read."""
        if self._stamp() in (None, self._before):
            return None
        with open(self.path, encoding="utf-8") as file:
            return report_from_json(file.read())

    def _stamp(self) -> tuple[int, int] | None:
        try:
            seen = os.stat(self.path)
        except OSError:
            return None
        return seen.st_ino, seen.st_mtime_ns


class EndWatch(Component):
    """Looks for the report while this node has no coordinator."""

    def __init__(
        self,
        job_dir: JobDir,
        member: Callable[[], Member | None],
        host: Host,
        io_thread: IoThread,
        say: Callable[[str, str], None],
    ) -> None:
        """`member`: this node's link to the coordinator. None: it is here. `io_thread` reads: the disk may hang."""
        self.end, self.joins = SharedReport(job_dir.report_path, joins=job_dir.joins), job_dir.joins
        self.member, self.host, self.io_thread, self.say = member, host, io_thread, say
        self.look_at = -NEVER  # When to look next, if the coordinator is lost then.

    @property
    def due_at(self) -> float:
        """When to look: as long as the coordinator is lost."""
        member = self.member()
        if member is None:
            return NEVER
        is_lost = member.lease_over or bool(self.joins and member.leased_at is None and member.trouble)
        return self.look_at if is_lost else NEVER

    def due(self) -> list[Observation]:
        """Tell the end once it is known."""
        self.look_at = self.host.now() + LOOK_S
        if (report := self.io_thread.value(self.end.look)) is not None:
            self.say(f"the job has ended, as {self.end.path} tells", "warning")
            return [Told(message=Finish(report=report))]
        return []
