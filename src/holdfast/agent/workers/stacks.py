"""Where are the ranks of this node, now that one of the job's hangs? Carries out `LookAtWorkers` and `KeepStacks`.

Every rank is asked for its Python stacks (a signal to faulthandler, which needs no GIL), then whatever it has forked for theirs
(the workers of a data loader); and torch's flight recorder for its record where there is one. A rank that was stopped is let go
on, so that it can answer. Nobody is waited for: `due` is called again and again, and says `Looked` once all have answered or
their time is over. For ranks that have not answered by then py-spy is asked, where it is installed, in a child with a deadline;
else there is what the kernel knows (`runtime.process.kernel_view`). Decides nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from holdfast.agent.group.messages import LookAtWorkers, Looked
from holdfast.agent.workers import flight_recorder
from holdfast.agent.workers.workers import Workers
from holdfast.core.job.failure import ASLEEP, Position, Reached
from holdfast.core.machine import NEVER, Observation
from holdfast.core.page.signs import Signs
from holdfast.core.page.stack_text import is_whole, main_thread, waits, where
from holdfast.core.signals import signal
from holdfast.runtime.process.kernel_view import kernel_view
from holdfast.runtime.process.process import descendants, kill_group, state
from holdfast.runtime.shm.pages import Page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

    from holdfast.agent.workers.monitor_driver import Monitoring

POLL_S = 0.001
"""Between two looks at what the ranks have written: none of them would tell us that it is done."""

STACKS_S = 0.025
"""How long the ranks may take to dump their stacks. All threads of a rank take faulthandler a millisecond, once the kernel
lets it run; and a rank that hangs is to be killed within 50 ms after its limit."""

BUSY_S = 0.25
"""The same for one that has heard the request and waits for a processor: on a host with too few of them it will answer, and the
agent is late itself."""

COLLECTIVES_S = 0.5
"""For a rank's own record of its collectives, where it has one: 0.02 s do for 2000 of them, 0.2 s where processors are busy.
All of it is spent on a rank whose script holds the GIL."""

PY_SPY_S = 0.5
"""For py-spy, which some 0.1 s do where the machine has time. Only where it is installed, and only for ranks that are
silent."""

MOST_BYTES = 4 << 20
"""Of what py-spy writes: 100 bytes for each frame."""

RESERVE_S = 0.1
"""Of the longest time that a look may take, for what comes after it."""


def py_spy() -> str | None:
    """The program, if the extra `diagnosis` is installed here."""
    for folder in (os.path.dirname(sys.executable), *os.environ.get("PATH", "").split(os.pathsep)):
        path = os.path.join(folder, "py-spy")
        if os.access(path, os.X_OK):
            return path
    return None


class Rank:
    """One rank, while it is being looked at."""

    def __init__(
        self, rank: int, local_rank: int, pid: int, signs: Signs | None, logged: tuple[int | None, float | None]
    ) -> None:
        self.rank, self.local_rank, self.pid, self.signs, self.logged = rank, local_rank, pid, signs or Signs(), logged
        self.state = state(pid) or ""
        self.stacks = ""
        self.below: dict[int, str] = {}
        """Stacks of the processes that it has forked, by their pids, the one that writes now last."""
        self.unasked: Iterator[int] | None = None
        """Those of them that have yet to write theirs, and can. None: it is not their turn."""
        self.ask_until = NEVER
        """They are asked until then: there may be hundreds."""
        self.spy: tuple[Popen[bytes], int] | None = None
        """py-spy's process, and the file that it writes to. None: it was not asked, or has answered."""
        self.has_been_spied_on = False
        self.unable = ""
        """Why it cannot show its stacks. Empty: it was asked."""
        self.asked_for: Page | None = None
        """Where it is going to say how far its collectives have come. None: it has, or cannot."""
        self.reached: tuple[Reached, ...] = ()
        self.record = b""
        """torch's record of its collectives."""
        self.evidence = ""
        """What the kernel says of it; empty: it was not asked."""

    @property
    def is_silent(self) -> bool:
        """It has not shown its stacks, or not all of them."""
        return not (self.has_been_spied_on or is_whole(self.stacks))


