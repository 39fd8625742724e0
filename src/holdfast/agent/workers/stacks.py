"""Where are the ranks of this node, now that one of the job's hangs? Carries out `LookAtWorkers` and `KeepStacks`.

Every rank is asked for its stacks and its collectives (`agent.workers.rank_stacks`), and torch's flight recorder for its
record. Nothing is waited for: `due` is called again and again, and says `Looked` once all have answered or their time is over.
py-spy shows silent ranks where it is installed; else there is what the kernel knows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from holdfast.agent.component import Component
from holdfast.agent.group.messages import LookAtWorkers, Looked
from holdfast.agent.workers import flight_recorder
from holdfast.agent.workers.monitor_driver import Monitoring
from holdfast.agent.workers.rank_stacks import COLLECTIVES_S, Rank
from holdfast.agent.workers.workers import Workers
from holdfast.core.job.events import StacksKept
from holdfast.core.machine import NEVER, Observation
from holdfast.runtime.private_files import make_folder, private

POLL_S = 0.001  # Between two looks at what the ranks have written: nothing tells when they are done.

PY_SPY_S = 0.5
"""For py-spy, which takes some 0.1 s where the machine has time. Only where it is installed, and only for silent ranks."""

RESERVE_S = 0.1  # Of the longest time that a look may take, for what comes after it.


def py_spy() -> str | None:
    """The program, if the extra `diagnosis` is installed here."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    return None


class Stacks(Component):
    """What is being found out, or was found out last."""

    def __init__(
        self,
        workers: Workers,
        folder: Callable[[int], str],
        *,
        spy: Callable[[], str | None] = py_spy,
        spy_s: float = PY_SPY_S,
        others_s: float = 0.0,
    ) -> None:
        """`folder`: of a round's stacks. `spy`, `spy_s`: where py-spy is, and how long it may take. `others_s`: how long other
        nodes, which are asked at the same moment, take to look at their ranks: those break when a rank here is killed."""
        self.workers, self.folder = workers, folder
        self.spy, self.spy_s, self.others_s = spy, spy_s, others_s
        self.path = ""  # Empty: no rank was looked at.
        self.ranks: list[Rank] = []
        self.due_at = NEVER  # When to look whether they have answered; NEVER: nothing is being found out.
        self.others_until = self.spies_until = self.records_until = self.collectives_until = NEVER
        self.records: flight_recorder.Records | None = None

    def begin(self, wanted: LookAtWorkers, monitoring: Monitoring | None) -> None:
        """Ask every rank that lives. `monitoring` knows what their logs say of their progress."""
        host = self.workers.host
        now = host.now()
        self.path = self.folder(wanted.round)
        living = {pid: local_rank for pid, local_rank in self.workers.local_ranks.items() if pid in host.children}
        logged = {one: monitoring.logged(one) if monitoring is not None else (None, None) for one in living.values()}
        self.ranks = [
            Rank(self.workers, wanted.base_rank + local_rank, local_rank, pid, logged[local_rank])
            for pid, local_rank in living.items()
        ]
        unable = self.workers.dump(living.values())
        for rank in self.ranks:
            rank.ask(unable.get(rank.local_rank, ""), now)
        self.others_until, self.spies_until, self.collectives_until = now + self.others_s, -NEVER, now + COLLECTIVES_S
        self.records = flight_recorder.Records(os.environ, [rank.rank for rank in self.ranks], now)
        self.records_until = now + wanted.within_s - RESERVE_S
        self.due_at = now + POLL_S

    def due(self) -> list[Observation]:
        """Whether they have answered, if it is time to look."""
        now = self.workers.host.now()
        if now < self.due_at:
            return []
        self.due_at = now + POLL_S
        for rank in self.ranks:
            rank.hear(late=now >= self.collectives_until)
        if self._is_awaited(now):
            return []
        self.due_at = NEVER
        return [Looked(positions=tuple(rank.position(now, self._file(rank)) for rank in self.ranks))]

    def _is_awaited(self, now: float) -> bool:
        """Whether an answer may still come. Every question is asked: asking is what brings the answers on."""
        below = [rank for rank in self.ranks if rank.hears_below(now)]
        silent = [rank for rank in self.ranks if rank.is_silent]
        awaited = [rank for rank in silent if not rank.unable and rank.may_answer(rank.pid, now)]
        if silent and not awaited and self.spies_until == -NEVER:
            self._spy(silent, now)
        spying = [rank for rank in self.ranks if not rank.has_spied(late=now >= self.spies_until)]
        speaking = [rank for rank in self.ranks if rank.asked_for is not None]
        return bool(awaited or below or spying or speaking) or self._is_recording(now) or now < self.others_until

    def _is_recording(self, now: float) -> bool:
        """Whether torch's flight recorder may still write a rank's record."""
        assert self.records is not None
        return not self.records.look(now) and now < self.records_until

    def _spy(self, silent: list[Rank], now: float) -> None:
        self.spies_until = now
        if (program := self.spy()) is not None:
            self.spies_until = now + self.spy_s
            for rank in silent:
                rank.spy_on(program)

    # --- evidence -------------------------------------------------------------------------------------------------------

    def kept(self, reason: str) -> StacksKept:
        shown, silent = ([rank.rank for rank in self.ranks if bool(rank.stacks) == has] for has in (True, False))
        return StacksKept(path=self.path, ranks=tuple(shown), silent=tuple(silent), reason=reason)

    def keeper(self, reason: str) -> Callable[[], None]:
        """Writes what was found, each rank into a file of its own. It raises OSError where that cannot be."""
        path, told = self.path, {self._file(rank): "\n".join(rank.told(reason, self._recorder(rank))) for rank in self.ranks}
        records = {os.path.join(path, f"record-rank-{rank.rank}"): rank.record for rank in self.ranks if rank.record}

        def keep() -> None:
            make_folder(path)
            for name, text in told.items():
                with open(name, "w", encoding="utf-8", errors="replace", opener=private) as file:
                    file.write(text)
            for name, record in records.items():
                with open(name, "wb", opener=private) as raw:
                    raw.write(record)

        return keep

    def _recorder(self, rank: Rank) -> str:
        """Where torch's flight recorder writes this rank's record. Empty: nowhere."""
        if self.records is None or (record := self.records.paths.get(rank.rank)) is None:
            return ""
        return record if rank.rank in self.records.written else f"{record} (was not written in time)"

    def _file(self, rank: Rank) -> str:
        return os.path.join(self.path, f"rank-{rank.rank}.txt")
