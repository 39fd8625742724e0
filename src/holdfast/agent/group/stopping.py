"""How are workers brought to their end, and how long may each step of it take? Loaded as soon as there are some to stop.

    asked (SIGTERM) ──the grace──▶ killed (SIGKILL) ──as long again──▶ given up (stuck in the kernel: nothing can end it)

A worker that has just asked for something is asked to stop a little later than the others. What comes after the last one's end
is for `agent.group.machine` to say.
"""

from __future__ import annotations

from holdfast.agent.group.messages import KillWorkers, SignalWorkers
from holdfast.core.job.events import StopSent
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.signals import name_of, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.worker_table import Crew

LAST_WORDS_S = 1.0
"""A worker that has just asked for something is asked to stop so much later than the others: most that ask end by themselves,
with a traceback that says more than their wish, and SIGTERM would cut it short."""


class Stopping:
    """One stop of one round's workers. `grace_s`: the seconds between the request and SIGKILL, as they are at that moment."""

    def __init__(self, workers: Crew, signum: int, *, grace_s: float, now: float) -> None:
        self.workers = workers
        workers.stop_signal = signum
        self.since = now
        self.kill_at = now + grace_s
        """NEVER: they have been killed."""
        self.abandon_at = NEVER
        # Not those that are dying already: a signal would only cut their exit handlers short.
        alive = tuple(i for i in workers.alive if workers[i].state != "dying" and not workers[i].struck)
        self.speaking = tuple(i for i in alive if signum == signal.SIGTERM and now < workers[i].asked_at + LAST_WORDS_S)
        """Workers that have just asked for something: they may end by themselves until then."""
        self.last_words_until = now + LAST_WORDS_S if self.speaking else NEVER
        self.first = tuple(i for i in alive if i not in self.speaking)

    def begin(self, reason: str, grace_s: float) -> list[Action]:
        """Ask all but those that are speaking."""
        return self._ask(self.first, reason, grace_s)

    def deadline(self) -> float:
        """When `late` has something to do."""
        return min(self.last_words_until, self.kill_at, self.abandon_at)

    def late(self, grace_s: float, now: float) -> list[Action]:
        """A deadline may have come. Whoever is given up counts as gone from then on."""
        if now >= self.kill_at:
            return self.kill(grace_s, now)
        if now >= self.last_words_until:
            self.last_words_until = NEVER
            left = tuple(i for i in self.speaking if self.workers[i].state == "running")
            return self._ask(left, f"it has had {LAST_WORDS_S:g} s to end by itself, after what it asked for", grace_s)
        return self._give_up() if now >= self.abandon_at else []

    def kill(self, grace_s: float, now: float) -> list[Action]:
        """No more grace. Nothing to do where they have been killed already."""
        if self.kill_at == NEVER:
            return []
        alive = self.workers.alive
        self.workers.killed.update(alive)
        self.last_words_until = self.kill_at = NEVER
        self.abandon_at = now + max(grace_s, 1.0)
        ranks = ", ".join(map(str, self.workers.ranks(alive)))
        text = f"rank {ranks} did not stop within {now - self.since:.1f} s; sent SIGKILL"
        return [KillWorkers(local_ranks=alive), Say(text=text, level="warning")]

    def hasten(self, until: float) -> None:
        """Others may start these ranks again after that moment: no grace goes beyond it."""
        if self.kill_at != NEVER:
            self.kill_at = min(self.kill_at, until)

    def _ask(self, local_ranks: tuple[int, ...], reason: str, grace_s: float) -> list[Action]:
        if not local_ranks:
            return []
        signum, ranks = self.workers.stop_signal, self.workers.ranks(local_ranks)
        sent = StopSent(signal=name_of(signum), grace_s=grace_s, reason=reason, ranks=ranks)
        return [SignalWorkers(local_ranks=local_ranks, signum=signum), Record(event=sent)]

    def _give_up(self) -> list[Action]:
        stuck = [self.workers[i] for i in self.workers.alive]
        for worker in stuck:
            worker.state = "gone"
        pids = ", ".join(str(worker.pid) for worker in stuck)
        stuck_in = "uninterruptible sleep in a driver or a mount?"
        return [Say(text=f"process {pids} does not die even of SIGKILL ({stuck_in}); going on without it", level="error")]
