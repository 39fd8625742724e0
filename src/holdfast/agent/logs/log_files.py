"""Are the log files of a round's workers there, and what if their disk is full, or does not answer?

They are made beside the agent's loop. Workers wait for them for a while only, and then start without: their output goes to
ours, and their error records to memory. The next round tries again.
"""

from __future__ import annotations

from holdfast.agent.disk_thread import DiskThread
from holdfast.agent.group.messages import LogsOpened
from holdfast.agent.logs.attempt_logs import AttemptLogs, LogPlan
from holdfast.core.errors import UsageError
from holdfast.core.machine import NEVER, Observation
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.host import Host

FIRST_S, NEXT_S = 5.0, 0.5
"""How long the workers of this node's first round wait for their files, and those of others: the whole job waits for a
restart."""


class LogFiles:
    """Those of the next round."""

    def __init__(self, plan: LogPlan, nproc: int, host: Host, disk: DiskThread) -> None:
        self.plan, self.nproc, self.host, self.disk = plan, nproc, host, disk
        self.is_first = True  # No workers have started here.
        self.opening: Assigned | None = None  # The round whose files are being made.
        self.opened: AttemptLogs | None = None  # None: they are not there, or were taken.
        self.due_at = NEVER  # When they are waited for no more.

    def open(self, assigned: Assigned) -> list[Observation]:
        """Make those of that round: `LogsOpened` is returned, or comes later. UsageError, of the first: their place was named
        wrongly."""
        self._drop(self.opened)
        self.opened, self.opening = None, assigned
        self.due_at = self.host.now() + (FIRST_S if self.is_first else NEXT_S)
        if self.disk.is_late:  # it has been waited for already
            return self._go_without("its disk does not answer")
        make = lambda: self.plan.open_attempt(assigned.restart_count, assigned.round, self.nproc)
        return self.disk.ask(make, lambda answer: self._made(assigned, answer))

    def due(self) -> list[Observation]:
        """Go on without, if it is time."""
        return self._go_without("its disk does not answer") if self.host.now() >= self.due_at else []

    def take(self) -> AttemptLogs:
        """What the round's workers start with."""
        made, self.opened, self.is_first = self.opened, None, False
        return made if made is not None else self.plan.without_files(self.nproc)

    def _made(self, assigned: Assigned, answer: AttemptLogs | Exception) -> list[Observation]:
        if self.opening is not assigned:
            self._drop(answer)
            return []
        if isinstance(answer, AttemptLogs):
            self.opening, self.opened, self.due_at = None, answer, NEVER
            return [LogsOpened(round=assigned.round)]
        if isinstance(answer, UsageError) and self.is_first:
            raise answer
        cause = answer.__cause__ or answer
        return self._go_without(getattr(cause, "strerror", None) or str(cause))

    def _go_without(self, why: str) -> list[Observation]:
        assert self.opening is not None
        number, self.opening, self.due_at = self.opening.round, None, NEVER
        instead = "the ranks' output goes to this agent's, until a restart finds room there"
        self.host.complain(f"cannot keep logs in {self.plan.root or self.plan.base}: {why}; {instead}")
        return [LogsOpened(round=number)]

    def _drop(self, made: AttemptLogs | Exception | None) -> None:
        """Files that come too late are empty, and stay."""
        if isinstance(made, AttemptLogs):
            self.disk.do(made.release)
