"""What does the agent of another launcher (torchrun) know of its rendezvous, and what does it say there?

    out ──Enter──▶ joining ──Assigned──▶ in ──Stop · lease over──▶ called
                      ▲                  │ │                         │
                      ├──────Enter───────┘ └─Finished──▶ done        │
                      └──────────────────────────Enter───────────────┘         Finish · Refused ──▶ ended

It stands where `agent.group.machine` stands in `holdfast run`, but runs no workers: that agent starts, stops and restarts them
by its own rules, and comes back with `Enter` whenever it has none. So the coordinator is told of membership only.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.agent.group.messages import Exit, LeaseOver, Send, Told
from holdfast.core.job.report import JobReport, Outcome
from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire import messages as wire


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


class Stage(StrEnum):
    """Where the agent is, as drawn above."""

    OUT = "out"
    JOINING = "joining"
    IN = "in"
    CALLED = "called"
    DONE = "done"
    LEFT = "left"  # the agent takes no further part, whatever the others do
    ENDED = "ended"


class Attendance:
    """The machine."""

    def __init__(self, join: wire.Join) -> None:
        self.join = join
        self.state = Stage.OUT
        self.round = 0
        self.assigned: wire.Assigned | None = None
        self.why = ""  # why it was called, or the job closed, in words
        self.closing = False  # whether no further round will form
        self.spare_because = ""  # why there is no seat for it, as it was last said
        self.report: JobReport | None = None
        self.refused: wire.Refused | None = None
        self.kill_at = NEVER

    def begin(self, now: float) -> list[Action]:
        """Nothing is asked for before the agent wants a round."""
        return []

    @property
    def succeeded(self) -> bool:
        """Whether the job has ended well."""
        return self.report is not None and self.report.outcome == Outcome.SUCCEEDED

    @property
    def is_over(self) -> bool:
        """Whether this node's part in the round is over while its workers may still run, or the job has failed."""
        return self.state is Stage.CALLED or (self.state is Stage.ENDED and not self.succeeded)

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return self.kill_at

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match self.state, seen:
            case Stage.ENDED, _:
                return []
            case _, Told(message=message):
                return self._told(message)
            case Stage.IN, LeaseOver(reason=reason, until=until):
                self.kill_at = until
                return self._called(reason)
            case _, Enter(port=port):
                return self._enter(port)
            case Stage.IN, Finished():
                self.state, self.kill_at = Stage.DONE, NEVER
                return [Send(message=wire.Succeeded(node=self.join.node, round=self.round))]
            case Stage.CALLED, Finished():
                return self._cannot_come_back()
            case _, Close(reason=reason):
                self.state, self.closing, self.why, self.kill_at = Stage.LEFT, True, reason, NEVER
                stop = wire.Request(node=self.join.node, kind=wire.RequestKind.STOP, reason=reason)
                return [Send(message=stop), *self._stopped()]
            case _, Depart(reason=reason):
                # First: where the coordinator is here too, no round may form that ends with it at once.
                return [Exit(code=0, complaint=reason), *self._leave(reason)]
            case _, Tick() if now >= self.kill_at:
                self.kill_at = NEVER
                return [EndWorkers()]
        return []

    def _told(self, message: wire.Message) -> list[Action]:
        match self.state, message:
            case Stage.JOINING, wire.Assigned(round=number) if number > self.round:
                self.state, self.round, self.assigned, self.why = Stage.IN, number, message, message.reason
            case Stage.JOINING, wire.Waiting(round=number, reason=reason) if number > self.join.known_round:
                return self._spare(number, reason)
            case Stage.JOINING, wire.Stop(round=number, rejoin=True) if number == self.round:
                return [Send(message=self.join)]
            case Stage.IN, wire.Stop(round=number, reason=reason, rejoin=rejoin) if number == self.round:
                self.closing = self.closing or not rejoin
                return self._called(reason)
            case Stage.DONE, wire.Stop(round=number, rejoin=rejoin) if number == self.round:
                self.closing = self.closing or not rejoin
                return self._cannot_come_back() if rejoin else self._stopped()
            case Stage.OUT | Stage.CALLED | Stage.LEFT, wire.Stop(round=number, rejoin=False) if number == self.round:
                self.closing = True
            case _, wire.Finish(report=report):
                self.state, self.closing, self.report, self.why = Stage.ENDED, True, report, report.reason
            case _, wire.Refused(reason=reason):
                self.state, self.closing, self.refused, self.why = Stage.ENDED, True, message, reason
        return []

    def _enter(self, port: int) -> list[Action]:
        self.kill_at = NEVER
        if self.closing:
            self.state = Stage.LEFT
            return self._stopped()
        rank = self.assigned.group_rank if self.assigned else None
        self.state, self.join = Stage.JOINING, replace(self.join, round=self.round, group_rank=rank, master_port=port)
        return [Send(message=self.join)]

    def _spare(self, number: int, reason: str) -> list[Action]:
        self.join = replace(self.join, known_round=number)  # said again: see `agent.group.machine`
        known, self.spare_because = self.spare_because, reason
        said = [Say(text=f"waiting as a spare: {reason}", level="warning")] if reason != known else []
        return [*said, Send(message=self.join)]

    def _called(self, reason: str) -> list[Action]:
        self.state, self.why = Stage.CALLED, reason
        return [Say(text=f"round {self.round} is over: {reason}", level="warning")]

    def _cannot_come_back(self) -> list[Action]:
        return self._leave("its workers have exited with 0, and its launcher takes part in no further round")

    def _leave(self, reason: str) -> list[Action]:
        self.state, self.kill_at = Stage.LEFT, NEVER
        return [Send(message=wire.Leave(node=self.join.node, round=self.round, reason=reason)), *self._stopped()]

    def _stopped(self) -> list[Action]:
        return [Send(message=wire.Stopped(node=self.join.node, round=self.round))] if self.round else []
