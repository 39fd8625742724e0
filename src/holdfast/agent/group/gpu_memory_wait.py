"""Is the GPUs' memory free for the next round's workers? A part of `agent.group.machine`: a start waits for it, but not in
vain.

    idle ──the last worker is gone──▶ looking ──all free · the limit · nobody can tell──▶ idle
                                       │    ▲
                             in use ───▼    │ a pause
                                      pausing

The look begins as the node joins the next round, so that the two overlap; a World has it done beside the agent. Memory that
others hold is named and not waited for. What was still in use when a limit ran out is not waited for again.
"""

from __future__ import annotations

from holdfast.agent.group.messages import LookAtMemory, Sweep
from holdfast.core.job.events import GpuMemoryReclaimed
from holdfast.core.machine import NEVER, Action, Record, Say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.group.messages import GpuMemory, MemorySeen

ANSWER_S = 15.0
"""Seconds for one look. A node of eight GPUs without the persistence daemon takes some seconds to wake its driver."""

FIRST_PAUSE_S = 0.1
"""Before the second look; doubles up to the pause that was asked for. Memory is most often free at once, or soon."""

MOST_TROUBLES = 2
"""So many looks that failed, one after the other, are the last."""


class Reclaim:
    """The machine's part. Units: seconds, and MiB as `nvidia-smi` counts them."""

    def __init__(self, timeout_s: float = 0.0, tolerance_mb: float = 512.0, poll_s: float = 2.0) -> None:
        """`timeout_s` 0: no start waits for memory."""
        self.timeout_s, self.tolerance_mb, self.poll_s = timeout_s, tolerance_mb, poll_s
        self.pending = False
        self.began_at = self.look_at = self.answer_by = NEVER
        self.looks = self.troubles = 0
        self.first: tuple[GpuMemory, ...] = ()
        self.last: tuple[GpuMemory, ...] = ()
        self.lasting: dict[int, float] = {}
        """GPU → what was in use on it when the time was over: whoever holds it does not let go."""
        self.said = ""
        """About other people's processes: the same again is silence."""

    def begin(self, now: float) -> list[Action]:
        """The last workers are gone. Nothing to do where a look is under way, or none is wanted."""
        if self.pending or not self.timeout_s:
            return []
        self.pending, self.began_at, self.looks, self.troubles = True, now, 0, 0
        return self._look(now)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self.pending, self.look_at, self.answer_by = False, NEVER, NEVER

    def deadline(self) -> float:
        """When `late` has something to do."""
        return min(self.look_at, self.answer_by)

    def seen(self, seen: MemorySeen, now: float) -> list[Action]:
        """An answer. One that comes after its time is nobody's."""
        if self.answer_by == NEVER:
            return []
        self.answer_by = NEVER
        if seen.trouble:
            self.troubles += 1
            return self._never_again(seen.trouble) if self.troubles >= MOST_TROUBLES else self._pause(now)
        if not seen.gpus:
            self.timeout_s = 0.0
            self.end()
            return []
        self.troubles, self.looks, self.last = 0, self.looks + 1, seen.gpus
        self.first = self.first if self.looks > 1 else seen.gpus
        busy = [gpu for gpu in seen.gpus if self._held(gpu) > self.tolerance_mb + self.lasting.get(gpu.index, 0.0)]
        if busy and now < self.began_at + self.timeout_s:
            return self._pause(now)
        return self._done(busy, now)

    def late(self, now: float) -> list[Action]:
        """A deadline has come."""
        if now >= self.answer_by:
            return [*self._never_again(f"no answer within {min(ANSWER_S, self.timeout_s):g} s"), Sweep()]
        return self._look(now)

    def _look(self, now: float) -> list[Action]:
        self.look_at, self.answer_by = NEVER, now + min(ANSWER_S, self.timeout_s)
        return [LookAtMemory(above_mb=self.tolerance_mb)]

    def _pause(self, now: float) -> list[Action]:
        pause_s = min(self.poll_s, FIRST_PAUSE_S * 2 ** (self.looks + self.troubles - 1))
        self.look_at = min(now + pause_s, max(now, self.began_at + self.timeout_s))
        return []

    def _held(self, gpu: GpuMemory) -> float:
        """What is in use but for others' processes; of one that does not say how much it has, all may be."""
        theirs = [user.mb for user in gpu.others]
        return 0.0 if None in theirs else gpu.used_mb - sum(mb or 0.0 for mb in theirs)

    def _done(self, busy: list[GpuMemory], now: float) -> list[Action]:
        waited_s = now - self.began_at
        self.end()
        self.lasting |= {gpu.index: self._held(gpu) for gpu in busy}
        before = {gpu.index: gpu.used_mb for gpu in self.first}
        event = GpuMemoryReclaimed(
            waited_s=waited_s,
            looks=self.looks,
            gpus=tuple(gpu.index for gpu in self.last),
            first_mb=tuple(before.get(gpu.index, 0.0) for gpu in self.last),
            last_mb=tuple(gpu.used_mb for gpu in self.last),
            free=not busy,
        )
        each = ", ".join(f"GPU {gpu.index}: {before.get(gpu.index, 0.0):g} → {gpu.used_mb:g} MiB" for gpu in self.last)
        text = f"GPU memory after {waited_s:.1f} s and {self.looks} looks: {each}"
        actions: list[Action] = [Record(event=event), *self._name_others()]
        if not busy:
            return [*actions, Say(text=text)]
        which = ", ".join(str(gpu.index) for gpu in busy)
        late = f"GPU {which} has not given its memory back within {self.timeout_s:g} s; starting all the same. {text}"
        return [*actions, Say(text=late, level="error")]

    def _name_others(self) -> list[Action]:
        shown = [
            f"GPU {gpu.index}: {'' if user.mb is None else f'{user.mb:g} MiB of '}process {user.pid} ({user.name})"
            for gpu in self.last
            for user in gpu.others
        ]
        text = f"GPU memory is held by processes that are not ours, and not waited for: {', '.join(shown)}" if shown else ""
        if text == self.said:
            return []
        self.said = text
        return [Say(text=text, level="warning")] if text else []

    def _never_again(self, why: str) -> list[Action]:
        """Nobody can tell, and asking again would cost every restart as much."""
        self.timeout_s = 0.0
        self.end()
        return [Say(text=f"restarts do not wait for the GPUs' memory: nvidia-smi: {why}", level="warning")]
