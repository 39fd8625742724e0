"""A rank hangs: what is to be done before it ends? One node's part of it, for `agent.group.machine`.

In this order: it is recorded; the coordinator is told, which has every other node look too
(`rendezvous.coordinator.hang_blame`); the ranks here dump their stacks (`LookAtWorkers`); when that is done or its time is
over, the rank gets its signal, the coordinator hears where all ranks were, and what they have shown is kept. Then it is a
failure like any other.
"""

from __future__ import annotations

from holdfast.agent.group.messages import KeepStacks, LookAtWorkers, Send, SignalWorkers
from holdfast.core.job.events import RankHung
from holdfast.core.job.failure import Cause, hung
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of
from holdfast.core.value import replace
from holdfast.core.wire.messages import HangFound, Positions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.messages import Hung
    from holdfast.agent.group.worker_table import Crew, WorkerSeat
    from holdfast.core.job.failure import Position
    from holdfast.core.wire.messages import Assigned, Join

LOOK_S = 2.0
"""A look that takes longer is over. It takes some milliseconds where all ranks dump their stacks, 30 where one does not
(`agent.workers.stacks`), and a second and a half where torch's flight recorder is waited for."""


class Look:
    """The look that is under way, if one is."""

    def __init__(self, join: Join, *, signum: int) -> None:
        self.node, self.name = join.node, join.name
        self.signum = signum
        """What ends a rank that hangs."""
        self.until = NEVER
        """While the ranks are being looked at: until when at the latest."""
        self.reason = ""
        """Whose hang that is for, in words."""
        self.there: dict[int, Position] = {}
        """Where the ranks were at the last look, by local rank."""

    def found(self, worker: WorkerSeat, seen: Hung, assigned: Assigned, now: float) -> list[Action]:
        """A rank here has exceeded its limit."""
        worker.overdue, worker.overdue_at_unix, worker.charge = seen.reason, seen.at_unix, (Cause.HUNG, hung(seen.reason))
        noted: list[Action] = [Record(event=RankHung(**worker.ids, reason=seen.reason, quiet_s=seen.quiet_s))]
        if self.until != NEVER:
            return noted
        told = HangFound(node=self.node, round=assigned.round, rank=worker.rank, reason=seen.reason, within_s=LOOK_S)
        reason = f"rank {worker.rank} on {self.name} hung: {seen.reason}"
        return [*noted, Send(message=told), *self.begin(reason, assigned, now)]

    def begin(self, reason: str, assigned: Assigned, now: float) -> list[Action]:
        """Have them looked at, unless they are already."""
        if self.until != NEVER:
            return []
        self.until, self.reason = now + LOOK_S, reason
        return [LookAtWorkers(round=assigned.round, base_rank=assigned.base_rank, within_s=LOOK_S)]

    def condemn(self, worker: WorkerSeat) -> list[Action]:
        """A rank here hangs, as its position compared with others' has told: it would be as deaf to SIGTERM as to them."""
        if worker.state != "running" or worker.struck:
            return []
        position = self.there.get(worker.local_rank)
        worker.stacks_path = position.stacks_path if position is not None else worker.stacks_path
        worker.struck, worker.charge = True, (Cause.HUNG, hung("others waited for it", position))
        return [SignalWorkers(local_ranks=(worker.local_rank,), signum=self.signum)]

    def end(self, positions: tuple[Position, ...], workers: Crew, round: int) -> tuple[list[Action], list[WorkerSeat]]:
        """This is where they were, as far as it is known. Those that hang are sent their signal, and returned."""
        if self.until == NEVER:
            return [], []
        self.until = NEVER
        there = self.there = {position.local_rank: position for position in positions}
        hanging = [worker for worker in workers.values() if worker.hangs]
        name, actions = name_of(self.signum), list[Action]()
        for worker in hanging:
            if (position := there.get(worker.local_rank)) is not None:
                there[worker.local_rank] = replace(position, overdue=worker.overdue)
                worker.stacks_path = position.stacks_path
            worker.struck, worker.charge = True, (Cause.HUNG, hung(worker.overdue, position))
            actions.append(SignalWorkers(local_ranks=(worker.local_rank,), signum=self.signum))
            text = f"rank {worker.rank} (pid {worker.pid}) {worker.charge[1]}; sent {name}"
            actions.append(Say(text=text, level="error"))
        seen = Positions(node=self.node, round=round, positions=tuple(there.values()))
        return [*actions, Send(message=seen), KeepStacks(reason=self.reason)], hanging
