"""A stage for one rendezvous: it is told things one by one, and what it said to whom can be asked for."""

from __future__ import annotations

from typing import Any

from holdfast.core.job.events import Decided
from holdfast.core.job.failure import Failure
from holdfast.core.job.report import JobReport
from holdfast.core.machine import Record, Tick
from holdfast.core.wire.messages import Assigned, Failed, Join, Message, Renew, Stopped
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.rules import Heard, Rules, Tell

LEASE_S = 3.0


class Job:
    """A rendezvous, and what it said to whom."""

    def __init__(self, nodes: str = "2:2", *, max_restarts: int = 3, exclude_after: int = 0, **rules: Any) -> None:
        least, most = (int(part) for part in nodes.split(":"))
        given = {"join_timeout_s": 60.0, "last_call_s": 5.0, "lease_s": LEASE_S, "max_restarts": max_restarts, **rules}
        self.rules = Rules(job="job", min_nodes=least, max_nodes=most, **given)
        self.policy = RestartOnFailure(max_restarts=max_restarts, exclude_after=exclude_after)
        self.machine = Rendezvous(self.rules, self.policy, now=0.0, now_unix=1000.0)
        self.now = 0.0
        self.said: list[tuple[str, Message]] = []
        self.events: list[Any] = []

    def see(self, seen: Any, now: float | None = None) -> list[Message]:
        """Show it something; what it says in answer."""
        self.now = self.now if now is None else now
        actions = self.machine.observe(seen, self.now)
        told = [(action.node, action.message) for action in actions if isinstance(action, Tell)]
        self.said += told
        self.events += [action.event for action in actions if isinstance(action, Record)]
        return [message for _, message in told]

    def hear(self, message: Message, now: float | None = None) -> list[Message]:
        return self.see(Heard(message=message), now)

    def join(self, *nodes: str, now: float | None = None, round: int = 0, rank: int | None = None) -> list[Message]:
        usual: dict[str, Any] = {"master_port": 9, "nproc": 2, "role": "default", "round": round, "wanted_rank": rank}
        return [answer for node in nodes for answer in self.hear(Join(node=node, name=node, addr=node, **usual), now)]

    def comes_back(self, node: str, *, round: int, group_rank: int) -> list[Message]:
        """It had that rank in that round, under another coordinator."""
        usual: dict[str, Any] = {"name": node, "addr": node, "master_port": 9, "nproc": 2, "role": "default"}
        return self.hear(Join(node=node, round=round, group_rank=group_rank, **usual))

    def stopped_and_back(self, *nodes: str, now: float | None = None) -> None:
        """These have stopped their workers, and join again."""
        number = self.machine.round
        for node in nodes:
            self.hear(Stopped(node=node, round=number), now)
            self.join(node, round=number, rank=self.machine.seats[node].join.wanted_rank)

    def fail(self, node: str, *, now: float | None = None, exitcode: int = 1, number: int | None = None) -> list[Message]:
        failure = Failure(node=node, rank=0, local_rank=0, exitcode=exitcode, at_unix=0.0)
        return self.hear(Failed(node=node, round=self.machine.round if number is None else number, failure=failure), now)

    def renew(self, *nodes: str, now: float | None = None) -> list[Message]:
        return [answer for node in nodes for answer in self.hear(Renew(node=node, round=self.machine.round), now)]

    def tick(self, now: float) -> list[Message]:
        return self.see(Tick(), now)

    def members(self) -> str:
        """Who was told to take part in the newest round, by group rank."""
        newest = [(m.group_rank, node) for node, m in self.said if isinstance(m, Assigned) and m.round == self.machine.round]
        return "".join(node for _, node in sorted(newest))

    @property
    def decided(self) -> list[tuple[str, str]]:
        return [(event.decision, event.reason) for event in self.events if isinstance(event, Decided)]

    @property
    def report(self) -> JobReport:
        assert self.machine.report is not None
        return self.machine.report


def kinds(answers: list[Message]) -> list[str]:
    return [type(answer).__name__ for answer in answers]
