"""Records how long each round's ranks took to start, how far they had come when it ended, and the stacks they ended with.

Ranks write the moments into their pages, so the agent may look late: after one second, two, four, until each has made its first
step, or one ends. The user is told where our bootstrap could not do all of its work in a rank. A rank shows its stack as it
goes, and the record keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.agent.component import Component
from holdfast.agent.group.messages import Started
from holdfast.core.job.events import RanksBegun, RanksEnded
from holdfast.core.machine import NEVER, Observation
from holdfast.core.page.signs import Moments
from holdfast.core.processes import ProcessDying, ProcessErred, ProcessGone
from holdfast.core.wire.messages import Assigned
from holdfast.runtime.host import Host
from holdfast.runtime.shm.pages import Page

FIRST_LOOK_S = 1.0  # Few ranks make a step sooner, and nothing waits for the answer.


class RankLives(Component):
    """Those of the ranks of one round on this node."""

    sees = ProcessDying, ProcessErred, ProcessGone

    def __init__(
        self, host: Host, record: Callable[[RanksBegun | RanksEnded], None], keep_stack: Callable[[int, int, str], None]
    ) -> None:
        """`keep_stack`: takes rank, local rank and stack."""
        self.host, self.record, self.keep_stack = host, record, keep_stack
        self.base_rank = 0
        self.local_ranks: dict[int, int] = {}  # pid → local rank
        self.ended: dict[int, ProcessGone] = {}  # Those that are gone, by pid.
        self.at_first_end: dict[int, Moments] = {}  # Of those that lived then: who is told to let go of its round forgets them.
        self.since, self.due_at = 0.0, NEVER

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        begun, now = [seen for seen in started if isinstance(seen, Started)], self.host.now()
        self.base_rank, self.since, self.ended = assigned.base_rank, min((seen.at for seen in begun), default=now), {}
        self.at_first_end = {}
        self.local_ranks = {seen.pid: seen.local_rank for seen in begun}
        self.due_at = now + FIRST_LOOK_S
        return []

    def due(self) -> list[Observation]:
        now = self.host.now()
        self.due_at = now + (now - self.since)
        for page in self._pages().values():
            if trouble := page.trouble:
                self.host.complain(f"a rank runs, but is not fully monitored: {trouble}")
        self._tell_beginning(all_have_stepped=True)
        return []

    def saw(self, seen: Observation) -> None:
        """What this host saw: the first end of a rank is the last moment to tell how all began, the last one that to tell how
        far they came. A process that is not known is of an earlier round: the kernel has let go of it only now."""
        match seen:
            case ProcessGone(pid=pid) if pid in self.local_ranks:
                self.ended[pid] = seen
                self._tell_beginning()
                if seen.stack:
                    local_rank = self.local_ranks[pid]
                    self.keep_stack(self.base_rank + local_rank, local_rank, seen.stack)
                if len(self.ended) == len(self.local_ranks):
                    self._tell_end()
            case ProcessDying(pid=pid) | ProcessErred(pid=pid) if pid in self.local_ranks:
                self.at_first_end = self.at_first_end or {pid: page.moments for pid, page in self._pages().items()}
                self._tell_beginning()  # where it is gone as well, that is told next

    def _pages(self) -> dict[int, Page]:
        """By pid, of those that live and have one."""
        children = {pid: self.host.children.get(pid) for pid in self.local_ranks}
        return {pid: child.page for pid, child in children.items() if child is not None and child.page is not None}

    def _moments(self) -> list[Moments]:
        """Of all ranks, however they have ended. Empty: the end of one is yet to be told."""
        if not self.local_ranks.keys() <= self.host.children.keys() | self.ended.keys():
            return []
        known = {pid: seen.moments for pid, seen in self.ended.items()}
        known |= {pid: page.moments for pid, page in self._pages().items()} | self.at_first_end
        return [moments for pid in self.local_ranks if (moments := known.get(pid)) is not None]

    def _tell_beginning(self, *, all_have_stepped: bool = False) -> None:
        found = self._moments()
        if self.due_at == NEVER or not found or (all_have_stepped and any(one.stepped_at is None for one in found)):
            return  # it has been told, or is to be told later
        self.due_at = NEVER
        if not any(one.booted_at for one in found):
            return  # no Python that we can reach

        def latest(moment: str) -> float | None:
            known = [max(0.0, at - self.since) for one in found if (at := getattr(one, moment)) is not None]
            return max(known, default=None)  # one that goes on in place has booted before its round began

        event = RanksBegun(
            booted_s=latest("booted_at"),
            joining_s=latest("joining_at"),
            joined_s=latest("joined_at"),
            restored_s=latest("restored_at"),
            restore_s=max(one.restore_s for one in found),
            stepped_s=latest("stepped_at"),
            first_step=min((one.first_step for one in found if one.first_step is not None), default=None),
            state_step=max((one.state_step for one in found if one.state_step is not None), default=None),
            state_from=tuple(one.state_from for one in found if one.state_from),
        )
        self.record(event)

    def _tell_end(self) -> None:
        known = [moments for gone in self.ended.values() if (moments := gone.moments) is not None]
        stepped = [moments.last_stepped_at - self.since for moments in known if moments.last_stepped_at is not None]
        saved = [moments.saved_at - self.since for moments in known if moments.saved_at is not None]
        if not stepped and not saved:
            return  # no rank has told
        told = [gone.step for gone in self.ended.values() if gone.step is not None and gone.step_told]
        event = RanksEnded(
            last_step=max(told, default=None), last_step_s=max(stepped, default=None), saved_s=max(saved, default=None)
        )
        self.record(event)