class Stacks:
    """What is being found out, or was found out last."""

    def __init__(
        self,
        workers: Workers,
        folder: Callable[[int], str],
        *,
        spy: Callable[[], str | None] = py_spy,
        spy_s: float = PY_SPY_S,
    ) -> None:
        self.workers = workers
        self.folder = folder
        """Of a round's stacks."""
        self.spy, self.spy_s = spy, spy_s
        """Where py-spy is, and how long it may take."""
        self.path = ""
        self.ranks: list[Rank] = []
        self.look_at = NEVER
        self.stacks_until = self.busy_until = self.spies_until = self.records_until = self.collectives_until = NEVER
        self.records: flight_recorder.Records | None = None

    def begin(self, wanted: LookAtWorkers, monitoring: Monitoring | None) -> None:
        """Ask every rank that lives. `monitoring` knows what their logs say of their progress."""
        host = self.workers.host
        now = host.now()
        self.path = self.folder(wanted.round)
        self.ranks = [
            Rank(
                wanted.base_rank + local_rank,
                local_rank,
                pid,
                child.page.signs() if child.page else None,
                monitoring.logged(local_rank) if monitoring is not None else (None, None),
            )
            for pid, local_rank in self.workers.local_ranks.items()
            if (child := host.children.get(pid)) is not None
        ]
        unable = self.workers.dump([rank.local_rank for rank in self.ranks])
        for rank in self.ranks:
            rank.unable = unable.get(rank.local_rank, "")
            if rank.state == "T":
                kill_group(rank.pid, signal.SIGCONT)
            page = host.children[rank.pid].page
            rank.asked_for = page if page is not None and page.ask_for_collectives() else None
        self.stacks_until, self.busy_until, self.spies_until = now + STACKS_S, now + BUSY_S, -NEVER
        self.collectives_until = now + COLLECTIVES_S
        self.records = flight_recorder.Records(os.environ, [rank.rank for rank in self.ranks], now)
        self.records_until = now + wanted.within_s - RESERVE_S
        self.look_at = now + POLL_S

    def deadline(self) -> float:
        """When to look whether they have answered; NEVER: nothing is being found out."""
        return self.look_at

    def due(self) -> list[Observation]:
        """Whether they have answered, if it is time to look."""
        now = self.workers.host.now()
        if now < self.look_at:
            return []
        self.look_at = now + POLL_S
        for rank in self.ranks:
            if rank.is_silent:
                rank.stacks = self.workers.dumped(rank.local_rank) or rank.stacks
            self._hear_collectives(rank, late=now >= self.collectives_until)
        below = [rank for rank in self.ranks if self._hears_below(rank, now)]
        silent = [rank for rank in self.ranks if rank.is_silent]
        awaited = [rank for rank in silent if not rank.unable and self._may_answer(rank.pid, now)]
        if silent and not awaited and self.spies_until == -NEVER:
            self._spy(silent, now)
        spying = [rank for rank in self.ranks if not self._has_spied(rank, late=now >= self.spies_until)]
        assert self.records is not None
        recorded = self.records.look(now) or now >= self.records_until
        if awaited or below or spying or not recorded or any(rank.asked_for is not None for rank in self.ranks):
            return []
        self.look_at = NEVER
        return [Looked(positions=tuple(self._position(rank, now) for rank in self.ranks))]

    def _may_answer(self, pid: int, now: float) -> bool:
        return now < self.stacks_until or (now < self.busy_until and state(pid) == "R")

    def _hears_below(self, rank: Rank, now: float) -> bool:
        """Whether one of the processes that the rank has forked is still to show its stacks. One is asked after the other, once
        the rank has shown its own: they all write to the same place."""
        if rank.has_been_spied_on or rank.is_silent:
            return False
        if rank.unasked is None:
            host, pid = self.workers.host, rank.pid
            rank.unasked = (below for below in descendants(pid) if not host.ask_for_stacks(pid, below))
            rank.ask_until = now + STACKS_S
        elif rank.below:
            last = next(reversed(rank.below))
            rank.below[last] = self.workers.dumped(rank.local_rank) or rank.below[last]
            if not is_whole(rank.below[last]):
                return self._may_answer(last, now)
        below = next(rank.unasked, None) if now < rank.ask_until else None
        if below is not None:
            rank.below[below] = ""
        return below is not None

    def keeper(self, reason: str) -> Callable[[], None]:
        """What writes what was found, each rank into a file of its own. It raises OSError where that cannot be."""
        path, told = self.path, {self._file(rank): "\n".join(self._told(rank, reason)) for rank in self.ranks}
        records = {os.path.join(path, f"record-rank-{rank.rank}"): rank.record for rank in self.ranks if rank.record}

        def keep() -> None:
            os.makedirs(path, 0o700, exist_ok=True)
            for name, text in told.items():
                with open(name, "w", encoding="utf-8", errors="replace") as file:
                    file.write(text)
            for name, record in records.items():
                with open(name, "wb") as raw:
                    raw.write(record)

        return keep

    def _hear_collectives(self, rank: Rank, *, late: bool) -> None:
        if rank.asked_for is None:
            return
        said = rank.asked_for.collectives() if rank.pid in self.workers.host.children else (b"", b"")
        if said is not None and said[0]:
            from holdfast.diagnosis.hangs.recorder_file import reached  # most jobs never need it

            rank.reached, rank.record = reached(said[0]), said[1]
        if said is not None or late:
            rank.asked_for = None

    # --- one rank -------------------------------------------------------------------------------------------------------

    def _position(self, rank: Rank, now: float) -> Position:
        signs, frames = rank.signs, main_thread(rank.stacks)
        rank.evidence = kernel_view(rank.pid) if rank.is_silent or rank.unable or rank.state in ASLEEP else ""
        opened = sorted((one.open_since, one.name) for one in signs.sections if one.open_since is not None)
        return Position(
            rank=rank.rank,
            local_rank=rank.local_rank,
            pid=rank.pid,
            step=rank.logged[0] if signs.step is None else signs.step,
            sections=sum(one.count for one in signs.sections),
            section=opened[-1][1] if opened else "",
            quiet_s=_quiet_s(rank, now),
            state=rank.state,
            where=where(frames),
            waits=waits(frames),
            reached=rank.reached,
            stacks_path=self._file(rank),
        )

    def _told(self, rank: Rank, reason: str) -> Iterator[str]:
        yield reason
        yield f"rank {rank.rank} (local {rank.local_rank}), pid {rank.pid}, was in state {rank.state or '?'}"
        if self.records is not None and (record := self.records.paths.get(rank.rank)) is not None:
            late = "" if rank.rank in self.records.written else " (was not written in time)"
            yield f"torch's flight recorder: {record}{late}"
        for last in rank.reached:
            state = "it waits there" if last.waits else "which has ended"
            yield f"its last collective in group {last.group}: {last.what}, number {last.seq}; {state}"
        if rank.unable:
            yield f"it cannot show its stacks itself: {rank.unable}"
        for pid, text in rank.below.items():  # the rank's own come last: so who reads the file knows its main thread
            yield f"\nprocess {pid}, which it has forked:\n\n{text or 'it has not shown its stacks'}"
        if rank.below:
            yield "\nthe rank itself:"
        yield f"\n{rank.stacks}" if rank.stacks else "\nit has not shown its stacks"
        if rank.evidence:
            yield f"\nwhat the kernel says of it:\n{rank.evidence}\n"

    def _file(self, rank: Rank) -> str:
        return os.path.join(self.path, f"rank-{rank.rank}.txt")

    # --- py-spy ---------------------------------------------------------------------------------------------------------

    def _spy(self, silent: list[Rank], now: float) -> None:
        self.spies_until = now
        if (program := self.spy()) is None:
            return
        import subprocess

        self.spies_until = now + self.spy_s
        for rank in silent:
            # --nonblocking: it does not stop the rank, which may not be able to go on.
            argv = [program, "dump", "--pid", str(rank.pid), "--nonblocking", "--full-filenames"]
            file = os.memfd_create("py-spy", os.MFD_CLOEXEC)
            try:
                rank.spy = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL), file
            except OSError:  # its interpreter is gone, or there is no room for a process: what the kernel says must do
                os.close(file)

    def _has_spied(self, rank: Rank, *, late: bool) -> bool:
        """Whether no more is to come from py-spy. `late`: its time is over; so it is where the rank has answered meanwhile."""
        if rank.spy is None:
            return True
        spy, file = rank.spy
        if spy.poll() is None:
            if rank.is_silent and not late:
                return False
            spy.kill()  # who sweeps behind the round buries it: to wait for one that the kernel holds could take for ever
        text, rank.spy = os.pread(file, MOST_BYTES, 0).decode("utf-8", "replace"), None
        os.close(file)
        if rank.is_silent and main_thread(text):
            rank.stacks, rank.has_been_spied_on = text, True
        return True


def _quiet_s(rank: Rank, now: float) -> float | None:
    """Since its last sign of life of whatever kind."""
    signs = rank.signs
    moments = [signs.beat_at, signs.step_at, signs.out_since, rank.logged[1], *(one.open_since for one in signs.sections)]
    return min((now - at for at in moments if at is not None), default=None)
