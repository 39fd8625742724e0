"""Where is one rank of this node, and where are the processes that it has forked?

A signal to faulthandler, which needs no GIL, makes each of them write its Python stacks, one after the other, since they write
to the same place. A rank that was stopped is continued, so that it can answer. py-spy looks from outside, with a deadline.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from holdfast.agent.workers.workers import Workers
from holdfast.core.job.failure import ASLEEP, Position, Reached
from holdfast.core.machine import NEVER
from holdfast.core.page.signs import MOST, Signs
from holdfast.core.page.stack_text import is_whole, main_thread, waits, where
from holdfast.core.signals import signal
from holdfast.runtime.process.kernel_view import kernel_view
from holdfast.runtime.process.process import descendants, kill_group, state
from holdfast.runtime.shm.pages import Page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

STACKS_S = 0.025
"""How long a rank may take to dump its stacks. faulthandler takes a millisecond for all threads of a rank, once the kernel lets
it run; and a rank that hangs is to be killed within 50 ms after its limit."""

BUSY_S = 0.25
"""The same for a rank that has heard the request and waits for a processor: on a host with too few of them it answers late, and
so does the agent."""

COLLECTIVES_S = 0.5
"""For a rank's own record of its collectives: 0.02 s is enough for 2,000 of them, 0.2 s where processors are busy. A rank whose
script holds the GIL takes all of it."""

MOST_BYTES = 4 << 20  # Of what py-spy writes: 100 bytes for each frame.


STOPPED, RUNNABLE = "T", "R"  # Letters of /proc's states.


class Rank:
    """One rank, while it is being looked at."""

    def __init__(self, workers: Workers, rank: int, local_rank: int, pid: int, logged: tuple[int | None, float | None]) -> None:
        """`logged`: the last step in its log, and when its last line of progress was read."""
        self.workers, self.rank, self.local_rank, self.pid, self.logged = workers, rank, local_rank, pid, logged
        page = workers.host.children[pid].page
        self.signs = page.signs() or Signs() if page is not None else Signs()
        self.state = state(pid) or ""
        self.stacks = ""
        self.until = self.busy_until = NEVER  # How long it may take to show its stacks; and where it waits for a processor.
        self.below: dict[int, str] = {}
        """Stacks of the processes that it has forked, by their pids, the one that writes now last."""
        self.unasked: Iterator[int] | None = None
        """Those of them that have yet to write theirs, and can. None: it is not their turn."""
        self.ask_until = NEVER  # They are asked until then: there may be hundreds.
        self.spy: tuple[Popen[bytes], int] | None = None
        """py-spy's process, and the file that it writes to. None: it was not asked, or has answered."""
        self.has_been_spied_on = False
        self.unable = ""  # Why it cannot show its stacks. Empty: it was asked.
        self.asked_for: Page | None = None
        """Where it is going to say how far its collectives have come. None: it has, or cannot."""
        self.reached: tuple[Reached, ...] = ()
        self.record = b""  # torch's record of its collectives.
        self.evidence = ""  # What the kernel says of it; empty: it was not asked.

    @property
    def is_silent(self) -> bool:
        """It has not shown its stacks, or not all of them."""
        return not (self.has_been_spied_on or is_whole(self.stacks))

    # --- asking ---------------------------------------------------------------------------------------------------------

    def ask(self, unable: str, now: float) -> None:
        """It was asked for its stacks, unless it is `unable`: let it go on if it was stopped, and ask for its collectives."""
        self.unable, self.until, self.busy_until = unable, now + STACKS_S, now + BUSY_S
        if self.state == STOPPED:
            kill_group(self.pid, signal.SIGCONT)
        page = self.workers.host.children[self.pid].page
        self.asked_for = page if page is not None and page.ask_for_collectives() else None

    def may_answer(self, pid: int, now: float) -> bool:
        """Whether it, or a process that it has forked, still has time to."""
        return now < self.until or (now < self.busy_until and state(pid) == RUNNABLE)

    def hear(self, *, late: bool) -> None:
        """Take what it has written by now. `late`: its collectives are waited for no more."""
        if self.is_silent:
            self.stacks = self.workers.dumped(self.local_rank) or self.stacks
        if self.asked_for is not None:
            said = self.asked_for.collectives() if self.pid in self.workers.host.children else (b"", b"")
            if said is not None and said[0]:
                self.reached, self.record = reached(said[0]), said[1]
            if said is not None or late:
                self.asked_for = None

    def hears_below(self, now: float) -> bool:
        """Whether a process that it has forked is still to show its stacks. They are asked once it has shown its own."""
        if self.has_been_spied_on or self.is_silent:
            return False
        if self.unasked is None:
            host, pid = self.workers.host, self.pid
            self.unasked = (below for below in descendants(pid) if not host.ask_for_stacks(pid, below))
            self.ask_until = now + STACKS_S
        elif self.below:
            last = next(reversed(self.below))
            self.below[last] = self.workers.dumped(self.local_rank) or self.below[last]
            if not is_whole(self.below[last]):
                return self.may_answer(last, now)
        below = next(self.unasked, None) if now < self.ask_until else None
        if below is not None:
            self.below[below] = ""
        return below is not None

    def spy_on(self, program: str) -> None:
        import subprocess  # heavy, and only a silent rank needs it

        # --nonblocking: it does not stop the rank, which may not be able to go on.
        argv = [program, "dump", "--pid", str(self.pid), "--nonblocking", "--full-filenames"]
        file = os.memfd_create("py-spy", os.MFD_CLOEXEC)
        try:
            spy = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
        except OSError:  # its interpreter is gone, or there is no room for a process: what the kernel says must do
            os.close(file)
        else:
            self.spy = spy, file

    def has_spied(self, *, late: bool) -> bool:
        """Whether no more comes from py-spy. `late`: its time is over; so it is where the rank has answered meanwhile."""
        if self.spy is None:
            return True
        spy, file = self.spy
        if spy.poll() is None:
            if self.is_silent and not late:
                return False
            spy.kill()  # the sweep behind the round buries it: waiting for one that the kernel holds could take for ever
        text, self.spy = os.pread(file, MOST_BYTES, 0).decode("utf-8", "replace"), None
        os.close(file)
        if self.is_silent and main_thread(text):
            self.stacks, self.has_been_spied_on = text, True
        return True

    # --- what was found -------------------------------------------------------------------------------------------------

    def position(self, now: float, stacks_path: str) -> Position:
        signs, frames = self.signs, main_thread(self.stacks)
        self.evidence = kernel_view(self.pid) if self.is_silent or self.unable or self.state in ASLEEP else ""
        opened = sorted((one.open_since, one.name) for one in signs.sections if one.open_since is not None)
        return Position(
            rank=self.rank,
            local_rank=self.local_rank,
            pid=self.pid,
            step=self.logged[0] if signs.step is None else signs.step,
            sections=min(sum(one.count for one in signs.sections), MOST),
            section=opened[-1][1] if opened else "",
            quiet_s=self._quiet_s(now),
            state=self.state,
            where=where(frames),
            waits=waits(frames),
            reached=self.reached,
            injected=self.workers.injected.get(self.pid, ""),
            stacks_path=stacks_path,
        )

    def _quiet_s(self, now: float) -> float | None:
        """Seconds since its last sign of life of any kind."""
        signs = self.signs
        opened = (one.open_since for one in signs.sections)
        moments = [signs.beat_at, signs.step_at, signs.out_since, self.logged[1], *opened]
        return min((now - at for at in moments if at is not None), default=None)

    def told(self, reason: str, recorder: str) -> Iterator[str]:
        """The lines of its file. `recorder`: where torch's flight recorder writes; empty: nowhere."""
        yield reason
        yield f"rank {self.rank} (local {self.local_rank}), pid {self.pid}, was in state {self.state or '?'}"
        if recorder:
            yield f"torch's flight recorder: {recorder}"
        for last in self.reached:
            state = "it waits there" if last.waits else "which has ended"
            yield f"its last collective in group {last.group}: {last.what}, number {last.seq}; {state}"
        if self.unable:
            yield f"it cannot show its stacks itself: {self.unable}"
        for pid, text in self.below.items():  # the rank's own come last: so the file's reader knows its main thread
            yield f"\nprocess {pid}, which it has forked:\n\n{text or 'its stacks are not available'}"
        if self.below:
            yield "\nthe rank itself:"
        yield f"\n{self.stacks}" if self.stacks else "\nits stacks are not available"
        if self.evidence:
            yield f"\nwhat the kernel shows:\n{self.evidence}\n"


MOST_GROUPS, MOST_TEXT, MOST_SEQ = 64, 200, 2**53  # That are read: groups, characters of a text, a number.


def reached(said: bytes) -> tuple[Reached, ...]:
    """A rank's last collective in each group, by what it `said` (`client.collectives`): it may have written anything there.
    Nothing, where that makes no sense."""
    try:
        found = json.loads(said or b"[]")[:MOST_GROUPS]
        return tuple(
            Reached(group=str(group)[:MOST_TEXT], seq=min(int(seq), MOST_SEQ), what=str(what)[:MOST_TEXT], waits=bool(waits))
            for group, seq, what, waits in found
        )
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
        return ()
