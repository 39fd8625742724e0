"""Is a rank of this node writing a checkpoint? Asked where the job grows after one (`--grow at-checkpoint`).

What counts is in the ranks' pages: torch's saves (`client.hooks`), and the script's own sections of such a name. The
coordinator is told when the first rank begins and when the last is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agent.component import Component
from holdfast.agent.group.messages import SavesSeen, Started
from holdfast.core.machine import NEVER, Observation
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.host import Host

LOOK_S = 0.2  # Between two looks, of some microseconds for each rank.


class Saves(Component):
    """What is known of them."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.pids: set[int] = set()
        self.open, self.done = False, 0  # As it was told last: whether one writes, and how many had been written.
        self.due_at = NEVER

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        self.pids = {seen.pid for seen in started if isinstance(seen, Started)}
        self.open, self.done, self.due_at = False, 0, self.host.now() + LOOK_S
        return []

    def due(self) -> list[Observation]:
        now = self.host.now()
        children = [child for pid in self.pids if (child := self.host.children.get(pid)) is not None]
        self.due_at = now + LOOK_S if children else NEVER
        seen = [child.page.saves for child in children if child.page is not None]
        before, self.open, self.done = (self.open, self.done), any(one for one, _ in seen), sum(done for _, done in seen)
        if self.open == before[0] and (self.open or self.done <= before[1]):
            return []
        return [SavesSeen(open=self.open)]
