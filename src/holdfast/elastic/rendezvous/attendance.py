"""What does the agent of another launcher (torchrun) know of its rendezvous, and what does it say there?

    out ──Enter──▶ joining ──Assigned──▶ in ──Stop · lease over──▶ called
                      ▲                  │ │                         │
                      ├──────Enter───────┘ └─Finished──▶ done        │
                      └──────────────────────────Enter───────────────┘         Finish · Refused ──▶ ended

It stands where `agent.group.machine` stands in `holdfast run`, but runs no workers: that agent starts, stops and restarts them
by its own rules, and comes back with `Enter` whenever it has none. So the coordinator is told of membership only.
"""

from __future__ import annotations

from holdfast.agent.group.messages import Exit, LeaseOver, Send, Told
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.messages import (
    Assigned,
    Finish,
    Join,
    Leave,
    Message,
    Refused,
    Stop,
    StopJob,
    Stopped,
    Succeeded,
    Waiting,
)


class Enter(Observation):
    """The agent has no live worker and wants a seat in the next round; the store for it, if it gets rank 0, is at `port`."""

    port: int


class Finished(Observation):
    """Every worker of this node has exited with 0. The agent cannot take part in another round."""


class Close(Observation):
    """The agent wants the whole job to end. It has no live worker."""

    reason: str


class Depart(Observation):
    """The agent ends. It has no live worker."""

    reason: str


class EndWorkers(Action):
    """SIGKILL the workers that the agent has not stopped in time: another round may form without this node."""


class Attendance:
    """The machine. `state` is as drawn above, or `left`: the agent takes no further part, whatever the others do."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.state = "out"
        self.round = 0
        self.assigned: Assigned | None = None
        self.why = ""
        """Why it was called, or the job closed, in words."""
        self.closing = False
        """Whether no further round will form."""
        self.spare_because = ""
        """Why there is no seat for it, as it was last said."""
        self.report: JobReport | None = None
        self.refused: Refused | None = None
        self.kill_at = NEVER

    def begin(self, now: float) -> list[Action]:
        """Nothing is asked for before the agent wants a round."""
        return []

    @property
    def has_workers(self) -> bool:
        """Whether workers of its round may be alive."""
        return self.state in ("in", "called")

    @property
    def succeeded(self) -> bool:
        """Whether the job has ended well."""
        return self.report is not None and self.report.outcome == Outcome.SUCCEEDED

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return self.kill_at

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        if self.state == "ended":
            return []
        match seen:
            case Told(message=message):
                return self._told(message)
            case LeaseOver(reason=reason, until=until) if self.state == "in":
                self.kill_at = until
                return self._called(reason)
            case Enter(port=port):
                return self._enter(port)
            case Finished() if self.has_workers:
                return self._finished()
            case Close(reason=reason):
                self.state, self.closing, self.why, self.kill_at = "left", True, reason, NEVER
                return [Send(message=StopJob(node=self.join.node, reason=reason)), *self._stopped()]
            case Depart(reason=reason):
                # First: where the coordinator is here too, no round may form that ends with it at once.
                return [Exit(code=0, complaint=reason), *self._leave(reason)]
            case Tick() if now >= self.kill_at:
                self.kill_at = NEVER
                return [EndWorkers()]
        return []

    def _enter(self, port: int) -> list[Action]:
        self.kill_at = NEVER
        if self.closing:
            self.state = "left"
            return self._stopped()
        rank = self.assigned.group_rank if self.assigned else None
        self.state, self.join = "joining", replace(self.join, round=self.round, group_rank=rank, master_port=port)
        return [Send(message=self.join)]

    def _finished(self) -> list[Action]:
        self.kill_at = NEVER
        if self.state == "called":
            return self._cannot_come_back()
        self.state = "done"
        return [Send(message=Succeeded(node=self.join.node, round=self.round))]

    def _told(self, message: Message) -> list[Action]:
        match message:
            case Assigned(round=number) if self.state == "joining" and number > self.round:
                self.state, self.round, self.assigned, self.why = "in", number, message, message.reason
            case Waiting(round=number, reason=reason) if self.state == "joining" and number > self.join.known_round:
                self.join = replace(self.join, known_round=number)  # said again: see `agent.group.machine`
                known, self.spare_because = self.spare_because, reason
                said = [Say(text=f"waiting as a spare: {reason}", level="warning")] if reason != known else []
                return [*said, Send(message=self.join)]
            case Stop(round=number) if number == self.round:
                return self._told_to_stop(message)
            case Finish(report=report):
                self.state, self.closing, self.report, self.why = "ended", True, report, report.reason
            case Refused(reason=reason):
                self.state, self.closing, self.refused, self.why = "ended", True, message, reason
        return []

    def _told_to_stop(self, stop: Stop) -> list[Action]:
        if self.state == "joining":
            return [Send(message=self.join)] if stop.rejoin else []
        self.closing = self.closing or not stop.rejoin
        if self.state == "in":
            return self._called(stop.reason)
        if self.state == "done":
            return self._cannot_come_back() if stop.rejoin else self._stopped()
        return []

    def _called(self, reason: str) -> list[Action]:
        self.state, self.why = "called", reason
        return [Say(text=f"round {self.round} is over: {reason}", level="warning")]

    def _cannot_come_back(self) -> list[Action]:
        return self._leave("its workers have exited with 0, and its launcher takes part in no further round")

    def _leave(self, reason: str) -> list[Action]:
        self.state, self.kill_at = "left", NEVER
        return [Send(message=Leave(node=self.join.node, round=self.round, reason=reason)), *self._stopped()]

    def _stopped(self) -> list[Action]:
        return [Send(message=Stopped(node=self.join.node, round=self.round))] if self.round else []
