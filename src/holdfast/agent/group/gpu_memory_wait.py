"""Is the GPUs' memory free for the next round's workers? A start waits for it, up to a limit.

    idle ──the last worker is gone──▶ looking ──all free · the limit · nobody can tell──▶ idle
                                       │    ▲
                             in use ───▼    │ a pause
                                      pausing

The look begins as the node joins the next round, so that the two overlap; a World looks beside the agent. Memory that
others hold is named and not waited for. What was still in use when a limit ran out is not waited for again.
"""

from __future__ import annotations

from holdfast.agent.group.messages import GpuMemory, LookAtMemory, MemorySeen, Sweep
from holdfast.core.job.events import GpuMemoryReclaimed
from holdfast.core.machine import NEVER, Action, Record, Say
from holdfast.core.value import Value, replace

ANSWER_S = 15.0
"""Seconds for one look. A node of eight GPUs without the persistence daemon takes some seconds to wake its driver."""

FIRST_PAUSE_S = 0.1
"""Before the second look; doubles up to the pause that was asked for. Memory is most often free at once, or soon."""

MOST_TROUBLES = 2  # So many looks that fail in a row are the last.


class MemoryWait(Value):
    """One node's wait. Each step returns the next value. Units: seconds, and MiB as `nvidia-smi` counts them."""

    timeout_s: float = 0.0  # 0: no start waits for memory.
    tolerance_mb: float = 512.0
    poll_s: float = 2.0
    pending: bool = False
    began_at: float = NEVER
    look_at: float = NEVER
    answer_by: float = NEVER
    looks: int = 0
    troubles: int = 0
    first: tuple[GpuMemory, ...] = ()
    last: tuple[GpuMemory, ...] = ()
    lasting: dict[int, float] = {}  # noqa: RUF012
    """GPU → what was in use on it when the time was over: its holder does not let go."""
    said: str = ""  # About other people's processes: the same again is silence.

    def begin(self, now: float) -> Waited:
        """The last workers are gone. Nothing to do where a look is under way, or none is wanted."""
        if self.pending or not self.timeout_s:
            return self, []
        return replace(self, pending=True, began_at=now, looks=0, troubles=0)._look(now)

    def end(self) -> MemoryWait:
        """No start waits for it any more."""
        return replace(self, pending=False, look_at=NEVER, answer_by=NEVER)

    def deadline(self) -> float:
        """When `late` has something to do."""
        return min(self.look_at, self.answer_by)

    def seen(self, seen: MemorySeen, now: float) -> Waited:
        """An answer. One that comes after its time is dropped."""
        if self.answer_by == NEVER:
            return self, []
        waiting = replace(self, answer_by=NEVER)
        if seen.trouble:
            waiting = replace(waiting, troubles=self.troubles + 1)
            return waiting._never_again(seen.trouble) if waiting.troubles >= MOST_TROUBLES else waiting._pause(now)
        if not seen.gpus:
            return replace(waiting, timeout_s=0.0).end(), []
        first = self.first if self.looks else seen.gpus
        waiting = replace(waiting, troubles=0, looks=self.looks + 1, first=first, last=seen.gpus)
        busy = [gpu for gpu in seen.gpus if _held(gpu) > self.tolerance_mb + self.lasting.get(gpu.index, 0.0)]
        if busy and now < self.began_at + self.timeout_s:
            return waiting._pause(now)
        return waiting._done(busy, now)

    def late(self, now: float) -> Waited:
        """A deadline has come."""
        if now < self.answer_by:
            return self._look(now)
        waiting, said = self._never_again(f"no answer within {min(ANSWER_S, self.timeout_s):g} s")
        return waiting, [*said, Sweep()]

    def _look(self, now: float) -> Waited:
        waiting = replace(self, look_at=NEVER, answer_by=now + min(ANSWER_S, self.timeout_s))
        return waiting, [LookAtMemory(above_mb=self.tolerance_mb)]

    def _pause(self, now: float) -> Waited:
        pause_s = min(self.poll_s, FIRST_PAUSE_S * 2 ** (self.looks + self.troubles - 1))
        return replace(self, look_at=min(now + pause_s, max(now, self.began_at + self.timeout_s))), []

    def _done(self, busy: list[GpuMemory], now: float) -> Waited:
        waited_s = now - self.began_at
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
        others = _others(self.last)
        actions: list[Action] = [Record(event=event)]
        if others and others != self.said:
            actions.append(Say(text=others, level="warning"))
        if busy:
            which = ", ".join(str(gpu.index) for gpu in busy)
            late = f"GPU {which} did not free its memory within {self.timeout_s:g} s; starting anyway. {text}"
            actions.append(Say(text=late, level="error"))
        else:
            actions.append(Say(text=text))
        lasting = self.lasting | {gpu.index: _held(gpu) for gpu in busy}
        return replace(self, lasting=lasting, said=others).end(), actions

    def _never_again(self, why: str) -> Waited:
        """The driver does not answer, and asking again would cost every restart as much."""
        text = f"restarts do not wait for the GPUs' memory: nvidia-smi: {why}"
        return replace(self, timeout_s=0.0).end(), [Say(text=text, level="warning")]


Waited = tuple[MemoryWait, list[Action]]


def _held(gpu: GpuMemory) -> float:
    """What is in use but for others' processes; of one that does not say how much it has, all may be."""
    theirs = [user.mb for user in gpu.others]
    return 0.0 if None in theirs else gpu.used_mb - sum(mb or 0.0 for mb in theirs)


def _others(gpus: tuple[GpuMemory, ...]) -> str:
    shown = [
        f"GPU {gpu.index}: {'' if user.mb is None else f'{user.mb:g} MiB of '}process {user.pid} ({user.name})"
        for gpu in gpus
        for user in gpu.others
    ]
    return f"GPU memory is held by other processes, not waited for: {', '.join(shown)}" if shown else ""
